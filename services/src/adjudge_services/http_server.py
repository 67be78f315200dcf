"""Serve an application over HTTP with bounded connections, request heads and slow clients.

uvicorn's fast parser bounds none of these. The size and pace of bodies are limited further in, by
`judge_server.api.http.middleware`. The address is bound before anything is loaded, and released if loading fails.
"""

import asyncio
import faulthandler
import fcntl
import logging
import math
import secrets
import socket
import struct
import termios
import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Literal

import uvicorn
from fastapi import FastAPI
from httptools import HttpParserError
from starlette.datastructures import MutableHeaders
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from adjudge_services.cli.output import exit_with_error
from adjudge_services.process import (
    configure_logging,
    log_startup,
    raise_descriptor_limit,
    start_tracing,
    switch_threads_often,
    tune_garbage_collector,
)
from adjudge_services.settings import Settings
from adjudge_services.store import StartError, prepare_store
from adjudge_services.wiring import build_app, has_usable_key, keys_required
from judge_server.api.console import load_templates
from judge_server.api.http.middleware import is_loopback
from judge_server.api.http.responses import add_headers
from judge_server.api.operations import SHUTDOWN_STATE_KEY
from judge_server.scoring.combined import AnyJudge
from trainer_client.wire import Problem, ProblemType

log = logging.getLogger("adjudge")

MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 100
MAX_TARGET_BYTES = 8 * 1024
"""Bytes of a request's path and query; a page's cursor or a search's words need a few hundred."""

_RESERVED_DESCRIPTORS = 128
_BACKLOG = 2048
_WARNING_INTERVAL_S = 10.0

KEEP_ALIVE_S = 75
"""Seconds that a connection may be idle between requests. Proxies (60) and our client (5) close theirs earlier. That
is safe, since only the client side can tell that no request is on its way. If it is shorter, requests are lost on
connections that the service just closed."""


MIN_READ_BYTES_PER_SECOND = 1024
"""Bytes per second that a slow client must read of an answer, measured over each timeout."""


def _rejection(status: int, type_: ProblemType, title: str, detail: str, *, retryable: bool = False) -> Problem:
    """The problem with which a request is rejected before its head is read; each answer has a request id of its own."""
    return Problem(type=type_, title=title, status=status, detail=detail, request_id="", retryable=retryable)


_MALFORMED = _rejection(400, "urn:adjudge:invalid-request", "Invalid request", "the request is not valid HTTP/1.1")
_HEAD_TOO_LARGE = _rejection(
    431,
    "urn:adjudge:too-large",
    "Request head too large",
    f"the head has more than {MAX_HEADERS} headers or {MAX_HEAD_BYTES} bytes; send fewer or shorter headers",
)
_TARGET_TOO_LONG = _rejection(
    414,
    "urn:adjudge:too-large",
    "Request target too long",
    f"the path and query have more than {MAX_TARGET_BYTES} bytes; shorten them",
)
_HEAD_TOO_SLOW = _rejection(
    408,
    "urn:adjudge:too-slow",
    "Request too slow",
    "the head arrived too slowly; send it faster, or raise ADJUDGE_CLIENT_TIMEOUT_S on the server",
    retryable=True,
)
_TOO_MANY_CONNECTIONS = _rejection(
    503,
    "urn:adjudge:overloaded",
    "Too many connections",
    "all connections of this process are in use; use fewer connections, or try again later",
    retryable=True,
)


