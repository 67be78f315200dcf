"""Adjudge against the bare engine: both sides get the same prompts, and figures are computed from the turns."""

from collections.abc import Sequence

import pytest
from benchmarks.bare_engine import __main__ as command
from benchmarks.bare_engine.engines import Contest
from benchmarks.bare_engine.workload import RUBRIC, Pair, Prompts, batches, figures, groups
from benchmarks.server import running_service

from judge_server.engines.scripted import ScriptedEngine, by_hash
from judge_server.ports import Batch, Call, Reply
from judge_server.scheduling.executor import LocalExecutor
from judge_server.scoring.cache import MemoryCache
from judge_server.scoring.judge import Judge
from judge_server.scoring.scorer import Scorer
from trainer_client import AsyncClient
from trainer_client.wire import RewardRequest


async def by_words(batch: Batch) -> Prompts:
    """One token per word."""
    return Prompts([0] * len(batch.shared.split()), [[0] * len(c.question.split()) for c in batch.calls])


class RecordingEngine:
    """A bare engine that answers at once and records its batches."""

    def __init__(self) -> None:
        self.prepare = by_words
        self.asked: list[Batch] = []

    async def ask(self, batches: Sequence[Batch], prompts: Sequence[Prompts]) -> None:
        """Record the batches."""
        assert len(prompts) == len(batches)
        self.asked += batches


def test_a_turn_asks_every_criterion_of_every_response_and_repeats_no_prompt() -> None:
    source = groups(2)
    first, second = batches(next(source)), batches(next(source))
    assert [len(batch.calls) for batch in first] == [len(RUBRIC.criteria)] * 2
    shared = [batch.shared for batch in (*first, *second)]
    assert len(set(shared)) == 4


def test_ratios_use_tokens_per_second_so_that_turns_of_different_length_compare() -> None:
    longer = Pair(adjudge_s=2.0, adjudge_ideal=200, adjudge_computed=210, bare_s=0.5, bare_ideal=100)
    assert longer.ratio == 0.5
    even = Pair(adjudge_s=1.0, adjudge_ideal=100, adjudge_computed=90, bare_s=1.0, bare_ideal=100)
    made = figures([longer, even, even], judgements=10)
    assert (made["ratio"], made["ratio min"], made["ratio max"]) == (1.0, 0.5, 1.0)
    assert made["judgements"] == 30
    assert made["over ideal"] == pytest.approx((210 + 90 + 90) / 400)
    assert made["Adjudge /s"] == pytest.approx(100 / (400 / 30))


@pytest.mark.slow
async def test_both_sides_get_the_same_number_of_turns_through_a_real_service() -> None:
    bare = RecordingEngine()
    with running_service("scripted://hash") as (url, _):
        async with AsyncClient(url) as client:
            made = await command._compare(Contest("scripted://hash", bare), client, "scripted", pairs=2, per_turn=2)
    assert len(bare.asked) == (1 + 2) * 2
    assert made["judgements"] == 2 * 2 * len(RUBRIC.criteria)


async def test_the_bare_engine_gets_exactly_the_prompts_that_adjudge_makes() -> None:
    group, seen = next(groups(2)), []

    def note(batch: Batch, call: Call) -> Reply:
        seen.append((batch.system, batch.shared, call.question))
        return by_hash(batch, call)

    judge = Judge(LocalExecutor(ScriptedEngine(note)), MemoryCache())
    await judge.start()
    scorer = Scorer(judge, None)  # type: ignore[arg-type]  # the rubric is inline
    await scorer.score(RewardRequest(rubric=RUBRIC, groups=(group,)), request_id="r", project_id="p")
    await judge.close()
    assert sorted(seen) == sorted((b.system, b.shared, c.question) for b in batches(group) for c in b.calls)
