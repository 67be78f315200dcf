"""Identical calls of different requests are made once and shared; the last request to leave cancels the call."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from judge_server.engines.scripted import ScriptedEngine, by_hash
from judge_server.errors import Overloaded
from judge_server.judging.results import Caller, Outcomes, collect
from judge_server.ports import Batch, CallFailure, JudgeResult, Reply
from judge_server.scheduling.executor import RESPONSES_PER_TURN, LocalExecutor
from judge_server.scoring.cache import MemoryCache
from judge_server.scoring.judge import Judge
from tests.hypothesis_examples import examples
from tests.judge_server.support import (
    GatedEngine,
    RecordingScript,
    advance_time,
    criteria,
    deadline_after,
    description_in,
    judge,
    plans,
)

AB = criteria("Alpha.", "Beta.")
ABC = criteria("Alpha.", "Beta.", "Gamma.")


def ask(made: Judge, *responses: str, deadline: float, **options: object) -> "asyncio.Task[Outcomes]":
    """A request for these responses by two criteria."""
    return asyncio.create_task(collect(made.judge(plans(made, *responses, of=AB), deadline, **options)))  # type: ignore[arg-type]


def tokens_of(made: Judge, run: str) -> float:
    """The prompt tokens that a run has been charged for."""
    samples = [sample for family in made.metrics.families() for sample in family.samples]
    name = "adjudge_run_prompt_tokens_computed_total"
    return sum(one.value for one in samples if (one.name, one.labels.get("run")) == (name, run))


async def settle() -> None:
    """Let all pending tasks run."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_request_joins_calls_in_flight_and_is_not_charged_for_them() -> None:
    engine = GatedEngine()
    made = await judge(engine)
    first = ask(made, "Yes.", deadline=await deadline_after())
    await engine.busy()
    second = ask(made, "Yes.", "No.", deadline=await deadline_after())
    await settle()
    engine.release(4)
    a, b = await first, await second
    assert len(engine.began) == 4
    assert (a.costs.calls, b.costs.calls) == (2, 2)
    assert (len(a.joined), len(b.joined), len(b.cached)) == (0, 2, 0)
    assert {digest: b.by_digest[digest] for digest in a.by_digest} == a.by_digest


async def test_a_joined_call_continues_when_the_request_that_started_it_leaves() -> None:
    engine = GatedEngine()
    made = await judge(engine)
    first = ask(made, "Yes.", deadline=await deadline_after())
    await engine.busy()
    second = ask(made, "Yes.", deadline=await deadline_after())
    await settle()
    first.cancel()
    await asyncio.gather(first, return_exceptions=True)
    engine.release(2)
    outcomes = await second
    assert all(isinstance(outcome, JudgeResult) for outcome in outcomes.by_digest.values())
    assert len(engine.began) == 2


async def test_a_remaining_request_is_charged_after_the_one_that_started_the_call_has_left() -> None:
    engine = GatedEngine()
    made = await judge(engine)
    asking = [ask(made, "Yes.", deadline=await deadline_after(), caller=Caller("0"))]
    await engine.busy()
    asking += [ask(made, "Yes.", deadline=await deadline_after(), caller=Caller(run)) for run in ("1", "2")]
    await settle()
    for leaving in asking[:2]:
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
    engine.release(2)
    assert (await asking[2]).costs.calls == 2
    assert [tokens_of(made, run) > 0 for run in ("0", "1", "2")] == [False, False, True]


async def test_a_request_with_complete_results_is_not_charged_for_later_calls() -> None:
    engine = GatedEngine()
    made = await judge(engine)
    deadline = await deadline_after()

    def asked(place: int, *wanted: str) -> "asyncio.Task[Outcomes]":
        of = plans(made, "Yes.", of=criteria(*wanted))
        return asyncio.create_task(collect(made.judge(of, deadline, caller=Caller(str(place)))))

    leaving = asked(0, "Alpha.", "Beta.", "Gamma.")
    await engine.busy()
    first, rest = asked(1, "Alpha."), asked(2, "Beta.", "Gamma.")
    await settle()
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    engine.release(1)
    assert (await first).costs.calls == 1
    engine.release(2)
    assert (await rest).costs.calls == 2
    assert tokens_of(made, "0") == 0


