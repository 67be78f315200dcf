"""A judge asks each question once, caches verdicts but not failures, and retries a failing engine once."""

import asyncio
from collections.abc import AsyncIterator

import pytest

from judge_server.engines.scripted import ScriptedEngine, always, by_hash
from judge_server.errors import InvalidRequest
from judge_server.judging.plan import ResponsePlan
from judge_server.judging.preparation import check_votes
from judge_server.judging.questions import JudgingConfig
from judge_server.judging.results import Outcomes, collect
from judge_server.ports import Batch, Call, CallFailure, JudgeResult, Reply, TokenChoice
from judge_server.scoring.cache import MemoryCache
from judge_server.scoring.judge import Judge
from tests.judge_server.support import (
    GatedEngine,
    RecordingScript,
    advance_time,
    criteria,
    deadline_after,
    description_in,
    group,
    judge,
    plan,
    plans,
)
from trainer_client.wire import Criterion

AB = criteria("Alpha.", "Beta.")
GONE = CallFailure("engine", "gone")


def kinds(outcomes: Outcomes) -> set[str]:
    """The kinds of all outcomes."""
    return {o.kind if isinstance(o, CallFailure) else "ok" for o in outcomes.by_digest.values()}


class FailingScript(RecordingScript):
    """Fails the first `times` calls of each question that contains `about`."""

    def __init__(self, failure: CallFailure, times: int, about: str = "") -> None:
        super().__init__(self._decide)
        self.failure, self.times, self.about = failure, times, about

    def _decide(self, batch: Batch, call: Call) -> Reply | CallFailure:
        fails = self.about in call.question and self.asked[call.question] <= self.times
        return self.failure if fails else by_hash(batch, call)


async def test_identical_calls_of_one_request_are_asked_once() -> None:
    script = RecordingScript()
    made = await judge(ScriptedEngine(script))
    twice = plans(made, "Yes.", "Yes.", "No.", of=criteria("a", "a", "b"))
    outcomes = await collect(made.judge(twice, await deadline_after()))
    assert script.asked.total() == outcomes.costs.calls == 4
    assert all(digest in outcomes.by_digest for plan in twice for digest in plan.digests)
    assert not outcomes.cached


async def test_cached_verdicts_are_not_asked_again_and_are_reported_as_cached() -> None:
    script = RecordingScript()
    made = await judge(ScriptedEngine(script))
    first = await collect(made.judge(plans(made, "Yes.", of=AB), await deadline_after()))
    script.outcome = always(False)
    again = plans(made, "Yes.", "No.", of=AB)
    second = await collect(made.judge(again, await deadline_after()))
    assert script.asked.total() == 4
    assert second.costs.calls == 2
    assert second.cached == frozenset(again[0].digests)
    assert {d: second.by_digest[d] for d in again[0].digests} == first.by_digest


async def test_verdicts_that_no_request_has_stored_are_stored_before_the_judge_closes() -> None:
    class OpenCache(MemoryCache):
        async def close(self) -> None:
            """Keep the entries, for the test to read."""

    cache = OpenCache()
    made = await judge(ScriptedEngine(RecordingScript()), cache=cache)
    made.executor.write_buffer.add(b"left behind", JudgeResult(1.0))
    await made.close()
    assert set(await cache.get_many([b"left behind"])) == {b"left behind"}


async def test_only_the_uncached_calls_of_a_response_are_asked() -> None:
    script = RecordingScript()
    made = await judge(ScriptedEngine(script))
    await collect(made.judge(plans(made, "Yes.", of=criteria("b")), await deadline_after()))
    script.asked.clear()
    await collect(made.judge(plans(made, "Yes.", of=criteria("a", "b", "c")), await deadline_after()))
    assert {description_in(question) for question in script.asked} == {"a", "c"}


@pytest.mark.parametrize("kind", ["engine", "truncated_input", "overloaded", "timeout", "parse"])
async def test_failures_are_not_cached(kind: str) -> None:
    script = FailingScript(CallFailure(kind, "no"), times=2, about="Alpha")  # type: ignore[arg-type]
    cache = MemoryCache()
    made = await judge(ScriptedEngine(script), cache=cache)
    asked = plans(made, "Yes.", of=AB)
    failed = await collect(made.judge(asked, await deadline_after()))
    assert kinds(failed) == {kind, "ok"}
    assert set(await cache.get_many(asked[0].digests)) == {asked[0].digests[1]}
    for _ in range(2):
        answered = await collect(made.judge(asked, await deadline_after()))
    assert kinds(answered) == {"ok"}


@pytest.mark.parametrize(
    ("failure", "times", "about", "found", "tries"),
    [
        (GONE, 1, "Alpha", {"ok"}, [1, 2]),
        (GONE, 99, "", {"engine"}, [2, 2]),
        *[(CallFailure(kind, "no"), 99, "", {kind}, [1, 1]) for kind in ("truncated_input", "timeout", "parse")],
    ],
)
async def test_only_calls_that_the_engine_failed_are_retried_and_only_once(
    failure: CallFailure, times: int, about: str, found: set[str], tries: list[int]
) -> None:
    script = FailingScript(failure, times, about)
    made = await judge(ScriptedEngine(script))
    assert kinds(await collect(made.judge(plans(made, "Yes.", of=AB), await deadline_after()))) == found
    assert sorted(script.asked.values()) == tries


