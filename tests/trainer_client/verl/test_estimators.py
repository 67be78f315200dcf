"""The estimators on tensors in verl's layout: results of the pure functions, and nothing from unscored rows."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer_client.verl.batches import ALL, batches, laid_out, members
from trainer_client.advantages import component_advantages, group_advantages, stepwise_advantages
from trainer_client.verl.estimators import (
    ESTIMATORS,
    ComponentRewards,
    StepTokens,
    TooManyUnscored,
    components_context,
    steps_context,
)

pytestmark = pytest.mark.trl

PURE = {
    "adjudge_group": lambda rewards, **options: group_advantages(rewards, **options),
    "adjudge_leave_one_out": lambda rewards, **options: group_advantages(rewards, baseline="leave_one_out", **options),
}


@pytest.mark.parametrize("name", PURE)
@given(batch=batches(), divide=st.booleans(), ddof=st.sampled_from([0, 1]))
def test_they_equal_the_pure_functions_group_by_group(name, batch, divide, ddof):
    rewards, lengths, names = batch
    config = {"norm_adv_by_std_in_grpo": divide, "adjudge": {**ALL, "ddof": ddof}}
    advantages, returns = ESTIMATORS[name](**laid_out(*batch), config=config)
    assert torch.equal(advantages, returns)
    assert advantages.dtype == torch.float32
    for rows in members(names):
        expected = PURE[name]([rewards[row] for row in rows], scale="std" if divide else "none", ddof=ddof)
        for row, value in zip(rows, expected, strict=True):
            assert advantages[row, : lengths[row]].tolist() == pytest.approx([value] * lengths[row], rel=1e-6, abs=1e-6)


@pytest.mark.parametrize("name", PURE)
@given(batch=batches())
def test_unscored_rows_and_masked_tokens_get_exactly_zero(name, batch):
    rewards, lengths, _ = batch
    advantages, _ = ESTIMATORS[name](**laid_out(*batch), config={"adjudge": ALL})
    assert torch.isfinite(advantages).all()
    for row, reward in enumerate(rewards):
        assert not advantages[row, lengths[row] :].any()
        assert reward is not None or not advantages[row].any()


@pytest.mark.parametrize("name", PURE)
@given(batch=batches())
def test_the_advantages_of_a_group_sum_to_zero(name, batch):
    advantages, _ = ESTIMATORS[name](**laid_out(*batch), config={"adjudge": ALL})
    for rows in members(batch[2]):
        assert advantages[rows, 0].double().sum().abs() < 1e-5 * max(1.0, advantages[rows, 0].abs().max())


@pytest.mark.parametrize("name", PURE)
@given(batch=batches(), place=st.integers(0, 12), name_=st.sampled_from(["u1", "u2"]), masked=st.booleans())
def test_a_row_without_a_reward_or_a_token_does_not_affect_the_others(name, batch, place, name_, masked):
    rewards, lengths, names = batch
    place = min(place, len(rewards))
    more = laid_out(
        [*rewards[:place], 9.0 if masked else None, *rewards[place:]],
        [*lengths[:place], 2, *lengths[place:]],
        [*names[:place], name_, *names[place:]],
    )
    if masked:
        more["response_mask"][place] = 0
    advantages, _ = ESTIMATORS[name](**more, config={"adjudge": ALL})
    assert not advantages[place].any()
    alone, _ = ESTIMATORS[name](**laid_out(*batch), config={"adjudge": ALL})
    rest = [row for row in range(len(rewards) + 1) if row != place]
    assert torch.equal(advantages[rest], alone)


@given(batch=batches(), order=st.randoms(use_true_random=False))
def test_the_order_of_the_rows_does_not_matter(batch, order):
    places = list(range(len(batch[0])))
    order.shuffle(places)
    here, _ = ESTIMATORS["adjudge_group"](**laid_out(*batch), config={"adjudge": ALL})
    there, _ = ESTIMATORS["adjudge_group"](
        **laid_out(*([column[place] for place in places] for column in batch)), config={"adjudge": ALL}
    )
    assert torch.allclose(there, here[places], rtol=1e-5, atol=1e-5)


def test_a_reward_whose_last_token_is_masked_counts():
    """A rollout may end with a tool's answer, whose tokens are masked."""
    batch = laid_out([1.0, 0.0], [3, 3], ["u", "u"])
    batch["response_mask"][0, 2] = 0
    advantages, _ = ESTIMATORS["adjudge_group"](**batch, config={"adjudge": {"ddof": 0}})
    assert advantages[0].tolist() == pytest.approx([1, 1, 0, 0, 0, 0], abs=1e-5)


