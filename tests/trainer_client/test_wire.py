"""The contract's rules for a reward request, and the errors that name what is wrong with it."""

import math
from typing import Any, get_args

import pytest
from pydantic import ValidationError

from trainer_client.rewards import UnsuitableRubric, check_rubric
from trainer_client.wire import (
    NEEDS_NO_RUBRIC,
    PROTOCOLS_FOR,
    Criterion,
    JudgingProtocol,
    RewardMode,
    RewardOptions,
    RewardRequest,
    RubricContent,
    parse_reference,
)
from trainer_client.wire.problems import field_errors

CRITERION = {"id": "a", "description": "Says hello."}
GROUP = {"id": "g", "prompt": "Greet.", "responses": ["hello"]}


def problems(body: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(ValidationError) as refused:
        RewardRequest.model_validate(body)
    return {error.field: error.message for error in field_errors(refused.value.errors())}


def request(**changes: Any) -> dict[str, Any]:
    return {"rubric": {"criteria": [CRITERION]}, "groups": [GROUP]} | changes


@pytest.mark.parametrize("mode", get_args(RewardMode))
def test_every_mode_accepts_exactly_its_protocols(mode: RewardMode) -> None:
    group = GROUP | {"ground_truth": "hello", "responses": ["hello", "bye"]}
    usable = PROTOCOLS_FOR[mode]
    for protocol in get_args(JudgingProtocol):
        body = request(groups=[group], reward={"mode": mode}, judging={"protocol": protocol})
        if protocol in usable:
            assert RewardRequest.model_validate(body).protocol == protocol
        else:
            assert f"reward.mode {mode!r} does not support judging.protocol {protocol!r}" in problems(body)[""]
    default = RewardRequest.model_validate(request(groups=[group], reward={"mode": mode})).protocol
    assert default == (usable[0] if usable else None)


@pytest.mark.parametrize(
    ("mode", "protocol", "way_out"),
    [
        ("stepwise", "binary", "use 'stepwise', or leave out judging.protocol"),
        ("partial_credit", "binary", "use 'checklist' or 'graded', or leave out judging.protocol"),
        ("outcome", "binary", "it needs no judge; leave out judging.protocol"),
        ("ranking", "binary", "it compares pairs; leave out judging.protocol"),
    ],
)
def test_a_protocol_that_the_mode_cannot_use_is_refused_with_an_alternative(
    mode: str, protocol: str, way_out: str
) -> None:
    found = problems(request(reward={"mode": mode}, judging={"protocol": protocol}))
    assert way_out in found[""]


@pytest.mark.parametrize("mode", get_args(RewardMode))
def test_only_the_modes_of_one_score_work_without_a_rubric(mode: RewardMode) -> None:
    group = GROUP | {"ground_truth": "hello", "responses": ["hello", "bye"]}
    body = {"groups": [group], "reward": {"mode": mode}}
    if mode in NEEDS_NO_RUBRIC:
        check_rubric([], mode)
        assert RewardRequest.model_validate(body).rubric is None
    else:
        assert "group 'g' has no rubric; give it one" in problems(body)[""]


@pytest.mark.parametrize("ground_truth", [None, ""])
def test_an_outcome_needs_a_ground_truth_in_every_group(ground_truth: str | None) -> None:
    groups = [GROUP | {"ground_truth": "hello"}, GROUP | {"id": "h", "ground_truth": ground_truth}]
    found = problems({"groups": groups, "reward": {"mode": "outcome"}})
    assert "group 'h' has no ground_truth" in found[""]


@pytest.mark.parametrize(
    ("options", "field"),
    [
        ({"length_penalty": {}}, "tokens"),
        ({"overlong_penalty": {"limit_tokens": 9, "buffer_tokens": 9}}, "tokens"),
        ({"truncation_factor": 0.0}, "stopped"),
    ],
)
def test_a_penalty_requires_its_field_in_every_response(options: dict[str, Any], field: str) -> None:
    full = {"text": "hello", "tokens": 0, "stopped": False}
    bare = {name: value for name, value in full.items() if name != field}
    told = GROUP | {"responses": [full]}
    RewardRequest.model_validate(request(groups=[told], reward=options))
    for lacking in ("hello", [{"role": "assistant", "content": "hello"}], bare):
        found = problems(request(groups=[told, GROUP | {"responses": [full, lacking]}], reward=options))
        assert found[""].startswith(f"groups.1.responses.1 has no {field}, and ")
        assert f'write the response as {{"text": …, "{field}": …}}' in found[""]


@pytest.mark.parametrize(
    ("options", "asked"),
    [
        ({"mode": "gate", "gate_fraction": 0.9}, False),
        ({"length_penalty": {}}, True),
        ({"overlong_penalty": {"limit_tokens": 9, "buffer_tokens": 9}}, True),
        ({"truncation_factor": 0.0}, True),
    ],
)
def test_has_penalties_is_true_exactly_if_a_penalty_is_requested(options: dict[str, Any], asked: bool) -> None:
    assert RewardOptions.model_validate(options).has_penalties is asked


def limits(**lengths: Any) -> dict[str, Any]:
    return {"reward": {"overlong_penalty": {"limit_tokens": 5, "buffer_tokens": 1} | lengths}}


@pytest.mark.parametrize(
    ("changes", "field", "says"),
    [
        ({"reward": {"mode": "median"}}, "reward.mode", "Input should be"),
        ({"reward": {"format_weight": 1.1}}, "reward.format_weight", "less than or equal to 1"),
        ({"reward": {"gate_fraction": -0.1}}, "reward.gate_fraction", "greater than or equal to 0"),
        ({"reward": {"gate_fraction": math.nan}}, "reward.gate_fraction", "finite number"),
        ({"reward": {"truncation_factor": 1.1}}, "reward.truncation_factor", "less than or equal to 1"),
        ({"reward": {"length_penalty": {"coefficient": -1e-4}}}, "reward.length_penalty.coefficient", "equal to 0"),
        ({"reward": {"length_penalty": {"target_tokens": -1}}}, "reward.length_penalty.target_tokens", "equal to 0"),
        (limits(buffer_tokens=0), "reward.overlong_penalty.buffer_tokens", "equal to 1"),
        (limits(buffer_tokens=6), "reward.overlong_penalty", "exceeds limit_tokens; use at most limit_tokens"),
        ({"groups": [GROUP | {"responces": ["hello"]}]}, "groups.0.responces", "unknown field; check its spelling"),
        ({"rubric": {"criteria": [CRITERION | {"weight": math.inf}]}}, "rubric.criteria.0.weight", "finite number"),
        ({"rubric": {"criteria": [CRITERION, CRITERION]}}, "rubric.criteria", "repeated: a"),
        ({"groups": [GROUP, GROUP | {"rubric": []}]}, "groups.1.rubric.criteria", "needs at least 1, has 0"),
    ],
)
def test_an_error_is_named_by_its_path_in_the_request(changes: dict[str, Any], field: str, says: str) -> None:
    found = problems(request(**changes))
    assert list(found) == [field]
    assert says in found[field]


def test_a_published_rubric_without_a_positive_weight_is_refused() -> None:
    with pytest.raises(ValidationError, match="above 0"):
        RubricContent.model_validate({"criteria": [CRITERION | {"weight": -1}, CRITERION | {"id": "b", "weight": 0}]})


@pytest.mark.parametrize("mode", ["weighted_mean", "factual_override", "points", "partial_credit", "gate"])
def test_a_pitfall_of_positive_weight_is_refused_where_it_would_reward_the_mistake(mode: Any) -> None:
    criteria = [Criterion(id="p", description="Divides by zero.", kind="pitfall"), Criterion(**CRITERION)]
    with pytest.raises(UnsuitableRubric, match="reward the mistake"):
        check_rubric(criteria, mode)


def test_equal_content_has_equal_digests_and_any_change_gives_another() -> None:
    digest = RubricContent.model_validate({"criteria": [CRITERION]}).digest
    assert digest == RubricContent.model_validate({"criteria": [CRITERION | {"weight": 1.0}]}).digest
    for change in ({"weight": 2}, {"kind": "factual"}, {"description": "Says hi."}, {"id": "b"}, {"tags": ["x"]}):
        assert RubricContent.model_validate({"criteria": [CRITERION | change]}).digest != digest


def test_references_are_a_name_a_pinned_name_an_alias_or_a_digest() -> None:
    assert parse_reference("team/math/q") == ("team/math/q", None, None, None)
    assert parse_reference("math@12") == ("math", 12, None, None)
    assert parse_reference("math@production") == ("math", None, None, "production")
    assert parse_reference("math@latest") == parse_reference("math")
    assert parse_reference("sha256:" + "0" * 64) == (None, None, "sha256:" + "0" * 64, None)


@pytest.mark.parametrize(
    "text",
    [
        *("", "a//b", "a/../b", "/a", "a/", "A", "a@0", "a@X", "a@1@2", "a@x/y", "sha256:12", "a b"),
        *("a@" + 65 * "x", 201 * "a", 10_000 * "a"),
    ],
)
def test_any_other_reference_is_refused_with_the_valid_forms(text: str) -> None:
    with pytest.raises(ValueError, match="name, name@3, name@alias or sha256") as refused:
        parse_reference(text)
    assert len(str(refused.value)) < 400
