"""Pass rates corrected for the judge's error: the estimate, its interval, and when it is undefined."""

import numpy as np
import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from judge_server.evaluation.corrected_rates import (
    PassCount,
    UncorrectableError,
    corrected_rate,
    effective_size,
    measure_error,
    read_error,
)
from trainer_client.wire.runs import JudgeError, MeasuredRate

RATES = st.floats(0, 1)
SIZES = st.integers(1, 5000)


def error(sensitivity: float, specificity: float, labels: int = 200, unmet: int | None = None) -> JudgeError:
    """A judge with these rates, measured on independent labels."""
    of_no = labels if unmet is None else unmet
    return JudgeError(
        sensitivity=MeasuredRate(value=sensitivity, labels=labels, effective_labels=labels),
        specificity=MeasuredRate(value=specificity, labels=of_no, effective_labels=of_no),
    )


@given(RATES, SIZES, st.integers(10, 10_000))
def test_a_perfect_judge_s_rate_is_the_observed_one(observed: float, verdicts: int, labels: int) -> None:
    found = corrected_rate(observed, verdicts, error(1, 1, labels))
    assert found.value == pytest.approx(observed, abs=1e-12)


@given(RATES, st.floats(0.6, 1), st.floats(0.6, 1))
def test_the_true_rate_is_found_if_the_judge_errs_as_measured(
    true: float, sensitivity: float, specificity: float
) -> None:
    observed = true * sensitivity + (1 - true) * (1 - specificity)
    found = corrected_rate(min(observed, 1.0), 500, error(sensitivity, specificity, 1000))
    assert found.value == pytest.approx(true, abs=1e-9)


@given(RATES, SIZES, st.floats(0.5, 1), st.floats(0.5, 1), st.integers(20, 5000), st.integers(20, 5000))
def test_an_interval_contains_its_estimate_and_lies_between_0_and_1(
    observed: float, verdicts: int, sensitivity: float, specificity: float, labels: int, unmet: int
) -> None:
    try:
        found = corrected_rate(observed, verdicts, error(sensitivity, specificity, labels, unmet))
    except UncorrectableError:
        assume(False)
    assert 0 <= found.low <= found.value <= found.high <= 1


@given(RATES, RATES, SIZES, st.floats(0.7, 1), st.floats(0.7, 1))
def test_a_higher_observed_rate_never_gives_a_lower_one(
    one: float, other: float, verdicts: int, sensitivity: float, specificity: float
) -> None:
    low, high = sorted((one, other))
    judge = error(sensitivity, specificity)
    assert corrected_rate(low, verdicts, judge).value <= corrected_rate(high, verdicts, judge).value


@given(st.floats(0.05, 0.95), st.integers(20, 2000), st.floats(0.75, 1), st.floats(0.75, 1))
def test_fewer_labels_give_a_wider_interval(
    observed: float, verdicts: int, sensitivity: float, specificity: float
) -> None:
    few, many = (corrected_rate(observed, verdicts, error(sensitivity, specificity, n)) for n in (50, 5000))
    assume(few.low > 0 and few.high < 1)
    assert few.high - few.low > many.high - many.low


@pytest.mark.parametrize("measured", [error(0.5, 0.5), error(0.9, 0.1), error(0.6, 0.6, 20), error(0.2, 0.1)])
def test_a_judge_that_may_be_no_better_than_chance_cannot_be_corrected(measured: JudgeError) -> None:
    with pytest.raises(UncorrectableError, match="not clearly better than chance"):
        corrected_rate(0.4, 1000, measured)


@pytest.mark.parametrize(("true", "sensitivity", "specificity"), [(0.1, 0.9, 0.8), (0.5, 0.75, 0.75), (0.9, 0.8, 0.95)])
@pytest.mark.parametrize("labels", [40, 200])
def test_95_of_100_intervals_cover_the_true_rate(
    true: float, sensitivity: float, specificity: float, labels: int
) -> None:
    """Each group's prompt is easy or hard, so verdicts within a group of eight correlate."""
    rng = np.random.default_rng(20261123)
    draws, groups, size = 1000, 60, 8
    covered = shown = 0
    for _ in range(draws):
        spread = rng.beta(4 * true, 4 * (1 - true), groups)
        met = rng.binomial(size, spread)
        passed = rng.binomial(met, sensitivity) + rng.binomial(size - met, 1 - specificity)
        rates = [rng.binomial(labels, share) / labels for share in (sensitivity, specificity)]
        clusters = [PassCount(int(y), size) for y in passed]
        observed = passed.sum() / (groups * size)
        try:
            found = corrected_rate(observed, effective_size(clusters), error(*rates, labels=labels))
        except UncorrectableError:
            continue
        shown += 1
        covered += found.low <= true <= found.high
    assert shown > 0.9 * draws
    assert 0.93 <= covered / shown <= 0.995


def test_equal_verdicts_in_a_group_count_once() -> None:
    of_one_mind = [PassCount(8 * (n % 2), 8) for n in range(100)]
    assert effective_size(of_one_mind) == pytest.approx(99)
    independent = [PassCount(int(n), 8) for n in np.random.default_rng(1).binomial(8, 0.4, 2000)]
    assert 0.9 < effective_size(independent) / 16_000 <= 1


def test_where_all_passed_the_effective_size_is_the_number_of_groups() -> None:
    assert effective_size([PassCount(8, 8)] * 5) == 5
    assert effective_size([PassCount(3, 8)]) == 1
    assert effective_size([]) == 0


@given(st.lists(st.tuples(st.integers(0, 9), st.booleans(), st.booleans()), min_size=1, max_size=60))
def test_the_error_of_a_judge_is_counted_by_label(verdicts: list[tuple[int, bool, bool]]) -> None:
    rows, labels, passed = zip(*verdicts, strict=True)
    found = measure_error(rows, labels, passed)
    if found is None:
        assert len(set(labels)) == 1
        return
    assert found.sensitivity.labels == sum(labels)
    assert found.specificity.labels == len(labels) - sum(labels)
    right = [verdict for label, verdict in zip(labels, passed, strict=True) if label]
    assert found.sensitivity.value == pytest.approx(sum(right) / len(right))
    assert 0 < found.specificity.effective_labels <= found.specificity.labels
    assert read_error(found.model_dump()) == found


@pytest.mark.parametrize(
    "figures", [{}, {"sensitivity": {"value": 0.9, "n": 20}}, {"sensitivity": None}, error(0.9, 0.9, 0).model_dump()]
)
def test_rates_without_their_counts_are_refused(figures: dict[str, object]) -> None:
    with pytest.raises(UncorrectableError, match="sensitivity"):
        read_error(figures)
