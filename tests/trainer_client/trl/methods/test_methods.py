"""The methods alone: their advantages, their TRL settings, and the groups they exclude."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trainer_client.advantages import group_advantages
from trainer_client.trl.methods import (
    METHODS,
    Grounded,
    Rar,
    Rgr,
    Rollout,
    RubricGrpo,
    ScoredResponse,
    Srar,
    options_of,
)
from trainer_client.wire import Criterion, ResponseReward, StepReward, Verdict
from trainer_client.wire.rewards import Failure

REWARDS = st.lists(st.none() | st.floats(0, 1, allow_subnormal=False), min_size=1, max_size=8)


def group(rewards, **more):
    return [Rollout(tokens=4, reward=reward, **more) for reward in rewards]


def rollout(reward, deltas=None, spans=None, tokens=4):
    return Rollout(tokens=tokens, reward=reward, deltas=deltas or {}, spans=spans or {})


def answered(verdicts, steps):
    return ResponseReward(
        reward=1.0,
        status="scored",
        verdicts=tuple(verdicts),
        steps=tuple(StepReward(number=n, start=10 * n, end=10 * n + 10) for n in steps),
    )


def ok(criterion, score, step):
    return Verdict(criterion=criterion, status="ok", score=score, step=step)


CRITERIA = (
    Criterion(id="s1", description="first", kind="suggest"),
    Criterion(id="s2", description="second", kind="suggest"),
    Criterion(id="p", description="mistake", kind="pitfall"),
    Criterion(id="b", description="extra", kind="bonus"),
    Criterion(id="a", description="answer", kind="answer"),
)


@given(REWARDS)
def test_the_plain_method_gives_each_response_its_group_advantage(rewards):
    got = RubricGrpo().advantages(group(rewards))
    assert [float(a) for a in got] == pytest.approx(list(group_advantages(rewards, ddof=1)))


@given(REWARDS)
def test_grounded_uses_the_mean_of_the_others_as_its_baseline(rewards):
    known = [r for r in rewards if r is not None]
    got = [float(a) for a in Grounded(scale="none").advantages(group(rewards))]
    for reward, advantage in zip(rewards, got, strict=True):
        if reward is None or len(known) < 2:
            assert advantage == 0
        else:
            assert advantage == pytest.approx(reward - (math.fsum(known) - reward) / (len(known) - 1), abs=1e-12)


def test_grounded_can_use_the_mean_of_all_instead():
    rewards = [0.0, 0.5, 1.0]
    got = Grounded(baseline="mean", scale="none").advantages(group(rewards))
    assert [float(a) for a in got] == pytest.approx([-0.5, 0.0, 0.5])


@pytest.mark.parametrize(
    ("rewards", "left_out"),
    [([0.5, 0.5], True), ([0.5, None], True), ([None, None], True), ([0.5, 0.6, None], False)],
)
def test_dynamic_sampling_excludes_groups_of_equal_rewards(rewards, left_out):
    assert Grounded(dynamic_sampling=True).uninformative(group(rewards), None) is left_out
    assert Grounded().uninformative(group(rewards), None) is False


def test_by_default_only_dro_excludes_groups():
    for name in set(METHODS) - {"dro"}:
        assert METHODS[name]().uninformative(group([1.0, 1.0]), None) is False
        assert METHODS[name](dynamic_sampling=True).uninformative(group([1.0, 1.0]), None) is True


@pytest.mark.parametrize(
    ("right", "left_out"),
    [
        ([True, True], True),
        ([False, False], True),
        ([True, None], True),
        ([None, None], True),
        ([True, False], False),
        ([None, True, False], False),
    ],
)
def test_by_accuracy_a_group_is_informative_if_it_has_right_and_wrong_responses(right, left_out):
    rollouts = [Rollout(tokens=1, reward=n / 10, judged=n / 10, correct=one) for n, one in enumerate(right)]
    unknown = [replace(one, judged=None) for one in rollouts]
    method = RubricGrpo(dynamic_sampling=True, filter_metric="accuracy")
    assert method.uninformative(unknown, None) is left_out


@pytest.mark.parametrize(("judged", "left_out"), [([1.0, 0.0], False), ([0.9, 0.2], True), ([1.0, None], True)])
def test_without_an_answer_criterion_a_full_reward_counts_as_right(judged, left_out):
    rollouts = [Rollout(tokens=1, reward=n / 10, judged=one) for n, one in enumerate(judged)]
    method = RubricGrpo(dynamic_sampling=True, filter_metric="accuracy")
    assert method.uninformative(rollouts, None) is left_out


def test_steps_with_different_deltas_are_informative_where_rewards_are_compared():
    alike, other = Rollout(tokens=2, reward=1.0, deltas={1: 0.4}), Rollout(tokens=2, reward=1.0, deltas={1: 0.8})
    method = Srar(dynamic_sampling=True, filter_metric="reward")
    assert method.uninformative([alike, alike], None) is True
    assert method.uninformative([alike, other], None) is False


def test_srars_methods_filter_by_accuracy_by_default():
    by_accuracy = {name for name in METHODS if options_of(name)["filter_metric"] == "accuracy"}
    assert by_accuracy == {"srar", "rar"}


def test_grounded_requests_partial_credit_and_names_its_zero():
    assert Grounded().reward_defaults == {"mode": "partial_credit", "on_failure": "zero_unparseable"}
    assert Grounded(truncation_factor=0.5).reward_defaults["truncation_factor"] == 0.5


def test_only_grounded_and_gdpo_reward_responses_with_failed_verdicts():
    policies = {name: method().reward_defaults["on_failure"] for name, method in METHODS.items()}
    assert {name: policy for name, policy in policies.items() if policy != "null"} == {
        "grounded": "zero_unparseable",
        "gdpo": "skip",
    }


def test_factual_only_also_restricts_the_reward_to_factual_criteria():
    assert Rgr(factual_only=True).reward_defaults["kinds"] == ("factual",)
    assert "kinds" not in Rgr().reward_defaults


def test_srar_requests_steps():
    assert Srar(format_weight=0.3).reward_defaults == {"mode": "stepwise", "on_failure": "null", "format_weight": 0.3}


FAILED = Verdict(criterion="s2", status="failed", failure=Failure(kind="timeout", detail="late"))
TWO_STEPS, ONE_AND_WHOLE = [ok("s1", 0.0, 1), ok("s2", 1.0, 2)], [ok("s1", 1.0, 1), ok("p", 1.0, 2), ok("b", 1.0, 0)]


@pytest.mark.parametrize(
    ("method", "verdicts", "deltas"),
    [
        (Srar(), [ok("s1", 1.0, 1), ok("s2", 0.0, 2), ok("p", 1.0, 2), ok("b", 1.0, 0)], {1: 0.4, 2: -1.0, 0: 1.0}),
        (Srar(), TWO_STEPS, {1: 0.0, 2: 0.4}),
        (Srar(count_satisfied_only=True), TWO_STEPS, {2: 0.4}),
        (Srar(), [ok("s1", 1.0, 1), FAILED], {1: 0.4}),
        (Srar(kinds=("suggest",)), [*ONE_AND_WHOLE, ok("s2", 1.0, 1)], {1: 0.8}),
        (Srar(suggest=2.0, pitfall=-3.0, bonus=0.5), ONE_AND_WHOLE, {1: 1.0, 2: -3.0, 0: 0.5}),
        (Srar(), [ok("s1", 1.0, 0), ok("s2", 1.0, -1)], {0: 0.4, -1: 0.4}),
    ],
    ids=["each kind", "unsatisfied", "satisfied only", "failed", "kinds", "budgets", "whole response and no step"],
)
def test_srar_sums_the_deltas_of_each_step(method, verdicts, deltas):
    steps = tuple(sorted({verdict.step for verdict in verdicts if verdict.step and verdict.step > 0}))
    assert method.deltas(ScoredResponse(answered(verdicts, steps), CRITERIA)) == pytest.approx(deltas)


def test_srar_gives_each_step_its_own_advantage():
    spans = {1: (0, 2), 2: (2, 4)}
    rollouts = [rollout(1.0, {1: 0.4, 2: 0.0}, spans), rollout(0.0, {1: 0.4, 2: 0.4}, spans)]
    first, second = Srar(eps=0.0).advantages(rollouts)
    assert first == pytest.approx([1.0, 1.0, 0.0, 0.0])
    assert second == pytest.approx([-1.0, -1.0, 0.0, 0.0])


def test_a_rollout_without_a_reward_gets_no_advantage_for_any_step():
    spans = {1: (0, 2)}
    rollouts = [rollout(None, {1: 1.0}, spans), rollout(1.0, {1: 0.0}, spans), rollout(0.0, {1: 0.4}, spans)]
    assert not Srar().advantages(rollouts)[0].any()


@given(REWARDS)
def test_srar_without_a_rubric_is_grpo(rewards):
    plain = [float(a) for a in RubricGrpo(ddof=0).advantages(group(rewards))]
    for advantage, tokens in zip(plain, Srar().advantages(group(rewards)), strict=True):
        assert tokens == pytest.approx(np.full(4, advantage))


def test_rar_gives_one_number_for_the_whole_response():
    spans = {1: (0, 2), 2: (2, 4)}
    rollouts = [rollout(0.0, {1: 0.4, 2: 0.4}, spans), rollout(0.5, {1: 0.0}, spans)]
    first, second = Rar(eps=0.0).advantages(rollouts)
    assert first == pytest.approx([1.0] * 4)
    assert second == pytest.approx([-1.0] * 4)


def test_a_response_without_tokens_has_no_advantages():
    assert [a.size for a in Srar().advantages([rollout(1.0, tokens=0), rollout(0.0, {}, {}, 2)])] == [0, 2]


def test_all_methods_but_srar_and_rar_use_the_sample_deviation():
    assert {name: options_of(name)["ddof"] for name in METHODS} == {
        name: 0 if name in ("srar", "rar") else 1 for name in METHODS
    }


def test_every_method_lists_its_options_with_their_defaults():
    assert options_of("grounded") == {
        "ddof": 1,
        "eps": 1e-6,
        "baseline": "leave_one_out",
        "deviation": "group",
        "sequence_band": None,
        "dynamic_sampling": False,
        "filter_metric": "reward",
        "truncation_factor": None,
    }


def test_a_band_replaces_trls_importance_sampling_weights_where_present():
    old, sampling = torch.tensor([[-1.0, -2.0], [-1.0, -9.0]]), torch.tensor([[-1.5, -1.5], [-1.0, -1.0]])
    batch = {"old_per_token_logps": old, "sampling_per_token_logps": sampling, "completion_mask": torch.ones(2, 2)}
    method = Grounded(sequence_band=(0.5, 2.0))
    assert method.sampling_weights(batch) == {}
    found = method.sampling_weights(batch | {"importance_sampling_ratio": torch.ones(2, 1)})
    torch.testing.assert_close(
        found["importance_sampling_ratio"], torch.tensor([[math.exp(0.5), math.exp(-0.5)], [0.0, 0.0]])
    )
    assert Grounded().sampling_weights(batch | {"importance_sampling_ratio": torch.ones(2, 1)}) == {}
