"""HTTP/1.1 by hand, for servers whose answers the tests write byte by byte."""

import asyncio
import json
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

Raw = tuple[int, bytes, dict[str, str]]
"""Status, body and headers of an answer."""


@dataclass
class RawRequest:
    """A request and its connection. `body` is read as JSON."""

    method: str
    target: str
    headers: dict[str, str]
    body: Any
    reader: asyncio.StreamReader
    writer: asyncio.StreamWriter


class RawServer:
    """A server on loopback, which answers as `respond` says."""

    def __init__(self) -> None:
        self._server: asyncio.Server | None = None
        self._writers: set[asyncio.StreamWriter] = set()

    async def start(self) -> str:
        """Start listening, and return the root URL."""
        self._server = await asyncio.start_server(self._connection, "127.0.0.1", 0, limit=2**20)
        return f"http://127.0.0.1:{self._server.sockets[0].getsockname()[1]}"

    async def close(self) -> None:
        """Stop listening, and close every connection."""
        assert self._server is not None
        self._server.close()
        for writer in self._writers:
            writer.close()

    async def respond(self, request: RawRequest) -> Raw | None:
        """Return the answer to a request; None if it is written already."""
        raise NotImplementedError

    async def _connection(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        await answer_requests(reader, writer, self.respond)
        self._writers.discard(writer)


async def answer_requests(
    reader: asyncio.StreamReader, writer: asyncio.StreamWriter, respond: Callable[[RawRequest], Awaitable[Raw | None]]
) -> None:
    """Answer the requests of one connection until it ends."""
    try:
        while head := (await reader.readuntil(b"\r\n\r\n")).decode():
            first, *lines = head.split("\r\n")
            headers = {name.lower(): value for name, _, value in (line.partition(": ") for line in lines) if name}
            content = await reader.readexactly(int(headers.get("content-length", 0)))
            method, target, _ = first.split(" ")
            body = json.loads(content) if content else None
            if (raw := await respond(RawRequest(method, target, headers, body, reader, writer))) is not None:
                status, answer, more = raw
                given = ({} if status == 204 else {"Content-Length": str(len(answer))}) | more
                told = "".join(f"{name}: {value}\r\n" for name, value in given.items())
                writer.write(f"HTTP/1.1 {status} It\r\n{told}\r\n".encode() + (b"" if status == 204 else answer))
            await writer.drain()
    except (asyncio.IncompleteReadError, ConnectionError):
        pass
    finally:
        writer.close()