class ConnectionLimiter:
    """Limits a server's connections; at the limit, a new connection closes an idle one.

    A connection is idle until the head of a request is complete, and again once the request is answered. Those on which
    no request was answered yet are closed first, then those that have been idle longest.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._unused: dict[BoundedHttpProtocol, None] = {}  # oldest first
        self._idle: dict[BoundedHttpProtocol, None] = {}  # oldest first
        self._open = 0
        self._next_warning_at = 0.0

    def add(self, connection: "BoundedHttpProtocol") -> bool:
        """Count a new, idle connection; return whether it is accepted."""
        self._open += 1
        self._unused[connection] = None
        if self._open <= self._limit:
            return True
        if time.monotonic() >= self._next_warning_at:
            self._next_warning_at = time.monotonic() + _WARNING_INTERVAL_S
            log.warning(
                "the limit of %d connections is reached; idle connections are closed to accept new ones", self._limit
            )
        closed = next(iter(self._unused))
        if closed is connection and self._idle:
            closed = next(iter(self._idle))
        self._forget(closed)
        if closed is not connection:
            closed.close_connection()
        return closed is not connection

    def begin(self, connection: "BoundedHttpProtocol") -> None:
        """Mark a connection as busy with a request."""
        self._forget(connection)

    def end(self, connection: "BoundedHttpProtocol") -> None:
        """Mark a connection as idle again."""
        self._idle[connection] = None

    def remove(self, connection: "BoundedHttpProtocol") -> None:
        """Forget a closed connection."""
        self._open -= 1
        self._forget(connection)

    def _forget(self, connection: "BoundedHttpProtocol") -> None:
        self._unused.pop(connection, None)
        self._idle.pop(connection, None)


class BoundedHttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol with timeouts and limits.

    `timeout_s` limits how long a head may take, how long a client may keep sending after it was answered, and each
    interval in which a slow reader must read `MIN_READ_BYTES_PER_SECOND`. uvicorn closes connections that are idle
    between requests. When the server stops, requests in progress are answered for `drain_s` more seconds; then their
    connections are closed and their work is cancelled, so that clients ask another process.
    """

    timeout_s = 30.0
    drain_s = 70.0
    open_connections: ConnectionLimiter

    _timers: dict[Literal["read", "write", "drain"], asyncio.TimerHandle]
    _answering: RequestResponseCycle | None = None
    _rejection = _MALFORMED
    _in_head = False
    _request_complete = True
    _head_bytes = 0
    _headers_bytes = 0
    _headers_seen = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timeout for the first head, or reject the connection."""
        super().connection_made(transport)
        self._timers = {}
        self.app_state = {**self.app_state, SHUTDOWN_STATE_KEY: asyncio.Event()}
        if self.open_connections.add(self):
            self._start_read_timer()
        else:
            self._reject(_TOO_MANY_CONNECTIONS)

    def shutdown(self) -> None:
        """Begin to stop: finish requests in progress for `drain_s` seconds, and signal endless answers to end."""
        self.app_state[SHUTDOWN_STATE_KEY].set()
        self._timers["drain"] = self.loop.call_later(self.drain_s, self._abort)
        super().shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        """Cancel all timers.

        uvicorn tells only the newest request that its client has gone. Of pipelined requests, tell the one in progress
        and drop those behind it.
        """
        self.open_connections.remove(self)
        self.pipeline.clear()
        if self._answering is not None and not self._answering.response_complete:
            self._answering.disconnected = True
            self._answering.message_event.set()
        for timer in self._timers.values():
            timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Parse received data; reject a head that is too large before it is complete."""
        self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > MAX_HEAD_BYTES:
            self._reject(_HEAD_TOO_LARGE)
        idle = self._request_complete and (self.cycle is None or self.cycle.response_complete)
        if idle and self.timeout_keep_alive_task is None and "read" not in self._timers:
            self._start_read_timer()  # only line ends, which do not begin a request

    def on_message_begin(self) -> None:
        """Begin a request, and start the timeout for its head."""
        super().on_message_begin()
        self._in_head, self._request_complete = True, False
        self._head_bytes = self._headers_bytes = self._headers_seen = 0
        self._start_read_timer()

    def on_url(self, url: bytes) -> None:
        """Add a part of the target; reject one that is too long."""
        super().on_url(url)
        if len(self.url) > MAX_TARGET_BYTES:
            self._rejection = _TARGET_TOO_LONG
            raise HttpParserError(_TARGET_TOO_LONG.title)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Add a header; reject too many.

        Trailers after a chunked body count towards the limits and are otherwise ignored, since the request was accepted
        or rejected by its head.
        """
        self._headers_seen += 1
        self._headers_bytes += len(name) + len(value)
        if self._in_head:
            super().on_header(name, value)
        if self._headers_seen > MAX_HEADERS or self._headers_bytes > MAX_HEAD_BYTES:
            self._rejection = _HEAD_TOO_LARGE
            raise HttpParserError(_HEAD_TOO_LARGE.title)

    def on_headers_complete(self) -> None:
        """The head is complete: stop its timeout."""
        self._in_head = False
        self._cancel("read")
        self.open_connections.begin(self)
        super().on_headers_complete()
        if not self.pipeline:
            self._answering = self.cycle

    def on_message_complete(self) -> None:
        """The request is complete."""
        self._request_complete = True
        self._cancel("read")
        super().on_message_complete()
        self._mark_idle()

    def on_response_complete(self) -> None:
        """Keep reading for a while if the client is still sending, so that it gets to read the answer."""
        if self.pipeline:
            self._answering = self.pipeline[-1][0]
        super().on_response_complete()
        if not self._request_complete:
            self._start_read_timer()
        self._mark_idle()

    def pause_writing(self) -> None:
        """The client reads more slowly than we write: start its timeout."""
        super().pause_writing()
        self._start_write_timer()

    def resume_writing(self) -> None:
        """The client has caught up: stop its timeout."""
        self._cancel("write")
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        """Close a connection that was idle for `KEEP_ALIVE_S`."""
        self.close_connection()

    def send_400_response(self, msg: str) -> None:
        """Answer an unreadable request with a problem, unless an answer has begun, and close the connection."""
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            self.transport.write(_answer(self._rejection))
        self.close_connection()

    def close_connection(self) -> None:
        """Close once everything is written, or when the client does not read in time."""
        self._cancel("read")
        if not self.transport.is_closing():
            self.transport.close()
            self._start_write_timer()

    def _mark_idle(self) -> None:
        """Mark the connection as idle if nothing is left to read or answer."""
        answered = self.cycle is None or self.cycle.response_complete
        if self._request_complete and answered and not self.transport.is_closing():
            self.open_connections.end(self)

    def _cancel(self, timer: Literal["read", "write"]) -> None:
        if timer in self._timers:
            self._timers.pop(timer).cancel()

    def _start_read_timer(self) -> None:
        self._cancel("read")
        self._timers["read"] = self.loop.call_later(self.timeout_s, self._on_read_timeout)

    def _start_write_timer(self) -> None:
        """Start the write timeout; it restarts while the client reads, since a long answer takes long."""
        if "write" not in self._timers:
            waiting = self._unsent_bytes()
            self._timers["write"] = self.loop.call_later(self.timeout_s, self._check_reader, waiting)

    def _check_reader(self, left: int) -> None:
        del self._timers["write"]
        if left - self._unsent_bytes() < MIN_READ_BYTES_PER_SECOND * self.timeout_s:
            self.transport.abort()
        else:
            self._start_write_timer()

    def _unsent_bytes(self) -> int:
        """Bytes that the client's system has not received: in our buffer and in the kernel's."""
        waiting = self.transport.get_write_buffer_size()
        with suppress(OSError):
            sock = self.transport.get_extra_info("socket")
            waiting += struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)))[0]
        return waiting

    def _on_read_timeout(self) -> None:
        del self._timers["read"]
        if self._in_head:
            self._reject(_HEAD_TOO_SLOW)
        else:
            self.close_connection()

    def _abort(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            log.warning(
                "a request was not answered within %g s after the process began to stop, and is cut off", self.drain_s
            )
        self.transport.abort()

    def _reject(self, rejection: Problem) -> None:
        if not self.transport.is_closing():
            self._rejection = rejection
            self.send_400_response(rejection.title)


def uvicorn_options(timeout_s: float, drain_s: float, descriptors: int) -> dict[str, Any]:
    """uvicorn's options: this protocol with its timeouts, no WebSockets, no `Server` header.

    Of the `descriptors` that the process may open, a quarter and at least 128 are reserved for other uses than
    connections. The backlog is at most half of the reserve, since connections are accepted before idle ones are closed.
    """
    reserved = max(_RESERVED_DESCRIPTORS, descriptors // 4)
    connections = ConnectionLimiter(max(descriptors - reserved, descriptors // 4))
    options = {"timeout_s": timeout_s, "drain_s": drain_s, "open_connections": connections}
    return {
        "http": type("ConfiguredHttpProtocol", (BoundedHttpProtocol,), options),
        "ws": "none",
        "backlog": min(_BACKLOG, reserved // 2),
        "timeout_keep_alive": KEEP_ALIVE_S,
        "timeout_graceful_shutdown": math.ceil(drain_s) + 2,  # for work that outlives its connection
        "server_header": False,
    }


def _answer(rejection: Problem) -> bytes:
    request_id = f"req_{secrets.token_hex(8)}"
    body = rejection.model_copy(update={"request_id": request_id}).model_dump_json(exclude_none=True).encode()
    headers = MutableHeaders(
        {
            "Content-Type": "application/problem+json",
            "Content-Length": str(len(body)),
            "X-Request-Id": request_id,
            "Connection": "close",
        }
    )
    add_headers(headers, "")
    lines = [name + b": " + value + b"\r\n" for name, value in headers.raw]
    return b"".join([STATUS_LINE[rejection.status], *lines, b"\r\n", body])


FailureCallback = Callable[[str], None]


class _Server(uvicorn.Server):
    """A server that exports the last spans on shutdown, before uvicorn re-raises the signal that stopped it."""

    def __init__(self, config: uvicorn.Config, send_last_spans: Callable[[], None]) -> None:
        super().__init__(config)
        self._send_last_spans = send_last_spans

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Stop serving, then export the last spans."""
        await super().shutdown(sockets)
        await asyncio.to_thread(self._send_last_spans)


