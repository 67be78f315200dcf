"""Serving an application over HTTP: the address is taken before anything is loaded, and given up where that fails."""

import asyncio
import socket
from collections.abc import Callable

import uvicorn
from fastapi import FastAPI

from adjudge_services.access import has_usable_key, keys_required
from adjudge_services.cli.output import exit_with_error
from adjudge_services.guarded_http import uvicorn_options
from adjudge_services.judges import FenceFunction
from adjudge_services.logs import configure_logging, log_startup
from adjudge_services.process import raise_descriptor_limit, tune_garbage_collector
from adjudge_services.settings import Settings
from adjudge_services.tracing import start_tracing
from adjudge_services.wiring import StartError, build_app, prepare_store
from judge_server.judging.judge import Judge
from judge_server.web.hosts import is_loopback

FailureCallback = Callable[[str], None]


class _Server(uvicorn.Server):
    """Sends the last spans when all is done: after that uvicorn ends the process by the signal that stopped it."""

    def __init__(self, config: uvicorn.Config, send_last_spans: Callable[[], None]) -> None:
        super().__init__(config)
        self._send_last_spans = send_last_spans

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop serving, and close what was served with."""
        await super().shutdown(sockets)
        await asyncio.to_thread(self._send_last_spans)


def serve_api(
    settings: Settings, judges_of: Callable[[Settings, FenceFunction], dict[str, Judge]], what: str, *, process: str
) -> None:
    """Serve the API with these judges until stopped; `what` says in a word or two what it serves with."""

    try:
        asyncio.run(_prepare(settings))  # nothing listens where it must not, not even for a moment
    except (StartError, ValueError) as error:
        exit_with_error(str(error))

    def build(failed: FailureCallback) -> FastAPI:
        return build_app(settings, judges_of, on_judge_failure=failed)

    serve_app(settings, build, f"Adjudge with {what} on", " (docs at /docs)", process=process)


def serve_app(
    settings: Settings, build: Callable[[FailureCallback], FastAPI], what: str, more: str = "", *, process: str
) -> None:
    """Serve what `make` makes, until stopped, or until it says that it failed and why; traces name it `process`."""
    configure_logging(settings)
    failures: list[str] = []

    def stop(reason: str) -> None:
        failures.append(reason)
        server.should_exit = True

    try:
        send_last_spans = start_tracing(process)
        app = build(stop)  # no model is loaded yet
        bound_socket = bind_socket(settings.host, settings.port)
    except (StartError, ValueError) as error:
        exit_with_error(str(error))
    port = bound_socket.getsockname()[1]
    log_startup(settings, f"{what} http://{settings.host}:{port}{more}")
    options = uvicorn_options(settings.client_timeout_s, settings.drain_s, raise_descriptor_limit())
    config = uvicorn.Config(app, settings.host, port, log_config=None, access_log=False, **options)
    server = _Server(config, send_last_spans)
    tune_garbage_collector()
    server.run([bound_socket])
    if failures:
        exit_with_error(failures[0])


def bind_socket(host: str, port: int) -> socket.socket:
    """A socket on that address. Raises `StartError` where it is not to be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound_socket = socket.socket(family, kind, protocol)
        bound_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound_socket.bind(address)
    except OSError as error:
        raise StartError(
            f"cannot listen on {host}:{port}: {error.strerror}. Choose another port with --port (0 takes a free one), "
            "or stop what listens there"
        ) from error
    bound_socket.listen()
    return bound_socket


async def _prepare(settings: Settings) -> None:
    """Have the store ready, and a key in it where the process will need one; raises `StartError`."""
    await prepare_store(settings)
    if not keys_required(settings) or await has_usable_key(settings):
        return
    where = "with ADJUDGE_KEYS=required" if is_loopback(settings.host) else f"to listen on {settings.host!r}"
    raise StartError(
        f"refusing {where}: there is no API key that opens anything. Make one with: adjudge keys create --scope score. "
        "Or listen on 127.0.0.1, where none is needed"
    )
