"""The contract's own rules: what a request may say, and how it is told what is wrong with it."""

import math
from typing import Any

import pytest
from pydantic import ValidationError

from trainer_client.rewards import UnsuitableRubric, check_rubric
from trainer_client.wire import Criterion, RewardRequest, RubricContent, parse_reference
from trainer_client.wire.problems import field_errors

CRITERION = {"id": "a", "description": "Says hello."}
GROUP = {"id": "g", "prompt": "Greet.", "responses": ["hello"]}


def problems(body: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(ValidationError) as refused:
        RewardRequest.model_validate(body)
    return {error.field: error.message for error in field_errors(refused.value.errors())}


def request(**changes: Any) -> dict[str, Any]:
    return {"rubric": {"criteria": [CRITERION]}, "groups": [GROUP]} | changes


def test_the_smallest_request_is_judged_as_the_mode_asks() -> None:
    assert RewardRequest.model_validate(request()).protocol == "binary"
    assert RewardRequest.model_validate(request(reward={"mode": "stepwise"})).protocol == "stepwise"


def test_a_protocol_that_cannot_feed_the_mode_is_refused_with_the_way_out() -> None:
    found = problems(request(reward={"mode": "stepwise"}, judging={"protocol": "binary"}))
    assert "leave judging.protocol out" in found[""]


def test_a_misspelt_option_is_named_with_its_place() -> None:
    assert problems(request(groups=[GROUP | {"responces": ["hello"]}])) == {
        "groups.0.responces": "unknown field; check its spelling"
    }


@pytest.mark.parametrize("weight", [math.nan, math.inf, -math.inf])
def test_a_weight_that_is_no_finite_number_is_named_in_the_requests_own_terms(weight: float) -> None:
    assert list(problems(request(rubric={"criteria": [CRITERION | {"weight": weight}]}))) == [
        "rubric.criteria.0.weight"
    ]


def test_a_rubric_inside_a_group_is_named_by_its_group() -> None:
    bad = GROUP | {"rubric": {"criteria": []}}
    assert problems(request(groups=[GROUP, bad])) == {"groups.1.rubric.criteria": "needs at least 1, has 0"}


def test_a_message_without_content_is_named_by_its_place_in_the_conversation() -> None:
    assert list(problems(request(groups=[GROUP | {"prompt": [{"role": "user"}]}]))) == ["groups.0.prompt.0.content"]


def test_a_group_without_any_rubric_is_named() -> None:
    assert "group 'g' has no rubric" in problems({"groups": [GROUP]})[""]


def test_repeated_criterion_ids_are_listed() -> None:
    found = problems(request(rubric={"criteria": [CRITERION, CRITERION]}))
    assert "repeated: a" in found["rubric.criteria"]


def test_a_rubric_without_a_positive_weight_is_refused_when_written() -> None:
    with pytest.raises(ValidationError, match="above 0"):
        RubricContent.model_validate({"criteria": [CRITERION | {"weight": -1}, CRITERION | {"id": "b", "weight": 0}]})


@pytest.mark.parametrize("mode", ["weighted_mean", "factual_override", "points"])
def test_a_pitfall_of_positive_weight_is_refused_where_it_would_reward_the_mistake(mode: Any) -> None:
    criteria = [Criterion(id="p", description="Divides by zero.", kind="pitfall"), Criterion(**CRITERION)]
    with pytest.raises(UnsuitableRubric, match="reward the mistake"):
        check_rubric(criteria, mode)


def test_equal_content_has_equal_digests_and_any_change_another() -> None:
    digest = RubricContent.model_validate({"criteria": [CRITERION]}).digest
    assert digest == RubricContent.model_validate({"criteria": [CRITERION | {"weight": 1.0}]}).digest
    for change in ({"weight": 2}, {"kind": "factual"}, {"description": "Says hi."}, {"id": "b"}, {"tags": ["x"]}):
        assert RubricContent.model_validate({"criteria": [CRITERION | change]}).digest != digest


def test_references_are_a_name_a_pinned_name_or_a_digest() -> None:
    assert parse_reference("team/math/q") == ("team/math/q", None, None)
    assert parse_reference("math@12") == ("math", 12, None)
    assert parse_reference("sha256:" + "0" * 64) == (None, None, "sha256:" + "0" * 64)


@pytest.mark.parametrize("text", ["", "a//b", "a/../b", "/a", "a/", "A", "a@0", "a@x", "sha256:12", "a b"])
def test_anything_else_is_no_reference_and_is_told_the_forms(text: str) -> None:
    with pytest.raises(ValueError, match="name, name@3 or sha256"):
        parse_reference(text)
