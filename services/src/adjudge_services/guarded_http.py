"""HTTP on a socket, guarded: connections and heads are bounded, and who reads nothing is hung up on.

uvicorn bounds neither with its fast parser. Knows connections; a body's size and pace are guarded behind this, by
`judge_server.web.bodies`, and what a request may be is not known here.
"""

import asyncio
import fcntl
import logging
import math
import secrets
import struct
import termios
import time
from contextlib import suppress
from typing import Any, NamedTuple

from httptools import HttpParserError
from starlette.datastructures import MutableHeaders
from uvicorn.protocols.http.httptools_impl import STATUS_LINE, HttpToolsProtocol

from judge_server.web.events import STOPPING
from judge_server.web.headers import add_headers
from trainer_client.wire import Problem, ProblemType

log = logging.getLogger("adjudge")

MOST_HEAD_BYTES = 64 * 1024
MOST_HEADERS = 100
MOST_TARGET_BYTES = 8 * 1024
"""What the path and query of a request may have; a page's cursor and a search's words have some hundred."""

_OTHER_DESCRIPTORS = 128
_BACKLOG = 2048
_TELL_EVERY_S = 10.0

KEEP_ALIVE_S = 75
"""Seconds that a connection may be idle between requests: longer than proxies (60) and our client (5) keep theirs, so
that they close it, who know that nothing is on its way."""


SLOWEST_READER = 1024
"""Bytes a second that a caller must read of an answer that it makes wait, over each time of patience."""


class Refusal(NamedTuple):
    """Why a head is not read further."""

    status: int
    type: ProblemType
    title: str
    detail: str


_NO_HTTP = Refusal(400, "urn:adjudge:invalid-request", "Invalid request", "this cannot be read as HTTP/1.1")
_LARGE = Refusal(
    431,
    "urn:adjudge:too-large",
    "Request head too large",
    f"the head has more than {MOST_HEADERS} headers, or {MOST_HEAD_BYTES} bytes; send fewer headers, or shorter ones",
)
_LONG = Refusal(
    414,
    "urn:adjudge:too-large",
    "Request target too long",
    f"the path and query have more than {MOST_TARGET_BYTES} bytes; ask for less at once",
)
_SLOW = Refusal(
    408,
    "urn:adjudge:too-slow",
    "Request too slow",
    "the head came too slowly; send it at once, or raise ADJUDGE_CLIENT_PATIENCE_S on the server",
)
_CROWDED = Refusal(
    503,
    "urn:adjudge:overloaded",
    "Too many connections",
    "every connection that this process may have is in use; send requests over fewer connections, or try again later",
)


class Connections:
    """The connections of a server, `most` at a time: for one more, the one that has been idle longest is closed.

    A connection is idle until the head of a request is whole, and again when that is answered.
    """

    def __init__(self, most: int) -> None:
        self._most = most
        self._idle: dict[GuardedHTTP, None] = {}  # in the order in which they became idle
        self._open = 0
        self._tell_again = 0.0

    def add(self, connection: "GuardedHTTP") -> bool:
        """Count a new connection, which is idle; whether there is room for it."""
        self._open += 1
        self._idle[connection] = None
        if self._open <= self._most:
            return True
        if time.monotonic() >= self._tell_again:
            self._tell_again = time.monotonic() + _TELL_EVERY_S
            log.warning("%d connections are open; for more, those that are idle are closed", self._most)
        oldest = next(iter(self._idle))
        del self._idle[oldest]
        if oldest is not connection:
            oldest.hang_up()
        return oldest is not connection

    def begin(self, connection: "GuardedHTTP") -> None:
        """Note that a connection has a request to answer."""
        self._idle.pop(connection, None)

    def end(self, connection: "GuardedHTTP") -> None:
        """Note that a connection is idle again."""
        self._idle[connection] = None

    def remove(self, connection: "GuardedHTTP") -> None:
        """Count a connection no more."""
        self._open -= 1
        self._idle.pop(connection, None)


