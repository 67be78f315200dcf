"""Properties of rewards for every rubric and every set of scores."""

from fractions import Fraction
from itertools import product
from typing import get_args

import pytest
from hypothesis import assume, given, reject
from hypothesis import strategies as st

from trainer_client.rewards import RewardOutcome, UnsuitableRubric, check_rubric, reward, reward_outcome
from trainer_client.wire import NEEDS_NO_RUBRIC, CriterionKind, RewardMode

MEANS = st.sampled_from(["weighted_mean", "factual_override", "partial_credit"])
MODES = st.sampled_from(["weighted_mean", "factual_override", "partial_credit", "points"])
SCORE = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1, allow_subnormal=False))


@st.composite
def judged(draw, mode="weighted_mean", missing=False, lowest=0):
    """A rubric that suits a mode and its scores, as a list of (criterion, score)."""
    lowest = -10 if mode == "points" else lowest
    weights = draw(st.lists(st.integers(lowest, 10), min_size=1, max_size=8).filter(lambda ws: max(ws) > 0))
    score = st.one_of(st.none(), SCORE) if missing else SCORE
    kind = st.sampled_from(["factual", "process", "point"])
    return [({"id": f"c{i}", "kind": draw(kind), "weight": weight}, draw(score)) for i, weight in enumerate(weights)]


def split(pairs):
    return [c for c, _ in pairs], [s for _, s in pairs]


@given(MEANS.flatmap(lambda mode: st.tuples(st.just(mode), judged(mode))))
def test_means_stay_between_zero_and_one(case):
    mode, pairs = case
    assert 0.0 <= reward(*split(pairs), mode) <= 1.0


@given(judged("points"))
def test_points_stay_between_the_lowest_possible_sum_and_one(pairs):
    weights = [c["weight"] for c, _ in pairs]
    positive = sum(w for w in weights if w > 0)
    lowest = sum(w for w in weights if w < 0) / positive
    assert lowest - 1e-9 <= reward(*split(pairs), "points") <= 1.0 + 1e-9


@given(MODES.flatmap(lambda mode: st.tuples(st.just(mode), judged(mode))), st.sampled_from([0.001, 0.5, 3, 1e6]))
def test_scaling_all_weights_changes_nothing(case, factor):
    mode, pairs = case
    scaled = [(c | {"weight": c["weight"] * factor}, s) for c, s in pairs]
    assert reward(*split(scaled), mode) == pytest.approx(reward(*split(pairs), mode), abs=1e-9)


@given(MODES.flatmap(lambda mode: st.tuples(st.just(mode), judged(mode))), st.randoms())
def test_the_order_of_criteria_does_not_matter(case, random):
    mode, pairs = case
    shuffled = random.sample(pairs, len(pairs))
    assert reward(*split(shuffled), mode) == pytest.approx(reward(*split(pairs), mode), abs=1e-9)


@given(judged("points"))
def test_adding_an_unmet_negative_criterion_to_points_changes_nothing(pairs):
    more = [*pairs, ({"id": "unmet", "weight": -7}, 0)]
    assert reward(*split(more), "points") == pytest.approx(reward(*split(pairs), "points"), abs=1e-12)


@given(judged("points"))
def test_meeting_the_positive_criteria_and_no_negative_one_earns_one_point(pairs):
    criteria, _ = split(pairs)
    assert reward(criteria, [float(c["weight"] > 0) for c in criteria], "points") == pytest.approx(1.0)


@given(judged(lowest=1))
def test_the_override_gives_one_exactly_if_all_factual_or_all_criteria_are_satisfied(pairs):
    factual = [s for c, s in pairs if c["kind"] == "factual"]
    mean = reward(*split(pairs), "weighted_mean")
    assume(all(s == 1 or s < 0.999 for _, s in pairs))
    overridden = bool(factual) and all(s == 1 for s in factual)
    given_reward = reward(*split(pairs), "factual_override")
    assert (given_reward == pytest.approx(1.0, abs=1e-12)) == (overridden or all(s == 1 for _, s in pairs))
    assert given_reward == (1.0 if overridden else mean)


@given(MODES.flatmap(lambda mode: st.tuples(st.just(mode), judged(mode, missing=True))))
def test_only_the_policies_null_error_zero_and_skip_decide_about_a_failure(case):
    mode, pairs = case
    criteria, scores = split(pairs)
    null, zero = reward_outcome(criteria, scores, mode), reward_outcome(criteria, scores, mode, "zero")
    if null.status == "partial":
        assert null == zero
        assert None in scores
    elif None in scores:
        assert (null.reward, null.status) == (None, "unscored")
        assert (zero.reward, zero.status, zero.policy_applied) == (0.0, "unscored", "zero")
    else:
        assert null == zero
        assert null.status == "scored"


@given(MODES.flatmap(lambda mode: st.tuples(st.just(mode), judged(mode, missing=True))))
def test_skip_equals_dropping_the_unscored_criteria(case):
    mode, pairs = case
    assume(reward_outcome(*split(pairs), mode).status != "partial")
    outcome = reward_outcome(*split(pairs), mode, "skip")
    kept = [(c, s) for c, s in pairs if s is not None]
    if not any(c["weight"] > 0 for c, _ in kept):
        assert (outcome.reward, outcome.status, outcome.policy_applied) == (None, "unscored", None)
        return
    assert outcome.reward == reward(*split(kept), mode)
    assert outcome.dropped == len(pairs) - len(kept)
    assert outcome.status == ("partial" if outcome.dropped else "scored")
    assert outcome.policy_applied == ("skip" if outcome.dropped else None)


