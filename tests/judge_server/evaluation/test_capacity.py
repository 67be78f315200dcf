"""Capacity planning: calls and tokens as an engine counts them, rates solved, and the fewest sufficient replicas."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judge_server.engines.scripted import ScriptedEngine, by_hash
from judge_server.errors import InvalidRequest
from judge_server.evaluation.capacity import (
    MOST_BUSY,
    PUBLISHED,
    Demand,
    Estimate,
    Layout,
    Training,
    UncountableCall,
    count_workload,
    estimate,
    judge_layouts,
    measure_rates,
    plan_sample,
    published_rates,
)
from judge_server.ports import Batch, Call, CallFailure
from tests.judge_server import support
from tests.judge_server.support import request
from trainer_client.wire import RewardRequest


class CharacterTokens:
    """A tokenizer with one token per character."""

    async def prompt_tokens(self, batch: Batch, call: Call) -> list[int]:
        """The prompt's characters."""
        return [ord(character) for character in batch.system + batch.shared + call.question]


def common(one: str, other: str) -> int:
    return next((n for n, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))


async def sample(*texts: str, **fields: object) -> tuple[list[str], object]:
    """The prompts of a sample in order, and its plans."""
    judge = await support.judge()
    plans = await plan_sample(judge, None, RewardRequest.model_validate(request(*texts, **fields)))  # type: ignore[arg-type]
    prompts = [plan.batch.system + plan.batch.shared + call.question for plan in plans for call in plan.batch.calls]
    return prompts, plans


async def test_a_slot_reuses_the_prefix_shared_with_the_previous_prompt() -> None:
    prompts, plans = await sample("Yes, it is.", "No, it is not.")
    work = await count_workload(CharacterTokens(), plans, "slot", responses=2)  # type: ignore[arg-type]
    assert [call.prompt for call in work.calls] == [len(prompt) for prompt in prompts]
    before = ["", *prompts]
    assert [call.computed for call in work.calls] == [
        max(1, len(prompt) - common(last, prompt)) for last, prompt in zip(before, prompts, strict=False)
    ]
    assert (work.judgements, work.by_program, work.written, work.repeated) == (14, 0, 14, 0)


async def test_blocks_reuse_whole_blocks_of_any_earlier_prompt() -> None:
    prompts, plans = await sample("Yes, it is.", "No, it is not.", "Yes, it is.")
    work = await count_workload(CharacterTokens(), plans, "blocks", responses=3)  # type: ignore[arg-type]
    assert work.repeated == 7
    for number, (call, prompt) in enumerate(zip(work.calls, prompts, strict=False)):
        shared = max((common(earlier, prompt) for earlier in prompts[:number]), default=0) // 16 * 16
        assert call.computed == max(1, len(prompt) - shared)


async def test_programmatic_checks_and_repeats_need_no_call() -> None:
    groups = [{"id": "g", "prompt": "Is 7 prime?", "responses": ["Yes.", "Yes."], "ground_truth": "yes"}]
    _, plans = await sample(groups=groups)
    work = await count_workload(CharacterTokens(), plans, "slot", responses=2)  # type: ignore[arg-type]
    assert (work.judgements, work.by_program, len(work.calls), work.repeated) == (14, 2, 6, 6)


async def test_contextual_calibration_adds_a_call_for_each_criterion_of_a_group() -> None:
    _, plans = await sample("a b", "c d", "e f", judging={"contextual_calibration": True})
    work = await count_workload(CharacterTokens(), plans, "slot", responses=3)  # type: ignore[arg-type]
    assert (work.judgements, len(work.calls), work.repeated) == (21, 28, 0)


async def test_half_of_the_criteria_make_half_of_the_calls_and_rankings_count_comparisons() -> None:
    judge = await support.judge()
    asked = RewardRequest.model_validate(request("a b", "c d", "e f"))
    plans = await plan_sample(judge, None, asked, criteria_share=0.5)  # type: ignore[arg-type]
    assert [len(plan.batch.calls) for plan in plans] == [4, 4, 4]
    ranked = RewardRequest.model_validate(request("a b", "c d", "e f", reward={"mode": "ranking"}))
    plans = await plan_sample(judge, None, ranked)  # type: ignore[arg-type]
    work = await count_workload(CharacterTokens(), plans, "slot", responses=3)
    assert (work.judgements, len(work.calls)) == (6, 6)


