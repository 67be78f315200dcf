"""Sleep and wake over the real scheduler: leases, draining, requests that wait, attempts that fail."""

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import suppress
from typing import NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judge_server.engines.pool import EnginePool
from judge_server.engines.scripted import ScriptedEngine
from judge_server.errors import CannotSleep, EngineUnavailable, NotReady
from judge_server.judging.combining import Band, CascadeRule
from judge_server.judging.results import Outcomes, collect
from judge_server.ports import Batch, CallFailure, Engine, JudgeResult, Reply
from judge_server.scheduling.executor import LocalExecutor
from judge_server.scheduling.pools import PoolRules
from judge_server.scheduling.sleep import Lease
from judge_server.scoring.cache import MemoryCache
from judge_server.scoring.combined import CombinedJudge
from judge_server.scoring.judge import Judge
from tests.fixtures.virtual_time import run_in_virtual_time
from tests.judge_server.support import GatedEngine, criteria, plans
from trainer_client.wire.judges import RestingState

AB = criteria("Alpha.", "Beta.")


class SharedMemoryEngine(ScriptedEngine):
    """Takes time to sleep and to wake, fails when it is told to, and notes what must never happen.

    Attributes:
        failing: whether each attempt to sleep or to wake fails, in turn; later ones succeed.
        violations: calls without memory, and memory released below calls.
    """

    def __init__(self, *, failing: Sequence[bool] = (), move_s: float = 0.5, delay_s: float = 0.2) -> None:
        super().__init__(delay_s=delay_s, concurrent_batches=4)
        self.failing = list(failing)
        self.violations: list[str] = []
        self.loaded = True
        self.moves = 0
        self._move_s = move_s
        self._under_way = 0

    async def answer(self, batch: Batch) -> AsyncIterator[tuple[int, Reply | CallFailure]]:
        """As `ScriptedEngine`, if the model is loaded."""
        self._under_way += 1
        try:
            async for answer in super().answer(batch):
                if not self.loaded:
                    self.violations.append("a call without memory")
                yield answer
        finally:
            self._under_way -= 1

    async def sleep(self) -> None:
        """Release the memory, which a failed attempt may have done too."""
        if self._under_way:
            self.violations.append("memory released below a call")
        self.loaded = False
        await self._move()

    async def wake(self) -> None:
        """Take the memory."""
        await self._move()
        self.loaded = True

    async def _move(self) -> None:
        self.moves += 1
        await asyncio.sleep(self._move_s)
        if self.failing and self.failing.pop(0):
            raise EngineUnavailable("there is no memory left on the device")


class Ask(NamedTuple):
    """A request for verdicts on this response."""

    response: str
    deadline_s: float


Event = tuple[float, Ask | Lease]


async def started(engine: Engine, resting: RestingState = "awake") -> Judge:
    """A started judge over this engine, whose clock is the event loop's."""
    clock = asyncio.get_running_loop().time
    made = Judge(LocalExecutor(engine, resting=resting, clock=clock), MemoryCache(clock=clock), clock=clock)
    await made.start()
    return made


async def ask(made: Judge, asked: Ask) -> Outcomes:
    """The outcomes of a request."""
    deadline = asyncio.get_running_loop().time() + asked.deadline_s
    return await collect(made.judge(plans(made, asked.response, of=AB), deadline))


async def hold(made: Judge, lease: Lease) -> None:
    """Take a lease, whatever becomes of it."""
    with suppress(NotReady):
        await made.executor.hold(lease)


async def play(engine: SharedMemoryEngine, events: Sequence[Event], resting: RestingState) -> list[Outcomes]:
    """What became of the requests among these events, which begin at their seconds, once every lease has ended."""
    made = await started(engine, resting)

    async def one(at: float, what: Ask | Lease) -> Outcomes | None:
        await asyncio.sleep(at)
        return await ask(made, what) if isinstance(what, Ask) else await hold(made, what)

    done = await asyncio.gather(*(one(at, what) for at, what in events))
    await asyncio.sleep(200.0)  # every lease has ended, and every failed attempt was repeated
    assert made.executor.sleep_state == resting
    assert engine.loaded == (resting == "awake")
    assert await made.executor.ready()
    await made.close()
    return [outcomes for outcomes in done if outcomes is not None]


