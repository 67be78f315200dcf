import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_client.advantages import group_advantages

CASES = json.loads((Path(__file__).parent / "vectors" / "group_advantages.json").read_text())["cases"]
NORMALISATIONS = {
    "mean_std": {},
    "mean_none": {"scale": "none"},
    "loo_std": {"baseline": "leave_one_out"},
    "loo_none": {"baseline": "leave_one_out", "scale": "none"},
    "mean_std_ddof1": {"ddof": 1},
}
REWARD = st.floats(-1, 2, allow_subnormal=False)
GROUP = st.lists(st.none() | REWARD, max_size=10)


@pytest.mark.parametrize("normalisation", NORMALISATIONS)
@pytest.mark.parametrize("case", CASES)
def test_the_worked_cases_hold(case, normalisation):
    assert group_advantages(case["rewards"], **NORMALISATIONS[normalisation]) == pytest.approx(
        case[normalisation], abs=1e-9
    )


@given(GROUP, st.sampled_from(list(NORMALISATIONS.values())))
def test_they_sum_to_zero(rewards, normalisation):
    advantages = group_advantages(rewards, **normalisation)
    assert advantages.shape == (len(rewards),)
    assert abs(advantages.sum()) < 1e-9 * max(1.0, abs(advantages).max(initial=0.0))


@given(GROUP, st.integers(0, 10), st.sampled_from(list(NORMALISATIONS.values())))
def test_a_missing_reward_gets_zero_and_does_not_affect_the_others(rewards, place, normalisation):
    place = min(place, len(rewards))
    more = group_advantages([*rewards[:place], None, *rewards[place:]], **normalisation)
    assert more[place] == 0.0
    assert np.array_equal(np.delete(more, place), group_advantages(rewards, **normalisation))


@given(st.lists(REWARD, min_size=2, max_size=10))
def test_their_standard_deviation_is_one_up_to_eps(rewards):
    sigma = np.std(rewards)
    assert group_advantages(rewards).std() == pytest.approx(sigma / (sigma + 1e-6), abs=1e-9)


@given(st.lists(REWARD, min_size=2, max_size=10), st.integers(0, 9))
def test_leaving_one_out_subtracts_the_mean_of_the_others(rewards, index):
    index %= len(rewards)
    others = rewards[:index] + rewards[index + 1 :]
    advantage = group_advantages(rewards, baseline="leave_one_out", scale="none")[index]
    assert advantage == pytest.approx(rewards[index] - np.mean(others), abs=1e-9)


@given(
    st.lists(st.none() | st.floats(0, 1), max_size=10), st.sampled_from([0.1, 1 / 3, 0.7]), st.sampled_from([0.0, 1e-6])
)
def test_equal_rewards_give_exactly_zero(known, reward, eps):
    rewards = [None if value is None else reward for value in known]
    assert not group_advantages(rewards, eps=eps).any()


@given(st.lists(REWARD, min_size=2, max_size=10), st.sampled_from(list(NORMALISATIONS.values())))
def test_a_higher_reward_never_gets_a_lower_advantage(rewards, normalisation):
    advantages = group_advantages(rewards, **normalisation)
    assert all(np.diff(advantages[np.argsort(rewards, kind="stable")]) >= 0)


def test_numpy_arrays_work_like_lists():
    assert group_advantages(np.array([0.0, 1.0]), scale="none").tolist() == [-0.5, 0.5]
    assert group_advantages(np.array([0.0, None, 1.0], dtype=object), scale="none").tolist() == [-0.5, 0.0, 0.5]


@pytest.mark.parametrize("reward", [float("nan"), float("inf"), "1", [1]])
def test_a_reward_that_is_not_a_finite_number_is_refused_by_its_index(reward):
    with pytest.raises(ValueError, match=r"rewards\[1\]"):
        group_advantages([0.5, reward])


@pytest.mark.parametrize(
    "option", [{"baseline": "median"}, {"scale": "max"}, {"ddof": 2}, {"eps": -1e-6}, {"eps": float("nan")}]
)
def test_an_unknown_option_is_refused_by_name(option):
    with pytest.raises(ValueError, match=next(iter(option))):
        group_advantages([0.0, 1.0], **option)


@given(st.lists(REWARD, min_size=3, max_size=10), st.integers(0, 9))
def test_the_leave_one_out_deviation_is_the_sample_deviation_of_the_others(rewards, index):
    index %= len(rewards)
    others = rewards[:index] + rewards[index + 1 :]
    found = group_advantages(rewards, baseline="leave_one_out", deviation="leave_one_out")[index]
    sigma = np.std(others, ddof=1) if len(set(others)) > 1 else 0.0
    expected = (rewards[index] - np.mean(others)) / (sigma + 1e-6 if sigma > 0 else 1.0)
    assert found == pytest.approx(expected, rel=1e-6, abs=1e-9)


def test_equal_others_are_not_divided_by_a_leave_one_out_deviation_of_zero():
    assert group_advantages([1.0, 0.0, 0.0], baseline="leave_one_out", deviation="leave_one_out")[0] == 1.0
    assert list(group_advantages([1.0, 0.0], baseline="leave_one_out", deviation="leave_one_out")) == [1.0, -1.0]


def test_an_unknown_deviation_is_refused():
    with pytest.raises(ValueError, match="deviation is 'batch'; use one of group, leave_one_out"):
        group_advantages([1.0], deviation="batch")
