import json
import math
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_client.advantages import group_advantages, normalise_steps, stepwise_advantages
from trainer_client.steps import step_deltas

CASES = json.loads((Path(__file__).parent / "vectors" / "stepwise.json").read_text())["cases"]
DELTA = st.sampled_from([0.0, 0.16, 0.5, 0.8, -1.0, -0.34])


def numbered(steps):
    return {int(step): value for step, value in steps.items()}


@st.composite
def groups(draw):
    """(base, deltas, spans, lengths) of a group; spans are consecutive, and some tokens belong to no step."""
    base, deltas, spans, lengths = [], [], [], []
    for _ in range(draw(st.integers(1, 6))):
        edges = sorted(draw(st.lists(st.integers(0, 20), min_size=2, max_size=5)))
        own = {number: edges[number - 1 : number + 1] for number in range(1, len(edges))}
        base.append(draw(st.sampled_from([None, 0.0, 0.1, 0.9, 1.0])))
        deltas.append(draw(st.dictionaries(st.integers(0, len(edges) - 1), DELTA)))
        spans.append(own)
        lengths.append(edges[-1] + draw(st.integers(0, 3)))
    return base, deltas, spans, lengths


@pytest.mark.parametrize("case", CASES)
def test_the_worked_cases_hold_from_verdicts_to_tokens(case):
    rollouts = case["rollouts"]
    deltas = [step_deltas(case["criteria"], r["scores"], r["steps"], max(map(int, r["spans"]))) for r in rollouts]
    expected = [numbered(steps) for steps in case["normalised"]]
    assert all(z == pytest.approx(e, abs=1e-9) for z, e in zip(normalise_steps(deltas), expected, strict=True))
    tokens = stepwise_advantages(
        [r["base"] for r in rollouts],
        deltas,
        [numbered(r["spans"]) for r in rollouts],
        [r["length"] for r in rollouts],
    )
    assert all(a == pytest.approx(e, abs=1e-9) for a, e in zip(tokens, case["token_advantages"], strict=True))


@given(groups(), st.sampled_from([0, 1]))
def test_each_steps_values_sum_to_zero_over_the_group(group, ddof):
    normalised = normalise_steps(group[1], ddof=ddof)
    assert [set(own) for own in normalised] == [set(own) for own in group[1]]
    for step in {step for own in normalised for step in own}:
        assert abs(sum(own.get(step, 0.0) for own in normalised)) < 1e-9


@given(st.lists(st.floats(-1, 1.8, allow_subnormal=False), min_size=2, max_size=8))
def test_a_step_that_varies_has_unit_variance_up_to_eps(deltas):
    z = [own[3] for own in normalise_steps([{3: delta} for delta in deltas])]
    sigma = np.std(deltas)
    assert np.std(z) == pytest.approx(sigma / (sigma + 1e-6), abs=1e-9)


@given(st.lists(DELTA, min_size=2, max_size=8))
def test_the_sample_deviation_is_the_larger_one(deltas):
    z = [own[1] for own in normalise_steps([{1: delta} for delta in deltas], ddof=1)]
    sigma = np.std(deltas, ddof=1)
    assert z == pytest.approx([(delta - np.mean(deltas)) / (sigma + 1e-6) for delta in deltas], abs=1e-9)


def test_a_step_of_one_rollout_or_without_variation_is_zero():
    assert normalise_steps([{1: 0.7, 2: 0.1}, {2: 0.1}, {}]) == [{1: 0.0, 2: 0.0}, {2: 0.0}, {}]
    assert normalise_steps([{1: 0.7}, {}], ddof=1) == [{1: 0.0}, {}]


@given(groups(), st.sampled_from(["decoupled", "rar"]))
def test_an_empty_rubric_leaves_plain_group_advantages(group, variant):
    base, deltas, spans, lengths = group
    tokens = stepwise_advantages(base, [{}] * len(deltas), spans, lengths, variant=variant)
    for own, advantage, length in zip(tokens, group_advantages(base), lengths, strict=True):
        assert np.array_equal(own, np.full(length, advantage))


@given(groups(), st.sampled_from(["decoupled", "rar", "merged"]), st.booleans(), st.sampled_from([0, 1]))
def test_a_rollout_without_a_base_reward_gets_no_advantage_and_does_not_affect_the_others(
    group, variant, normalise, ddof
):
    options = {"variant": variant, "normalise": normalise, "ddof": ddof}
    tokens = stepwise_advantages(*group, **options)
    known = [index for index, base in enumerate(group[0]) if base is not None]
    alone = stepwise_advantages(*([part[index] for index in known] for part in group), **options)
    assert all(not tokens[index].any() for index in range(len(tokens)) if index not in known)
    assert all(np.array_equal(tokens[index], own) for index, own in zip(known, alone, strict=True))


@given(groups(), st.booleans())
def test_a_token_gets_the_sum_of_base_step_and_whole_response(group, normalise):
    base, deltas, spans, lengths = group
    scored = [own if reward is not None else {} for own, reward in zip(deltas, base, strict=True)]
    offsets = normalise_steps(scored) if normalise else scored
    parts = zip(group_advantages(base), offsets, spans, lengths, strict=True)
    for own, (advantage, z, places, length) in zip(
        stepwise_advantages(*group, normalise=normalise), parts, strict=True
    ):
        for token in range(length):
            held = [step for step, (start, end) in places.items() if start <= token < end]
            expected = advantage + z.get(0, 0.0) + sum(z.get(step, 0.0) for step in held)
            assert own[token] == pytest.approx(expected, abs=1e-12)


