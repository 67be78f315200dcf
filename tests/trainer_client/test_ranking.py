"""Bradley-Terry scores of a group: their values, ties, and failed comparisons, which never count as a loss."""

import math
from itertools import combinations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_client.ranking import PairVerdict, bradley_terry, compared_with, comparison_id, rank, report
from trainer_client.rewards import UnscoredCriteria

WIN = st.floats(0, 1, allow_subnormal=False)
FAILURES = ["null", "zero", "zero_unparseable", "skip"]


def sigmoid(x: float) -> float:
    return 1 / (1 + math.exp(-x))


def both_orders(i: int, j: int, win: float | None, back: float | None = None) -> list[PairVerdict]:
    """The verdicts on a pair; without `back`, the judge agrees with itself in both orders."""
    other = 1 - win if back is None and win is not None else back
    failures = [None if share is not None else "timeout" for share in (win, other)]
    return [PairVerdict(i, j, win, win, failures[0]), PairVerdict(j, i, other, other, failures[1])]


@st.composite
def comparisons(draw, failing=False):
    """Two to seven responses, and the verdicts in both orders on some of the pairs."""
    count = draw(st.integers(2, 7))
    pairs = draw(st.lists(st.sampled_from(list(combinations(range(count), 2))), min_size=1, unique=True))
    share = WIN | st.none() if failing else WIN
    verdicts = []
    for i, j in pairs:
        wins = draw(share), draw(share)
        verdicts += [
            PairVerdict(first, second, win, win, None if win is not None else "timeout")
            for (first, second), win in zip([(i, j), (j, i)], wins, strict=True)
        ]
    return count, verdicts


def rewards(count: int, verdicts: list[PairVerdict], on_failure: str = "null") -> list[float | None]:
    return [outcome.reward for outcome in rank(count, verdicts, on_failure)]


@given(comparisons())
def test_the_strengths_maximise_the_posterior(drawn):
    count, verdicts = drawn
    strengths = bradley_terry(count, [one[:3] for one in verdicts])
    slopes = [-strength for strength in strengths]
    for i, j, win, *_ in verdicts:
        surplus = win - sigmoid(strengths[i] - strengths[j])
        slopes[i] += surplus
        slopes[j] -= surplus
    assert slopes == pytest.approx([0.0] * count, abs=1e-8)
    assert math.fsum(strengths) == pytest.approx(0.0, abs=1e-8)


@given(comparisons(), st.sampled_from(FAILURES))
def test_swapping_wins_and_losses_inverts_every_reward(drawn, on_failure):
    count, verdicts = drawn
    swapped = [one._replace(win=1 - one.win) for one in verdicts]
    for reward, other in zip(rewards(count, verdicts), rewards(count, swapped), strict=True):
        assert other is None if reward is None else other == pytest.approx(1 - reward, abs=1e-8)


@given(comparisons(failing=True), st.randoms(), st.sampled_from(FAILURES))
def test_the_order_of_the_responses_does_not_matter(drawn, random, on_failure):
    count, verdicts = drawn
    places = random.sample(range(count), count)
    moved = [one._replace(first=places[one.first], second=places[one.second]) for one in verdicts]
    random.shuffle(moved)
    there = rewards(count, moved, on_failure)
    for place, reward in enumerate(rewards(count, verdicts, on_failure)):
        assert there[places[place]] == (None if reward is None else pytest.approx(reward, abs=1e-8))


@given(comparisons(failing=True), st.sampled_from(FAILURES))
def test_a_pair_without_an_answer_in_both_orders_is_ignored(drawn, on_failure):
    count, verdicts = drawn
    known = {(one.first, one.second) for one in verdicts if one.win is not None}
    whole = [one for one in verdicts if {(one.first, one.second), (one.second, one.first)} <= known]
    fitted = rewards(count, whole, "skip")
    for outcome, without in zip(rank(count, verdicts, on_failure), fitted, strict=True):
        if outcome.status != "unscored":
            assert outcome.reward == pytest.approx(without, abs=1e-12)
        assert on_failure != "null" or outcome.reward is None or outcome.status != "unscored"


@given(st.integers(2, 8), st.sampled_from(["all", "chain"]))
def test_a_group_of_ties_gets_the_average_reward(count, schedule):
    pairs = combinations(range(count), 2) if schedule == "all" else zip(range(count), range(1, count), strict=False)
    tied = [one for i, j in pairs for one in both_orders(i, j, 0.5)]
    assert rewards(count, tied) == pytest.approx([0.5] * count)


@given(st.integers(2, 12), st.randoms())
def test_a_consistent_judge_of_all_pairs_determines_the_order(count, random):
    order = random.sample(range(count), count)
    standing = {place: number for number, place in enumerate(order)}
    verdicts = [
        one for i, j in combinations(range(count), 2) for one in both_orders(i, j, float(standing[i] > standing[j]))
    ]
    found = rewards(count, verdicts)
    assert sorted(range(count), key=lambda place: found[place]) == order
    assert all(0 < reward < 1 for reward in found)
    assert math.fsum(found) == pytest.approx(count / 2)


