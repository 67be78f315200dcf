"""Identical calls of different requests are made once: whoever waits gets the verdict, the last to leave ends it."""

import asyncio
import random
from collections import Counter
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from itertools import pairwise

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from judge_server.cache import MemoryCache
from judge_server.engines.scripted import ScriptedEngine, by_hash
from judge_server.errors import Overloaded
from judge_server.judging.results import Caller, JudgementResults
from judge_server.ports import Batch, CallFailure, JudgeResult, Reply
from judge_server.scheduling.executor import RESPONSES_PER_TURN, LocalExecutor
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


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """A retry comes at once."""
    monkeypatch.setattr("judge_server.scheduling.call_runner.ENGINE_RETRY_PAUSE_S", 0.001)


def ask(made: Judge, *responses: str, deadline: float, **options: object) -> "asyncio.Task[JudgementResults]":
    """A request for these responses by two criteria."""
    return asyncio.create_task(made.outcomes(plans(made, *responses, of=AB), deadline, **options))  # type: ignore[arg-type]


async def settle() -> None:
    """Let everything happen that can."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_request_waits_for_the_calls_another_has_on_their_way_and_is_not_charged_for_them() -> None:
    engine = GatedEngine()
    made = await judge(engine)
    first = ask(made, "Yes.", deadline=await deadline_after())
    await engine.busy()
    second = ask(made, "Yes.", "No.", deadline=await deadline_after())
    await settle()
    engine.release(4)
    a, b = await first, await second
    assert len(engine.began) == 4
    assert (a.calls, b.calls) == (2, 2)
    assert (len(a.joined), len(b.joined), len(b.cached)) == (0, 2, 0)
    assert {digest: b.by_digest[digest] for digest in a.by_digest} == a.by_digest


async def test_the_one_who_made_a_call_may_leave_and_the_other_still_gets_it() -> None:
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


async def test_what_is_computed_after_who_began_it_has_left_is_paid_for_by_who_still_waits() -> None:
    engine = GatedEngine()
    made = await judge(engine)
    accounts = [JudgementResults() for _ in range(3)]
    asking = [ask(made, "Yes.", deadline=await deadline_after(), into=accounts[0])]
    await engine.busy()
    asking += [ask(made, "Yes.", deadline=await deadline_after(), into=account) for account in accounts[1:]]
    await settle()
    for leaving in asking[:2]:
        leaving.cancel()
        await asyncio.gather(leaving, return_exceptions=True)
    engine.release(2)
    await asking[2]
    assert [account.calls for account in accounts] == [0, 0, 2]
    assert accounts[2].tokens_computed > 0


async def test_who_has_what_it_waited_for_pays_no_longer_for_the_rest() -> None:
    engine = GatedEngine()
    made = await judge(engine)
    deadline = await deadline_after()
    accounts = [JudgementResults() for _ in range(3)]

    def asked(place: int, *wanted: str) -> "asyncio.Task[JudgementResults]":
        of = plans(made, "Yes.", of=criteria(*wanted))
        return asyncio.create_task(made.outcomes(of, deadline, into=accounts[place]))

    leaving = asked(0, "Alpha.", "Beta.", "Gamma.")
    await engine.busy()
    first, rest = asked(1, "Alpha."), asked(2, "Beta.", "Gamma.")
    await settle()
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    engine.release(1)
    await first
    engine.release(2)
    await rest
    assert [account.calls for account in accounts] == [0, 1, 2]


async def test_who_leaves_pays_for_the_time_until_then() -> None:
    engine = GatedEngine()
    made = await judge(engine)
    hasty, patient = (
        ask(made, "Yes.", deadline=await deadline_after(30.0)),
        ask(made, "Yes.", deadline=await deadline_after()),
    )
    await engine.busy()
    advance_time(45.0)
    assert (await hasty).seconds_judging > 0
    engine.release(2)
    assert (await patient).seconds_judging == 0


async def test_a_deadline_ends_what_a_request_pays_for() -> None:
    engine = GatedEngine()
    made = await judge(engine)
    hasty = ask(made, "Yes.", deadline=await deadline_after(30.0))
    await engine.busy()
    patient = ask(made, "Yes.", deadline=await deadline_after())
    engine.release(1)
    await settle()
    advance_time(45.0)
    assert (await hasty).calls == 1
    engine.release(1)
    assert (await patient).calls == 1


async def test_the_last_one_to_leave_ends_the_call_and_frees_queue_and_engine() -> None:
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


async def test_a_deadline_costs_only_the_request_that_has_it() -> None:
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


async def test_calls_that_nobody_waits_for_any_more_leave_the_queue_though_others_of_the_response_stay() -> None:
    engine = GatedEngine(concurrent_batches=1)
    made = await judge(engine)
    deadline = await deadline_after()
    blocking = ask(made, "first", deadline=deadline)
    await engine.busy()
    leaving = asyncio.create_task(made.outcomes(plans(made, "Yes.", of=ABC), deadline))
    await settle()
    staying = asyncio.create_task(made.outcomes(plans(made, "Yes.", of=criteria("Beta.")), deadline))
    await settle()
    leaving.cancel()
    await asyncio.gather(leaving, return_exceptions=True)
    engine.release(3)
    await asyncio.gather(blocking, staying)
    assert [description_in(question) for question in engine.began[2:]] == ["Beta."]
    engine.release(2)
    rest = await made.outcomes(plans(made, "Yes.", of=ABC), deadline)
    assert (len(rest.cached), rest.calls) == (1, 2)


async def test_those_who_join_share_a_failure_and_it_is_not_kept() -> None:
    script = RecordingScript(lambda batch, call: CallFailure("engine", "gone"))
    made = await judge(ScriptedEngine(script))
    deadline = await deadline_after()
    a, b = await asyncio.gather(*(ask(made, "Yes.", deadline=deadline) for _ in range(2)))
    assert {o.kind for r in (a, b) for o in r.by_digest.values() if isinstance(o, CallFailure)} == {"engine"}
    assert set(script.asked.values()) == {2}  # once, and once more
    script.outcome = by_hash
    assert (await ask(made, "Yes.", deadline=await deadline_after())).calls == 2


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


async def test_a_bulk_call_is_hurried_when_somebody_online_joins_it() -> None:
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


async def test_what_breaks_the_reading_of_an_answer_reaches_everybody_who_waits_for_it() -> None:
    made = await judge(ScriptedEngine(lambda batch, call: Reply(masses=("much", "little"))))  # type: ignore[arg-type]
    with pytest.raises(TypeError):
        await asyncio.wait_for(ask(made, "Yes.", deadline=await deadline_after()), 10)


class YieldingEngine(ScriptedEngine):
    """Takes a random number of turns of the event loop for a call, and counts what it began and finished."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__(concurrent_batches=3)
        self.draw = draw
        self.finished: Counter[tuple[str, str]] = Counter()
        self.at_once = self.most_at_once = 0

    async def answer(self, batch: Batch) -> AsyncIterator[tuple[int, Reply | CallFailure]]:
        """As `ScriptedEngine`, hesitantly."""
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
    """Takes a random number of turns to read and to write."""

    def __init__(self, draw: random.Random) -> None:
        super().__init__()
        self.draw = draw

    async def get_many(self, digests: Sequence[bytes]) -> Mapping[bytes, JudgeResult]:
        """As `MemoryCache`, and the answer is on its way for a while."""
        await turns(self.draw, 6)
        found = await super().get_many(digests)
        await turns(self.draw, 6)
        return found

    async def put_many(self, write_buffer: Mapping[bytes, JudgeResult]) -> None:
        """As `MemoryCache`, after a while."""
        await turns(self.draw, 6)
        await super().put_many(write_buffer)


