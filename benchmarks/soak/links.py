"""Links between hosts: TCP on loopback that can be cut, frozen, slowed and healed.

Cut, connections are reset and new ones refused. Frozen, connections stay, new ones are accepted, and no byte passes: a
partition in which nobody is told anything; what was held is handed over when it heals. One that forgets carries nothing
more on the connections it had, and nobody is ever told, as when a firewall between has lost them. Knows no protocol.
"""

import asyncio
import itertools
import random
import socket
import struct
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal

State = Literal["open", "cut", "frozen"]

_RESET = struct.pack("ii", 1, 0)
_PORTS = range(21_000, 32_000)
"""Below those that the system gives to connections: a port that is given up for a while is there again afterwards."""

_given: set[int] = set()


def port_to_keep() -> int:
    """A loopback port at which nobody listens, and which nobody is given who does not ask for it."""
    while True:
        port = random.choice(_PORTS)
        with socket.socket() as probe, suppress(OSError):
            probe.bind(("127.0.0.1", port))
            if port not in _given:
                _given.add(port)
                return port


class Link:
    """What listens at `port` and hands each connection to one of the targets, by turns; one that refuses is skipped."""

    def __init__(self, name: str, targets: Sequence[int]) -> None:
        self.name = name
        self.port = port_to_keep()
        self.state: State = "open"
        self.delay_s = 0.0
        self._turns = itertools.cycle(range(len(targets)))
        self._targets = targets
        self._passing = asyncio.Event()
        self._passing.set()
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._tasks: set[asyncio.Task[None]] = set()

    async def listen(self) -> None:
        """Take connections."""
        while self._server is None:
            try:
                self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)
            except OSError:
                await asyncio.sleep(0.05)

    async def become(self, state: State, delay_s: float = 0.0, *, forget: bool = False) -> None:
        """Change what happens to connections, or to those alone that come from now on."""
        self.state, self.delay_s = state, delay_s
        if state == "cut":
            await self.close()
        else:
            await self.listen()
        if forget:
            self._passing.clear()
            self._passing = asyncio.Event()  # what waits for the one before waits for good
        if state == "frozen":
            self._passing.clear()
        else:
            self._passing.set()

    async def close(self) -> None:
        """Take no connections, and reset those there are."""
        server, self._server = self._server, None
        if server is not None:
            server.close()
        for writer in list(self._open):
            _reset(writer)
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self._tasks.add(task)
        ends, passing = [writer], self._passing
        self._open.add(writer)
        try:
            await passing.wait()
            far_reader, far_writer = await self._far_end()
            ends.append(far_writer)
            self._open.add(far_writer)
            async with asyncio.TaskGroup() as both:
                both.create_task(self._pump(reader, far_writer, passing))
                both.create_task(self._pump(far_reader, writer, passing))
        except* (OSError, asyncio.CancelledError):
            pass
        finally:
            for end in ends:
                _reset(end)
                self._open.discard(end)
            self._tasks.discard(task)

    async def _far_end(self) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
        refused: OSError = ConnectionRefusedError()
        for _ in self._targets:
            try:
                return await asyncio.open_connection("127.0.0.1", self._targets[next(self._turns)])
            except OSError as error:
                refused = error
        raise refused

    async def _pump(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, passing: asyncio.Event) -> None:
        try:
            while data := await reader.read(2**16):
                await self._passed(passing)
                writer.write(data)
                await writer.drain()
        except OSError:
            await self._passed(passing)  # that an end is gone is not told through a partition either
            raise
        await self._passed(passing)
        with suppress(OSError):
            writer.write_eof()

    async def _passed(self, passing: asyncio.Event) -> None:
        await passing.wait()
        if self.delay_s:
            await asyncio.sleep(self.delay_s)


def _reset(writer: asyncio.StreamWriter) -> None:
    connection = writer.get_extra_info("socket")
    if connection is not None and connection.fileno() >= 0 and not writer.is_closing():
        with suppress(OSError):
            connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
    writer.transport.abort()


class Network:
    """Links on an event loop in a thread of its own; every method may be called from any other thread."""

    def __init__(self) -> None:
        self.links: dict[str, Link] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)
        self._thread.start()

    def link(self, name: str, *targets: int) -> int:
        """Lay a link to these ports; the port that it is reached at."""
        link = self.links[name] = Link(name, targets)
        asyncio.run_coroutine_threadsafe(link.listen(), self._loop).result()
        return link.port

    def become(self, name: str, state: State, delay_s: float = 0.0, *, forget: bool = False) -> None:
        """Change a link."""
        change = self.links[name].become(state, delay_s, forget=forget)
        asyncio.run_coroutine_threadsafe(change, self._loop).result()

    def heal(self) -> None:
        """Open every link."""
        for name, link in self.links.items():
            if link.state != "open" or link.delay_s:
                self.become(name, "open")

    def close(self) -> None:
        """Take all links down."""
        for link in self.links.values():
            asyncio.run_coroutine_threadsafe(link.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
