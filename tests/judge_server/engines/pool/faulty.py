"""Engines with scripted faults, and a pool of them."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

import pytest

from judge_server.engines.pool import EnginePool
from judge_server.engines.scripted import ScriptedEngine, by_hash
from judge_server.errors import EngineNotReady, EngineStartError, EngineUnavailable
from judge_server.ports import Batch, Call, CallFailure, Engine, EngineIdentity, Reply
from judge_server.scheduling.pools import PoolRules
from tests.judge_server.engines.fixtures import failures

QUESTIONS = ("Is it?", "Is it not?", "Is it so?", "Why?")


class Faulty(ScriptedEngine):
    """An engine that answers by hash, with the faults that the test sets.

    Attributes:
        asked: the questions of each batch received.
        outcome: gives the outcome of each call.
        answers: how many calls of a batch it answers before `then` happens.
        then: `hang` until `goes_on`, `break` or `stop`.
        before_each: awaited before each answer, if set.
        under_way: the number of batches in work.
        starts: whether it can start; if not, `may_pass` says whether that is transient.
        looks: how often it was asked whether it is ready.
    """

    def __init__(self, **options: Any) -> None:
        super().__init__(**options)
        self.asked: list[tuple[str, ...]] = []
        self.outcome: Callable[[Batch, Call], Reply | CallFailure] = by_hash
        self.answers = 1000
        self.then = "hang"
        self.before_each: Callable[[], Awaitable[None]] | None = None
        self.under_way = 0
        self.reached = asyncio.Event()
        self.goes_on = asyncio.Event()
        self.starts = True
        self.may_pass = False
        self.slow_start: asyncio.Event | None = None
        self.well = True
        self.model = "scripted"
        self.counts = True
        self.looks = 0

    async def start(self) -> EngineIdentity:
        """Start, wait or fail, as set."""
        if self.slow_start is not None:
            await self.slow_start.wait()
        if not self.starts:
            raise (EngineNotReady if self.may_pass else EngineStartError)("it is not there")
        identity = await super().start()
        object.__setattr__(identity, "model", self.model)
        return identity

    async def answer(self, batch: Batch) -> AsyncIterator[tuple[int, Reply | CallFailure]]:
        """Answer by hash, or fail, as set."""
        self.asked.append(tuple(call.question for call in batch.calls))
        self.under_way += 1
        try:
            for index, call in enumerate(batch.calls):
                if index == self.answers:
                    self.reached.set()
                    if self.then == "break":
                        raise ConnectionResetError("cut off")
                    if self.then == "stop":
                        return
                    await self.goes_on.wait()
                if self.before_each is not None:
                    await self.before_each()
                yield index, self.outcome(batch, call)
        finally:
            self.under_way -= 1

    async def ready(self) -> bool:
        """Whether it is ready, as set."""
        self.looks += 1
        return self.well and await super().ready()

    async def count_tokens(self, batch: Batch) -> int:
        """Count the tokens, or fail, as set."""
        if not self.counts:
            raise EngineUnavailable("it cannot count")
        return await super().count_tokens(batch)


def said(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str]]:
    """The levels and messages that pools logged, without those of other loggers of the process."""
    return [(r.levelname, r.getMessage()) for r in caplog.records if r.name == "adjudge" and " the pool" in r.msg]


class PoolHarness:
    """A pool of faulty engines by name; an engine that was gone is replaced by a new one.

    `first` has options of the first engines, and `options` are fields of `PoolRules`.
    """

    def __init__(
        self,
        *names: str,
        straggler_timeout_s: float = 30.0,
        first: Mapping[str, Mapping[str, Any]] | None = None,
        **options: Any,
    ) -> None:
        self._first = dict(first or {})
        self.made: dict[str, list[Faulty]] = {name: [] for name in names or ("a", "b", "c")}
        self.next: Callable[[], Faulty] = Faulty
        engines = {name: self._maker(name) for name in self.made}
        rules = PoolRules(**{"interval_s": 60.0} | options)
        self.pool = EnginePool(engines, rules, straggler_timeout_s=straggler_timeout_s)

    def __getitem__(self, name: str) -> Faulty:
        return self.made[name][-1]

    @property
    def all(self) -> list[Faulty]:
        """The current engines."""
        return [self[name] for name in self.made]

    @property
    def states(self) -> dict[str, str]:
        """The state of each member."""
        return {view.name: view.state for view in self.pool.members()}

    async def order(self, batch: Batch) -> list[str]:
        """The members in the order in which they get this batch when each one fails it."""
        kept = [engine.outcome for engine in self.all]
        for engine in self.all:
            engine.outcome = lambda *_: CallFailure("overloaded", "not now")
        order: list[str] = []
        for engine, name in zip(self.all, self.made, strict=True):
            engine.asked = _RecordingList(order, name)
        await failures(self.pool, batch)
        for engine, outcome in zip(self.all, kept, strict=True):
            engine.asked, engine.outcome = [], outcome
        return order

    async def made_anew(self, name: str, times: int = 1) -> None:
        """Wait until a member's engine has been recreated this often."""
        async with asyncio.timeout(10):
            while len(self.made[name]) <= times:  # noqa: ASYNC110 - health checks have no event
                await asyncio.sleep(0.001)

    async def looked_at(self, name: str, times: int) -> None:
        """Wait until a member's engine has been asked this many more times whether it is ready."""
        engine, before = self[name], self[name].looks
        async with asyncio.timeout(10):
            while engine.looks < before + times:  # noqa: ASYNC110 - as above
                await asyncio.sleep(0.001)

    async def until(self, name: str, state: str) -> None:
        """Wait until a member is in this state."""
        async with asyncio.timeout(10):
            while self.states[name] != state:  # noqa: ASYNC110 - states have no event
                await asyncio.sleep(0.001)

    def _maker(self, name: str) -> Callable[[], Engine]:
        def make() -> Engine:
            options = self._first.pop(name, None)
            self.made[name].append(self.next() if options is None else Faulty(**options))
            return self.made[name][-1]

        return make


class _RecordingList(list[tuple[str, ...]]):
    """A list that notes a name whenever an item is appended."""

    def __init__(self, order: list[str], name: str) -> None:
        super().__init__()
        self._order, self._name = order, name

    def append(self, questions: tuple[str, ...]) -> None:
        """Append the item and note the name."""
        super().append(questions)
        self._order.append(self._name)


@pytest.fixture
async def trial() -> AsyncIterator[PoolHarness]:
    """A started pool of three without health checks."""
    made = PoolHarness()
    await made.pool.start()
    yield made
    await made.pool.close()


@pytest.fixture
async def watched() -> AsyncIterator[PoolHarness]:
    """A started pool of three whose health is checked continually."""
    made = PoolHarness(interval_s=0.002, health_timeout_s=5.0, pause_s=0.002)
    await made.pool.start()
    yield made
    await made.pool.close()
