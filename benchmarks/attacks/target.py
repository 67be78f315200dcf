"""The attacked service as one attack sees it: requests with or without a key, raw connections, counted answers."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import httpx2

from benchmarks.attacks.routes import Route, route_of

REQUEST_TIMEOUT_S = 60.0
MOST_CONNECTIONS = 100
_MOST_EXAMPLES = 5
_EXAMPLE_CHARACTERS = 500


class Target:
    """One attack's view of the service.

    Attributes:
        http: a client with the key of an attacker's project.
        key: that key.
        draw: the random generator of this attack.
        document: the service's OpenAPI document.
        spool: the folder of the service's ledger spool; None if the attacker has no access to the service's disk.
        small_disk: whether that folder is a separate file system, which may be filled.
        counts: number of answers by class: a status (`200`), `no answer`, `given up`.
        examples: the first answers with a status of 500 or above, shortened.
        routes: the routes that were asked for.
    """

    def __init__(
        self,
        url: str,
        key: str,
        draw: random.Random,
        document: Mapping[str, Any],
        *,
        spool: Path | None = None,
        small_disk: bool = False,
        transport: httpx2.AsyncBaseTransport | None = None,
    ) -> None:
        self.key = key
        self.draw = draw
        self.document = document
        self.spool = spool
        self.small_disk = small_disk
        self.counts: Counter[str] = Counter()
        self.examples: list[str] = []
        self.routes: set[Route] = set()
        self._address = urlsplit(url)
        self.http = httpx2.AsyncClient(
            base_url=url,
            headers={"Authorization": f"Bearer {key}"},
            timeout=REQUEST_TIMEOUT_S,
            limits=httpx2.Limits(max_connections=MOST_CONNECTIONS, max_keepalive_connections=MOST_CONNECTIONS),
            transport=transport,
        )

    async def send(
        self,
        method: str,
        path: str,
        *,
        body: bytes | None = None,
        json: Any = None,
        headers: Mapping[str, str | bytes] | None = None,
    ) -> httpx2.Response | None:
        """Send a request and count its answer; None if there was none."""
        all_headers = dict(headers or {})
        if body is not None:
            all_headers.setdefault("Content-Type", "application/json")
        if (route := route_of(method, path)) is not None:
            self.routes.add(route)
        try:
            answer = await self.http.request(method, path, content=body, json=json, headers=all_headers)
        except (httpx2.HTTPError, httpx2.InvalidURL):
            self.counts["no answer"] += 1
            return None
        except asyncio.CancelledError:
            self.counts["given up"] += 1
            raise
        self.count(answer.status_code, f"{method} {path}", answer.text if answer.status_code >= 500 else "")
        return answer

    async def at_once(self, *sending: Awaitable[Any]) -> None:
        """Send several requests concurrently."""
        await asyncio.gather(*sending)

    def count(self, status: int, what: str, text: str = "") -> None:
        """Count an answer, and keep it as an example if the service failed."""
        self.counts[str(status)] += 1
        if status >= 500 and len(self.examples) < _MOST_EXAMPLES:
            self.examples.append(f"{status} to {what[:100]}: {text[:_EXAMPLE_CHARACTERS]}")

    @asynccontextmanager
    async def connection(self) -> AsyncIterator[tuple[asyncio.StreamReader, asyncio.StreamWriter]]:
        """Open a raw connection, aborted at the end of the block."""
        reader, writer = await asyncio.open_connection(self._address.hostname, self._address.port)
        try:
            yield reader, writer
        finally:
            writer.transport.abort()

    async def raw(self, sent: bytes) -> None:
        """Send bytes on a new connection and count the status of the first answer."""
        with suppress(OSError):
            async with self.connection() as (reader, writer):
                with suppress(OSError):
                    writer.write(sent)
                    await writer.drain()
                await self.count_answer(reader, repr(sent[:60]))
            return
        self.counts["no answer"] += 1

    async def count_answer(self, reader: asyncio.StreamReader, what: str) -> None:
        """Read the first kilobytes of an answer and count its status."""
        try:
            beginning = await asyncio.wait_for(reader.read(4096), REQUEST_TIMEOUT_S)
        except (OSError, TimeoutError):
            beginning = b""
        if beginning.startswith(b"HTTP/1.1 ") and beginning[9:12].isdigit():
            self.count(int(beginning[9:12]), what, beginning.decode(errors="replace"))
        else:
            self.counts["no answer"] += 1


Attack = Callable[[Target], Awaitable[None]]
"""One round of an attack. It is repeated until its time is over and may be cancelled at any point."""
