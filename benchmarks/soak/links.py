"""Links between hosts: TCP proxies on loopback that can be cut, frozen, slowed and healed.

A cut link resets its connections and refuses new ones. A frozen link keeps its connections and accepts new ones but
forwards no bytes, like a silent network partition; it delivers the held bytes when it is healed. A link that forgets
never forwards anything again on its old connections, without closing them, like a firewall that has lost their state.
"""

import asyncio
import itertools
import socket
import struct
import threading
from collections.abc import Sequence
from contextlib import suppress
from typing import Literal

from tests.fixtures.ports import unused_port

State = Literal["open", "cut", "frozen"]

_RESET = struct.pack("ii", 1, 0)


class Link:
    """A proxy that listens at `port` and forwards each connection to one of the targets in turn, skipping dead ones."""

    def __init__(self, name: str, targets: Sequence[int]) -> None:
        self.name = name
        self.port = unused_port()
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
        """Start to accept connections."""
        while self._server is None:
            try:
                self._server = await asyncio.start_server(self._connected, "127.0.0.1", self.port)
            except OSError:
                await asyncio.sleep(0.05)

    async def become(self, state: State, delay_s: float = 0.0, *, forget: bool = False) -> None:
        """Change the link's state. With `forget`, the existing connections never forward anything again."""
        self.state, self.delay_s = state, delay_s
        if state == "cut":
            await self.close()
        else:
            await self.listen()
        if forget:
            self._passing.clear()
            self._passing = asyncio.Event()  # old connections wait on the previous event forever
        if state == "frozen":
            self._passing.clear()
        else:
            self._passing.set()

    async def close(self) -> None:
        """Stop accepting connections and reset the existing ones."""
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
            await self._passed(passing)  # a partition also hides that the peer has closed
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
    """A set of links on an event loop in a separate thread. All methods may be called from any other thread."""

    def __init__(self) -> None:
        self.links: dict[str, Link] = {}
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="network", daemon=True)
        self._thread.start()

    def link(self, name: str, *targets: int) -> int:
        """Create a link to these ports and return the port at which it listens."""
        link = self.links[name] = Link(name, targets)
        asyncio.run_coroutine_threadsafe(link.listen(), self._loop).result()
        return link.port

    def become(self, name: str, state: State, delay_s: float = 0.0, *, forget: bool = False) -> None:
        """Change the state of a link; see `Link.become`."""
        change = self.links[name].become(state, delay_s, forget=forget)
        asyncio.run_coroutine_threadsafe(change, self._loop).result()

    def close(self) -> None:
        """Close all links and stop the event loop."""
        for link in self.links.values():
            asyncio.run_coroutine_threadsafe(link.close(), self._loop).result()
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
