"""Serve an application over HTTP with bounded connections and heads.

HTTP on a socket, guarded: connections and heads are bounded, and who reads nothing is hung up on.

uvicorn bounds neither with its fast parser. Knows connections; a body's size and pace are guarded behind this, by
`judge_server.api.middleware`, and what a request may be is not known here.

Serving an application over HTTP: the address is taken before anything is loaded, and given up where that fails.
"""

import asyncio
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
from typing import Any, NamedTuple

import uvicorn
from fastapi import FastAPI
from httptools import HttpParserError
from starlette.datastructures import MutableHeaders
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol, RequestResponseCycle

from adjudge_services.cli.output import exit_with_error
from adjudge_services.judges import FenceFunction
from adjudge_services.process import (
    configure_logging,
    log_startup,
    raise_descriptor_limit,
    start_tracing,
    switch_threads_often,
    tune_garbage_collector,
)
from adjudge_services.settings import Settings
from adjudge_services.wiring import StartError, build_app, has_usable_key, keys_required, prepare_store
from judge_server.api.auth import is_loopback
from judge_server.api.operations import SHUTDOWN_STATE_KEY
from judge_server.api.responses import add_headers
from judge_server.scoring.judge import Judge
from trainer_client.wire import Problem, ProblemType

log = logging.getLogger("adjudge")

MAX_HEAD_BYTES = 64 * 1024
MAX_HEADERS = 100
MAX_TARGET_BYTES = 8 * 1024
"""What the path and query of a request may have; a page's cursor and a search's words have some hundred."""

_RESERVED_DESCRIPTORS = 128
_BACKLOG = 2048
_WARNING_INTERVAL_S = 10.0

KEEP_ALIVE_S = 75
"""Seconds that a connection may be idle between requests: longer than proxies (60) and our client (5) keep theirs, so
that they close it, who know that nothing is on its way."""


MIN_READ_BYTES_PER_SECOND = 1024
"""Bytes a second that a caller must read of an answer that it makes wait, over each time of patience."""


class HeadRejection(NamedTuple):
    """Why a head is not read further."""

    status: int
    type: ProblemType
    title: str
    detail: str


_MALFORMED = HeadRejection(400, "urn:adjudge:invalid-request", "Invalid request", "this cannot be read as HTTP/1.1")
_HEAD_TOO_LARGE = HeadRejection(
    431,
    "urn:adjudge:too-large",
    "Request head too large",
    f"the head has more than {MAX_HEADERS} headers, or {MAX_HEAD_BYTES} bytes; send fewer headers, or shorter ones",
)
_TARGET_TOO_LONG = HeadRejection(
    414,
    "urn:adjudge:too-large",
    "Request target too long",
    f"the path and query have more than {MAX_TARGET_BYTES} bytes; ask for less at once",
)
_HEAD_TOO_SLOW = HeadRejection(
    408,
    "urn:adjudge:too-slow",
    "Request too slow",
    "the head came too slowly; send it at once, or raise ADJUDGE_CLIENT_TIMEOUT_S on the server",
)
_TOO_MANY_CONNECTIONS = HeadRejection(
    503,
    "urn:adjudge:overloaded",
    "Too many connections",
    "every connection that this process may have is in use; send requests over fewer connections, or try again later",
)


class ConnectionLimiter:
    """The connections of a server, `most` at a time: for one more, the one that has been idle longest is closed.

    A connection is idle until the head of a request is whole, and again when that is answered.
    """

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._idle: dict[BoundedHttpProtocol, None] = {}  # in the order in which they became idle
        self._open = 0
        self._next_warning_at = 0.0

    def add(self, connection: "BoundedHttpProtocol") -> bool:
        """Count a new connection, which is idle; whether there is room for it."""
        self._open += 1
        self._idle[connection] = None
        if self._open <= self._limit:
            return True
        if time.monotonic() >= self._next_warning_at:
            self._next_warning_at = time.monotonic() + _WARNING_INTERVAL_S
            log.warning("%d connections are open; for more, those that are idle are closed", self._limit)
        oldest = next(iter(self._idle))
        del self._idle[oldest]
        if oldest is not connection:
            oldest.close_connection()
        return oldest is not connection

    def begin(self, connection: "BoundedHttpProtocol") -> None:
        """Note that a connection has a request to answer."""
        self._idle.pop(connection, None)

    def end(self, connection: "BoundedHttpProtocol") -> None:
        """Note that a connection is idle again."""
        self._idle[connection] = None

    def remove(self, connection: "BoundedHttpProtocol") -> None:
        """Count a connection no more."""
        self._open -= 1
        self._idle.pop(connection, None)


