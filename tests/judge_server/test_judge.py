"""A judge asks each question once, remembers verdicts, forgets failures, and tries a failing engine once more."""

import asyncio

import pytest

from judge_server.cache import MemoryCache
from judge_server.engines.scripted import ScriptedEngine, always, by_hash
from judge_server.errors import Overloaded
from judge_server.judging.judge import Outcomes
from judge_server.ports import Batch, Call, CallFailed, Finding, Reply
from tests.judge_server.support import Gated, Recording, criteria, judge, plans, soon

AB = criteria("Alpha.", "Beta.")
GONE = CallFailed("engine", "gone")


@pytest.fixture(autouse=True)
def no_pause(monkeypatch: pytest.MonkeyPatch) -> None:
    """A retry comes at once."""
    monkeypatch.setattr("judge_server.judging.judge.ENGINE_RETRY_PAUSE_S", 0.001)


def kinds(outcomes: Outcomes) -> set[str]:
    """The kinds of all outcomes."""
    return {o.kind if isinstance(o, CallFailed) else "ok" for o in outcomes.of.values()}


class Failing(Recording):
    """Fails the first `times` asks of each question that holds `about`."""

    def __init__(self, failure: CallFailed, times: int, about: str = "") -> None:
        super().__init__(self._decide)
        self.failure, self.times, self.about = failure, times, about

    def _decide(self, batch: Batch, call: Call) -> Reply | CallFailed:
        fails = self.about in call.question and self.asked[call.question] <= self.times
        return self.failure if fails else by_hash(batch, call)


async def test_identical_calls_of_one_request_are_asked_once() -> None:
    script = Recording()
    made = await judge(ScriptedEngine(script))
    twice = plans(made, "Yes.", "Yes.", "No.", of=criteria("a", "a", "b"))
    outcomes = await made.outcomes(twice, await soon())
    assert script.asked.total() == outcomes.calls == 4
    assert all(digest in outcomes.of for plan in twice for digest in plan.digests)
    assert not outcomes.cached


async def test_known_verdicts_are_not_asked_again_and_are_said_to_be_cached() -> None:
    script = Recording()
    made = await judge(ScriptedEngine(script))
    first = await made.outcomes(plans(made, "Yes.", of=AB), await soon())
    script.outcome = always(False)
    again = plans(made, "Yes.", "No.", of=AB)
    second = await made.outcomes(again, await soon())
    assert script.asked.total() == 4
    assert second.calls == 2
    assert second.cached == frozenset(again[0].digests)
    assert {d: second.of[d] for d in again[0].digests} == first.of


async def test_only_the_unknown_calls_of_a_response_are_asked() -> None:
    script = Recording()
    made = await judge(ScriptedEngine(script))
    await made.outcomes(plans(made, "Yes.", of=criteria("b")), await soon())
    script.asked.clear()
    await made.outcomes(plans(made, "Yes.", of=criteria("a", "b", "c")), await soon())
    assert {question.split()[1] for question in script.asked} == {"a", "c"}


@pytest.mark.parametrize("kind", ["engine", "truncated_input", "overloaded", "timeout"])
async def test_failures_are_not_cached(kind: str) -> None:
    script = Failing(CallFailed(kind, "no"), times=2, about="Alpha")  # type: ignore[arg-type]
    cache = MemoryCache()
    made = await judge(ScriptedEngine(script), cache=cache)
    asked = plans(made, "Yes.", of=AB)
    failed = await made.outcomes(asked, await soon())
    assert kinds(failed) == {kind, "ok"}
    assert set(await cache.get_many(asked[0].digests)) == {asked[0].digests[1]}
    for _ in range(2):
        answered = await made.outcomes(asked, await soon())
    assert kinds(answered) == {"ok"}


async def test_parse_failures_are_not_cached() -> None:
    script = Recording(lambda batch, call: Reply((0.0, 0.0)))
    made = await judge(ScriptedEngine(script))
    asked = plans(made, "Yes.", of=AB)
    assert kinds(await made.outcomes(asked, await soon())) == {"parse"}
    script.outcome = always(True)
    assert kinds(await made.outcomes(asked, await soon())) == {"ok"}