seconds = st.sampled_from([0.1, 0.3, 1.0, 4.0, 20.0])
leases = st.builds(Lease, st.sampled_from(["a", "b"]), st.sampled_from(["asleep", "awake"]), seconds)
asks = st.builds(Ask, st.sampled_from(["R1.", "R2.", "R3."]), seconds)
moments = st.integers(0, 40).map(lambda tenths: tenths / 10)


@given(
    events=st.lists(st.tuples(moments, st.one_of(leases, asks)), max_size=12),
    failing=st.lists(st.booleans(), max_size=4),
    resting=st.sampled_from(["awake", "asleep"]),
)
def test_no_call_meets_a_sleeping_engine_and_every_judge_comes_to_rest(
    events: list[Event], failing: list[bool], resting: RestingState
) -> None:
    engine = SharedMemoryEngine(failing=failing)
    for outcomes in run_in_virtual_time(play(engine, events, resting)):
        assert len(outcomes.by_digest) == 2
        for outcome in outcomes.by_digest.values():
            assert isinstance(outcome, JudgeResult) or outcome.kind == "timeout"
    assert engine.violations == []


@given(events=st.lists(st.tuples(moments, leases), max_size=8), failing=st.lists(st.booleans(), max_size=4))
def test_a_request_that_waits_gets_the_verdict_that_it_would_have_got(events: list[Event], failing: list[bool]) -> None:
    waiting: Event = (2.0, Ask("R1.", 190.0))
    (undisturbed,) = run_in_virtual_time(play(SharedMemoryEngine(), [waiting], "awake"))
    (disturbed,) = run_in_virtual_time(play(SharedMemoryEngine(failing=failing), [*events, waiting], "awake"))
    assert disturbed.by_digest == undisturbed.by_digest


async def test_calls_at_the_engine_end_before_it_falls_asleep_and_later_ones_wait() -> None:
    engine = GatedEngine(concurrent_batches=4)
    made = await started(engine)
    first = asyncio.create_task(ask(made, Ask("R1.", 60)))
    await engine.busy()
    sleeping = asyncio.create_task(made.executor.hold(Lease("a", "asleep", 60)))
    await asyncio.sleep(0)
    late = asyncio.create_task(ask(made, Ask("R2.", 60)))
    await asyncio.sleep(0.01)
    assert made.executor.sleep_state == "falling_asleep"
    assert not sleeping.done()
    engine.release(2)
    assert all(isinstance(outcome, JudgeResult) for outcome in (await first).by_digest.values())
    assert (await sleeping).state == "asleep"
    assert len(engine.began) == 2
    assert await made.executor.ready()
    engine.release(2)
    assert (await made.executor.hold(Lease("a", "awake", 60))).state == "awake"
    assert all(isinstance(outcome, JudgeResult) for outcome in (await late).by_digest.values())
    await made.close()


def test_a_request_to_a_sleeping_judge_fails_at_its_deadline_and_does_not_wake_it() -> None:
    async def story() -> None:
        engine = SharedMemoryEngine()
        made = await started(engine)
        await made.executor.hold(Lease("a", "asleep", 100))
        outcomes = await ask(made, Ask("R1.", 5))
        assert [o.kind for o in outcomes.by_digest.values() if isinstance(o, CallFailure)] == ["timeout"] * 2
        assert (made.executor.sleep_state, engine.moves) == ("asleep", 1)
        await made.close()

    run_in_virtual_time(story())


