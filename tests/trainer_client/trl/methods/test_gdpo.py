"""GDPO in `RubricGRPOTrainer`: components of the rubric's reward, normalised one by one."""

from dataclasses import replace

import numpy as np
import pytest

from tests.trainer_client.trl.scoring.test_components import grpo
from tests.trainer_client.trl.training import PLAIN, RIGHT, SLIP, WRONG, dataset, trainer
from trainer_client.advantages import component_advantages
from trainer_client.trl.methods import Gdpo, Rollout
from trainer_client.trl.reward import RubricReward

GUESS = "### Step 1: 3+4=8\n### Step 2: 8*2=16\n\\boxed{14}"
UNEVEN = "### Step 1: 3+4=8\n### Step 2: 7*2=14\n\\boxed{16}"
WEIGHTS = {"a": 0.25, "b": 0.75}


def rollout(a, b, *, weights=WEIGHTS, **more):
    """A rollout with two components; the reward follows from them."""
    judged = None if a is None or b is None else WEIGHTS["a"] * a + WEIGHTS["b"] * b
    fields = {"reward": judged, "judged": judged, "components": {"a": a, "b": b}, "component_weights": weights}
    return Rollout(**({"tokens": 1} | fields | more))


def advantages(*groups, **options):
    return [float(one) for one in Gdpo(**options).batch_advantages(groups)]


GROUPS = [[rollout(1, 0), rollout(0, 1), rollout(0, 0)], [rollout(1, 1), rollout(0.5, 1), rollout(0, 0)]]


def test_the_advantages_are_those_of_the_components_over_the_whole_batch():
    vectors = [[one.components for one in group] for group in GROUPS]
    expected = np.concatenate(component_advantages(vectors, [WEIGHTS] * 2))
    assert advantages(*GROUPS) == pytest.approx(list(expected))


def test_the_sum_of_the_components_can_be_divided_by_their_correlations():
    vectors = [[one.components for one in group] for group in GROUPS]
    expected = np.concatenate(component_advantages(vectors, [WEIGHTS] * 2, scaled_by="correlations"))
    assert advantages(*GROUPS, scaled_by="correlations") == pytest.approx(list(expected))
    assert advantages(GROUPS[0], scaled_by="correlations") == pytest.approx(list(expected[:3]))


def test_the_weight_of_the_rubrics_reward_does_not_matter_if_it_is_the_only_one():
    heavier = [[replace(one, weight=4.0, reward=4 * one.reward) for one in group] for group in GROUPS]
    assert advantages(*heavier) == pytest.approx(advantages(*GROUPS), abs=1e-5)


def test_other_rewards_and_penalties_are_a_component_of_their_own():
    extra = [0.5, 0.0, 0.0]
    group = [replace(one, reward=one.reward + more) for one, more in zip(GROUPS[0], extra, strict=True)]
    vectors = [one.components | {"extra": more} for one, more in zip(group, extra, strict=True)]
    [expected] = component_advantages([vectors], [WEIGHTS | {"extra": 1.0}])
    assert advantages(group) == pytest.approx(list(expected))


def test_rounding_to_single_precision_is_no_other_reward():
    rounded = [[replace(one, reward=float(np.float32(one.reward / 3)) * 3) for one in group] for group in GROUPS]
    assert advantages(*rounded) == advantages(*GROUPS)


def test_without_weights_components_count_alike():
    plain = [[replace(one, component_weights={}) for one in group] for group in GROUPS]
    alike = [[replace(one, component_weights={"a": 0.5, "b": 0.5}) for one in group] for group in GROUPS]
    assert advantages(*plain) == pytest.approx(advantages(*alike))


def test_a_missing_component_leaves_its_statistics_and_a_missing_reward_the_batch():
    group = [*GROUPS[1], rollout(None, 1, reward=0.75, judged=0.75), rollout(None, None)]
    vectors = [one.components for one in group[:4]]
    [expected] = component_advantages([vectors], [WEIGHTS])
    assert advantages(group) == pytest.approx([*expected, 0.0])


def one_of_three(*met):
    """Rollouts of the same total, each by the component that it meets."""
    third = dict.fromkeys("abc", 1 / 3)
    return [
        Rollout(1, reward=1 / 3, judged=1 / 3, components={c: float(c == one) for c in "abc"}, component_weights=third)
        for one in met
    ]


@pytest.mark.parametrize(
    ("group", "left_out"),
    [
        (one_of_three("a", "a", "b", "c"), False),
        (one_of_three("a", "a"), True),
        (one_of_three("a", "b"), True),
        ([*one_of_three("a", "a"), replace(one_of_three("b")[0], reward=None)], True),
    ],
    ids=["differ", "alike", "cancel", "missing"],
)
def test_dynamic_sampling_keeps_a_group_of_equal_totals_whose_components_give_advantages(group, left_out):
    assert Gdpo(dynamic_sampling=True).uninformative(group, None) is left_out
    assert Gdpo().uninformative(group, None) is False


@pytest.mark.trl
def test_a_trainer_gives_trls_advantages_of_a_split_on_the_same_responses(tmp_path, url):
    texts = [RIGHT, SLIP, UNEVEN, WRONG, SLIP, UNEVEN, WRONG, WRONG]
    options = {"method": "gdpo", "method_options": {"eps": 1e-4}}
    ours = trainer(tmp_path, url, texts=texts, data=dataset(PLAIN), **options)
    ours.train()
    assert ours.rubric_reward.judging_options[1]["components"] == "criterion"
    functions = RubricReward(url, PLAIN, components="criterion").split()
    theirs = grpo(
        tmp_path,
        functions,
        texts=texts,
        multi_objective_aggregation="normalize_then_sum",
        reward_weights=[function.weight for function in functions],
    )
    theirs.train()
    expected = list(theirs._logs["advantages"])[:8]
    assert len(set(expected)) > 4
    assert list(ours._logs["advantages"])[:8] == pytest.approx(expected, abs=1e-5)


@pytest.mark.trl
@pytest.mark.parametrize(("method", "calls"), [("gdpo", [[0, 1]]), ("rubric", [[0, 1], [2]])])
def test_a_group_of_equal_totals_is_refilled_only_if_its_components_are_equal_too(tmp_path, url, method, calls):
    from tests.trainer_client.trl.rollouts.test_refilling import MIXED, ByPrompt, batch, made

    rollouts = ByPrompt((SLIP, SLIP, UNEVEN, GUESS), MIXED, MIXED)
    trained = made(tmp_path, url, rollouts, method=method)
    output, _ = batch(trained)
    assert rollouts.calls == calls
    assert output["advantages"][:4].abs().min() > 0


@pytest.mark.trl
def test_it_always_divides_by_deviations(tmp_path):
    from tests.trainer_client.trl.training import settings

    with pytest.raises(ValueError, match=r"'gdpo' always divides by standard deviations; leave scale_rewards out$"):
        settings(tmp_path, method="gdpo", scale_rewards="none")