async def test_a_call_the_engine_failed_is_asked_once_more_and_no_other() -> None:
    script = Failing(GONE, times=1, about="Alpha")
    made = await judge(ScriptedEngine(script))
    outcomes = await made.outcomes(plans(made, "Yes.", of=AB), await soon())
    assert kinds(outcomes) == {"ok"}
    assert sorted(script.asked.values()) == [1, 2]


async def test_an_engine_that_keeps_failing_is_asked_twice_and_then_left() -> None:
    script = Failing(GONE, times=99)
    made = await judge(ScriptedEngine(script))
    outcomes = await made.outcomes(plans(made, "Yes.", of=AB), await soon())
    assert set(outcomes.of.values()) == {GONE}
    assert list(script.asked.values()) == [2, 2]


@pytest.mark.parametrize("kind", ["truncated_input", "timeout", "parse"])
async def test_other_failures_are_not_retried(kind: str) -> None:
    script = Failing(CallFailed(kind, "no"), times=99)  # type: ignore[arg-type]
    made = await judge(ScriptedEngine(script))
    assert kinds(await made.outcomes(plans(made, "Yes.", of=AB), await soon())) == {kind}
    assert list(script.asked.values()) == [1, 1]


async def test_no_retry_begins_that_the_deadline_would_cut(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("judge_server.judging.judge.ENGINE_RETRY_PAUSE_S", 120.0)
    script = Failing(GONE, times=99)
    made = await judge(ScriptedEngine(script))
    assert kinds(await made.outcomes(plans(made, "Yes.", of=AB), await soon())) == {"engine"}
    assert script.asked.total() == 2


async def test_what_is_not_judged_at_the_deadline_is_a_timeout_and_what_is_stays_and_is_kept() -> None:
    engine = Gated(concurrent_batches=1)
    made = await judge(engine)
    asked = plans(made, "Yes.", "No.", of=AB)
    engine.let(3)
    outcomes = await made.outcomes(asked, await soon(0.03))
    in_order = [outcomes.of[digest] for plan in asked for digest in plan.digests]
    assert [isinstance(o, Finding) for o in in_order] == [True, True, True, False]
    assert kinds(outcomes) == {"ok", "timeout"}
    engine.let(1)
    rest = await made.outcomes(asked, await soon())
    assert (len(rest.cached), rest.calls) == (3, 1)


async def test_a_request_that_does_not_fit_is_refused_as_a_whole_and_asks_nothing() -> None:
    engine = Gated()
    made = await judge(engine, queue_calls=3)
    running = asyncio.create_task(made.outcomes(plans(made, "Yes.", of=AB), await soon()))
    await engine.busy()
    began = list(engine.began)
    with pytest.raises(Overloaded):
        await made.outcomes(plans(made, "No.", of=AB), await soon())
    assert engine.began == began
    engine.let(2)
    await running


async def test_known_verdicts_need_no_room_in_the_queue() -> None:
    engine = Gated(concurrent_batches=1)
    made = await judge(engine, queue_calls=1)
    engine.let(2)
    await made.outcomes(plans(made, "Yes.", of=AB), await soon())
    engine.waiting.clear()
    running = asyncio.create_task(made.outcomes(plans(made, "No.", of=AB), await soon()))
    await engine.busy()
    assert len((await made.outcomes(plans(made, "Yes.", of=AB), await soon())).cached) == 2
    engine.let(2)
    await running


async def test_tokens_computed_and_reused_are_summed_over_calls() -> None:
    made = await judge(ScriptedEngine(lambda batch, call: Reply((0.9, 0.1), None, 7, 3)))
    outcomes = await made.outcomes(plans(made, "Yes.", "No.", of=AB), await soon())
    assert (outcomes.tokens_computed, outcomes.tokens_reused) == (28, 12)
    assert outcomes.seconds_judging > 0
    assert outcomes.seconds_queued >= 0