class GuardedHTTP(HttpToolsProtocol):
    """uvicorn's protocol. `patience_s` is granted for a head, for what a caller goes on sending, and to a reader again
    and again while it reads.

    A connection that is idle between two requests is closed by uvicorn. When the server stops, what was asked is
    answered for `drain_s` more; then callers are hung up on, who ask another process, and what was done for them ends.
    """

    patience_s = 30.0
    drain_s = 70.0
    open_connections: Connections

    _incoming: asyncio.TimerHandle | None = None
    _outgoing: asyncio.TimerHandle | None = None
    _draining: asyncio.TimerHandle | None = None
    _refusal = _NO_HTTP
    _in_head = False
    _whole = True
    _head_bytes = 0
    _headers_bytes = 0
    _headers_seen = 0

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Expect a request."""
        super().connection_made(transport)
        self.app_state = {**self.app_state, STOPPING: asyncio.Event()}
        if self.open_connections.add(self):
            self._expect()
        else:
            self._refuse(_CROWDED)

    def shutdown(self) -> None:
        """Begin to stop: what was asked is answered, and answers that would go on without end are told to end."""
        self.app_state[STOPPING].set()
        self._draining = self.loop.call_later(self.drain_s, self._cut_off)
        super().shutdown()

    def connection_lost(self, exc: Exception | None) -> None:
        """Expect nothing any more."""
        self.open_connections.remove(self)
        self._stop_expecting()
        self._caught_up()
        if self._draining is not None:
            self._draining.cancel()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Read what came; a head that is too large is refused before it is whole."""
        self._head_bytes += len(data)
        super().data_received(data)
        if self._in_head and self._head_bytes > MOST_HEAD_BYTES:
            self._refuse(_LARGE)
        idle = self._whole and (self.cycle is None or self.cycle.response_complete)
        if idle and self.timeout_keep_alive_task is None and self._incoming is None:
            self._expect()  # these were line ends, which begin no request

    def on_message_begin(self) -> None:
        """A request begins."""
        super().on_message_begin()
        self._in_head, self._whole = True, False
        self._head_bytes = self._headers_bytes = self._headers_seen = 0
        self._expect()

    def on_url(self, url: bytes) -> None:
        """Take a part of the target; one that is too long ends the reading."""
        super().on_url(url)
        if len(self.url) > MOST_TARGET_BYTES:
            self._refusal = _LONG
            raise HttpParserError(_LONG.title)

    def on_header(self, name: bytes, value: bytes) -> None:
        """Take a header; one too many ends the reading.

        What follows a chunked body in the form of headers (a trailer) is read past, and counts for the limits only:
        the request has been let in, or refused, by its head.
        """
        self._headers_seen += 1
        self._headers_bytes += len(name) + len(value)
        if self._in_head:
            super().on_header(name, value)
        if self._headers_seen > MOST_HEADERS or self._headers_bytes > MOST_HEAD_BYTES:
            self._refusal = _LARGE
            raise HttpParserError(_LARGE.title)

    def on_headers_complete(self) -> None:
        """The head is whole."""
        self._in_head = False
        self._stop_expecting()
        self.open_connections.begin(self)
        super().on_headers_complete()

    def on_message_complete(self) -> None:
        """The request is whole."""
        self._whole = True
        self._stop_expecting()
        super().on_message_complete()
        self._be_idle()

    def on_response_complete(self) -> None:
        """What a caller goes on sending though it was answered is read for a while, so that it reads the answer."""
        super().on_response_complete()
        if not self._whole:
            self._expect()
        self._be_idle()

    def pause_writing(self) -> None:
        """The caller reads more slowly than we write: it may catch up."""
        super().pause_writing()
        self._wait_for_reader()

    def resume_writing(self) -> None:
        """The caller has caught up."""
        self._caught_up()
        super().resume_writing()

    def timeout_keep_alive_handler(self) -> None:
        """The connection was idle for long enough."""
        self.hang_up()

    def send_400_response(self, msg: str) -> None:
        """Answer what cannot be read with a problem, unless an answer has begun, and hang up."""
        if self.cycle is None or self.cycle.response_complete or not self.cycle.response_started:
            self.transport.write(_problem(self._refusal))
        self.hang_up()

    def hang_up(self) -> None:
        """Close once all is written, or when the caller has not read on for long enough."""
        self._stop_expecting()
        if not self.transport.is_closing():
            self.transport.close()
            self._wait_for_reader()

    def _be_idle(self) -> None:
        """Note it where nothing more is to be read or answered."""
        answered = self.cycle is None or self.cycle.response_complete
        if self._whole and answered and not self.transport.is_closing():
            self.open_connections.end(self)

    def _expect(self) -> None:
        self._stop_expecting()
        self._incoming = self.loop.call_later(self.patience_s, self._too_slow)

    def _stop_expecting(self) -> None:
        if self._incoming is not None:
            self._incoming.cancel()
            self._incoming = None

    def _wait_for_reader(self) -> None:
        """Grant the caller patience anew for as long as it reads: what a long answer takes depends on its length."""
        if self._outgoing is None:
            self._outgoing = self.loop.call_later(self.patience_s, self._insist_on_reading, self._unread())

    def _insist_on_reading(self, left: int) -> None:
        self._outgoing = None
        if left - self._unread() < SLOWEST_READER * self.patience_s:
            self.transport.abort()
        else:
            self._wait_for_reader()

    def _unread(self) -> int:
        """Bytes that the caller's system has not taken: here, and in this system, which takes them in large pieces."""
        waiting = self.transport.get_write_buffer_size()
        with suppress(OSError):
            of = self.transport.get_extra_info("socket")
            waiting += struct.unpack("i", fcntl.ioctl(of.fileno(), termios.TIOCOUTQ, bytes(4)))[0]
        return waiting

    def _caught_up(self) -> None:
        if self._outgoing is not None:
            self._outgoing.cancel()
            self._outgoing = None

    def _too_slow(self) -> None:
        self._incoming = None
        if self._in_head:
            self._refuse(_SLOW)
        else:
            self.hang_up()

    def _cut_off(self) -> None:
        if self.cycle is not None and not self.cycle.response_complete:
            log.warning(
                "a request is not answered %g s after the process was told to stop, and is cut off", self.drain_s
            )
        self.transport.abort()

    def _refuse(self, refusal: Refusal) -> None:
        if not self.transport.is_closing():
            self._refusal = refusal
            self.send_400_response(refusal.title)