async def test_a_request_that_leaves_is_charged_for_the_time_until_then() -> None:
    engine = GatedEngine()
    made = await judge(engine)
    hasty = ask(made, "Yes.", deadline=await deadline_after(30.0))
    await engine.busy()
    patient = ask(made, "Yes.", deadline=await deadline_after())
    await settle()
    advance_time(45.0)
    assert (await hasty).costs.seconds_judging > 0
    engine.release(2)
    assert (await patient).costs.seconds_judging == 0


async def test_a_request_is_charged_only_until_its_deadline() -> None:
    engine = GatedEngine()
    made = await judge(engine)
    hasty = ask(made, "Yes.", deadline=await deadline_after(30.0))
    await engine.busy()
    patient = ask(made, "Yes.", deadline=await deadline_after())
    engine.release(1)
    await settle()
    advance_time(45.0)
    assert (await hasty).costs.calls == 1
    engine.release(1)
    assert (await patient).costs.calls == 1


async def test_the_last_request_to_leave_cancels_the_call_and_frees_queue_and_engine() -> None:
    engine = GatedEngine(concurrent_batches=1)
    made = await judge(engine, queue_calls=2)
    deadline = await deadline_after()
    first, second = (ask(made, "Yes.", deadline=deadline) for _ in range(2))
    await engine.busy()
    for leaving in (first, second):
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
    await settle()
    third = ask(made, "No.", deadline=await deadline_after())
    engine.release(2)
    assert len((await third).by_digest) == 2


async def test_a_deadline_affects_only_the_request_that_has_it() -> None:
    engine = GatedEngine()
    made = await judge(engine)
    engine.release(1)
    patient = ask(made, "Yes.", deadline=await deadline_after())
    await settle()
    asking = ask(made, "Yes.", deadline=await deadline_after(30.0))
    await settle()
    advance_time(45.0)
    hasty = await asking
    kinds = sorted(o.kind if isinstance(o, CallFailure) else "ok" for o in hasty.by_digest.values())
    assert kinds == ["ok", "timeout"]
    engine.release(1)
    assert all(isinstance(outcome, JudgeResult) for outcome in (await patient).by_digest.values())


async def test_abandoned_calls_leave_the_queue_while_others_of_the_response_stay() -> None:
    engine = GatedEngine(concurrent_batches=1)
    made = await judge(engine)
    deadline = await deadline_after()
    blocking = ask(made, "first", deadline=deadline)
    await engine.busy()
    leaving = asyncio.create_task(collect(made.judge(plans(made, "Yes.", of=ABC), deadline)))
    await settle()
    staying = asyncio.create_task(collect(made.judge(plans(made, "Yes.", of=criteria("Beta.")), deadline)))
    await settle()
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    engine.release(3)
    await asyncio.gather(blocking, staying)
    assert [description_in(question) for question in engine.began[2:]] == ["Beta."]
    engine.release(2)
    rest = await collect(made.judge(plans(made, "Yes.", of=ABC), deadline))
    assert (len(rest.cached), rest.costs.calls) == (1, 2)


async def test_joined_requests_share_a_failure_and_it_is_not_cached() -> None:
    script = RecordingScript(lambda batch, call: CallFailure("engine", "gone"))
    made = await judge(ScriptedEngine(script))
    deadline = await deadline_after()
    a, b = await asyncio.gather(*(ask(made, "Yes.", deadline=deadline) for _ in range(2)))
    assert {o.kind for r in (a, b) for o in r.by_digest.values() if isinstance(o, CallFailure)} == {"engine"}
    assert set(script.asked.values()) == {2}  # the call and its retry
    script.outcome = by_hash
    assert (await ask(made, "Yes.", deadline=await deadline_after())).costs.calls == 2


