"""The fake service, and clients of it."""

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import pytest

from tests.fixtures.ports import unused_port
from tests.trainer_client.fake_service import FakeService, running_service
from trainer_client import Client


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


@pytest.fixture
def connect(time):
    """Make clients by `connect(url, run, **options)`; close them after the test.

    They run the code of `AsyncClient`; what only an event loop does is tested with that.
    """
    with ExitStack() as stack:

        def make(url: str, run: str | None = None, **options: Any) -> Client:
            options = {"clock": time.clock, "sleep": time.sleep, "random": lambda: 0.5} | options
            return stack.enter_context(Client(url, run, **options))

        yield make