async def test_an_overloaded_engine_is_retried_after_its_retry_time(monkeypatch: pytest.MonkeyPatch) -> None:
    slept: list[float] = []

    async def sleep(seconds: float) -> None:
        slept.append(seconds)

    script = FailingScript(CallFailure("overloaded", "busy", retry_after_s=7.0), times=1, about="Alpha")
    made = await judge(ScriptedEngine(script))
    with monkeypatch.context() as patch:
        patch.setattr("judge_server.scheduling.call_runner.asyncio.sleep", sleep)
        outcomes = await collect(made.judge(plans(made, "Yes.", of=AB), await deadline_after()))
    assert kinds(outcomes) == {"ok"}
    assert 7.0 in slept
    late = await collect(made.judge(plans(made, "No.", of=criteria("Alpha two.")), await deadline_after(5)))
    assert kinds(late) == {"overloaded"}


async def test_a_retry_that_would_miss_the_deadline_is_not_started() -> None:
    script = FailingScript(GONE, times=99)
    made = await judge(ScriptedEngine(script), retry_times={"pause_s": 120.0})
    assert kinds(await collect(made.judge(plans(made, "Yes.", of=AB), await deadline_after()))) == {"engine"}
    assert script.asked.total() == 2


async def test_calls_unfinished_at_the_deadline_time_out_and_finished_ones_are_cached() -> None:
    engine = GatedEngine(concurrent_batches=1)
    made = await judge(engine)
    asked = plans(made, "Yes.", "No.", of=AB)
    engine.release(3)
    asking = asyncio.create_task(collect(made.judge(asked, await deadline_after())))
    await engine.has_begun(4)
    advance_time()
    outcomes = await asking
    in_order = [outcomes.by_digest[digest] for plan in asked for digest in plan.digests]
    assert [isinstance(o, JudgeResult) for o in in_order] == [True, True, True, False]
    assert kinds(outcomes) == {"ok", "timeout"}
    engine.release(1)
    rest = await collect(made.judge(asked, await deadline_after()))
    assert (len(rest.cached), rest.costs.calls) == (3, 1)


async def test_cached_verdicts_need_no_room_in_the_queue() -> None:
    engine = GatedEngine(concurrent_batches=1)
    made = await judge(engine, queue_calls=1)
    engine.release(2)
    await collect(made.judge(plans(made, "Yes.", of=AB), await deadline_after()))
    engine.waiting.clear()
    running = asyncio.create_task(collect(made.judge(plans(made, "No.", of=AB), await deadline_after())))
    await engine.busy()
    assert len((await collect(made.judge(plans(made, "Yes.", of=AB), await deadline_after()))).cached) == 2
    engine.release(2)
    await running


async def test_tokens_computed_and_reused_are_summed_over_calls() -> None:
    made = await judge(ScriptedEngine(lambda batch, call: Reply((0.9, 0.1), tokens_computed=7, tokens_reused=3)))
    outcomes = await collect(made.judge(plans(made, "Yes.", "No.", of=AB), await deadline_after()))
    assert (outcomes.costs.tokens_computed, outcomes.costs.tokens_reused) == (28, 12)
    assert outcomes.costs.seconds_judging > 0
    assert outcomes.costs.seconds_queued >= 0


def verdicts(*entries: str) -> str:
    """A judge's answer about several criteria."""
    return '{"verdicts": [' + ", ".join(entries) + "]}"


class WritingScript(RecordingScript):
    """Answers calls about several criteria with these texts in turn, and calls about one with yes."""

    def __init__(self, *texts: str) -> None:
        super().__init__(self._write)
        self.texts = list(texts)
        self.together: list[str] = []
        self.alone: list[str] = []

    def _write(self, batch: Batch, call: Call) -> Reply | CallFailure:
        if isinstance(call.answer, TokenChoice):
            self.alone.append(call.question)
            return Reply((0.8, 0.1))
        self.together.append(call.question)
        return Reply(text=self.texts.pop(0))


def together(made: Judge, response: str, of: list[Criterion]) -> list[ResponsePlan]:
    """The plan of one response, all criteria in one call."""
    return [plan(made.prepared(JudgingConfig("binary", "all")), group(response), response, of)]


async def test_a_criterion_the_judge_left_out_is_asked_again_once_and_alone() -> None:
    script = WritingScript(verdicts('{"id": 1, "satisfied": false}'))
    made = await judge(ScriptedEngine(script))
    asked = together(made, "Yes.", AB)
    outcomes = await collect(made.judge(asked, await deadline_after()))
    first, second = [outcomes.by_digest[digest] for digest in asked[0].digests]
    assert (first, outcomes.costs.calls) == (JudgeResult(0.0), 2)
    assert isinstance(second, JudgeResult)
    assert second.score == 1.0
    assert len(script.alone) == 1
    assert "Beta." in script.alone[0]
    assert "Alpha." not in script.alone[0]
    again = await collect(made.judge(asked, await deadline_after()))
    assert (again.costs.calls, again.by_digest) == (0, outcomes.by_digest)