def guarded(patience_s: float, drain_s: float, descriptors: int) -> dict[str, Any]:
    """uvicorn's options: this protocol with so much patience, no WebSockets, and no word of what serves.

    Of the `descriptors` that the process may have, a quarter and at least 128 are left to all but connections. No more
    connections than half of these are accepted before one can be closed.
    """
    left = max(_OTHER_DESCRIPTORS, descriptors // 4)
    connections = Connections(max(descriptors - left, descriptors // 4))
    options = {"patience_s": patience_s, "drain_s": drain_s, "open_connections": connections}
    return {
        "http": type("GuardedHTTP", (GuardedHTTP,), options),
        "ws": "none",
        "backlog": min(_BACKLOG, left // 2),
        "timeout_keep_alive": KEEP_ALIVE_S,
        "timeout_graceful_shutdown": math.ceil(drain_s) + 2,  # for what goes on though nobody waits for it
        "server_header": False,
    }


def _problem(refusal: Refusal) -> bytes:
    request_id = f"req_{secrets.token_hex(8)}"
    problem = Problem(
        type=refusal.type,
        title=refusal.title,
        status=refusal.status,
        detail=refusal.detail,
        request_id=request_id,
        retryable=refusal.status in (_SLOW.status, _CROWDED.status),
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
    return b"".join([STATUS_LINE[refusal.status], *lines, b"\r\n", body])
