"""Serving an application over HTTP: the address is taken before anything is loaded, and given up where that fails."""

import asyncio
import socket
from collections.abc import Callable

import uvicorn
from fastapi import FastAPI

from adjudge_services.access import has_usable_key, keys_required
from adjudge_services.cli.output import give_up
from adjudge_services.guarded_http import guarded
from adjudge_services.judges import Fencing
from adjudge_services.logs import announce, set_up_logs
from adjudge_services.process import collect_garbage_rarely, raise_descriptor_limit
from adjudge_services.settings import Settings
from adjudge_services.tracing import start_tracing
from adjudge_services.wiring import StartError, build_app, prepare_store
from judge_server.judging.judge import Judge
from judge_server.web.hosts import is_loopback

Failed = Callable[[str], None]


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
    settings: Settings, judges_of: Callable[[Settings, Fencing], dict[str, Judge]], what: str, *, process: str
) -> None:
    """Serve the API with these judges until stopped; `what` says in a word or two what it serves with."""

    try:
        asyncio.run(_prepare(settings))  # nothing listens where it must not, not even for a moment
    except (StartError, ValueError) as error:
        give_up(str(error))

    def make(failed: Failed) -> FastAPI:
        return build_app(settings, judges_of, on_judge_failure=failed)

    listen(settings, make, f"Adjudge with {what} on", " (docs at /docs)", process=process)


def listen(settings: Settings, make: Callable[[Failed], FastAPI], what: str, more: str = "", *, process: str) -> None:
    """Serve what `make` makes, until stopped, or until it says that it failed and why; traces name it `process`."""
    set_up_logs(settings)
    failures: list[str] = []

    def stop(reason: str) -> None:
        failures.append(reason)
        server.should_exit = True

    try:
        send_last_spans = start_tracing(process)
        app = make(stop)  # no model is loaded yet
        taken = take_address(settings.host, settings.port)
    except (StartError, ValueError) as error:
        give_up(str(error))
    port = taken.getsockname()[1]
    announce(settings, f"{what} http://{settings.host}:{port}{more}")
    options = guarded(settings.client_patience_s, settings.drain_s, raise_descriptor_limit())
    config = uvicorn.Config(app, settings.host, port, log_config=None, access_log=False, **options)
    server = _Server(config, send_last_spans)
    collect_garbage_rarely()
    server.run([taken])
    if failures:
        give_up(failures[0])


def take_address(host: str, port: int) -> socket.socket:
    """A socket on that address. Raises `StartError` where it is not to be had."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        taken = socket.socket(family, kind, protocol)
        taken.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        taken.bind(address)
    except OSError as error:
        raise StartError(
            f"cannot listen on {host}:{port}: {error.strerror}. Choose another port with --port (0 takes a free one), "
            "or stop what listens there"
        ) from error
    taken.listen()
    return taken


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
