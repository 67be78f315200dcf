"""The step-wise estimator (SRaR): steps passed to it apply to the unmasked tokens."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer_client.verl_batches import ALL, batches, laid_out, members
from trainer_client.advantages import stepwise_advantages
from trainer_client.verl.estimators import ESTIMATORS, StepTokens, steps_context

pytestmark = pytest.mark.trl


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