async def test_a_stepwise_call_adds_the_verdict_the_lead_and_the_label_of_a_step() -> None:
    judge = await support.judge()
    counted = {}
    for protocol in ("binary", "stepwise"):
        rubric = {"criteria": [{"id": "p", "kind": "process", "description": "Tries small factors."}]}
        body = request(support.STEPPED, rubric=rubric, judging={"protocol": protocol})
        plans = await plan_sample(judge, None, RewardRequest.model_validate(body))  # type: ignore[arg-type]
        (counted[protocol],) = (await count_workload(CharacterTokens(), plans, "slot", responses=1)).calls
        (call,) = plans[0].batch.calls
    assert counted["binary"].written == 1
    assert counted["binary"].computed == counted["binary"].prompt
    appended = counted["stepwise"].computed - counted["stepwise"].prompt
    assert appended == len("Yes" + call.answer.then.lead)  # type: ignore[union-attr]
    assert counted["stepwise"].written == 1 + len("-1") + 1


async def test_calls_that_write_text_are_refused() -> None:
    _, plans = await sample("Yes.", judging={"rationale": True})
    with pytest.raises(UncountableCall, match="writes text for a verdict"):
        await count_workload(CharacterTokens(), plans, "slot", responses=1)  # type: ignore[arg-type]


async def test_a_mode_without_a_judge_is_refused() -> None:
    groups = [{"id": "g", "prompt": "?", "responses": ["7"], "ground_truth": "7"}]
    with pytest.raises(InvalidRequest, match="asks no judge"):
        await sample(groups=groups, reward={"mode": "outcome"})


@pytest.mark.parametrize("name", PUBLISHED)
def test_published_rates_give_the_published_throughput(name: str) -> None:
    rates, figures = published_rates(name), PUBLISHED[name]
    assert 128 / rates.seconds(2048, 128) == pytest.approx(figures.long_prompts)
    assert 2048 / rates.seconds(128, 2048) == pytest.approx(figures.long_answers)
    assert rates.prefill_s > 0
    assert rates.decode_s > rates.prefill_s


def test_an_unknown_name_of_published_rates_is_refused_with_the_known_ones() -> None:
    with pytest.raises(ValueError, match=r"no published rates of 'gpt'.*llama-3\.1-8b-fp8@h100"):
        published_rates("gpt")


async def test_an_engine_that_fails_has_no_rates() -> None:
    _, plans = await sample("Yes.")
    failing = ScriptedEngine(lambda batch, call: CallFailure("engine", "out of order"))
    await failing.start()
    with pytest.raises(ValueError, match="out of order"):
        await measure_rates(failing, "scripted", plans)  # type: ignore[arg-type]


async def test_calls_of_one_length_cannot_determine_two_rates() -> None:
    _, plans = await sample("Yes.")
    same = ScriptedEngine(lambda batch, call: by_hash(batch, call)._replace(tokens_computed=3, tokens_written=1))
    await same.start()
    with pytest.raises(ValueError, match="all of one length"):
        await measure_rates(same, "scripted", plans)  # type: ignore[arg-type]


DEMANDS = st.builds(
    Demand,
    runs=st.integers(1, 2_000),
    steps_per_hour=st.floats(0.1, 600),
    responses=st.integers(1, 512),
    judging_s=st.floats(0.1, 600),
)


@given(DEMANDS, st.floats(1e-3, 0.1), st.integers(0, 8))
def test_the_replicas_suffice_and_one_fewer_would_not(demand: Demand, seconds: float, gpus: int) -> None:
    found = estimate(demand, seconds, gpus)
    assert found.gpus == found.replicas * gpus
    assert found.busy <= MOST_BUSY + 1e-9
    assert found.alone_s + found.queued_s <= demand.judging_s
    assert found.alone_s == pytest.approx(seconds * math.ceil(demand.responses / found.replicas))
    if found.replicas > 1:
        fewer = found.replicas - 1
        too_busy = found.busy * found.replicas / fewer > MOST_BUSY + 1e-12
        others = found.busy * found.replicas * (1 - 1 / demand.runs) / fewer
        alone = seconds * math.ceil(demand.responses / fewer)
        servers = max(1.0, fewer / demand.responses)
        wait = others ** (math.sqrt(2 * (servers + 1)) - 1) / (servers * (1 - others)) if others < 1 else math.inf
        late = alone * (1 + wait) > demand.judging_s * (1 - 1e-9)
        assert too_busy or late


