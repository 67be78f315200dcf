"""The fake service, and the sync and async clients behind one interface, so that each test runs on both."""

import asyncio
from collections.abc import Iterator
from typing import Any, Self

import pytest

from tests.fixtures.ports import unused_port
from tests.trainer_client.fake_service import FakeService, running_service
from trainer_client import AsyncClient, AsyncRewardStream, Client
from trainer_client.wire import GroupRewards, RewardSummary


class FakeClock:
    """A clock that moves only by sleeping and records the waits."""

    def __init__(self) -> None:
        self.now = 0.0
        self.waits: list[float] = []

    def clock(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.waits.append(seconds)
        self.now += seconds

    async def sleep_async(self, seconds: float) -> None:
        self.sleep(seconds)


class BlockingClient:
    """An `AsyncClient` driven from a test without an event loop, as if it were a `Client`."""

    def __init__(self, client: AsyncClient, runner: asyncio.Runner) -> None:
        self._client = client
        self._runner = runner

    def __getattr__(self, name: str) -> Any:
        async def call(*args: Any, **options: Any) -> Any:
            result = getattr(self._client, name)(*args, **options)
            if isinstance(result, AsyncRewardStream):
                return BlockingStream(result, self._runner)
            return [item async for item in result] if hasattr(result, "__aiter__") else await result

        return lambda *args, **options: self._runner.run(call(*args, **options))


class BlockingStream:
    """An `AsyncRewardStream` driven like a `RewardStream`."""

    def __init__(self, stream: AsyncRewardStream, runner: asyncio.Runner) -> None:
        self._stream = stream
        self._runner = runner

    @property
    def summary(self) -> RewardSummary:
        return self._stream.summary

    def close(self) -> None:
        self._runner.run(self._stream.aclose())

    def __iter__(self) -> Self:
        return self

    def __next__(self) -> GroupRewards:
        try:
            return self._runner.run(self._stream.__anext__())
        except StopAsyncIteration:
            raise StopIteration from None

    def __enter__(self) -> Self:
        self._runner.run(self._stream.__aenter__())
        return self

    def __exit__(self, *raised: Any) -> None:
        self._runner.run(self._stream.__aexit__(*raised))


@pytest.fixture
def service() -> Iterator[FakeService]:
    with running_service() as running:
        yield running


@pytest.fixture
def unserved_url() -> str:
    """An address without a server."""
    return f"http://127.0.0.1:{unused_port()}"


@pytest.fixture
def time() -> FakeClock:
    return FakeClock()


@pytest.fixture(params=["sync", "async"])
def connect(request, time):
    """Make clients, sync or async, by `connect(url, run, **options)`; close them after the test."""
    runner = asyncio.Runner()
    made: list[Any] = []

    def make(url: str, run: str | None = None, **options: Any) -> Any:
        options = {"clock": time.clock, "random": lambda: 0.5} | options
        if request.param == "sync":
            client: Any = Client(url, run, sleep=time.sleep, **options)
        else:
            client = BlockingClient(AsyncClient(url, run, sleep=time.sleep_async, **options), runner)
        made.append(client)
        return client

    yield make
    for client in made:
        client.close() if request.param == "sync" else client.aclose()
    runner.close()