async def test_joining_needs_no_room_in_the_queue() -> None:
    engine = GatedEngine()
    made = await judge(engine, queue_calls=2)
    first = ask(made, "Yes.", deadline=await deadline_after())
    await engine.busy()
    second = ask(made, "Yes.", deadline=await deadline_after())
    with pytest.raises(Overloaded):
        await ask(made, "No.", deadline=await deadline_after())
    engine.release(2)
    assert len((await second).joined) == 2
    await first


async def test_a_bulk_call_is_promoted_when_an_online_request_joins_it() -> None:
    engine = GatedEngine(concurrent_batches=1)
    made = await judge(engine)
    deadline = await deadline_after()
    work = [ask(made, "first", deadline=deadline)]
    await engine.busy()
    work += [ask(made, f"bulk {n}", deadline=deadline, caller=Caller("b", "bulk")) for n in range(4)]
    await settle()
    work += [ask(made, "bulk 3", deadline=deadline)]
    await settle()
    engine.release(4)
    await asyncio.wait_for(work[-1], 10)
    assert not work[1].done()
    engine.release(6)
    await asyncio.gather(*work)
    assert len(engine.began) == 10


async def test_an_unexpected_error_in_reading_an_answer_reaches_the_waiting_request() -> None:
    made = await judge(ScriptedEngine(lambda batch, call: Reply(masses=("much", "little"))))  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        await asyncio.wait_for(ask(made, "Yes.", deadline=await deadline_after()), 10)


class YieldingEngine(ScriptedEngine):
    """Takes a random number of event loop iterations per call; counts concurrent batches and finished calls."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__(concurrent_batches=3)
        self.draw = draw
        self.finished: Counter[tuple[str, str]] = Counter()
        self.at_once = self.most_at_once = 0

    async def answer(self, batch: Batch) -> AsyncIterator[tuple[int, Reply | CallFailure]]:
        """Answer as `ScriptedEngine`, with random delays."""
        self.at_once += 1
        self.most_at_once = max(self.most_at_once, self.at_once)
        try:
            for index, call in enumerate(batch.calls):
                await turns(self.draw, 4)
                self.finished[batch.shared, call.question] += 1
                yield index, by_hash(batch, call)
        finally:
            self.at_once -= 1


class YieldingCache(MemoryCache):
    """Takes a random number of event loop iterations to read and to write."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        self.draw = draw

    async def get_many(self, digests: Sequence[bytes]) -> Mapping[bytes, JudgeResult]:
        """Read as `MemoryCache`, with random delays before and after."""
        await turns(self.draw, 6)
        found = await super().get_many(digests)
        await turns(self.draw, 6)
        return found

    async def put_many(self, write_buffer: Mapping[bytes, JudgeResult]) -> None:
        """Write as `MemoryCache`, after a random delay."""
        await turns(self.draw, 6)
        await super().put_many(write_buffer)


async def turns(draw: random.Random, most: int) -> None:
    """Wait for fewer than `most` event loop iterations."""
    for _ in range(draw.randrange(most)):
        await asyncio.sleep(0)