def test_a_judge_is_awake_as_long_as_one_trainer_needs_it() -> None:
    async def story() -> None:
        made = await started(SharedMemoryEngine())
        assert (await made.executor.hold(Lease("a", "awake", 10))).kept_awake_by == ("a",)
        report = await made.executor.hold(Lease("b", "asleep", 100))
        assert (report.state, report.kept_awake_by) == ("awake", ("a",))
        assert (await made.executor.hold(Lease("a", "asleep", 10))).state == "asleep"
        await asyncio.sleep(50)  # the lease of a has ended, and b's holds
        assert made.executor.sleep_state == "asleep"
        await asyncio.sleep(100)
        assert made.executor.sleep_state == "awake"
        await made.close()

    run_in_virtual_time(story())


def test_a_judge_that_cannot_wake_says_why_and_is_woken_when_it_can() -> None:
    async def story() -> None:
        engine = SharedMemoryEngine(failing=[False, True, True])
        made = await started(engine)
        await made.executor.hold(Lease("a", "asleep", 100))
        with pytest.raises(NotReady, match="the judge cannot wake: there is no memory left on the device"):
            await made.executor.hold(Lease("a", "awake", 100))
        assert "no memory left" in made.executor.unavailable_reason
        assert not await made.executor.ready()
        outcomes = await ask(made, Ask("R1.", 60))
        assert all(isinstance(outcome, JudgeResult) for outcome in outcomes.by_digest.values())
        assert (made.executor.unavailable_reason, await made.executor.ready()) == ("", True)
        await made.close()

    run_in_virtual_time(story())


class SleeplessEngine(ScriptedEngine):
    """Finds out that it cannot sleep when it is asked to."""

    async def sleep(self) -> None:
        """Refuse."""
        raise CannotSleep("start the server with --enable-sleep-mode")


async def test_an_engine_that_cannot_sleep_stays_awake_and_judges_on() -> None:
    made = await started(SleeplessEngine())
    with pytest.raises(CannotSleep, match="--enable-sleep-mode"):
        await made.executor.hold(Lease("a", "asleep", 100))
    assert (made.executor.sleep_state, made.executor.unavailable_reason) == ("awake", "")
    assert all(isinstance(outcome, JudgeResult) for outcome in (await ask(made, Ask("R.", 10))).by_digest.values())
    await made.close()


def test_tokens_are_counted_when_the_judge_is_awake_again() -> None:
    async def story() -> None:
        made = await started(SharedMemoryEngine())
        await made.executor.hold(Lease("a", "asleep", 10))
        (planned,) = plans(made, "R1.", of=AB)
        began = asyncio.get_running_loop().time()
        assert await made.executor.count_tokens(planned.batch) > 0
        assert asyncio.get_running_loop().time() - began >= 9
        await made.close()

    run_in_virtual_time(story())


def test_whoever_wakes_a_judge_is_not_told_that_it_failed_to_fall_asleep() -> None:
    async def story() -> None:
        made = await started(SharedMemoryEngine(failing=[True]))
        falling = asyncio.create_task(hold(made, Lease("a", "asleep", 100)))
        await asyncio.sleep(0.1)
        assert (await made.executor.hold(Lease("b", "awake", 100))).state == "awake"
        await falling
        await made.close()

    run_in_virtual_time(story())


async def test_a_cascade_sleeps_with_both_of_its_judges() -> None:
    engines = SharedMemoryEngine(move_s=0), SharedMemoryEngine(move_s=0)
    small, large = [await started(engine) for engine in engines]
    cascade = CombinedJudge({"small": small, "large": large}, "cascade", CascadeRule(Band(0.3, 0.7)))
    assert (await cascade.executor.hold(Lease("a", "asleep", 60))).state == "asleep"
    assert [engine.loaded for engine in engines] == [False, False]
    report = await large.executor.hold(Lease("b", "awake", 60))
    assert (report.state, cascade.executor.sleep_state) == ("awake", "falling_asleep")
    assert (await cascade.executor.hold(Lease("a", "awake", 60))).kept_awake_by == ("a", "b")
    assert cascade.executor.sleep_state == "awake"
    await asyncio.gather(small.close(), large.close())