ANY_KIND = st.sampled_from(get_args(CriterionKind))


@st.composite
def failing(draw):
    """A mode, a rubric that suits it, scores of which at most four are missing, and further arguments of the mode."""
    mode = draw(st.sampled_from([mode for mode in get_args(RewardMode) if mode != "ranking"]))
    if mode in NEEDS_NO_RUBRIC:
        return mode, [], [draw(st.none() | SCORE)], {}
    criterion = st.fixed_dictionaries({"kind": ANY_KIND, "weight": st.integers(-3, 3)})
    criteria = draw(st.lists(criterion, min_size=1, max_size=6))
    kinds = draw(st.none() | st.sets(ANY_KIND, min_size=1).map(sorted))
    try:
        check_rubric(criteria, mode, kinds)
    except UnsuitableRubric:
        reject()
    scores = draw(st.lists(st.none() | SCORE, min_size=len(criteria), max_size=len(criteria)))
    assume(scores.count(None) <= 4)
    beside = {"kinds": kinds, "gate_fraction": draw(st.sampled_from([0, 0.3, 0.5, 1]))}
    return mode, criteria, scores, beside | {"format_weight": draw(st.sampled_from([0, 0.1, 1])), "format_ok": True}


@given(failing())
def test_a_reward_is_missing_only_if_completions_of_the_failed_verdicts_disagree(case):
    mode, criteria, scores, beside = case
    ways = product(*([0.0, 0.5, 1.0] if score is None else [score] for score in scores))
    rewards = {reward(criteria, list(way), mode, **beside) for way in ways}
    outcome = reward_outcome(criteria, scores, mode, **beside)
    if len(rewards) == 1:
        assert outcome == RewardOutcome(rewards.pop(), "partial" if None in scores else "scored", None, 0)
    else:
        assert outcome == RewardOutcome(None, "unscored", None, 0)


GRADED_CRITERION = st.fixed_dictionaries(
    {"kind": st.sampled_from(["point", "pitfall", "bonus"]), "weight": st.integers(-10, 10)}
)
GRADED = st.lists(st.tuples(GRADED_CRITERION, st.one_of(st.none(), SCORE)), min_size=1, max_size=8)
POLICIES = st.sampled_from(["null", "zero", "skip"])


@given(GRADED, st.integers(1, 100))
def test_a_graded_mean_is_between_zero_and_one_and_depends_on_signs_of_weights_only(pairs, factor):
    pairs = [(c, 0.5 if s is None else s) for c, s in pairs]
    given_reward = reward(*split(pairs), "graded_mean")
    assert 0.0 <= given_reward <= 1.0
    assert reward(*split([(c | {"weight": c["weight"] * factor}, s) for c, s in pairs]), "graded_mean") == given_reward


@given(GRADED)
def test_inverting_every_sign_and_every_grade_leaves_a_graded_mean_unchanged(pairs):
    pairs = [({"weight": c["weight"] or 1}, 0.5 if s is None else s) for c, s in pairs]
    turned = [({"weight": -c["weight"]}, 1 - s) for c, s in pairs]
    assert reward(*split(turned), "graded_mean") == pytest.approx(reward(*split(pairs), "graded_mean"))


@given(GRADED)
def test_skip_equals_dropping_the_ungraded_criteria(pairs):
    outcome = reward_outcome(*split(pairs), "graded_mean", "skip")
    kept = [(c, s) for c, s in pairs if s is not None]
    assert outcome.reward == (reward(*split(kept), "graded_mean") if kept else None)


FRACTION = st.one_of(
    st.tuples(st.integers(0, 8), st.integers(1, 8)).filter(lambda n: n[0] <= n[1]).map(lambda n: Fraction(*n)),
    st.sampled_from([Fraction(n, 100) for n in range(101)]),
)
GATED = st.lists(st.sampled_from([None, 0.0, 0.4, 1.0]), max_size=7)


def passes(scores, fraction):
    return sum(s == 1 for s in scores) >= fraction * len(scores)


@given(GATED, FRACTION, POLICIES)
def test_a_gate_is_decided_exactly_if_all_completions_of_missing_scores_agree(scores, fraction, on_failure):
    ways = {passes(filled, fraction) for filled in product(*([0.0, 0.4, 1.0] if s is None else [s] for s in scores))}
    outcome = reward_outcome([{}] * len(scores), scores, "gate", on_failure, gate_fraction=float(fraction))
    if len(ways) == 1:
        assert outcome == RewardOutcome(float(ways.pop()), "partial" if None in scores else "scored", None, 0)
    elif on_failure == "skip" and any(s is not None for s in scores):
        kept = [s for s in scores if s is not None]
        assert outcome == RewardOutcome(float(passes(kept, fraction)), "partial", "skip", scores.count(None))
    else:
        zero = on_failure == "zero"
        assert outcome == RewardOutcome(0.0 if zero else None, "unscored", "zero" if zero else None, 0)
