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
    UncountableCall,
    count_workload,
    estimate,
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


async def test_calls_that_write_more_than_one_token_are_refused() -> None:
    _, plans = await sample("Yes.", judging={"rationale": True})
    with pytest.raises(UncountableCall, match="more than one token"):
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
