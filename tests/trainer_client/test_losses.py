import importlib.util
import json
import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import assume, given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from trainer_client.losses import clipped_surrogate, k3, sequence_masked_weights, sequence_ratio, shaped_probability

pytestmark = pytest.mark.trl

CASES = json.loads((Path(__file__).parent / "vectors" / "losses.json").read_text())["cases"]
LOGP = st.floats(-50, 0)
LOGPS = hnp.arrays(np.float64, hnp.array_shapes(min_dims=1, max_dims=2, max_side=6), elements=LOGP)


def graded(number):
    return torch.tensor(number, dtype=torch.float64, requires_grad=True)


def gradient(function, number):
    given = graded(number)
    function(given).sum().backward()
    return given.grad.numpy()


def close(expected):
    return pytest.approx(expected, rel=1e-9, abs=1e-9)


@pytest.mark.parametrize("case", CASES)
def test_the_worked_cases_hold(case):
    logp, old_logp, advantage = case["logp"], case["old_logp"], case["advantage"]
    ratio = np.exp(np.subtract(logp, old_logp))
    assert np.asarray(shaped_probability(logp)) == close(case["f_shape"])
    assert np.asarray(k3(logp, old_logp)) == close(case["k3"])
    assert np.asarray(clipped_surrogate(ratio, advantage)) == close(case["clipped"])
    assert np.asarray(clipped_surrogate(ratio, advantage, dual=3.0)) == close(case["dual_clipped"])
    assert float(sequence_ratio(logp, old_logp)) == close(case["sequence_ratio"])


@given(LOGPS, st.floats(1e-3, 10))
def test_a_shaped_probability_follows_the_papers_formula_and_is_below_one(logp, gamma):
    shaped = shaped_probability(logp, gamma=gamma).numpy()
    assert shaped == pytest.approx(np.exp(logp) / (np.exp(logp) + gamma), rel=1e-9)
    assert (shaped > 0).all()
    assert (shaped < 1).all()


@given(LOGP, LOGP)
def test_a_more_probable_token_has_a_higher_shaped_probability(one, other):
    assume(abs(one - other) > 1e-6)
    low, high = sorted([one, other])
    assert shaped_probability(low) < shaped_probability(high)


@given(LOGP, st.floats(1e-3, 10))
def test_the_gradient_of_a_shaped_probability_is_largest_where_p_is_gamma(logp, gamma):
    p = math.exp(logp)
    slope = gradient(lambda x: shaped_probability(x, gamma=gamma), logp)
    assert slope == pytest.approx(gamma * p / (p + gamma) ** 2, rel=1e-9)
    assert slope <= gradient(lambda x: shaped_probability(x, gamma=gamma), math.log(gamma)) + 1e-12


def test_a_token_of_probability_zero_has_shaped_probability_zero_and_a_finite_gradient():
    assert shaped_probability([-math.inf]).tolist() == [0.0]
    assert gradient(shaped_probability, [-math.inf, -1e4]).tolist() == [0.0, 0.0]


@given(LOGPS)
def test_the_divergence_of_equal_policies_is_zero_with_zero_gradient(logp):
    assert not k3(logp, logp).any()
    assert not gradient(lambda x: k3(x, logp), logp).any()


@given(LOGP, st.floats(-60, 60), st.floats(1e-3, 30))
def test_the_divergence_is_never_negative_and_its_gradient_vanishes_beyond_the_bound(logp, distance, bound):
    assume(abs(abs(distance) - bound) > 1e-6)
    reference = torch.tensor(logp, dtype=torch.float64) + distance
    d = min(max(float(reference) - logp, -bound), bound)
    assert float(k3(logp, reference, bound=bound)) >= 0.0
    assert float(k3(logp, reference, bound=bound)) == pytest.approx(math.exp(d) - d - 1, rel=1e-9, abs=1e-9)
    expected = 1 - math.exp(d) if abs(float(reference) - logp) < bound else 0.0
    assert gradient(lambda x: k3(x, reference, bound=bound), logp) == pytest.approx(expected, rel=1e-9, abs=1e-9)


def test_the_divergence_is_exact_for_nearly_equal_policies():
    assert k3(torch.tensor([-1.0]), torch.tensor([-1.0 + 2**-12])).item() == pytest.approx(2**-25, rel=1e-3)


def test_the_bound_on_the_divergence_defaults_to_twenty():
    assert k3([0.0], [25.0]).item() == k3([0.0], [20.0]).item() < k3([0.0], [25.0], bound=math.inf).item()


@given(LOGPS)
def test_the_ratio_of_equal_policies_is_one(logp):
    assert (sequence_ratio(logp, logp) == 1.0).all()


@given(LOGPS, st.data())
def test_a_responses_ratio_is_the_geometric_mean_over_its_unmasked_tokens(logp, data):
    old_logp = data.draw(hnp.arrays(np.float64, logp.shape, elements=LOGP))
    mask = data.draw(hnp.arrays(np.bool_, logp.shape))
    ratios = sequence_ratio(logp, old_logp, mask=mask).numpy()
    assert ratios.shape == logp.shape[:-1]
    rows = zip(*(np.atleast_2d(part) for part in (logp, old_logp, mask)), strict=True)
    for ratio, (new, old, real) in zip(np.atleast_1d(ratios), rows, strict=True):
        tokens = np.exp((new - old)[real])
        assert ratio == pytest.approx(np.prod(tokens ** (1 / max(len(tokens), 1))), rel=1e-9)