def test_a_penalty_on_every_token_is_part_of_the_reward_and_nan_stays_missing():
    batch = laid_out([1.0, 0.0, None], [2, 2, 2], ["u", "u", "u"])
    batch["token_level_rewards"][:, 0] -= 0.5
    advantages, _ = ESTIMATORS["adjudge_leave_one_out"](**batch, config={"norm_adv_by_std_in_grpo": False})
    assert advantages[:, 0].tolist() == pytest.approx([1.0, -1.0, 0.0])


@pytest.mark.parametrize("dtype", [torch.int64, torch.float32, torch.bool])
def test_any_dtype_of_mask_is_accepted(dtype):
    batch = laid_out([1.0, 0.0], [1, 2], ["u", "u"], dtype=dtype)
    advantages, _ = ESTIMATORS["adjudge_group"](**batch, config={"adjudge": {"ddof": 0}})
    assert advantages.dtype == torch.float32
    assert advantages.sum(dim=0).tolist() == pytest.approx([0, -1, 0, 0, 0, 0], abs=1e-5)


@pytest.mark.parametrize("name", ESTIMATORS)
def test_a_batch_with_too_many_unscored_rows_stops_training(name):
    with steps_context([StepTokens({}, {})] * 4), components_context([ComponentRewards({})] * 4):
        with pytest.raises(TooManyUnscored, match=r"3 of 4.*deadline_s.*max_unscored=1\.0"):
            ESTIMATORS[name](**laid_out([1.0, None, None, None], [1] * 4, ["u"] * 4))
        ESTIMATORS[name](**laid_out([1.0, 0.0, None, None], [1] * 4, ["u"] * 4))


def test_padding_does_not_count_towards_the_share_of_unscored_rows():
    batch = laid_out([1.0, None, 0.0, 0.0], [1] * 4, ["u", "u", "pad", "pad"])
    batch["response_mask"][2:] = 0
    ESTIMATORS["adjudge_group"](**batch)
    batch["token_level_rewards"][0] = math.nan
    with pytest.raises(TooManyUnscored, match="2 of 2"):
        ESTIMATORS["adjudge_group"](**batch)


def test_an_infinite_reward_is_refused():
    with pytest.raises(ValueError, match="finite"):
        ESTIMATORS["adjudge_group"](**laid_out([math.inf, 0.0], [1, 1], ["u", "u"]))


@pytest.mark.parametrize(
    "change",
    [
        {"response_mask": torch.ones(2, 5)},
        {"index": np.array(["u"], dtype=object)},
        {"token_level_rewards": torch.zeros(2), "response_mask": torch.ones(2)},
    ],
)
def test_mismatched_shapes_are_refused(change):
    with pytest.raises(ValueError, match="B x T"):
        ESTIMATORS["adjudge_group"](**{**laid_out([1.0, 0.0], [1, 1], ["u", "u"]), **change})


@pytest.mark.parametrize("own", [{"dof": 1}, {"baseline": "mean"}, {"scale": "none"}])
def test_an_unknown_option_is_refused(own):
    with pytest.raises(TypeError, match=next(iter(own))):
        ESTIMATORS["adjudge_leave_one_out"](**laid_out([1.0, 0.0], [1, 1], ["u", "u"]), config={"adjudge": own})