class BoundedHttpProtocol(HttpToolsProtocol):
    """uvicorn's protocol. `timeout_s` is granted for a head, for what a caller goes on sending, and to a reader again
    and again while it reads.

    A connection that is idle between two requests is closed by uvicorn. When the server stops, what was asked is
    answered for `drain_s` more; then callers are hung up on, who ask another process, and what was done for them ends.
    """

    timeout_s = 30.0
    drain_s = 70.0
    open_connections: ConnectionLimiter

    _read_timer: asyncio.TimerHandle | None = None
    _write_timer: asyncio.TimerHandle | None = None
    _drain_timer: asyncio.TimerHandle | None = None
    _answering: RequestResponseCycle | None = None
    _rejection = _MALFORMED
    _in_head = False
    _request_complete = True
    _head_bytes = 0
    _headers_bytes = 0
    _headers_seen = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Expect a request."""
        super().connection_made(transport)
        self.app_state = {**self.app_state, SHUTDOWN_STATE_KEY: asyncio.Event()}
        if self.open_connections.add(self):
            self._start_read_timer()
        else:
            self._reject(_TOO_MANY_CONNECTIONS)

    def shutdown(self) -> None:
        """Begin to stop: what was asked is answered, and answers that would go on without end are told to end."""
        self.app_state[SHUTDOWN_STATE_KEY].set()
        self._drain_timer = self.loop.call_later(self.drain_s, self._abort)
        super().shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        """Expect nothing any more.

        uvicorn tells only the newest request that its caller has left. Of requests that were sent together, tell the
        one that is being answered, and drop those that wait behind it.
        """
        self.open_connections.remove(self)
        self.pipeline.clear()
        if self._answering is not None and not self._answering.response_complete:
            self._answering.disconnected = True
            self._answering.message_event.set()
        self._cancel_read_timer()
        self._cancel_write_timer()
        if self._drain_timer is not None:
            self._drain_timer.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read what came; a head that is too large is refused before it is whole."""
        self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > MAX_HEAD_BYTES:
            self._reject(_HEAD_TOO_LARGE)
        idle = self._request_complete and (self.cycle is None or self.cycle.response_complete)
        if idle and self.timeout_keep_alive_task is None and self._read_timer is None:
            self._start_read_timer()  # these were line ends, which begin no request

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._in_head, self._request_complete = True, False
        self._head_bytes = self._headers_bytes = self._headers_seen = 0
        self._start_read_timer()

    def on_url(self, url: bytes) -> None:
        """Take a part of the target; one that is too long ends the reading."""
        super().on_url(url)
        if len(self.url) > MAX_TARGET_BYTES:
            self._rejection = _TARGET_TOO_LONG
            raise HttpParserError(_TARGET_TOO_LONG.title)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; one too many ends the reading.

        What follows a chunked body in the form of headers (a trailer) is read past, and counts for the limits only:
        the request has been let in, or refused, by its head.
        """
        self._headers_seen += 1
        self._headers_bytes += len(name) + len(value)
        if self._in_head:
            super().on_header(name, value)
        if self._headers_seen > MAX_HEADERS or self._headers_bytes > MAX_HEAD_BYTES:
            self._rejection = _HEAD_TOO_LARGE
            raise HttpParserError(_HEAD_TOO_LARGE.title)

    def on_headers_complete(self) -> None:
        """The head is whole."""
        self._in_head = False
        self._cancel_read_timer()
        self.open_connections.begin(self)
        super().on_headers_complete()
        if not self.pipeline:
            self._answering = self.cycle

    def on_message_complete(self) -> None:
        """The request is whole."""
        self._request_complete = True
        self._cancel_read_timer()
        super().on_message_complete()
        self._mark_idle()

    def on_response_complete(self) -> None:
        """What a caller goes on sending though it was answered is read for a while, so that it reads the answer."""
        if self.pipeline:
            self._answering = self.pipeline[-1][0]
        super().on_response_complete()
        if not self._request_complete:
            self._start_read_timer()
        self._mark_idle()

    def pause_writing(self) -> None:
        """The caller reads more slowly than we write: it may catch up."""
        super().pause_writing()
        self._start_write_timer()

    def resume_writing(self) -> None:
        """The caller has caught up."""
        self._cancel_write_timer()
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        """The connection was idle for long enough."""
        self.close_connection()

    def send_400_response(self, msg: str) -> None:
        """Answer what cannot be read with a problem, unless an answer has begun, and hang up."""
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            self.transport.write(_problem(self._rejection))
        self.close_connection()

    def close_connection(self) -> None:
        """Close once all is written, or when the caller has not read on for long enough."""
        self._cancel_read_timer()
        if not self.transport.is_closing():
            self.transport.close()
            self._start_write_timer()

    def _mark_idle(self) -> None:
        """Note it where nothing more is to be read or answered."""
        answered = self.cycle is None or self.cycle.response_complete
        if self._request_complete and answered and not self.transport.is_closing():
            self.open_connections.end(self)

    def _start_read_timer(self) -> None:
        self._cancel_read_timer()
        self._read_timer = self.loop.call_later(self.timeout_s, self._on_read_timeout)

    def _cancel_read_timer(self) -> None:
        if self._read_timer is not None:
            self._read_timer.cancel()
            self._read_timer = None

    def _start_write_timer(self) -> None:
        """Grant the caller patience anew for as long as it reads: what a long answer takes depends on its length."""
        if self._write_timer is None:
            self._write_timer = self.loop.call_later(self.timeout_s, self._check_reader, self._unsent_bytes())

    def _check_reader(self, left: int) -> None:
        self._write_timer = None
        if left - self._unsent_bytes() < MIN_READ_BYTES_PER_SECOND * self.timeout_s:
            self.transport.abort()
        else:
            self._start_write_timer()

    def _unsent_bytes(self) -> int:
        """Bytes that the caller's system has not taken: here, and in this system, which takes them in large pieces."""
        waiting = self.transport.get_write_buffer_size()
        with suppress(OSError):
            sock = self.transport.get_extra_info("socket")
            waiting += struct.unpack("i", fcntl.ioctl(sock.fileno(), termios.TIOCOUTQ, bytes(4)))[0]
        return waiting

    def _cancel_write_timer(self) -> None:
        if self._write_timer is not None:
            self._write_timer.cancel()
            self._write_timer = None

    def _on_read_timeout(self) -> None:
        self._read_timer = None
        if self._in_head:
            self._reject(_HEAD_TOO_SLOW)
        else:
            self.close_connection()

    def _abort(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            log.warning(
                "a request is not answered %g s after the process was told to stop, and is cut off", self.drain_s
            )
        self.transport.abort()

    def _reject(self, rejection: HeadRejection) -> None:
        if not self.transport.is_closing():
            self._rejection = rejection
            self.send_400_response(rejection.title)


def uvicorn_options(timeout_s: float, drain_s: float, descriptors: int) -> dict[str, Any]:
    """uvicorn's options: this protocol with so much patience, no WebSockets, and no word of what serves.

    Of the `descriptors` that the process may have, a quarter and at least 128 are left to all but connections. No more
    connections than half of these are accepted before one can be closed.
    """
    left = max(_RESERVED_DESCRIPTORS, descriptors // 4)
    connections = ConnectionLimiter(max(descriptors - left, descriptors // 4))
    options = {"timeout_s": timeout_s, "drain_s": drain_s, "open_connections": connections}
    return {
        "http": type("BoundedHttpProtocol", (BoundedHttpProtocol,), options),
        "ws": "none",
        "backlog": min(_BACKLOG, left // 2),
        "timeout_keep_alive": KEEP_ALIVE_S,
        "timeout_graceful_shutdown": math.ceil(drain_s) + 2,  # for what goes on though nobody waits for it
        "server_header": False,
    }


def _problem(rejection: HeadRejection) -> bytes:
    request_id = f"req_{secrets.token_hex(8)}"
    problem = Problem(
        type=rejection.type,
        title=rejection.title,
        status=rejection.status,
        detail=rejection.detail,
        request_id=request_id,
        retryable=rejection.status in (_HEAD_TOO_SLOW.status, _TOO_MANY_CONNECTIONS.status),
    )
    body = problem.model_dump_json(exclude_none=True).encode()
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
    switch_threads_often()
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
