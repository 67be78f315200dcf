"""Measures of a policy's responses over problems, with intervals."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judge_server.evaluation.measuring.trajectories import (
    MeasureEstimate,
    ProblemResponses,
    Trajectory,
    by_kind,
    count_alignment,
    estimate_measures,
    satisfied,
    step_groups,
    win_rates,
)
from trainer_client.measures import faithfulness, loops, pass_at_k
from trainer_client.wire import Comparison

CALM, LOOPING = loops("It is 7."), loops("### Step 1: a\n### Step 1: a")


def test_the_papers_table_of_step_reasoning_follows_from_its_counts() -> None:
    right, wrong = Trajectory(CALM, 1.0, (1.0, 1.0)), Trajectory(CALM, 0.0, (1.0, 0.0))
    other = Trajectory(CALM, 0.0, (1.0,))
    problems = [
        ProblemResponses((one,)) for one in [right] * 4 + [other] * 4 + [wrong] * 20 + [Trajectory(CALM, 0.0, ())] * 2
    ]
    found = estimate_measures(problems, ks=(1,))
    assert found["faithful_reasoning_rate"].value == pytest.approx(4 / 30)
    assert found["misaligned_trajectory_rate"].value == pytest.approx(4 / 30)
    assert found["answer_accuracy"].value == found["pass_at_1"].value == pytest.approx(4 / 30)
    assert count_alignment(problems) == {
        "right_faithful": 4,
        "right_unfaithful": 0,
        "wrong_faithful": 4,
        "wrong_unfaithful": 20,
        "without_steps": 2,
        "undecided": 0,
    }


def test_a_measure_without_data_is_left_out() -> None:
    assert set(estimate_measures([ProblemResponses((Trajectory(CALM),))])) == {"loop_rate", "mean_self_corrections"}


def test_a_missing_verdict_leaves_a_trajectory_undecided_only_where_it_matters() -> None:
    undecided, decided = Trajectory(CALM, 1.0, (1.0, None)), Trajectory(CALM, 1.0, (0.0, None))
    counts = count_alignment([ProblemResponses((undecided, decided, Trajectory(CALM, None, (1.0,))))])
    assert (counts["undecided"], counts["right_unfaithful"]) == (2, 1)


def test_rewards_loops_and_diversity_are_measured() -> None:
    several = tuple(Trajectory(CALM, c, reward=r, satisfied=r) for c, r in [(1, 1.0), (0, 0.0), (0, -0.5)])
    found = estimate_measures([ProblemResponses((*several, Trajectory(LOOPING, 1.0)), self_bleu=0.25)], ks=(1, 2, 9))
    assert found["zero_reward_share"].value == pytest.approx(2 / 3)
    assert found["best_of_2"].value == pytest.approx((1 + 1 + 0) / 3)
    assert (found["loop_rate"].value, found["accuracy_looping"].value) == (0.25, 1.0)
    assert found["diversity"].value == 0.75
    assert found["correlation_with_satisfaction"].value > 0.9
    assert "best_of_9" not in found
    assert "pass_at_9" not in found


SCORE = st.sampled_from([0.0, 1.0])
TRAJECTORY = st.builds(
    Trajectory, st.sampled_from([CALM, LOOPING]), SCORE, st.lists(SCORE | st.none(), max_size=3).map(tuple)
)
PROBLEMS = st.lists(
    st.lists(TRAJECTORY, min_size=1, max_size=4).map(lambda ts: ProblemResponses(tuple(ts))), max_size=4
)


@given(PROBLEMS)
def test_values_are_those_of_the_measures_and_lie_in_their_intervals_range(problems: list[ProblemResponses]) -> None:
    found = estimate_measures(problems, ks=(1,), resamples=50)
    judged = [one for problem in problems for one in problem.trajectories]
    expected = faithfulness([one.correct for one in judged], [one.steps or () for one in judged])
    value = found.get("faithful_reasoning_rate")
    assert (value.value if value else None) == pytest.approx(expected["faithful_reasoning_rate"])
    if problems:
        each = [pass_at_k(len(p.trajectories), sum(one.correct == 1.0 for one in p.trajectories), 1) for p in problems]
        assert found["pass_at_1"].value == pytest.approx(sum(each) / len(each))
    for one in found.values():
        assert one.low is None or one.high is None or one.low <= one.high


def test_the_same_seed_gives_the_same_interval_and_more_problems_a_narrower_one() -> None:
    few = [ProblemResponses((Trajectory(CALM, float(n % 2)),)) for n in range(10)]
    one, again, many = (estimate_measures(given, ks=(1,), resamples=100)["pass_at_1"] for given in (few, few, few * 20))
    assert one == again
    assert 0 < width(many) < width(one) < 1


def width(one: MeasureEstimate) -> float:
    assert one.low is not None
    assert one.high is not None
    assert one.low <= one.value <= one.high
    return one.high - one.low


@pytest.mark.parametrize("right", [0.0, 1.0])
def test_a_share_of_0_or_1_has_an_interval_that_narrows_with_the_number_of_problems(right: float) -> None:
    """For n of n, Wilson's interval begins at n / (n + 3.84)."""
    for count in (1, 10, 100):
        one = estimate_measures([ProblemResponses((Trajectory(CALM, right),) * 4)] * count, resamples=20)["pass_at_1"]
        assert width(one) == pytest.approx(1 - count / (count + 1.96**2), abs=1e-4)


