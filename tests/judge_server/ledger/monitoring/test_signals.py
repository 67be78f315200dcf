"""The signals of a judged request for monitors, and the sample sent to the gold judge."""

import asyncio
from typing import Any

import pytest

from judge_server.engines.scripted import always
from judge_server.ledger.monitoring.gold import GoldSampler, is_sampled, sample
from judge_server.ledger.monitoring.signals import overlaps
from judge_server.ledger.rows import rows_of
from judge_server.scoring.planner import FirstJudgement
from judge_server.scoring.scorer import Scorer
from tests.judge_server.ledger.judged import SynchronousRecorder, rows, score, scorer
from trainer_client.wire import RewardRequest

LONG = "The train covers one hundred and twenty kilometres in ninety minutes so it is fast enough for us"
CRITERIA: list[dict[str, Any]] = [
    {"id": "named", "description": "Names it.", "verification": {"method": "contains", "all_of": ["it"]}},
    {
        "id": "right",
        "description": "Is right.",
        "shadow": True,
        "verification": {"method": "contains", "all_of": ["yes"]},
    },
]


def body(*groups: list[str], **fields: Any) -> dict[str, Any]:
    """A request with these groups, each with its own prompt."""
    listed = [{"id": f"g{n}", "prompt": f"p{n}", "responses": texts} for n, texts in enumerate(groups)]
    return {"run": "r", "step": 3, "rubric": {"criteria": CRITERIA}, "groups": listed} | fields


async def signals(request: dict[str, Any]) -> dict[tuple[str, str], tuple[float, ...]]:
    """The sums of the request's signals, by signal and name: pairs, x, y and xy."""
    return {(one.signal, one.name): (one.pairs, one.x, one.y, one.xy) for one in (await rows(request)).signals}


async def test_shadows_lengths_and_criteria_are_summed() -> None:
    told = await signals(body(["it is yes", "it is no"], ["yes", "no"]))
    assert told["shadow", "right"] == (4, 2.0, 2.0, 1.0)
    assert told["length", "characters"] == (4, 2.0, 22.0, 17.0)
    assert told["criterion", "named"] == (2, 1.0, 1.0, 0.0)
    assert ("criterion", "right") not in told


async def test_a_shadow_criterion_never_enters_the_reward() -> None:
    made = await scorer(SynchronousRecorder())
    answer = await score(made, body(["it", "yes"]))
    assert [one.reward for one in answer.groups[0].responses] == [1.0, 0.0]
    assert [v.criterion for v in answer.groups[0].responses[0].verdicts] == ["named", "right"]


async def test_length_is_counted_in_tokens_if_all_responses_have_a_count() -> None:
    given: Any = [{"text": "it", "tokens": 5}, {"text": "no", "tokens": 7}]
    assert (await signals(body(given)))["length", "tokens"][2] == 12.0


@pytest.mark.parametrize("missing", ["run", "step"])
async def test_a_request_without_run_or_step_has_no_signals(missing: str) -> None:
    assert await signals(body(["it"], **{missing: None})) == {}


async def overlap_of(*groups: list[str]) -> list[tuple[float, float]]:
    """Which responses of a request are duplicates, and which follow a template."""
    recorder = SynchronousRecorder()
    await score(await scorer(recorder), body(*groups))
    return overlaps(recorder.judged[0].groups)


async def test_duplicates_and_templates_are_found_across_prompts() -> None:
    other = "Nothing in this sentence occurs in any of the other ones that are compared with it here"
    half = LONG + " and now some other words follow that nobody else has written down before in this test at all"
    assert await overlap_of([LONG], [LONG.upper()], [other]) == [(1.0, 1.0), (1.0, 1.0), (0.0, 0.0)]
    assert await overlap_of([LONG], [half]) == [(1.0, 1.0), (0.0, 0.0)]


async def test_duplicates_and_templates_are_counted_among_the_signals() -> None:
    assert (await signals(body([LONG], [LONG.upper()])))["overlap", ""] == (2, 2.0, 2.0, 2.0)