@pytest.mark.parametrize("config", [None, {}, {"adjudge": None}, {"norm_adv_by_std_in_grpo": True}])
def test_the_defaults_are_those_of_verl(config):
    advantages, _ = ESTIMATORS["adjudge_group"](**laid_out([1.0, 0.0, 0.5], [1] * 3, ["u"] * 3), config=config)
    assert advantages[:, 0].tolist() == pytest.approx(group_advantages([1.0, 0.0, 0.5], ddof=1).tolist(), rel=1e-6)


@st.composite
def stepped_batches(draw):
    """A batch whose rows have up to two steps, each two tokens long, and deltas for some of them."""
    rewards, _, names = draw(batches())
    delta = st.floats(-1, 1, width=32, allow_subnormal=False)
    steps = []
    for _ in rewards:
        spans = {number: (2 * number - 2, 2 * number) for number in draw(st.sets(st.sampled_from([1, 2])))}
        steps.append(StepTokens(draw(st.dictionaries(st.sampled_from([0, *spans]), delta)), spans))
    return rewards, names, steps


@given(batch=stepped_batches(), variant=st.sampled_from(["decoupled", "rar", "merged"]), normalise=st.booleans())
def test_stepwise_advantages_equal_the_pure_function_on_unmasked_tokens(batch, variant, normalise):
    rewards, names, steps = batch
    given_ = laid_out(rewards, [5] * len(rewards), names)
    config = {"adjudge": {**ALL, "variant": variant, "normalise": normalise}}
    with steps_context(steps):
        advantages, _ = ESTIMATORS["adjudge_stepwise"](**given_, config=config)
    assert not advantages[:, 5:].any()
    for rows in members(names):
        own = [steps[row] for row in rows]
        expected = stepwise_advantages(
            [rewards[row] for row in rows],
            [step.deltas for step in own],
            [step.spans for step in own],
            [5] * len(rows),
            variant=variant,
            normalise=normalise,
        )
        for row, tokens in zip(rows, expected, strict=True):
            assert advantages[row, :5].numpy() == pytest.approx(tokens, rel=1e-5, abs=1e-5)


@given(batches())
def test_without_steps_the_stepwise_estimator_equals_the_group_one(batch):
    with steps_context([StepTokens({}, {})] * len(batch[0])):
        stepwise, _ = ESTIMATORS["adjudge_stepwise"](**laid_out(*batch), config={"adjudge": ALL})
    assert torch.equal(
        stepwise, ESTIMATORS["adjudge_group"](**laid_out(*batch), config={"adjudge": {**ALL, "ddof": 0}})[0]
    )


def test_steps_of_masked_rows_are_ignored():
    steps = [StepTokens({1: d}, {1: (0, 1)}) for d in (1.0, 0.0, 9.0)]
    batch = laid_out([1.0, 1.0, 1.0], [1] * 3, ["u"] * 3)
    batch["response_mask"][2] = 0
    with steps_context(steps):
        advantages, _ = ESTIMATORS["adjudge_stepwise"](**batch)
    assert advantages[:, 0].tolist() == pytest.approx([1, -1, 0], abs=1e-5)


def test_without_a_steps_context_the_error_says_how_to_provide_steps():
    with pytest.raises(RuntimeError, match=r"trainer_client\.verl\.stepwise.*step_deltas=fold"):
        ESTIMATORS["adjudge_stepwise"](**laid_out([1.0], [1], ["u"]))


def test_steps_apply_to_their_own_batch_only():
    with steps_context([StepTokens({}, {})]):
        ESTIMATORS["adjudge_stepwise"](**laid_out([1.0], [1], ["u"]))
    with pytest.raises(RuntimeError):
        ESTIMATORS["adjudge_stepwise"](**laid_out([1.0], [1], ["u"]))


@pytest.mark.parametrize("count", [1, 3])
def test_a_different_number_of_rows_with_steps_is_refused(count):
    with steps_context([StepTokens({}, {})] * count), pytest.raises(ValueError, match=f"{count} responses for 2 rows"):
        ESTIMATORS["adjudge_stepwise"](**laid_out([1.0, 0.0], [1, 1], ["u", "u"]))