def test_a_single_run_never_queues() -> None:
    found = estimate(Demand(1, 60, 64, 6.0), 0.023, 1)
    assert (found.replicas, found.queued_s) == (1, 0.0)


def test_steps_that_cannot_be_judged_in_time_are_refused() -> None:
    with pytest.raises(ValueError, match="judging one response takes 2 s"):
        estimate(Demand(1, 60, 64, 1.0), 2.0, 1)
    with pytest.raises(ValueError, match="above 0"):
        estimate(Demand(1, 60, 64, 1.0), 0.0, 1)


TRAININGS = st.builds(
    Training,
    gpus=st.integers(1, 64),
    rollout_s=st.floats(0, 1000),
    update_s=st.floats(0.01, 1000),
    wake_s=st.floats(0, 100),
    judge_memory=st.floats(0, 0.9),
)


@given(DEMANDS, TRAININGS, st.floats(1e-3, 0.1), st.integers(0, 8))
def test_each_layout_is_the_sum_of_its_parts_and_the_cheapest_is_first(
    demand: Demand, training: Training, seconds: float, gpus: int
) -> None:
    found = estimate(demand, seconds, gpus)
    layouts = judge_layouts(demand, training, seconds, gpus, found)
    hours = [one.gpu_hours_per_step for one in layouts]
    assert hours == sorted(hours)
    for one in layouts:
        assert one.step_s == pytest.approx(one.rollout_s + one.wake_s + one.judging_s + training.update_s)
        assert one.gpu_hours_per_step * demand.runs * 3600 == pytest.approx(one.gpus * one.step_s)
        assert one.gpus >= training.gpus * demand.runs
    by_name = {one.name: one for one in layouts}
    assert by_name["dedicated"].gpus == training.gpus * demand.runs + found.gpus
    assert ("shared" in by_name) == ("sleeping" in by_name) == (1 <= gpus <= training.gpus)
    if "shared" in by_name:
        assert by_name["shared"].judging_s == by_name["sleeping"].judging_s
        assert by_name["shared"].rollout_s >= by_name["sleeping"].rollout_s


def layout_names(training: Training) -> list[str]:
    demand, found = Demand(1, 60, 64, 6.0), Estimate(1, 1, 0.1, 1.5, 0.0)
    return [one.name for one in judge_layouts(demand, training, 0.023, 1, found)]


def test_a_judge_sleeps_where_its_memory_costs_more_than_waking_and_is_apart_where_gpus_are_many() -> None:
    assert layout_names(Training(1, 40, 20, wake_s=1, judge_memory=0.5))[0] == "sleeping"
    assert layout_names(Training(1, 40, 20, wake_s=30, judge_memory=0.1))[0] == "shared"
    assert layout_names(Training(64, 40, 20, wake_s=30, judge_memory=0.5))[0] == "dedicated"


@pytest.mark.parametrize(
    ("training", "problem"),
    [
        (Training(0, 40, 20, 1, 0.1), "at least 1 GPU"),
        (Training(8, 0, 0, 1, 0.1), "above 0"),
        (Training(8, 40, 20, -1, 0.1), "above 0"),
        (Training(8, 40, 20, 1, 1.0), "share of the memory is 1.0"),
    ],
)
def test_an_impossible_training_is_refused(training: Training, problem: str) -> None:
    with pytest.raises(ValueError, match=problem):
        layout_names(training)


def test_a_layout_of_a_hundred_runs_shares_the_dedicated_judge() -> None:
    demand, training = Demand(100, 60, 64, 6.0), Training(8, 40, 20, 10, 0.2)
    (dedicated,) = (
        one
        for one in judge_layouts(demand, training, 0.023, 1, Estimate(4, 4, 0.6, 0.4, 0.6))
        if one.name == "dedicated"
    )
    assert dedicated == Layout("dedicated", 4, 804, 40, 0, 1.0, 61.0, pytest.approx(8.04 * 61 / 3600))  # type: ignore[arg-type]