async def test_similar_responses_to_one_prompt_and_short_answers_are_not_duplicates() -> None:
    assert await overlap_of([LONG, LONG]) == []
    assert await overlap_of(["42"], ["42"]) == []


def test_the_sample_is_reproducible_and_about_as_large_as_requested() -> None:
    chosen = [n for n in range(4000) if is_sampled("prompt", f"response {n}", 0.25)]
    assert chosen == [n for n in range(4000) if is_sampled("prompt", f"response {n}", 0.25)]
    assert 900 < len(chosen) < 1100
    assert set(chosen) <= {n for n in range(4000) if is_sampled("prompt", f"response {n}", 0.5)}


async def test_the_gold_judge_gets_the_sample_and_the_first_judges_verdicts() -> None:
    recorder = SynchronousRecorder()
    judged = [{"id": "sure", "description": "Is sure."}]
    asked = body(["yes", "no"], gold={"judge": "gold", "share": 1.0}, rubric={"criteria": judged})
    await score(await scorer(recorder, always(True)), asked)
    sampled = sample(RewardRequest.model_validate(asked), recorder.judged[0])
    assert sampled is not None
    assert (sampled.request.run, sampled.request.judge, sampled.request.gold) == ("r/gold", "gold", None)
    assert sampled.first == [FirstJudgement(1.0, {"sure": 1.0})] * 2
    gold = SynchronousRecorder()
    await (await scorer(gold, always(False))).score(sampled.request, request_id="r", project_id="default")
    gold.judged[0].compared = sampled.first
    told = {
        (one.signal, one.name): (one.run, one.pairs, one.x, one.y)
        for one in rows_of(gold.judged, keep_texts=True).signals
    }
    assert told == {("gold", ""): ("r/gold", 2, 2.0, 0.0), ("gold", "sure"): ("r/gold", 2, 2.0, 0.0)}


@pytest.mark.parametrize(("runs", "judged", "dropped"), [(True, 2, 0), (False, 0, 2)])
async def test_samples_waiting_when_the_service_stops_are_judged_or_counted_as_dropped(
    runs: bool, judged: int, dropped: int
) -> None:
    asked = RewardRequest.model_validate(body(["yes", "no"], gold={"judge": "gold", "share": 1.0}))
    gold, sampler = await scorer(SynchronousRecorder()), GoldSampler(None)  # type: ignore[arg-type]
    first = sampler.recorder(asked, gold.judge, recorded := SynchronousRecorder())
    await Scorer(gold.judge, None, first).score(asked, request_id="r", project_id="default")  # type: ignore[arg-type]
    running = asyncio.create_task(sampler.run()) if runs else None
    await sampler.drain(60.0 if runs else 0.0)
    assert len(recorded.judged) == 1 + bool(judged)
    counted = {
        one.labels["outcome"]: one.value
        for metric in sampler.metrics.collect()
        for one in metric.samples
        if one.name == "adjudge_gold_responses_total"
    }
    assert counted == {"judged": judged, "dropped": dropped, "failed": 0}
    if running is not None:
        running.cancel()


async def test_what_the_gold_judge_is_uncertain_about_costs_no_other_response_its_comparison() -> None:
    by_judge = [{"id": "judged", "description": "Is right."}]
    gold = {"judge": "large", "share": 1.0}
    asked = body(["it"], gold=gold, rubric={"criteria": by_judge}, uncertain_band=[0.2, 0.8], on_uncertain="error")
    recorder = SynchronousRecorder()
    await score(await scorer(recorder, always(True)), asked)
    sampled = sample(RewardRequest.model_validate(asked), recorder.judged[0])
    assert sampled is not None
    assert (sampled.request.on_failure, sampled.request.on_uncertain) == ("null", "null")


def test_gold_judging_needs_a_run() -> None:
    with pytest.raises(ValueError, match="gold needs a run"):
        RewardRequest.model_validate(body(["it"], gold={"judge": "gold"}, run=None))