def test_a_share_has_wilsons_interval_and_samples_that_agree_do_not_narrow_it() -> None:
    """60 of 200 problems: 0.2408 to 0.3668 (Wilson), whether each has one sample or several equal ones."""
    for samples in (1, 4):
        problems = [ProblemResponses((Trajectory(CALM, float(n < 60)),) * samples) for n in range(200)]
        one = estimate_measures(problems, ks=(1,), resamples=200)["pass_at_1"]
        assert (one.low, one.high) == (pytest.approx(0.2408, abs=0.01), pytest.approx(0.3668, abs=0.01))


@given(st.lists(st.lists(SCORE, min_size=1, max_size=3), min_size=1, max_size=6))
def test_the_interval_of_a_share_contains_it_and_has_positive_width(rows: list[list[float]]) -> None:
    problems = [ProblemResponses(tuple([Trajectory(CALM, one) for one in row])) for row in rows]
    found = estimate_measures(problems, ks=(1,), resamples=50)
    for one in (found["answer_accuracy"], found["pass_at_1"], found["loop_rate"]):
        assert width(one) > 0
        assert one.low is not None
        assert one.low >= 0


def test_other_measures_have_no_interval_where_all_problems_are_alike() -> None:
    alike = [ProblemResponses((Trajectory(CALM, reward=0.5),) * 2, self_bleu=0.25)] * 10
    found = estimate_measures(alike, ks=(2,))
    assert {name for name, one in found.items() if one.low is None} == {
        "mean_self_corrections",
        "diversity",
        "best_of_2",
    }
    differing = [ProblemResponses((Trajectory(CALM),) * 2, self_bleu=n / 10) for n in range(10)]
    assert width(estimate_measures(differing)["diversity"]) > 0


def test_accuracy_by_looping_is_shown_only_where_something_loops() -> None:
    calm, looping = Trajectory(CALM, 1.0), Trajectory(LOOPING, 0.0)
    assert "accuracy_not_looping" not in estimate_measures([ProblemResponses((calm,))] * 2)
    found = estimate_measures([ProblemResponses((calm, looping)), ProblemResponses((calm,))])
    assert (found["accuracy_looping"].value, found["accuracy_not_looping"].value) == (0.0, 1.0)


def test_a_mistake_counts_against_a_response_and_the_answer_criterion_does_not_count() -> None:
    scores = [("suggest", 1.0, 1.0), ("pitfall", -1.0, 1.0), ("point", -2.0, 0.0), ("answer", 1.0, None)]
    assert satisfied(scores) == pytest.approx(2 / 3)
    assert satisfied([*scores, ("bonus", 1.0, None)]) is None
    assert satisfied([("answer", 1.0, 1.0)]) is None


def test_novelty_is_computed_where_likelihoods_are_known() -> None:
    known = [Trajectory(CALM, likelihoods=(-1.0, -1.0 - math.log(ratio))) for ratio in (1.0, 4.0, 40.0)]
    found = estimate_measures([ProblemResponses((*known, Trajectory(CALM)))])
    assert found["novelty_mean"].value == pytest.approx(15.0)
    assert found["novelty_median"].value == pytest.approx(4.0)
    assert found["novelty_above_2"].value == pytest.approx(2 / 3)
    assert found["novelty_above_100"].value == 0.0