def test_padding_may_hold_any_value_and_gets_no_gradient():
    logp, mask = [[-1.0, -2.0, math.nan], [-1.0, -math.inf, 7.0]], [[1, 1, 0], [1, 0, 0]]
    ratios = sequence_ratio(logp, [[-1.5, -2.5, 0.0], [-1.0, -math.inf, 0.0]], mask=mask)
    assert ratios.tolist() == pytest.approx([math.exp(0.5), 1.0])
    slopes = gradient(lambda x: sequence_ratio(x, torch.zeros(2, 3), mask=mask), logp)
    assert slopes[0].tolist() == pytest.approx([math.exp(-1.5) / 2] * 2 + [0.0])
    assert slopes[1].tolist() == pytest.approx([math.exp(-1.0), 0.0, 0.0])


def test_a_response_without_tokens_has_the_ratio_one():
    assert sequence_ratio([], []).item() == 1.0
    assert sequence_ratio([[-1.0]], [[-9.0]], mask=[[0]]).tolist() == [1.0]


@pytest.mark.parametrize(
    "call",
    [
        lambda: clipped_surrogate([[1.0, 1.0], [1.0, 1.0]], [2.0, -1.0]),
        lambda: clipped_surrogate([1.0, 1.0], [2.0, -1.0, 0.0]),
        lambda: k3([[-1.0, -1.0]], [[-1.0, -1.0, -1.0]]),
        lambda: sequence_ratio([[-1.0, -1.0]], [[-1.0, -1.0]], mask=[[1, 1, 0]]),
        lambda: sequence_ratio([[-1.0, -1.0]], [[-1.0, -1.0]], mask=[1, 1]),
    ],
)
def test_mismatched_shapes_are_refused_even_where_torch_would_broadcast(call):
    with pytest.raises(ValueError, match=r"the shapes do not fit: .* give one number per token, or B x 1"):
        call()


@pytest.mark.parametrize("given", ["-1", None, [1.0, None], [[1.0], [1.0, 2.0]]])
def test_a_value_that_is_not_an_array_of_numbers_is_refused_by_name(given):
    with pytest.raises(ValueError, match="ref_logp is not an array of numbers"):
        k3([-1.0], given)


@pytest.mark.parametrize("gamma", [0.0, -0.1, math.nan, math.inf])
def test_gamma_must_be_above_zero(gamma):
    with pytest.raises(ValueError, match="gamma"):
        shaped_probability([-1.0], gamma=gamma)


@pytest.mark.parametrize("bound", [0.0, -1.0, math.nan])
def test_the_bound_must_be_above_zero(bound):
    with pytest.raises(ValueError, match="bound"):
        k3([-1.0], [-1.0], bound=bound)


def test_lists_are_read_in_double_precision_or_in_the_dtype_of_the_given_tensor():
    assert k3([-1.0], [-1.1]).dtype == torch.float64
    assert k3(np.array([-1], dtype=np.int64), -2).dtype == torch.float64
    assert clipped_surrogate(torch.ones(2), [1.0, 2.0]).dtype == torch.float32
    assert clipped_surrogate(torch.ones(2, dtype=torch.int64), [1.0, 2.0]).dtype == torch.float64


def test_a_response_is_kept_by_its_geometric_mean_ratio_and_weighted_token_by_token():
    long = [0.02] * 100  # the product is e^2, the geometric mean 1.02
    differences = torch.zeros(3, 100)
    differences[0], differences[1, :2], differences[2, :2] = torch.tensor(long), torch.tensor([2.0, -2.0]), 1.0
    mask = torch.ones(3, 100)
    mask[1:, 2:] = 0
    found = sequence_masked_weights(differences, torch.zeros(3, 100), mask=mask, low=0.5, high=2.0)
    assert found[0].tolist() == pytest.approx([math.exp(0.02)] * 100)
    assert found[1].tolist() == pytest.approx([math.exp(2), math.exp(-2), *[0.0] * 98])
    assert not found[2].any()


def test_a_token_without_a_sampling_probability_has_ratio_one():
    sampled = torch.tensor([[math.nan, -1.0]])
    assert sequence_masked_weights([[-5.0, -1.0]], sampled, mask=[[1, 1]], low=0.9, high=1.1).tolist() == [[1.0, 1.0]]


@pytest.mark.parametrize(("low", "high"), [(-0.1, 2.0), (2.0, 0.5), (math.nan, 2.0)])
def test_an_invalid_band_is_refused(low, high):
    with pytest.raises(ValueError, match="use 0 <= low <= high"):
        sequence_masked_weights([[0.0]], [[0.0]], mask=[[1]], low=low, high=high)


ALL_BUT_THE_LOSSES = """
import importlib, pkgutil, sys, trainer_client
for module in pkgutil.iter_modules(trainer_client.__path__, "trainer_client."):
    if module.name not in ("trainer_client.trl", "trainer_client.losses"):
        importlib.import_module(module.name)
sys.exit("torch" in sys.modules)
"""


def test_only_the_losses_and_the_trainers_import_torch():
    subprocess.run([sys.executable, "-c", ALL_BUT_THE_LOSSES], check=True, timeout=60)


RATIO = st.floats(0, 20, allow_subnormal=False)
ADVANTAGE = st.floats(-5, 5, allow_subnormal=False)
SHARE = st.floats(0, 1, allow_subnormal=False)


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
