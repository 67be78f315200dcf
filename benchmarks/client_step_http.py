"""A simulated judge: an answer that is recorded once, then replayed from memory or over HTTP without delay."""

import asyncio
import socket
import threading
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import IO

import httpx2

_PIECE = 1 << 16
_NDJSON = "application/x-ndjson"
_HEAD = f"HTTP/1.1 200 OK\r\nContent-Type: {_NDJSON}\r\nTransfer-Encoding: chunked\r\n\r\n".encode()


class ReplayTransport(httpx2.AsyncBaseTransport):
    """Forwards the first request to the service and answers every further request with the same bytes.

    Attributes:
        request: the body of the first request.
        answer: the service's answer to it.
        wait_s: the delay of each answer, which simulates the judge.
    """

    def __init__(self) -> None:
        self.request = self.answer = b""
        self.wait_s = 0.0

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Answer a request."""
        if not self.answer:
            self.request = await request.aread()
            async with httpx2.AsyncHTTPTransport() as service:
                response = await service.handle_async_request(request)
                content = await response.aread()
            if response.status_code != 200:
                raise RuntimeError(f"HTTP {response.status_code}: {content[:300]!r}")
            self.answer = content
        await asyncio.sleep(self.wait_s)
        return httpx2.Response(200, headers={"Content-Type": _NDJSON}, stream=_Pieces(self.answer))


class _Pieces(httpx2.AsyncByteStream):
    def __init__(self, content: bytes) -> None:
        self._content = content

    async def __aiter__(self) -> AsyncIterator[bytes]:
        for start in range(0, len(self._content), _PIECE):
            yield self._content[start : start + _PIECE]


@dataclass
class Instant:
    """A server that answers without delay: its URL, and the CPU seconds that it has used."""

    url: str
    seconds: float = 0.0


@contextmanager
def instant_server(answer: bytes) -> Iterator[Instant]:
    """Serve an answer on a loopback port, one connection at a time, with a chunk per line like the service."""
    chunks = b"".join(b"%x\r\n%b\r\n" % (len(line), line) for line in answer.splitlines(keepends=True))
    with socket.create_server(("127.0.0.1", 0)) as listening:
        server = Instant(f"http://127.0.0.1:{listening.getsockname()[1]}")

        callers: list[socket.socket] = []

        def serve() -> None:
            while True:
                try:
                    connection, _ = listening.accept()
                except OSError:  # the socket was shut down
                    return
                callers[:] = [connection]
                with connection, connection.makefile("rb") as incoming:
                    while _read(incoming):
                        connection.sendall(_HEAD + chunks)
                        server.seconds = time.thread_time()  # set before the caller can see the end of the answer
                        connection.sendall(b"0\r\n\r\n")

        thread = threading.Thread(target=serve)
        thread.start()
        try:
            yield server
        finally:
            listening.shutdown(socket.SHUT_RDWR)
            for connection in callers:
                with suppress(OSError):  # the caller has closed it
                    connection.shutdown(socket.SHUT_RDWR)
            thread.join()


def _read(incoming: IO[bytes]) -> bool:
    """Read a request to its end; False if the caller has closed the connection."""
    length = 0
    while line := incoming.readline().strip().lower():
        if line.startswith(b"content-length:"):
            length = int(line.partition(b":")[2])
    return length > 0 and len(incoming.read(length)) == length


async def exchange(client: httpx2.AsyncClient, url: str, body: bytes) -> int:
    """Send a body, read the answer without parsing it, and return its size in bytes."""
    async with client.stream("POST", url, content=body, headers={"Accept": _NDJSON}) as response:
        return sum([len(piece) async for piece in response.aiter_bytes()])