def test_each_kind_of_criterion_is_correlated_separately() -> None:
    right = by_kind([("suggest", 1.0, 1.0), ("pitfall", -1.0, 0.0), ("bonus", 1.0, None), ("answer", 1.0, 1.0)])
    wrong = by_kind([("suggest", 1.0, 0.0), ("pitfall", -1.0, 1.0), ("point", -1.0, 1.0)])
    assert right == {"suggest": 1.0, "pitfall": 0.0}
    assert wrong == {"suggest": 0.0, "pitfall": 1.0, "point": 0.0}
    found = estimate_measures(
        [ProblemResponses((Trajectory(CALM, 1.0, by_kind=right), Trajectory(CALM, 0.0, by_kind=wrong)))]
    )
    assert found["correlation_with_suggest"].value == pytest.approx(1.0)
    assert found["correlation_with_pitfall"].value == pytest.approx(-1.0)
    assert "correlation_with_point" not in found


def test_a_k_below_one_is_refused() -> None:
    with pytest.raises(ValueError, match="k is 0"):
        estimate_measures([], ks=(0,))


def test_each_step_is_asked_with_the_steps_before_it() -> None:
    text = "So:\n### Step 1: add\n1 + 1 = 2\n### Step 2: double\n2 * 2 = 5"
    first, second = step_groups("What is it?", text, ground_truth="4")
    assert first["prompt"] == [{"role": "user", "content": "What is it?"}]
    assert first["responses"] == ["### Step 1: add\n1 + 1 = 2"]
    assert second["prompt"][1] == {"role": "assistant", "content": "### Step 1: add\n1 + 1 = 2"}
    assert (second["responses"], second["ground_truth"]) == (["### Step 2: double\n2 * 2 = 5"], "4")
    assert step_groups("What is it?", "It is 4.", ground_truth=None) == []


_WIN = {"a": 1.0, "tie": 0.5, "b": 0.0}


def compared(first: str | None, second: str | None) -> Comparison:
    """A pair, from what its two orders prefer; None means failed."""
    wins = [_WIN[one] for one in (first, second) if one is not None]
    failed = len(wins) < 2
    score = None if failed else sum(wins) / 2
    preferred = None if score is None else "tie" if score == 0.5 else "a" if score > 0.5 else "b"
    orders = [
        {"first": place, "status": "failed" if one is None else "ok", "preferred": one}
        for place, one in (("a", first), ("b", second))
    ]
    fields = {"score": score, "preferred": preferred, "consistent": None if failed else first == second}
    return Comparison.model_validate({"id": "p", "status": "failed" if failed else "ok", "orders": orders, **fields})


PREFERRED = st.sampled_from(["a", "b", "tie", None])
COMPARED = st.lists(st.lists(st.tuples(PREFERRED, PREFERRED), max_size=3), max_size=4)


def test_a_judge_that_always_prefers_the_first_place_gives_one_half_and_no_agreement() -> None:
    found = win_rates([[compared("a", "b")]] * 3)
    values = {name: one.value for name, one in found.items()}
    assert values == {"win_rate": 0.5, "tie_rate": 1.0, "order_agreement": 0.0}


def test_a_failed_comparison_counts_neither_way() -> None:
    found = win_rates([[compared("a", "a"), compared("b", None)], [compared(None, None)]])
    assert (found["win_rate"].value, found["win_rate"].problems) == (1.0, 1)
    assert win_rates([[compared(None, "a")]]) == {}


@given(COMPARED)
def test_the_win_rates_of_the_two_sides_add_up_to_one(problems: list[list[tuple[str | None, str | None]]]) -> None:
    other = {"a": "b", "b": "a", "tie": "tie", None: None}
    mine = win_rates([[compared(*pair) for pair in pairs] for pairs in problems])
    theirs = win_rates([[compared(other[x], other[y]) for x, y in pairs] for pairs in problems])
    if mine:
        assert mine["win_rate"].value + theirs["win_rate"].value == pytest.approx(1.0)
        assert mine["tie_rate"].value == theirs["tie_rate"].value
