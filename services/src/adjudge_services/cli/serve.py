"""`adjudge serve`: api and judge in one process."""

import ipaddress
import logging
from typing import Annotated

import typer
import uvicorn

from adjudge_services.cli.output import err, give_up
from adjudge_services.settings import Settings
from adjudge_services.wiring import StartError, build_app


def serve(
    host: Annotated[str | None, typer.Option(help="Address to listen on; loopback only.")] = None,
    port: Annotated[int | None, typer.Option(help="Port to listen on; 0 takes a free one.")] = None,
    engine: Annotated[str | None, typer.Option(help="Engine URL, for example llamacpp://qwen2.5-coder-0.5b.")] = None,
) -> None:
    """Serve the API, with its judge, until stopped. Settings come from ADJUDGE_… variables."""
    given = {"host": host, "port": port, "engine_url": engine}
    settings = Settings().model_copy(update={name: value for name, value in given.items() if value is not None})
    if not _is_loopback(settings.host):
        give_up(
            f"refusing to listen on {settings.host}: there are no API keys yet, so anybody there could use the judge. "
            "Listen on 127.0.0.1 and put a proxy that authenticates in front"
        )
    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(name)s: %(message)s")
    for chatty in ("httpx2", "alembic"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    try:
        app = build_app(settings)
    except (StartError, ValueError) as error:
        give_up(str(error))
    err.print(f"Adjudge with {settings.engine_url} on http://{settings.host}:{settings.port} (docs at /docs)")
    uvicorn.run(app, host=settings.host, port=settings.port, log_level="info", access_log=False)


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