def serve_api(
    settings: Settings, judges_of: Callable[[Settings], dict[str, AnyJudge]], what: str, *, process: str
) -> None:
    """Serve the API with these judges until stopped; `what` names the judges in the startup line."""

    try:
        asyncio.run(_prepare(settings))  # refuse to start before anything listens
    except (StartError, ValueError) as error:
        exit_with_error(str(error), error=error)

    def build(failed: FailureCallback) -> FastAPI:
        load_templates()
        return build_app(settings, judges_of, on_judge_failure=failed)

    serve_app(settings, build, f"Adjudge with {what} on", " (docs at /docs)", process=process)


def serve_app(
    settings: Settings, build: Callable[[FailureCallback], FastAPI], what: str, more: str = "", *, process: str
) -> None:
    """Serve the application that `build` returns, until stopped or until it reports a failure.

    `build` gets a callback that stops the server with an error message. Traces carry the name `process`.
    """
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
        exit_with_error(str(error), error=error)
    port = bound_socket.getsockname()[1]
    log_startup(settings, f"{what} http://{settings.host}:{port}{more}")
    options = uvicorn_options(settings.client_timeout_s, settings.drain_s, raise_descriptor_limit())
    config = uvicorn.Config(app, settings.host, port, log_config=None, access_log=False, **options)
    server = _Server(config, send_last_spans)
    tune_garbage_collector()
    switch_threads_often()
    faulthandler.enable()  # a crash in native code, such as SQLite's or a model's, says where it was
    server.run([bound_socket])
    if failures:
        exit_with_error(failures[0])


def bind_socket(host: str, port: int) -> socket.socket:
    """Bind and listen on an address; raises `StartError` if that fails."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        bound_socket = socket.socket(family, kind, protocol)
        bound_socket.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        bound_socket.bind(address)
    except OSError as error:
        raise StartError(
            f"cannot listen on {host}:{port}: {error.strerror}. Choose another port with --port (0 takes a free one), "
            "or stop the process that listens there"
        ) from error
    bound_socket.listen()
    return bound_socket


async def _prepare(settings: Settings) -> None:
    """Prepare the store, and check that it has a key if the process needs one; raises `StartError`."""
    await prepare_store(settings, writes=True)
    if not keys_required(settings) or await has_usable_key(settings):
        return
    where = "with ADJUDGE_KEYS=required" if is_loopback(settings.host) else f"on {settings.host!r}"
    raise StartError(
        f"refusing to start {where}: there is no usable API key. Create one with: adjudge keys create --scope score. "
        "Or listen on 127.0.0.1, where no key is needed"
    )
