"""Components of rewards: what each is, how they add up, and what a missing verdict does to them."""

import pickle
from typing import get_args

import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from tests.hypothesis_examples import examples
from tests.trainer_client.judged_criteria import criterion, verdict
from trainer_client.dropout import CriteriaSample
from trainer_client.modes import MODES
from trainer_client.rewards import (
    ResponseFacts,
    UnscoredCriteria,
    UnsuitableRubric,
    check_rubric,
    component_names,
    component_weights,
    reward_verdicts,
)
from trainer_client.wire import CriterionKind, RewardOptions, Verdict
from trainer_client.wire.rewards import RewardRules

LINEAR = sorted(name for name, mode in MODES.items() if not mode.not_linear)
BY = ("criterion", "kind", "tag")
NO_FACTS = ResponseFacts()
SHARE = st.one_of(st.sampled_from([0.0, 1.0]), st.floats(0, 1, allow_subnormal=False))


def outcome(criteria, scores, mode="points", by="criterion", policy="null", facts=NO_FACTS, **options):
    rules = RewardRules(reward=RewardOptions(mode=mode, components=by, **options), on_failure=policy)
    verdicts = [verdict(each.id, score) for each, score in zip(criteria, scores, strict=True)]
    return reward_verdicts(criteria, verdicts, rules, facts)


@st.composite
def responses(draw):
    """A rubric that suits a linear mode, verdicts on it, options of the reward, and a sample of criteria or none."""
    weights = st.integers(-10, 10)
    kinds = st.sampled_from(["point", "answer", "pitfall", "factual"])
    tags = st.lists(st.sampled_from(["style", "facts", "untagged", "长度"]), max_size=2).map(tuple)
    criteria = [
        criterion(f"c{i}", draw(weights), kind=draw(kinds), tags=draw(tags), shadow=draw(st.integers(0, 9)) == 0)
        for i in range(draw(st.integers(1, 7)))
    ]
    options = RewardOptions(
        mode=draw(st.sampled_from(LINEAR)),
        components=draw(st.sampled_from(BY)),
        kinds=draw(st.sampled_from([None, ("point", "answer")])),
        use=draw(st.sampled_from(["verdict", "probability"])),
        format_weight=draw(st.sampled_from([0.0, 0.1, 1.0])),
    )
    try:
        check_rubric(criteria, options.mode, options.kinds, options.components)
    except UnsuitableRubric:
        assume(False)
    droppable = [each.weight >= 0 and each.kind == "point" for each in criteria]
    sample = None
    if sum(droppable) > 1 and draw(st.booleans()):
        left_out = [False] * len(criteria)
        left_out[draw(st.sampled_from([i for i, may_go in enumerate(droppable) if may_go]))] = True
        sample = CriteriaSample(tuple(droppable), tuple(left_out))
    verdicts = [
        Verdict(criterion=each.id, status="left_out")
        if sample is not None and sample.left_out[place]
        else verdict(each.id, draw(SHARE), draw(SHARE))
        for place, each in enumerate(criteria)
    ]
    return criteria, verdicts, options, ResponseFacts(format_ok=draw(st.booleans()), sample=sample)


@settings(max_examples=examples(200))
@given(responses())
def test_components_times_their_weights_add_up_to_the_reward_in_every_linear_mode(case):
    criteria, verdicts, options, facts = case
    given_outcome = reward_verdicts(criteria, verdicts, RewardRules(reward=options), facts)
    weights = component_weights(criteria, options)
    assert list(weights) == list(given_outcome.components) == component_names(criteria, options)
    total = sum(weight * given_outcome.components[name] for name, weight in weights.items())
    assert total == pytest.approx(given_outcome.reward, abs=1e-9)


@given(responses())
def test_asking_for_components_changes_nothing_else(case):
    criteria, verdicts, options, facts = case
    asked = reward_verdicts(criteria, verdicts, RewardRules(reward=options), facts)
    plain = options.model_copy(update={"components": None})
    assert reward_verdicts(criteria, verdicts, RewardRules(reward=plain), facts) == asked._replace(components={})


def test_an_outcome_can_be_pickled():
    found = outcome([criterion("a")], [1], by=None)
    assert pickle.loads(pickle.dumps(found)) == found


def test_a_component_of_mistakes_lies_between_minus_one_and_zero():
    rubric = [criterion("right", 4), criterion("wrong", -3), criterion("rude", -1)]
    by_tag = [each.model_copy(update={"tags": ("bad",) if each.weight < 0 else ()}) for each in rubric]
    assert dict(outcome(by_tag, [1, 1, 1], by="tag").components) == {"untagged": 1.0, "bad": -1.0}
    assert component_weights(by_tag, RewardOptions(mode="points", components="tag")) == {"untagged": 1.0, "bad": 1.0}


def test_the_format_is_a_component_of_stepwise_and_criteria_that_do_not_count_have_none():
    rubric = [criterion("right", kind="answer"), criterion("clear", kind="point")]
    given_outcome = outcome(rubric, [1, 1], "stepwise", facts=ResponseFacts(format_ok=False))
    assert dict(given_outcome.components) == {"right": 1.0, "format": 0.0}
    weights = component_weights(rubric, RewardOptions(mode="stepwise", components="criterion"))
    assert weights == pytest.approx({"right": 0.9, "format": 0.1})