def test_unnormalised_step_wise_advantages_are_refused():
    with steps_context([StepTokens({}, {})]), pytest.raises(ValueError, match="norm_adv_by_std_in_grpo"):
        ESTIMATORS["adjudge_stepwise"](**laid_out([1.0], [1], ["u"]), config={"norm_adv_by_std_in_grpo": False})


COMPONENTS = st.dictionaries(st.sampled_from("abc"), st.integers(-4, 4).map(lambda n: n / 4))


@st.composite
def component_batches(draw):
    """A batch with component rewards for each row, and weights for each group or for none."""
    rewards, lengths, names = draw(batches())
    weighted = draw(st.booleans())
    weights = {
        name: draw(st.fixed_dictionaries(dict.fromkeys("abc", st.floats(0.25, 2)))) for name in sorted(set(names))
    }
    rows = [ComponentRewards(draw(COMPONENTS), weights[name] if weighted else {}) for name in names]
    return (rewards, lengths, names), rows, weights if weighted else dict.fromkeys(names, dict.fromkeys("abc", 1.0))


@given(component_batches(), st.sampled_from([0, 1]), st.sampled_from(["deviations", "correlations"]))
def test_gdpo_equals_the_pure_function_over_the_whole_batch(batch, ddof, scaled_by):
    (rewards, lengths, names), rows, weights = batch
    with components_context(rows):
        advantages, returns = ESTIMATORS["adjudge_gdpo"](
            **laid_out(rewards, lengths, names), config={"adjudge": {**ALL, "ddof": ddof, "scaled_by": scaled_by}}
        )
    assert torch.equal(advantages, returns)
    groups = members(names)
    known = [[rows[row].rewards if rewards[row] is not None else {} for row in group] for group in groups]
    own_weights = [weights[names[group[0]]] for group in groups]
    expected = component_advantages(known, own_weights, ddof=ddof, scaled_by=scaled_by)
    for group, values in zip(groups, expected, strict=True):
        for row, value in zip(group, values, strict=True):
            own = [value] * lengths[row] + [0.0] * (6 - lengths[row])
            assert advantages[row].tolist() == pytest.approx(own, rel=1e-6, abs=1e-6)


def test_component_rewards_of_masked_rows_are_ignored():
    rows = [ComponentRewards({"a": a, "b": 0.5}, {"a": 3.0, "b": 1.0}) for a in (1.0, 0.0, 9.0)]
    batch = laid_out([1.0, 1.0, 1.0], [1] * 3, ["u"] * 3)
    batch["response_mask"][2] = 0
    with components_context(rows):
        advantages, _ = ESTIMATORS["adjudge_gdpo"](**batch)
    assert advantages[:, 0].tolist() == pytest.approx([math.sqrt(0.5), -math.sqrt(0.5), 0], abs=1e-5)


@pytest.mark.parametrize(
    ("config", "says"),
    [
        ({"norm_adv_by_std_in_grpo": False}, "set algorithm.norm_adv_by_std_in_grpo to true"),
        ({"use_kl_in_reward": True}, "set algorithm.use_kl_in_reward to false"),
        ({}, "component rewards of 1 responses for 2 rows"),
    ],
)
def test_what_gdpo_cannot_do_is_refused(config, says):
    count = 1 if not config else 2
    with components_context([ComponentRewards({})] * count), pytest.raises(ValueError, match=says):
        ESTIMATORS["adjudge_gdpo"](**laid_out([1.0, 0.0], [1, 1], ["u", "u"]), config=config)


def test_component_rewards_apply_to_their_own_batch_only():
    with components_context([ComponentRewards({})]):
        ESTIMATORS["adjudge_gdpo"](**laid_out([1.0], [1], ["u"]))
    with pytest.raises(RuntimeError, match=r"add trainer_client\.verl\.gdpo to VERL_USE_EXTERNAL_MODULES"):
        ESTIMATORS["adjudge_gdpo"](**laid_out([1.0], [1], ["u"]))
