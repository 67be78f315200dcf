import importlib.util
import math
from pathlib import Path

import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st

from trainer_client.losses import clipped_surrogate

pytestmark = pytest.mark.trl

RATIO = st.floats(0, 20, allow_subnormal=False)
ADVANTAGE = st.floats(-5, 5, allow_subnormal=False)
SHARE = st.floats(0, 1, allow_subnormal=False)


def graded(numbers):
    return torch.tensor(numbers, dtype=torch.float64, requires_grad=True)


@given(RATIO, ADVANTAGE, SHARE, st.floats(0, 2, allow_subnormal=False))
def test_the_clipped_surrogate_never_exceeds_the_unclipped_one_or_its_bounds(ratio, advantage, low, high):
    value = float(clipped_surrogate(ratio, advantage, low=low, high=high))
    assert value <= ratio * advantage
    if advantage >= 0:
        assert value <= (1 + high) * advantage
    else:
        assert value <= (1 - low) * advantage
    if 1 - low <= ratio <= 1 + high:
        assert value == ratio * advantage


@given(RATIO, ADVANTAGE, SHARE, st.floats(0, 2, allow_subnormal=False))
def test_the_clip_stops_the_gradient_only_where_the_ratio_would_move_further_away(ratio, advantage, low, high):
    beyond = ratio > 1 + high if advantage > 0 else ratio < 1 - low
    given_ratio = graded(ratio)
    clipped_surrogate(given_ratio, advantage, low=low, high=high).backward()
    assert given_ratio.grad == (0.0 if beyond else advantage)


@given(RATIO, ADVANTAGE, st.floats(1.01, 10, allow_subnormal=False))
def test_the_dual_clip_bounds_the_loss_of_bad_tokens_and_leaves_good_ones_unchanged(ratio, advantage, dual):
    value, single = clipped_surrogate(ratio, advantage, dual=dual), clipped_surrogate(ratio, advantage)
    assert value >= single
    if advantage >= 0 or ratio <= min(dual, 1.2):
        assert value == single
    else:
        assert float(value) == max(float(single), dual * advantage)


@given(RATIO, ADVANTAGE)
def test_without_bounds_the_surrogate_is_the_ratio_times_the_advantage(ratio, advantage):
    assert float(clipped_surrogate(ratio, advantage, low=1.0, high=math.inf)) == ratio * advantage


def trls_surrogate(ratio, advantage, low, high, delta):
    """The loss of `GRPOTrainer` with `delta`."""
    clipped = torch.clamp(ratio, 1 - low, 1 + high)
    return torch.min(torch.clamp(ratio, max=delta) * advantage, clipped * advantage)


@given(SHARE, st.floats(0, 2, allow_subnormal=False), st.floats(0, 3, allow_subnormal=False), ADVANTAGE, st.data())
def test_the_dual_clip_equals_trls_delta_unless_c_is_below_the_upper_clip(low, high, above, advantage, data):
    dual = 1 + high + above
    assume(dual > 1)
    ratio = data.draw(RATIO | st.sampled_from([1 - low, 1.0, 1 + high, dual]))
    ours, theirs = graded([ratio]), graded([ratio])
    value = clipped_surrogate(ours, [advantage], low=low, high=high, dual=dual)
    expected = trls_surrogate(theirs, torch.tensor([advantage], dtype=torch.float64), low, high, dual)
    assert torch.equal(value, expected)
    value.sum().backward()
    expected.sum().backward()
    assert torch.equal(ours.grad, theirs.grad)


def test_below_the_upper_clip_trls_delta_differs():
    ratio, advantage = torch.tensor([1.3]), torch.tensor([-1.0])
    assert clipped_surrogate(ratio, advantage, high=0.4, dual=1.1).item() == pytest.approx(-1.1)
    assert trls_surrogate(ratio, advantage, 0.2, 0.4, 1.1).item() == pytest.approx(-1.3)


def test_trl_still_has_the_code_that_the_comparison_reproduces():
    trl = importlib.util.find_spec("trl")
    if trl is None:
        pytest.skip("TRL is not installed")
    source = (Path(trl.origin).parent / "trainer" / "grpo_trainer.py").read_text(encoding="utf-8")
    for line in (
        "coef_2 = torch.clamp(coef_1, 1 - self.epsilon_low, 1 + self.epsilon_high)",
        "coef_1 = torch.clamp(coef_1, max=self.args.delta)",
        "per_token_loss1 = coef_1 * advantages",
        "per_token_loss2 = coef_2 * advantages",
        "per_token_loss = -torch.min(per_token_loss1, per_token_loss2)",
    ):
        assert line in source


def test_one_advantage_per_response_is_broadcast_over_its_tokens():
    ratio = [[1.0, 1.1], [1.0, 9.0]]
    expected = clipped_surrogate(ratio, [[2.0, 2.0], [-1.0, -1.0]])
    assert torch.equal(clipped_surrogate(ratio, [[2.0], [-1.0]]), expected)
    assert torch.equal(clipped_surrogate(ratio, 2.0)[0], expected[0])


@pytest.mark.parametrize(
    "option",
    [
        {"low": -0.1},
        {"low": 1.1},
        {"low": math.nan},
        {"high": -0.1},
        {"high": math.nan},
        {"dual": 1.0},
        {"dual": math.nan},
        {"dual": math.inf},
    ],
)
def test_an_option_out_of_range_is_refused_by_name(option):
    with pytest.raises(ValueError, match=next(iter(option))):
        clipped_surrogate([1.0], [1.0], **option)
