"""GDPO: components are normalised one by one, then added, and normalised over the batch."""

import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_client.advantages import component_advantages, group_advantages

NAMES = ("a", "b", "c")
VALUE = st.none() | st.integers(-4, 4).map(lambda n: n / 4)
RESPONSE = st.fixed_dictionaries({}, optional=dict.fromkeys(NAMES, VALUE))


def batches(size=4):
    """Batches of groups of one size."""
    return st.lists(st.lists(RESPONSE, min_size=size, max_size=size), min_size=1, max_size=3)


def test_equal_totals_by_different_components_differ_between_groups():
    groups = [[{"a": 1, "b": 0}, {"a": 0, "b": 1}], [{"a": 1, "b": 1}, {"a": 0, "b": 0}]]
    summed = [group_advantages([sum(one.values()) for one in group], ddof=1, eps=0) for group in groups]
    assert summed[0].tolist() == [0.0, 0.0]
    unequal = component_advantages(groups, [{"a": 2, "b": 1}, {"a": 1, "b": 1}])
    assert unequal[0][0] > 0 > unequal[0][1]


def test_a_worked_batch():
    groups = [[{"a": 1.0, "b": 0.0}, {"a": 0.0, "b": 0.0}], [{"a": 1.0, "b": 2.0}, {"a": 0.0, "b": 0.0}]]
    z = math.sqrt(0.5)
    sums = [z, -z, 3 * z, -3 * z]
    expected = np.array(sums) / np.std(sums, ddof=1)
    found = component_advantages(groups, [{"a": 1, "b": 1}, {"a": 1, "b": 2}], eps=0)
    assert np.concatenate(found) == pytest.approx(expected)


@given(batches(), st.sampled_from(NAMES))
def test_a_component_without_a_difference_adds_nothing(groups, dead):
    live = [[{k: v for k, v in one.items() if k != dead} for one in group] for group in groups]
    without = [[one | {"place": place} for place, one in enumerate(group)] for group in live]
    alike = [[one | {dead: 0.25} for one in group] for group in without]
    assert np.array_equal(np.concatenate(component_advantages(alike)), np.concatenate(component_advantages(without)))


@given(batches(), st.integers(0, 11))
def test_a_response_without_components_gets_zero_and_changes_no_other(groups, place):
    group, row = divmod(place % (4 * len(groups)), 4)
    gone = [list(one) for one in groups]
    gone[group][row] = {"a": None}
    fewer = [list(one) for one in gone]
    del fewer[group][row]
    found = component_advantages(gone)
    assert found[group][row] == 0.0
    assert np.delete(np.concatenate(found), group * 4 + row) == pytest.approx(
        np.concatenate(component_advantages(fewer)), abs=1e-12
    )


@pytest.mark.parametrize(
    ("groups", "weights", "says"),
    [
        ([[{"a": 1}]], [], "weights of 0 groups for 1 groups"),
        ([[{"a": 1}]], [{"b": 1}], "has none for the component 'a'"),
        ([[{"a": math.nan}, {"a": 1}]], None, "use a finite number"),
        ([[{"a": 1}, {"a": 2}]], [{"a": math.inf}], "use a finite number"),
    ],
)
def test_what_cannot_be_computed_is_refused(groups, weights, says):
    with pytest.raises(ValueError, match=says):
        component_advantages(groups, weights)


def test_an_empty_batch_has_no_advantages():
    assert component_advantages([]) == []


def correlated(group, weights=None, ddof=0, eps=0.0):
    """CorrGRPO's advantages of one group."""
    (found,) = component_advantages([group], weights and [weights], ddof=ddof, eps=eps, scaled_by="correlations")
    return found


COMPLETE = st.fixed_dictionaries(dict.fromkeys(NAMES, st.integers(-4, 4).map(lambda n: n / 4)))


@given(st.lists(COMPLETE, min_size=2, max_size=6), st.tuples(*[st.integers(-3, 3).map(float)] * 3))
def test_correlations_divide_the_centred_sum_of_the_weighted_components(group, weights):
    parts = np.array([[weight * one[name] for one in group] for name, weight in zip(NAMES, weights, strict=True)])
    varying = parts[np.ptp(parts, axis=1) > 0]
    centred = parts.sum(axis=0) - parts.sum(axis=0).mean()
    rho = np.atleast_2d(np.corrcoef(varying)).sum() if len(varying) else 1.0
    found = correlated(group, dict(zip(NAMES, weights, strict=True)))
    assert found == pytest.approx(centred / math.sqrt(max(1.0, rho)), abs=1e-9)


@given(st.lists(RESPONSE, min_size=2, max_size=6))
def test_what_is_missing_enters_no_correlation_and_no_advantage_is_unbounded(group):
    found = correlated(group)
    assert np.abs(found).max() <= 2 * len(NAMES)
    for response, advantage in zip(group, found, strict=True):
        if all(value is None for value in response.values()):
            assert advantage == 0.0


def test_components_that_oppose_each_other_give_bounded_advantages():
    group = [{"short": 1.0, "long": 0.0}, {"short": 0.0, "long": 1.0}]
    assert correlated(group, {"short": 2.0, "long": 1.0}).tolist() == [0.5, -0.5]
    with pytest.raises(ValueError, match="use one of deviations, correlations"):
        component_advantages([group], scaled_by="correlation")


def test_each_group_is_divided_by_itself_alone():
    groups = [[{"a": 1.0}, {"a": 0.0}], [{"a": 3.0, "b": 1.0}, {"a": 0.0, "b": 1.0}]]
    together = component_advantages(groups, scaled_by="correlations")
    apart = [component_advantages([group], scaled_by="correlations")[0] for group in groups]
    assert [one.tolist() for one in together] == [one.tolist() for one in apart]
