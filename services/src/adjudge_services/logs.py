"""Logs of a process: where they go, what they look like, and which libraries are kept quiet. Set up once, at its start.

What a line holds, and what is kept out of it, is `judge_server.telemetry`'s to say.
"""

import logging
import sys

from adjudge_services.cli.output import err
from adjudge_services.settings import Settings
from judge_server.telemetry.logs import JsonFormatter, TextFormatter

_NOISY_LOGGERS = ("httpx2", "alembic", "celery.worker.strategy", "celery.app.trace", "opentelemetry")

log = logging.getLogger("adjudge")


def configure_logging(settings: Settings) -> None:
    """Have everything that is logged written to standard error, as the settings say."""
    form = JsonFormatter if settings.log_format == "json" else TextFormatter
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(form(texts=settings.log_texts))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.captureWarnings(settings.log_format == "json")
    for name in _NOISY_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)


def log_startup(settings: Settings, what: str) -> None:
    """Say that the process works now, and where: a plain line for people, one like all others in JSON."""
    if settings.log_format == "json":
        log.info("%s", what)
    else:
        err.print(what, soft_wrap=True)
