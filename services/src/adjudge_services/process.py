"""Process-wide setup: logs, traces, file descriptors and garbage collection.

What a log line contains is decided in `judge_server.observability`. Spans go to an OTLP collector if the standard
`OTEL_…` variables name one; the SDK and its exporter are the extra `adjudge[otel]`, and sampling, batching and
attributes are configured by the SDK's own variables.
"""

import gc
import logging
import os
import resource
import sys
from collections.abc import Callable, Mapping

from opentelemetry import trace

from adjudge_services.cli.output import err
from adjudge_services.settings import Settings, misspelt_variables
from judge_server.observability.logs import JsonFormatter, TextFormatter
from trainer_client import __version__

_YOUNG, _MIDDLE, _OLD = 5_000, 2, 4_000
"""Thresholds of the garbage collector's three generations.

With Python's defaults (700, 10, 10) every request triggers several collections, and while 80,000 calls wait in the
queue a collection of the oldest generation stops the process for 0.4 s, so that deadlines pass. Judging creates no
reference cycles and its objects are freed without the collector, so it need run only rarely.

A collection stops every thread. One of the middle generation looks at 20,000 objects at most, which takes some
milliseconds; at 240,000, it took up to 0.14 s beside a request of 49,152 calls. The oldest generation is collected
after 60 million new objects.
"""

_SWITCH_S = 0.0002
"""Seconds that a thread runs Python before it lets another one run that waits.

The ledger's threads and the one for long work compute beside the event loop. With Python's own 0.005, the event loop
waits that long again after each hash, socket and log line, at all of which it lets them run.
"""

_MAX_DESCRIPTORS = 65_536


def raise_descriptor_limit() -> int:
    """Raise the limit of open files to the hard limit, at most 65,536; return the limit in force."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    unlimited = resource.RLIM_INFINITY
    wanted = _MAX_DESCRIPTORS if hard == unlimited else min(hard, _MAX_DESCRIPTORS)
    if soft != unlimited and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
    return wanted if soft == unlimited else max(soft, wanted)


def tune_garbage_collector() -> None:
    """Exclude all objects loaded so far from garbage collection, and collect the rest rarely."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(_YOUNG, _MIDDLE, _OLD)


def switch_threads_often() -> None:
    """Have the event loop wait less for threads that compute."""
    sys.setswitchinterval(_SWITCH_S)


_NOISY_LOGGERS = ("httpx2", "alembic", "celery.worker.strategy", "celery.app.trace", "opentelemetry")

log = logging.getLogger("adjudge")


def configure_logging(settings: Settings) -> None:
    """Write all logs to standard error, in the format that the settings name."""
    formatter = JsonFormatter if settings.log_format == "json" else TextFormatter
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter(texts=settings.log_texts))
    logging.basicConfig(level=logging.INFO, handlers=[handler])
    logging.captureWarnings(settings.log_format == "json")
    for name in _NOISY_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    for warning in misspelt_variables(os.environ):
        log.warning("%s", warning)


def log_startup(settings: Settings, what: str) -> None:
    """Report that the process has started: a plain line, or a log record in JSON."""
    if settings.log_format == "json":
        log.info("%s", what)
    else:
        err.print(what, soft_wrap=True)


_ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
_PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
_SUPPORTED_PROTOCOL = "http/protobuf"


def start_tracing(process: str, environment: Mapping[str, str] = os.environ) -> Callable[[], None]:
    """Export spans if the environment asks for it; return a function that sends the last ones, for the end.

    Spans carry the service name `process` unless `OTEL_SERVICE_NAME` is set.

    Raises:
        ValueError: the environment asks for something unsupported; the message says what to change.
    """
    if not _tracing_requested(environment):
        return _no_op
    protocol = next((environment[name] for name in _PROTOCOLS if environment.get(name)), _SUPPORTED_PROTOCOL)
    if protocol != _SUPPORTED_PROTOCOL:
        raise ValueError(
            f"traces can be sent by {_SUPPORTED_PROTOCOL} only; unset {' and '.join(_PROTOCOLS)}, or set them to "
            f"{_SUPPORTED_PROTOCOL}"
        )
    try:
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError as error:
        raise ValueError(
            "OTEL_… variables ask for traces, but the exporter is not installed; install adjudge[otel], or unset "
            f"{', '.join(_ENDPOINTS)} and OTEL_TRACES_EXPORTER"
        ) from error
    service_name = {} if environment.get("OTEL_SERVICE_NAME") else {"service.name": process}
    provider = TracerProvider(resource=Resource.create({"service.version": __version__, **service_name}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
    trace.set_tracer_provider(provider)
    return provider.shutdown


def _tracing_requested(environment: Mapping[str, str]) -> bool:
    if environment.get("OTEL_SDK_DISABLED", "").strip().lower() == "true":
        return False
    exporter = environment.get("OTEL_TRACES_EXPORTER", "").strip().lower()
    if exporter not in ("", "otlp", "none"):
        raise ValueError(
            f"OTEL_TRACES_EXPORTER is {exporter!r}, which is not supported; set it to otlp, or to none for no traces"
        )
    return exporter == "otlp" or (exporter == "" and any(environment.get(name) for name in _ENDPOINTS))


def _no_op() -> None:
    """Stand in for the exporter's shutdown if nothing is exported."""