async def test_a_criterion_left_out_twice_fails_and_is_not_asked_a_third_time() -> None:
    script = RecordingScript(lambda batch, call: Reply(text="I would rather not."))
    made = await judge(ScriptedEngine(script))
    outcomes = await collect(made.judge(together(made, "Yes.", AB), await deadline_after()))
    assert kinds(outcomes) == {"parse"}
    assert outcomes.costs.calls == 3


async def test_a_criterion_being_asked_again_at_the_deadline_stays_a_parse_failure() -> None:
    made = await judge(SingleBatchEngine(WritingScript(verdicts())))
    outcomes = await collect(made.judge(together(made, "Yes.", AB), await deadline_after(0.5)))
    assert kinds(outcomes) == {"parse"}
    assert outcomes.costs.calls == 1


class SingleBatchEngine(ScriptedEngine):
    """Answers the first batch and hangs on any other."""

    answered = False

    async def answer(self, batch: Batch) -> AsyncIterator[tuple[int, Reply | CallFailure]]:
        """Answer the first batch as `ScriptedEngine`."""
        if self.answered:
            await asyncio.Event().wait()
        self.answered = True
        async for outcome in super().answer(batch):
            yield outcome


async def test_a_cached_verdict_is_not_replaced_when_its_call_is_repeated_for_another_criterion() -> None:
    script = WritingScript(verdicts('{"id": 1, "satisfied": false}'), verdicts('{"id": 1, "satisfied": true}'))
    made = await judge(ScriptedEngine(script))
    script.outcome = lambda batch, call: Reply(text=script.texts.pop(0)) if script.texts else Reply(text="nothing")
    asked = together(made, "Yes.", AB)
    first = await collect(made.judge(asked, await deadline_after()))
    assert kinds(first) == {"ok", "parse"}
    script.texts = [verdicts('{"id": 1, "satisfied": true}', '{"id": 2, "satisfied": true}')]
    second = await collect(made.judge(asked, await deadline_after()))
    assert [o.score for o in (second.by_digest[d] for d in asked[0].digests) if isinstance(o, JudgeResult)] == [
        0.0,
        1.0,
    ]


async def test_each_plan_is_reported_done_once_when_all_its_outcomes_are_known() -> None:
    made = await judge()
    await collect(made.judge(plans(made, "known", of=AB), await deadline_after()))
    asked = plans(made, "known", "new", "new", "other", of=AB)
    known: set[bytes] = set()
    told: list[int] = []
    async for judged in made.judge(asked, await deadline_after()):
        known.update(judged.outcomes.by_digest)
        assert all(known.issuperset(asked[place].digests) for place in judged.complete)
        told += judged.complete
    assert told[0] == 0
    assert sorted(told) == [0, 1, 2, 3]


async def test_cancelling_caches_the_verdicts_so_far_and_frees_the_queue() -> None:
    engine = GatedEngine(concurrent_batches=1)
    cache = MemoryCache()
    made = await judge(engine, cache=cache, queue_calls=4)
    asked = plans(made, "Yes.", "No.", of=AB)
    engine.release(2)
    running = asyncio.create_task(collect(made.judge(asked, await deadline_after())))
    await engine.busy()
    assert len(engine.began) == 3
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert set(await cache.get_many([d for p in asked for d in p.digests])) == set(asked[0].digests)
    engine.release(2)
    assert kinds(await collect(made.judge(asked, await deadline_after()))) == {"ok"}


def test_votes_on_a_plain_verdict_are_refused_where_its_probability_is_read() -> None:
    made = asyncio.run(judge())
    for protocol in ("binary", "stepwise", "graded", "likert"):
        with pytest.raises(InvalidRequest, match=f"exact probability of a {protocol} verdict"):
            check_votes(made.identity, JudgingConfig(protocol), 3)
    reasoned = [
        JudgingConfig("binary", rationale=True),
        JudgingConfig("graded", think_tokens=9),
        JudgingConfig("likert", rationale=True),
    ]
    for way in (*reasoned, JudgingConfig("likert", think_tokens=9), JudgingConfig("binary", 2)):
        check_votes(made.identity, way, 3)
    check_votes(made.identity, JudgingConfig("binary"), 1)


async def test_checks_run_alongside_the_judge_and_identical_ones_run_once() -> None:
    made = await judge()
    of = [
        Criterion.model_validate(
            {"id": "a", "description": "x", "verification": {"method": "contains", "all_of": ["yes"]}}
        ),
        *criteria("Alpha."),
    ]
    asked = plans(made, "Yes.", "Yes.", "No.", of=of)
    outcomes = await collect(made.judge(asked, await deadline_after()))
    assert (outcomes.costs.calls, outcomes.checks) == (2, 2)
    assert [outcomes.by_digest[p.pending[0].digests[0]] for p in asked] == [
        JudgeResult(1.0),
        JudgeResult(1.0),
        JudgeResult(0.0),
    ]
    assert (await collect(made.judge(asked, await deadline_after()))).costs.calls == 0
