"""Weights that follow the policy: what a category keeps, when nothing moves, and what a missing verdict does."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from judge_server.scoring.rewards import BLEND, LARGEST_FACTOR, effective_weights, with_weights
from tests.trainer_client.judged_criteria import criterion, verdict
from trainer_client.modes import MODES
from trainer_client.rewards import ResponseFacts, read_criteria, reward_verdicts
from trainer_client.wire import RewardOptions, RewardRequest, Verdict
from trainer_client.wire.ledger import RewardRules
from trainer_client.wire.rewards import WEIGHED, needs_whole_groups

CONTRAST = RewardOptions(mode="absolute_points", weighting="contrast")
SHARE = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0.001, 1))
PERHAPS = st.one_of(st.none(), SHARE)


def judged(criteria, scores):
    """The verdicts on each response, from a row of scores for each."""
    return [[verdict(each.id, score) for each, score in zip(criteria, row, strict=True)] for row in scores]


@st.composite
def groups(draw, score=PERHAPS, most=6):
    """A rubric, and a row of scores for each response of a group."""
    tags = st.lists(st.sampled_from(["style", "facts", "untagged", "长度"]), max_size=2).map(tuple)
    kinds = st.sampled_from(["point", "answer", "factual"])
    criteria = [
        criterion(f"c{i}", draw(st.integers(-10, 10)), kind=draw(kinds), tags=draw(tags), shadow=draw(st.booleans()))
        for i in range(draw(st.integers(1, 7)))
    ]
    row = st.lists(score, min_size=len(criteria), max_size=len(criteria))
    return criteria, draw(st.lists(row, min_size=1, max_size=most))


def category(each):
    return (each.tags or ("untagged",))[0], each.weight > 0


@given(groups(), st.sampled_from([None, ("point", "answer")]))
def test_a_category_keeps_the_sum_and_the_signs_of_its_weights(case, kinds):
    criteria, scores = case
    weights = effective_weights(criteria, judged(criteria, scores), CONTRAST.model_copy(update={"kinds": kinds}))
    counted = [each for each in criteria if each.weight and not each.shadow and (not kinds or each.kind in kinds)]
    assert set(weights) == {each.id for each in counted}
    for name in {category(each) for each in counted}:
        part = [each for each in counted if category(each) == name]
        kept = sum(each.weight for each in part)
        assert sum(weights[each.id] for each in part) == pytest.approx(kept, abs=1e-9)
    assert all(weights[each.id] * each.weight > 0 for each in counted)


@given(groups(), st.randoms())
def test_the_order_of_responses_and_criteria_changes_nothing(case, random):
    criteria, scores = case
    weights = effective_weights(criteria, judged(criteria, scores), CONTRAST)
    places = random.sample(range(len(criteria)), len(criteria))
    rows = random.sample(scores, len(scores))
    shuffled = [criteria[place] for place in places]
    turned = judged(shuffled, [[row[place] for place in places] for row in rows])
    assert effective_weights(shuffled, turned, CONTRAST) == weights


@given(groups(), st.sampled_from([0.001, 3.0, 1e6]))
def test_the_size_of_all_weights_and_the_range_of_scores_change_nothing(case, factor):
    criteria, scores = case
    weights = effective_weights(criteria, judged(criteria, scores), CONTRAST)
    larger = [each.model_copy(update={"weight": each.weight * factor}) for each in criteria]
    halved = [[None if score is None else score / 2 for score in row] for row in scores]
    scaled = effective_weights(larger, judged(criteria, halved), CONTRAST)
    assert scaled == pytest.approx({name: weight * factor for name, weight in weights.items()}, rel=1e-9)


@given(groups(), st.data())
def test_a_verdict_that_fails_never_raises_its_criterions_weight(case, data):
    criteria, scores = case
    place = data.draw(st.integers(0, len(criteria) - 1))
    gone = data.draw(st.sets(st.integers(0, len(scores) - 1), min_size=1))
    before = effective_weights(criteria, judged(criteria, scores), CONTRAST)
    failed = [
        [None if row in gone and at == place else score for at, score in enumerate(each)]
        for row, each in enumerate(scores)
    ]
    after = effective_weights(criteria, judged(criteria, failed), CONTRAST)
    name = criteria[place].id
    assert abs(after.get(name, 0.0)) <= abs(before.get(name, 0.0)) * (1 + 1e-9)


@given(groups())
def test_a_criterion_without_two_verdicts_gains_nothing(case):
    criteria, scores = case
    one_left = [[row[0] if n == 0 else None, *row[1:]] for n, row in enumerate(scores)]
    weights = effective_weights(criteria, judged(criteria, one_left), CONTRAST)
    assert abs(weights.get("c0", 0.0)) <= abs(criteria[0].weight) * (1 + 1e-9)


@given(groups(score=st.none()), groups(score=SHARE))
def test_the_rubrics_weights_stay_where_nothing_is_known_or_all_responses_agree(unknown, known):
    criteria, scores = unknown
    weights = effective_weights(criteria, judged(criteria, scores), CONTRAST)
    assert weights == {each.id: each.weight for each in criteria if each.weight and not each.shadow}
    criteria, scores = known
    weights = effective_weights(criteria, judged(criteria, [scores[0]] * 7), CONTRAST)
    assert weights == {each.id: each.weight for each in criteria if each.weight and not each.shadow}


@given(groups(most=1))
def test_a_group_of_one_is_weighed_as_declared(case):
    criteria, scores = case
    weights = effective_weights(criteria, judged(criteria, scores), CONTRAST)
    assert weights == {each.id: each.weight for each in criteria if each.weight and not each.shadow}


def test_weight_moves_within_a_category_to_the_criterion_that_separates():
    criteria = [
        criterion("saturated", 2, tags=("style",)),
        criterion("separates", 2, tags=("style", "facts")),
        criterion("alone", 3, tags=("facts",)),
        criterion("pitfall", -1, tags=("style",)),
        criterion("free", 0, tags=("style",)),
    ]
    scores = [[1, 1, 1, 1, 1], [1, 0, 1, 0, 0]]
    weights = effective_weights(criteria, judged(criteria, scores), CONTRAST)
    assert weights == {"saturated": 1.0, "separates": 3.0, "alone": 3.0, "pitfall": -1.0}


def test_no_factor_is_above_the_clip():
    count = 20
    criteria = [criterion(f"c{i}") for i in range(count)]
    scores = [[float(i == 0) * row for i in range(count)] for row in (0.0, 1.0)]
    weights = effective_weights(criteria, judged(criteria, scores), CONTRAST)
    scale = (LARGEST_FACTOR + (count - 1) * (1 - BLEND)) / count
    assert weights["c0"] == pytest.approx(LARGEST_FACTOR / scale)
    assert weights["c1"] == pytest.approx((1 - BLEND) / scale)


def test_soft_rewards_are_contrasted_by_their_probabilities():
    criteria = [criterion("a"), criterion("b")]
    rows = [(0.6, 0.9), (0.9, 0.9)]
    group = [[verdict("a", 1.0, a), verdict("b", 1.0, b)] for a, b in rows]
    assert effective_weights(criteria, group, CONTRAST) == {"a": 1.0, "b": 1.0}
    soft = CONTRAST.model_copy(update={"use": "probability"})
    assert effective_weights(criteria, group, soft) == pytest.approx({"a": 1.5, "b": 0.5})


@given(groups(score=SHARE), st.sampled_from(WEIGHED))
def test_rewards_keep_their_range_under_other_weights(case, mode):
    criteria, scores = case
    if mode in ("weighted_mean", "partial_credit"):
        criteria = [each.model_copy(update={"weight": abs(each.weight)}) for each in criteria]
    if not any(each.weight > 0 and not each.shadow for each in criteria):
        criteria = [criteria[0].model_copy(update={"weight": 1.0, "shadow": False}), *criteria[1:]]
    options = RewardOptions(mode=mode, weighting="contrast")
    group = judged(criteria, scores)
    weights = effective_weights(criteria, group, options)
    terms = with_weights(read_criteria(criteria), weights)
    counted = [each.weight for each in criteria if not each.shadow]
    gains, losses = sum(w for w in counted if w > 0), sum(w for w in counted if w < 0)
    size = gains - losses if mode == "absolute_points" else gains
    for own in group:
        outcome = reward_verdicts(terms, own, RewardRules(reward=options), ResponseFacts())
        assert losses / size - 1e-9 <= outcome.reward <= gains / size + 1e-9


def test_criteria_that_dropout_left_out_are_refused():
    group = [[Verdict(criterion="a", status="left_out")]]
    with pytest.raises(ValueError, match=r"rubric dropout left some out; use 'declared'"):
        effective_weights([criterion("a")], group, CONTRAST)
    assert effective_weights([criterion("a")], group, RewardOptions()) == {}


def request(**fields):
    groups = [{"id": "g", "prompt": "?", "responses": ["a"], "ground_truth": "1"}]
    rubric = {"criteria": [{"id": "a", "description": "?"}]}
    return RewardRequest.model_validate({"rubric": rubric, "groups": groups} | fields)


@pytest.mark.parametrize("mode", sorted(MODES))
def test_a_mode_that_does_not_weigh_criteria_refuses_the_weighting_and_names_those_that_do(mode):
    if mode in WEIGHED:
        assert request(reward={"mode": mode, "weighting": "contrast"}).reward.weighting == "contrast"
    else:
        with pytest.raises(ValidationError, match=f"mode '{mode}' is not a weighted sum.*or use mode 'weighted_mean'"):
            request(reward={"mode": mode, "weighting": "contrast"})


def test_dropout_and_contrast_exclude_each_other():
    with pytest.raises(ValidationError, match=r"leave out dropout, or leave out reward.weighting"):
        request(reward={"weighting": "contrast"}, dropout={"keep": 0.5})


def test_whole_groups_are_needed_where_rewards_depend_on_other_responses():
    assert needs_whole_groups("ranking")
    assert needs_whole_groups("points", "contrast")
    assert not needs_whole_groups("points", "declared")
    assert not needs_whole_groups(None, None)