def pool_of(*engines: ScriptedEngine) -> EnginePool:
    """A pool of these engines, which it checks every hundredth of a second."""
    made = {f"member-{place}": lambda engine=engine: engine for place, engine in enumerate(engines)}
    return EnginePool(made, PoolRules(interval_s=0.01))  # type: ignore[arg-type]


async def test_a_pool_sleeps_with_all_of_its_endpoints_and_misses_none() -> None:
    engines = [SharedMemoryEngine(move_s=0) for _ in range(3)]
    made = await started(pool := pool_of(*engines))
    assert (await made.executor.hold(Lease("a", "asleep", 60))).state == "asleep"
    await asyncio.sleep(0.1)  # several health checks
    assert [engine.loaded for engine in engines] == [False] * 3
    assert {member.state for member in pool.members()} == {"closed"}
    assert (await made.executor.hold(Lease("a", "awake", 60))).state == "awake"
    assert [engine.loaded for engine in engines] == [True] * 3
    await made.close()


async def test_an_endpoint_that_cannot_wake_leaves_the_pool_until_it_is_started_again() -> None:
    broken, sound = SharedMemoryEngine(failing=[False, True], move_s=0), SharedMemoryEngine(move_s=0)
    made = await started(pool := pool_of(broken, sound))
    await made.executor.hold(Lease("a", "asleep", 60))
    assert (await made.executor.hold(Lease("a", "awake", 60))).state == "awake"
    assert [member.state for member in pool.members()] == ["gone", "closed"]
    assert all(isinstance(outcome, JudgeResult) for outcome in (await ask(made, Ask("R.", 10))).by_digest.values())
    await made.close()


async def test_a_pool_with_an_endpoint_that_cannot_sleep_stays_awake() -> None:
    able = SharedMemoryEngine(move_s=0)
    made = await started(pool_of(able, SleeplessEngine()))
    with pytest.raises(CannotSleep, match="member-1: start the server with --enable-sleep-mode"):
        await made.executor.hold(Lease("a", "asleep", 60))
    assert (made.executor.sleep_state, able.loaded) == ("awake", True)
    await made.close()


async def test_a_judge_that_cannot_sleep_is_awake_whatever_its_resting_state() -> None:
    class Sleepless(ScriptedEngine):
        sleep = None  # type: ignore[assignment]

    made = await started(Sleepless(), "asleep")
    assert all(isinstance(outcome, JudgeResult) for outcome in (await ask(made, Ask("R.", 10))).by_digest.values())
    assert (made.executor.sleep_state, await made.executor.ready()) == ("awake", True)
    await made.close()


async def test_no_judge_of_a_cascade_sleeps_if_one_cannot() -> None:
    engine = SharedMemoryEngine(move_s=0)
    small, large = await started(engine), await started(SleeplessEngine())
    cascade = CombinedJudge({"small": small, "large": large}, "cascade", CascadeRule(Band(0.3, 0.7)))
    with pytest.raises(CannotSleep):
        await cascade.executor.hold(Lease("a", "asleep", 60))
    assert (cascade.executor.sleep_state, engine.loaded) == ("awake", True)
    await asyncio.gather(small.close(), large.close())


async def test_a_pool_falls_asleep_without_an_endpoint_that_has_gone() -> None:
    class Unreachable(SharedMemoryEngine):
        async def sleep(self) -> None:
            await self.close()  # it went away just now
            raise EngineUnavailable("no answer")

    sound = SharedMemoryEngine(move_s=0)
    made = await started(pool := pool_of(Unreachable(), sound))
    with pytest.raises(NotReady, match="member-0: no answer"):
        await made.executor.hold(Lease("a", "asleep", 60))
    async with asyncio.timeout(30):
        while made.executor.sleep_state != "asleep":  # noqa: ASYNC110 - it is tried again
            await asyncio.sleep(0.02)
    assert [member.state for member in pool.members()] == ["gone", "closed"]
    await made.close()