async def turns(draw: random.Random, most: int) -> None:
    """Wait for up to so many turns of the event loop."""
    for _ in range(draw.randrange(most)):
        await asyncio.sleep(0)


@given(st.integers(0, 2**32), st.floats(0.0, 0.6))
@settings(max_examples=examples(40), deadline=None)
def test_whoever_comes_and_goes_every_verdict_is_made_once_and_everybody_who_stays_has_it(
    seed: int, leave: float
) -> None:
    async def run() -> None:
        draw = random.Random(seed)
        engine = YieldingEngine(draw)
        made = await judge(engine, cache=YieldingCache(draw))
        deadline = await deadline_after()

        async def request(number: int) -> JudgementResults | None:
            responses = draw.sample("uvwxyz", draw.randint(1, 4))
            of = draw.sample(ABC, draw.randint(1, 3))
            await turns(draw, 40)
            caller = Caller(draw.choice("abc"), draw.choice(["online", "bulk"]))  # type: ignore[arg-type]
            asked = plans(made, *responses, of=of)
            working = asyncio.create_task(made.outcomes(asked, deadline, caller=caller))
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


def many(made: Judge, deadline: float) -> "asyncio.Task[JudgementResults]":
    """A request for more responses than are begun in one turn."""
    return ask(made, *(f"Answer {n}." for n in range(MANY)), deadline=deadline)


def room_held(made: Judge) -> int:
    """Calls that have room in the queue."""
    assert isinstance(made.executor, LocalExecutor)
    return made.executor.admission.limits.held


def single_flight(made: Judge) -> int:
    """Verdicts on their way."""
    assert isinstance(made.executor, LocalExecutor)
    return len(made.executor.single_flight)


async def until(reached: Callable[[], bool]) -> list[int]:
    """Wait until something is so; how many tasks there were in each turn of the event loop."""
    tasks = []
    while not reached():
        await asyncio.sleep(0)
        tasks.append(len(asyncio.all_tasks()))
    return tasks


def steepest(tasks: Sequence[int]) -> int:
    """How many tasks came or went in one turn, at most."""
    return max(abs(b - a) for a, b in pairwise(tasks))


async def test_the_calls_of_a_large_request_are_begun_and_left_in_slices() -> None:
    made = await judge(GatedEngine(), queue_calls=2 * MANY)
    large = many(made, await deadline_after())
    began = await until(lambda: single_flight(made) == 2 * MANY)
    assert steepest(began) <= RESPONSES_PER_TURN + 1
    large.cancel()
    ended = await until(lambda: not room_held(made) and len(asyncio.all_tasks()) == 1)
    assert steepest(ended) <= RESPONSES_PER_TURN + 1


async def test_equal_large_requests_make_each_call_once_and_both_are_answered() -> None:
    engine = RecordingScript()
    made = await judge(ScriptedEngine(engine), queue_calls=4 * MANY)
    a, b = await asyncio.gather(many(made, await deadline_after()), many(made, await deadline_after()))
    assert set(engine.asked.values()) == {MANY}  # each question of each response
    assert a.by_digest == b.by_digest
    assert len(a.by_digest) == 2 * MANY == a.calls + len(a.joined) == b.calls + len(b.joined)
    assert room_held(made) == single_flight(made) == 0


async def test_what_is_not_begun_at_the_deadline_is_late_and_one_who_leaves_gives_its_room_back() -> None:
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
