"""How well a rubric separates good responses from bad ones, computed from judgements."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judge_server.evaluation.measuring.separation import CriterionSeparation, LabelledPrompt, Separation, separation
from trainer_client.wire import Criterion, Failure, ResponseReward, Verdict

CRITERIA = (Criterion(id="a", description="Is right."), Criterion(id="p", description="Guesses.", weight=-1))
REWARDS = st.lists(st.sampled_from([0.0, 0.25, 0.5, 1.0]), min_size=1, max_size=4)


def response(reward: float | None, **scores: float | None) -> ResponseReward:
    """A judged response; a score of None is a failed verdict."""
    failure = Failure(kind="timeout", detail="late")
    verdicts = [
        Verdict(criterion=name, status="failed", failure=failure)
        if score is None
        else Verdict(criterion=name, status="ok", score=score)
        for name, score in scores.items()
    ]
    status = "unscored" if reward is None else "scored"
    return ResponseReward(reward=reward, status=status, verdicts=tuple(verdicts))


def labelled(good: list[float | None], bad: list[float | None], rubric: str = "r") -> LabelledPrompt:
    """A prompt whose responses have these rewards and no verdicts."""
    return LabelledPrompt(rubric, CRITERIA, tuple(map(response, good)), tuple(map(response, bad)))


def of(found: Separation, criterion: str, rubric: str = "r") -> CriterionSeparation:
    """The part of a report about one criterion."""
    (one,) = [c for c in found.criteria if (c.rubric, c.criterion) == (rubric, criterion)]
    return one


def test_a_rubric_that_scores_every_good_response_above_every_bad_one_orders_them_perfectly() -> None:
    found = separation([labelled([1.0, 0.9], [0.1, 0.3])])
    assert (found.ordered, found.tied, found.prompts, found.good, found.bad) == (1.0, 0.0, 1, 2, 2)
    assert (found.mean_good, found.mean_bad) == pytest.approx((0.95, 0.2))


def test_a_rubric_that_scores_all_responses_alike_orders_half_of_the_pairs() -> None:
    found = separation([labelled([0.5], [0.5]), labelled([1.0], [1.0, 1.0])])
    assert (found.ordered, found.tied) == (0.5, 1.0)


def test_prompts_weigh_the_same_however_many_responses_they_have() -> None:
    found = separation([labelled([1.0] * 3, [0.0] * 3), labelled([0.0], [1.0])])
    assert found.ordered == 0.5
    assert found.mean_good == 0.5


SCORES = st.lists(st.floats(0, 1), min_size=1, max_size=30)


@given(SCORES, SCORES)
def test_the_interval_of_a_criterion_holds_its_difference_and_narrows_with_more_verdicts(
    good: list[float], bad: list[float]
) -> None:
    def measured(times: int) -> CriterionSeparation:
        one = LabelledPrompt("r", CRITERIA[:1], tuple(response(1.0, a=s) for s in good * times), ())
        other = LabelledPrompt("r", CRITERIA[:1], (), tuple(response(0.0, a=s) for s in bad * times))
        return of(separation([one, other]), "a")

    few, many = measured(1), measured(4)
    assert few.interval is not None
    assert many.interval is not None
    assert few.difference is not None
    assert -1 <= few.interval[0] <= few.difference + 1e-9
    assert few.difference - 1e-9 <= few.interval[1] <= 1
    assert many.interval[1] - many.interval[0] < few.interval[1] - few.interval[0]
    assert (few.verdicts, few.description) == (len(good) + len(bad), "Is right.")


def test_responses_are_compared_only_within_a_prompt() -> None:
    hard, easy = labelled([0.3], [0.2]), labelled([1.0], [0.9])
    assert separation([hard, easy]).ordered == 1.0


def test_a_prompt_with_one_side_unscored_is_left_out_and_counted() -> None:
    found = separation([labelled([None], [0.5]), labelled([1.0, None], [0.0])])
    assert (found.prompts, found.good, found.bad, found.unscored) == (1, 1, 1, 2)


def test_without_any_pair_the_figures_are_undefined() -> None:
    found = separation([labelled([None], [0.0])])
    assert (found.prompts, found.ordered, found.interval, found.mean_good, found.tied) == (0, None, None, None, None)


def test_the_interval_contains_the_figure_and_is_reproducible() -> None:
    groups = [labelled([1.0], [0.0]), labelled([0.0], [1.0]), labelled([1.0], [0.0])]
    found = separation(groups)
    assert found.interval is not None
    low, high = found.interval
    assert 0 <= low <= found.ordered <= high <= 1  # type: ignore[operator]
    assert low < high
    assert separation(groups) == found
    assert separation(groups[:1]).interval is None


def test_a_criterion_separates_by_how_much_more_often_good_responses_satisfy_it() -> None:
    good = (response(1.0, a=1.0), response(1.0, a=1.0))
    bad = (response(0.0, a=0.0), response(0.0, a=1.0))
    one = of(separation([LabelledPrompt("r", CRITERIA, good, bad)]), "a")
    assert (one.good, one.bad, one.difference, one.verdicts, one.failed) == (1.0, 0.5, 0.5, 4, 0)


@pytest.mark.parametrize("criterion", [CRITERIA[1], Criterion(id="p", description="Guesses.", kind="pitfall")])
def test_for_a_criterion_that_should_not_be_met_the_difference_is_negated(criterion: Criterion) -> None:
    group = LabelledPrompt("r", (criterion,), (response(1.0, p=0.0),), (response(0.0, p=1.0),))
    assert of(separation([group]), "p").difference == 1.0


def test_failed_verdicts_are_counted_separately_and_never_count_as_unmet() -> None:
    group = LabelledPrompt("r", CRITERIA, (response(None, a=None), response(1.0, a=1.0)), (response(None, a=None),))
    one = of(separation([group]), "a")
    assert (one.good, one.bad, one.difference, one.failed) == (1.0, None, None, 2)


def test_a_criterion_is_followed_over_the_prompts_of_its_rubric_and_the_least_useful_comes_first() -> None:
    def group(rubric: str, good: float, bad: float) -> LabelledPrompt:
        return LabelledPrompt(rubric, CRITERIA[:1], (response(1.0, a=good),), (response(0.0, a=bad),))

    found = separation([group("one", 1, 0), group("two", 0, 1), group("one", 1, 1)])
    assert [(c.rubric, c.difference) for c in found.criteria] == [("two", -1.0), ("one", 0.5)]


@given(good=REWARDS, bad=REWARDS)
def test_swapping_good_and_bad_mirrors_the_order(good: list[float], bad: list[float]) -> None:
    one, other = separation([labelled([*good], [*bad])]), separation([labelled([*bad], [*good])])
    assert one.ordered is not None
    assert other.ordered is not None
    assert math.isclose(one.ordered + other.ordered, 1.0)
    assert one.tied == other.tied


@given(st.lists(st.tuples(REWARDS, REWARDS), min_size=1, max_size=4))
def test_the_order_of_prompts_changes_no_figure(groups: list[tuple[list[float], list[float]]]) -> None:
    there = separation([labelled([*good], [*bad]) for good, bad in groups])
    back = separation([labelled([*good], [*bad]) for good, bad in reversed(groups)])
    assert there.ordered == pytest.approx(back.ordered)
    assert (there.prompts, there.good, there.bad) == (back.prompts, back.good, back.bad)