@given(st.integers(0, 2**32), st.floats(0.0, 0.6))
@settings(max_examples=examples(40), deadline=None)
def test_every_verdict_is_made_once_and_reaches_every_request_that_stays(seed: int, leave: float) -> None:
    async def run() -> None:
        draw = random.Random(seed)
        engine = YieldingEngine(draw)
        made = await judge(engine, cache=YieldingCache(draw))
        deadline = await deadline_after()

        async def request(number: int) -> Outcomes | None:
            responses = draw.sample("uvwxyz", draw.randint(1, 4))
            of = draw.sample(ABC, draw.randint(1, 3))
            await turns(draw, 40)
            caller = Caller(draw.choice("abc"), draw.choice(["online", "bulk"]))  # type: ignore[arg-type]
            asked = plans(made, *responses, of=of)
            working = asyncio.create_task(collect(made.judge(asked, deadline, caller=caller)))
            if draw.random() < leave:
                await turns(draw, 40)
                working.cancel()
                await asyncio.gather(working, return_exceptions=True)
                return None
            outcomes = await working
            assert outcomes.by_digest.keys() == {digest for plan in asked for digest in plan.digests}
            return outcomes

        stayed = [outcomes for outcomes in await asyncio.gather(*map(request, range(25))) if outcomes is not None]
        verdict_of: dict[bytes, object] = {}
        for outcomes in stayed:
            for digest, outcome in outcomes.by_digest.items():
                assert isinstance(outcome, JudgeResult)
                assert verdict_of.setdefault(digest, outcome) is outcome
        assert set(engine.finished.values()) <= {1}
        assert engine.most_at_once <= 3
        for _ in range(50):
            await asyncio.sleep(0)
        executor = made.executor
        assert isinstance(executor, LocalExecutor)
        assert len(executor.single_flight) == len(executor.write_buffer) == executor.admission.limits.held == 0
        assert executor.admission.state()[1] == engine.at_once == 0

    asyncio.run(run())


MANY = 20 * RESPONSES_PER_TURN


def many(made: Judge, deadline: float) -> "asyncio.Task[Outcomes]":
    """A request for more responses than are started in one turn."""
    return ask(made, *(f"Answer {n}." for n in range(MANY)), deadline=deadline)


def room_held(made: Judge) -> int:
    """The number of calls that hold room in the queue."""
    assert isinstance(made.executor, LocalExecutor)
    return made.executor.admission.limits.held


def single_flight(made: Judge) -> int:
    """The number of verdicts in flight."""
    assert isinstance(made.executor, LocalExecutor)
    return len(made.executor.single_flight)


async def until(reached: Callable[[], bool]) -> list[int]:
    """Wait until the condition is true; return the number of tasks in each event loop iteration."""
    tasks = []
    while not reached():
        await asyncio.sleep(0)
        tasks.append(len(asyncio.all_tasks()))
    return tasks


def steepest(tasks: Sequence[int]) -> int:
    """The largest change in the number of tasks in one iteration."""
    return max(abs(b - a) for a, b in pairwise(tasks))


async def test_the_calls_of_a_large_request_are_started_and_cancelled_in_slices() -> None:
    made = await judge(GatedEngine(), queue_calls=2 * MANY)
    before = len(asyncio.all_tasks())
    large = many(made, await deadline_after())
    began = await until(lambda: single_flight(made) == 2 * MANY)
    assert steepest(began) <= RESPONSES_PER_TURN + 1
    large.cancel()
    ended = await until(lambda: not room_held(made) and len(asyncio.all_tasks()) == before)
    assert steepest(ended) <= RESPONSES_PER_TURN + 1


async def test_identical_large_requests_make_each_call_once_and_both_are_answered() -> None:
    engine = RecordingScript()
    made = await judge(ScriptedEngine(engine), queue_calls=4 * MANY)
    a, b = await asyncio.gather(many(made, await deadline_after()), many(made, await deadline_after()))
    assert set(engine.asked.values()) == {MANY}  # each question of each response
    assert a.by_digest == b.by_digest
    assert len(a.by_digest) == 2 * MANY == a.costs.calls + len(a.joined) == b.costs.calls + len(b.joined)
    assert room_held(made) == single_flight(made) == 0


async def test_calls_not_started_at_the_deadline_time_out_and_a_cancelled_request_frees_its_room() -> None:
    made = await judge(GatedEngine(), queue_calls=4 * MANY)
    large = many(made, await deadline_after())
    left = many(made, await deadline_after())
    await until(lambda: single_flight(made) > 2 * RESPONSES_PER_TURN)
    left.cancel()
    advance_time()
    outcomes = await large
    assert {outcome.kind for outcome in outcomes.by_digest.values() if isinstance(outcome, CallFailure)} == {"timeout"}
    assert len(outcomes.by_digest) == 2 * MANY
    await until(lambda: not room_held(made))
    assert single_flight(made) == 0
