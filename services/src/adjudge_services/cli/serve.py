"""`adjudge serve`: api and judge in one process."""

import asyncio
import ipaddress
import logging
import socket
from typing import Annotated

import typer
import uvicorn

from adjudge_services.cli.output import err, give_up
from adjudge_services.settings import Settings
from adjudge_services.wiring import StartError, build_app, prepare_store


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
    failures: list[str] = []

    def stop(reason: str) -> None:
        failures.append(reason)
        server.should_exit = True

    try:
        listener = _listener(settings.host, settings.port)
        asyncio.run(prepare_store(settings))
        app = build_app(settings, on_judge_failure=stop)
    except (StartError, ValueError) as error:
        give_up(str(error))
    port = listener.getsockname()[1]
    where = f"http://{settings.host}:{port}"
    err.print(f"Adjudge with {settings.engine_url} on {where} (docs at /docs)", soft_wrap=True)
    server = uvicorn.Server(uvicorn.Config(app, settings.host, port, log_level="info", access_log=False))
    server.run([listener])
    if failures:
        give_up(failures[0])


def _listener(host: str, port: int) -> socket.socket:
    """A socket on that address, taken before anything is loaded. Raises `StartError` where it is not to be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, protocol)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(address)
    except OSError as error:
        raise StartError(
            f"cannot listen on {host}:{port}: {error.strerror}. Choose another port with --port (0 takes a free one), "
            "or stop what listens there"
        ) from error
    listener.listen()
    return listener


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:
        return False