def test_an_answer_criterion_called_format_is_refused_in_stepwise():
    rubric = [criterion("format", kind="answer")]
    with pytest.raises(UnsuitableRubric, match="rename the criterion"):
        check_rubric(rubric, "stepwise", components="criterion")
    check_rubric(rubric, "stepwise", components="kind")
    check_rubric(rubric, "graded_mean", components="criterion")


@pytest.mark.parametrize(
    ("mode", "scores", "components"),
    [
        ("factual_override", [1, 1, 0], {"factual": 1.0, "point": 0.0}),
        ("gate", [1, 0, 0], {"factual": 1.0, "point": 0.0}),
        ("clipped_points", [1, 0, 1], {"factual": 0.5, "point": 1.0}),
    ],
)
def test_in_other_modes_a_component_is_the_formula_over_its_criteria_and_has_no_weight(mode, scores, components):
    rubric = [criterion("a", kind="factual"), criterion("b", kind="factual"), criterion("c")]
    assert dict(outcome(rubric, scores, mode, "kind").components) == components
    assert component_weights(rubric, RewardOptions(mode=mode, components="kind")) == {}
    assert component_names(rubric, RewardOptions(mode=mode, components="kind")) == list(components)


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({"components": "kind", "kinds": ("answer", "point")}, ["point", "answer"]),
        ({"components": "kind", "mode": "stepwise"}, ["answer", "format"]),
        ({"components": "kind", "mode": "stepwise", "format_weight": 0}, ["answer"]),
        ({"components": "tag"}, []),
        ({"components": "criterion", "mode": "stepwise"}, []),
        ({}, []),
    ],
)
def test_without_a_rubric_only_the_components_by_kind_have_names(options, names):
    assert component_names(None, RewardOptions(**options)) == names
    assert component_names(None, RewardOptions(components="kind")) == list(get_args(CriterionKind))


def test_without_components_there_are_no_names():
    assert component_names([criterion("a")], RewardOptions()) == []


def test_a_list_of_mistakes_among_clipped_points_is_a_component_of_its_own_kind_of_sum():
    rubric = [criterion("a", 2), criterion("b", -1, kind="pitfall"), criterion("c", -1, kind="pitfall")]
    assert dict(outcome(rubric, [1, 1, 0], "clipped_points", "kind").components) == {"point": 1.0, "pitfall": 0.5}


def test_a_criterion_of_weight_zero_and_a_shadow_criterion_are_no_components():
    rubric = [criterion("a"), criterion("b", 0.0), criterion("c", shadow=True)]
    assert dict(outcome(rubric, [1, None, None]).components) == {"a": 1.0}


@pytest.mark.parametrize("mode", [name for name, mode in MODES.items() if mode.reads != "criteria"])
def test_modes_that_read_no_criteria_refuse_components(mode):
    with pytest.raises(ValueError, match="its reward has no components; leave out components"):
        RewardOptions(mode=mode, components="kind")


class TestAMissingVerdict:
    rubric = (criterion("a", tags=("x",)), criterion("b", tags=("x",)), criterion("c", tags=("y", "x")))
    scores = (1, None, 1)

    def of(self, policy):
        return outcome(self.rubric, self.scores, "weighted_mean", "tag", policy)

    def test_costs_its_own_component_alone(self):
        given_outcome = self.of("null")
        assert given_outcome.reward is None
        assert dict(given_outcome.components) == {"x": None, "y": 1.0}

    @pytest.mark.parametrize("policy", ["zero", "zero_unparseable"])
    def test_makes_all_components_zero_where_it_makes_the_reward_zero(self, policy):
        given_outcome = self.of(policy)
        assert given_outcome.reward == 0.0
        assert dict(given_outcome.components) == {"x": 0.0, "y": 0.0}

    def test_is_left_out_of_its_component_by_skip(self):
        assert dict(self.of("skip").components) == {"x": 1.0, "y": 1.0}
        alone = outcome(self.rubric, self.scores, "weighted_mean", "criterion", "skip")
        assert dict(alone.components) == {"a": 1.0, "b": None, "c": 1.0}

    def test_that_the_reward_does_not_need_raises_no_error(self):
        rubric = [criterion("a", kind="factual"), criterion("b", kind="process")]
        found = outcome(rubric, [1, None], "factual_override", "kind", "error")
        assert (found.reward, dict(found.components)) == (1.0, {"factual": 1.0, "process": None})

    def test_stops_the_request_under_error(self):
        with pytest.raises(UnscoredCriteria, match="no score for b"):
            self.of("error")


def test_an_uncertain_verdict_follows_the_policy_for_uncertain_ones():
    rubric = [criterion("a"), criterion("b")]
    verdicts = [verdict("a", 1.0), Verdict(criterion="b", status="uncertain")]
    options = RewardOptions(components="criterion")
    assert dict(
        reward_verdicts(rubric, verdicts, RewardRules(reward=options, on_failure="zero"), ResponseFacts()).components
    ) == {"a": 1.0, "b": None}


def test_every_kind_can_be_a_component():
    rubric = [criterion(f"c{i}", kind=kind) for i, kind in enumerate(CriterionKind.__args__)]
    assert list(outcome(rubric, [1] * len(rubric), "graded_mean", "kind").components) == list(CriterionKind.__args__)