@given(st.lists(st.floats(-2, 2), min_size=3, max_size=6))
def test_strengths_are_recovered_from_many_exact_shares(true):
    games = [(i, j, sigmoid(true[i] - true[j])) for i, j in combinations(range(len(true)), 2) for _ in range(4_000)]
    mean = math.fsum(true) / len(true)
    assert bradley_terry(len(true), games) == pytest.approx([theta - mean for theta in true], abs=0.01)


def test_two_responses_of_which_one_wins_both_orders():
    # d = theta_0 - theta_1 solves 2 (1 - sigma(d)) = d / 2
    low, high = bradley_terry(2, [(1, 0, 1.0), (0, 1, 0.0)])
    assert high - low == pytest.approx(1.0426, abs=1e-4)
    assert 2 * (1 - sigmoid(high - low)) == pytest.approx((high - low) / 2)


def test_a_judge_that_always_prefers_the_first_ranks_nothing_and_is_reported():
    verdicts = [one for i, j in combinations(range(4), 2) for one in both_orders(i, j, 1.0, 1.0)]
    assert rewards(4, verdicts) == pytest.approx([0.5] * 4)
    told = report("all_pairs", verdicts)
    assert (told.pairs, told.failed, told.inconsistent, told.first_preferred) == (6, 0, 6, 1.0)


def test_a_consistent_judge_has_no_position_bias():
    verdicts = [one for i, j in combinations(range(4), 2) for one in both_orders(i, j, 1.0)]
    told = report("all_pairs", verdicts)
    assert (told.inconsistent, told.first_preferred) == (0, 0.5)


def test_without_an_answered_pair_no_position_bias_is_reported():
    told = report("pivot", both_orders(0, 1, None, 1.0))
    assert (told.pairs, told.failed, told.inconsistent, told.first_preferred) == (1, 1, 0, None)


WINS = [*both_orders(0, 1, 1.0), *both_orders(0, 2, 1.0), *both_orders(1, 2, 1.0)]


class TestFailures:
    def test_half_of_the_pairs_are_enough(self):
        verdicts = WINS + [one for place in range(3) for one in both_orders(place, 3, None, 1.0)]
        outcomes = rank(4, verdicts)
        assert [outcome.status for outcome in outcomes] == ["partial"] * 3 + ["unscored"]
        assert outcomes[3].reward is None
        assert [outcome.reward for outcome in outcomes[:3]] == pytest.approx(rewards(3, WINS))

    @pytest.mark.parametrize(
        ("on_failure", "reward", "policy"),
        [("null", None, None), ("zero", 0.0, "zero"), ("zero_unparseable", None, None), ("skip", 0.5, "skip")],
    )
    def test_below_that_the_failure_policy_decides(self, on_failure, reward, policy):
        verdicts = [*WINS, *both_orders(0, 3, 0.0), *both_orders(1, 3, None), *both_orders(2, 3, None)]
        outcome = rank(4, verdicts, on_failure)[3]
        assert outcome.policy_applied == policy
        if on_failure == "skip":
            assert (outcome.status, outcome.dropped) == ("partial", 2)
            assert outcome.reward > reward
        else:
            assert (outcome.status, outcome.reward) == ("unscored", reward)

    def test_unparseable_verdicts_count_as_zero_under_that_policy(self):
        failed = [one._replace(failure="parse") for one in both_orders(0, 1, None)]
        assert [outcome.reward for outcome in rank(2, failed, "zero_unparseable")] == [0.0, 0.0]

    def test_an_error_names_the_responses(self):
        with pytest.raises(UnscoredCriteria, match=r"no score for response 0, response 1"):
            rank(2, both_orders(0, 1, None), "error")

    @pytest.mark.parametrize("on_failure", FAILURES)
    def test_two_equally_large_connected_sets_cannot_be_compared(self, on_failure):
        verdicts = both_orders(0, 1, 1.0) + both_orders(2, 3, 1.0) + both_orders(1, 2, None)
        assert all(outcome.status == "unscored" for outcome in rank(4, verdicts, on_failure))

    def test_only_the_largest_connected_set_is_ranked(self):
        verdicts = [*WINS, *both_orders(3, 4, 1.0)]
        assert [outcome.status for outcome in rank(5, verdicts)] == ["scored"] * 3 + ["unscored"] * 2


def test_a_comparison_id_names_the_opponent():
    assert compared_with(comparison_id(17)) == 17
    assert compared_with("answer") is None
    assert compared_with("beats_x") is None


@pytest.mark.parametrize("game", [(0, 0, 1.0), (0, 2, 1.0), (-1, 0, 1.0), (0, 1, 1.1), (0, 1, math.nan)])
def test_an_invalid_game_is_refused(game):
    with pytest.raises(ValueError, match="is not a game"):
        bradley_terry(2, [game])