def test_the_sample_deviation_applies_to_every_part():
    group = [1.0, 0.0, 0.0], [{1: 0.8}, {1: 0.0}, {1: 0.0}], [{1: (0, 1)}] * 3, [2, 2, 2]
    tokens = stepwise_advantages(*group, ddof=1)
    assert tokens[0] == pytest.approx([4 / 3**0.5, 2 / 3**0.5], abs=1e-5)


def test_without_normalisation_credit_shared_by_all_rollouts_still_counts():
    group = [1.0, 1.0], [{1: 0.8}, {1: 0.8}], [{1: (0, 2)}, {1: (0, 2)}], [3, 3]
    assert [own.tolist() for own in stepwise_advantages(*group)] == [[0.0] * 3] * 2
    assert [own.tolist() for own in stepwise_advantages(*group, normalise=False)] == [[0.8, 0.8, 0.0]] * 2


def test_rar_spreads_one_scalar_over_the_response_and_merged_over_its_scored_steps():
    group = [1.0, 0.0], [{1: 0.5}, {2: -0.5}], [{1: (1, 2), 2: (2, 4)}, {1: (0, 1), 2: (1, 2)}], [4, 3]
    high, low = group_advantages([1.5, -0.5])
    rar = stepwise_advantages(*group, variant="rar")
    merged = stepwise_advantages(*group, variant="merged")
    assert [own.tolist() for own in rar] == [[high] * 4, [low] * 3]
    assert [own.tolist() for own in merged] == [[0.0, high, 0.0, 0.0], [0.0, low, 0.0]]


@given(groups())
def test_merged_equals_rar_wherever_it_is_nonzero(group):
    for some, every in zip(
        stepwise_advantages(*group, variant="merged"), stepwise_advantages(*group, variant="rar"), strict=True
    ):
        assert np.array_equal(some, np.where(some != 0.0, every, 0.0))


def test_a_scored_whole_response_gives_merged_on_all_tokens():
    group = [1.0, 0.0], [{0: 0.5}, {}], [{}, {}], [2, 2]
    high = group_advantages([1.5, 0.0])[0]
    assert [own.tolist() for own in stepwise_advantages(*group, variant="merged")] == [[high, high], [0.0, 0.0]]


def test_a_truncated_step_counts_in_the_statistics_and_affects_no_token():
    tokens = stepwise_advantages([1.0, 1.0], [{2: 0.8}, {2: 0.0}], [{1: (0, 3)}, {1: (0, 2), 2: (2, 3)}], [3, 3])
    assert tokens[0].tolist() == [0.0] * 3
    assert tokens[1] == pytest.approx([0.0, 0.0, -1.0], abs=1e-5)


def test_step_numbers_may_be_strings_as_in_json():
    group = [1.0, 0.0], [{"0": 0.5, "1": 0.3}, {}], [{"1": [0, 1]}, {}], [2, 1]
    read = [1.0, 0.0], [{0: 0.5, 1: 0.3}, {}], [{1: [0, 1]}, {}], [2, 1]
    written = stepwise_advantages(*group, normalise=False)
    assert [own.tolist() for own in written] == [own.tolist() for own in stepwise_advantages(*read, normalise=False)]


@pytest.mark.parametrize(
    ("group", "message"),
    [
        (([1.0], [{}], [{1: (0, 5)}], [4]), r"spans\[0\].*4 tokens"),
        (([1.0], [{}], [{1: (3, 2)}], [4]), r"spans\[0\]"),
        (([1.0], [{}], [{1: (0, 3), 2: (2, 4)}], [4]), r"spans\[0\].*overlap"),
        (([1.0], [{-2: 0.5}], [{}], [4]), r"deltas\[0\].*-2"),
        (([1.0], [{}], [{-1: (0, 2)}], [4]), r"spans\[0\].*-1"),
        (([1.0], [{1: float("nan")}], [{}], [4]), r"deltas\[0\]\[1\]"),
        (([float("inf")], [{}], [{}], [4]), r"rewards\[0\]"),
        (([1.0, 0.0], [{}], [{}], [4]), "2 base rewards, 1 deltas"),
    ],
)
def test_an_inconsistent_group_is_refused(group, message):
    with pytest.raises(ValueError, match=message):
        stepwise_advantages(*group)


def test_deltas_outside_any_step_are_left_out_of_step_wise_advantages():
    spans, lengths = [{1: (0, 2)}, {1: (0, 3)}], [3, 4]
    plain = stepwise_advantages([1.0, 0.0], [{1: 0.4}, {1: 0.0}], spans, lengths)
    more = stepwise_advantages([1.0, 0.0], [{1: 0.4, -1: -1.0}, {1: 0.0, -1: 0.8}], spans, lengths)
    assert all(np.array_equal(one, other) for one, other in zip(plain, more, strict=True))


@pytest.mark.parametrize("variant", ["rar", "merged"])
@given(st.lists(st.tuples(st.floats(0, 1), DELTA, DELTA), min_size=2, max_size=6))
def test_one_number_per_response_sums_all_deltas_including_those_of_no_step(variant, group):
    base = [reward for reward, _, _ in group]
    deltas = [{1: own, -1: unplaced} for _, own, unplaced in group]
    totals = [math.fsum([reward, own, unplaced]) for reward, own, unplaced in group]
    tokens = stepwise_advantages(base, deltas, [{1: (0, 1)}] * len(group), [1] * len(group), variant=variant)
    assert [own[0] for own in tokens] == pytest.approx(list(group_advantages(totals)), abs=1e-9)


def test_an_unknown_variant_is_refused():
    with pytest.raises(ValueError, match="variant is 'sum'"):
        stepwise_advantages([1.0], [{}], [{}], [1], variant="sum")
