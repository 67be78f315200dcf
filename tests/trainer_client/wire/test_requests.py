"""The contract's rules for requests, and the errors that name what is wrong with them."""

import json
import math
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel, ValidationError

from trainer_client.rewards import check_rubric
from trainer_client.wire import (
    NEEDS_NO_RUBRIC,
    PROTOCOLS_FOR,
    ComparisonRequest,
    JudgingOptions,
    JudgingProtocol,
    RewardMode,
    RewardOptions,
    RewardRequest,
    VerdictRequest,
    as_response,
)
from trainer_client.wire.ledger import RecomputeRequest
from trainer_client.wire.operations import EvaluateOperation, GenerateOperation, ScoreOperation
from trainer_client.wire.problems import field_errors

CRITERION = {"id": "a", "description": "Says hello."}

GROUP = {"id": "g", "prompt": "Greet.", "responses": ["hello"]}


def problems(model: type[BaseModel], body: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(ValidationError) as refused:
        model.model_validate(body)
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
            assert (
                f"reward.mode {mode!r} does not support judging.protocol {protocol!r}"
                in problems(RewardRequest, body)[""]
            )
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
    found = problems(RewardRequest, request(reward={"mode": mode}, judging={"protocol": protocol}))
    assert way_out in found[""]


@pytest.mark.parametrize("mode", get_args(RewardMode))
def test_only_the_modes_of_one_score_work_without_a_rubric(mode: RewardMode) -> None:
    group = GROUP | {"ground_truth": "hello", "responses": ["hello", "bye"]}
    body = {"groups": [group], "reward": {"mode": mode}}
    if mode in NEEDS_NO_RUBRIC:
        check_rubric([], mode)
        assert RewardRequest.model_validate(body).rubric is None
    else:
        assert "group 'g' has no rubric; give it one" in problems(RewardRequest, body)[""]


@pytest.mark.parametrize("ground_truth", [None, ""])
def test_an_outcome_needs_a_ground_truth_in_every_group(ground_truth: str | None) -> None:
    groups = [GROUP | {"ground_truth": "hello"}, GROUP | {"id": "h", "ground_truth": ground_truth}]
    found = problems(RewardRequest, {"groups": groups, "reward": {"mode": "outcome"}})
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
        found = problems(RewardRequest, request(groups=[told, GROUP | {"responses": [full, lacking]}], reward=options))
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
        ({"reward": {"truncation_factor": 1.1}}, "reward.truncation_factor", "less than or equal to 1"),
        ({"uncertain_band": [0.8, 0.2]}, "uncertain_band", "write the lower end first"),
        ({"reward": {"gate_fraction": math.nan}}, "reward.gate_fraction", "finite number"),
        ({"reward": {"length_penalty": {"coefficient": -1e-4}}}, "reward.length_penalty.coefficient", "equal to 0"),
        (limits(buffer_tokens=6), "reward.overlong_penalty", "exceeds limit_tokens; use at most limit_tokens"),
        ({"groups": [GROUP | {"responces": ["hello"]}]}, "groups.0.responces", "unknown field; check its spelling"),
        ({"rubric": {"criteria": [CRITERION | {"weight": math.inf}]}}, "rubric.criteria.0.weight", "finite number"),
        ({"rubric": {"criteria": [CRITERION, CRITERION]}}, "rubric.criteria", "repeated: a"),
        ({"groups": [GROUP, GROUP | {"rubric": []}]}, "groups.1.rubric.criteria", "needs at least 1, has 0"),
    ],
)
def test_an_error_is_named_by_its_path_in_the_request(changes: dict[str, Any], field: str, says: str) -> None:
    found = problems(RewardRequest, request(**changes))
    assert list(found) == [field]
    assert says in found[field]


PAIR = {"id": "p", "prompt": "Greet.", "a": "hello", "b": "hi"}


class TestJudgingOptions:
    @pytest.mark.parametrize(
        ("options", "temperature"),
        [
            ({}, 0.0),
            ({"votes": 1, "temperature": 0.3}, 0.3),
            ({"votes": 2}, 0.7),
            ({"votes": 5, "temperature": 1.2}, 1.2),
        ],
    )
    def test_a_single_verdict_uses_temperature_zero_and_several_are_sampled(
        self, options: dict[str, Any], temperature: float
    ) -> None:
        assert JudgingOptions.model_validate(options).sampling_temperature == temperature

    def test_several_votes_at_temperature_zero_are_refused(self) -> None:
        found = problems(VerdictRequest, {"groups": [GROUP], "judging": {"votes": 3, "temperature": 0}})
        assert found == {
            "judging": "votes is 3 and temperature 0, so all votes would be the same; "
            "leave out temperature (it defaults to 0.7) or set it above 0"
        }
        assert JudgingOptions(votes=1, temperature=0).sampling_temperature == 0

    @pytest.mark.parametrize(
        ("field", "value"),
        [
            ("protocol", "vibes"),
            ("votes", 0),
            ("template", "../secrets"),
            ("template", ""),
            ("rationales", True),
            ("criteria_per_call", 513),
            ("criteria_per_call", "some"),
        ],
    )
    def test_an_option_out_of_range_is_named(self, field: str, value: Any) -> None:
        assert list(problems(JudgingOptions, {field: value})) == [field]


class TestVerdictRequest:
    @pytest.mark.parametrize("protocol", ["binary", "stepwise", "graded", "checklist"])
    def test_a_group_without_any_rubric_is_named(self, protocol: str) -> None:
        groups = [GROUP | {"rubric": {"criteria": [CRITERION]}}, GROUP | {"id": "bare"}]
        found = problems(VerdictRequest, {"groups": groups, "judging": {"protocol": protocol}})
        assert found == {"": "group 'bare' has no rubric; give it one, or give the request one"}

    def test_a_request_is_judged_by_yes_and_no_by_default_and_a_rating_needs_no_rubric(self) -> None:
        assert VerdictRequest.model_validate({"rubric": "math@1", "groups": [GROUP]}).protocol == "binary"
        request = VerdictRequest.model_validate({"groups": [GROUP], "judging": {"protocol": "likert"}})
        assert request.protocol == "likert"

    def test_an_option_of_the_reward_is_refused(self) -> None:
        found = problems(VerdictRequest, {"rubric": "math", "groups": [GROUP], "reward": {}})
        assert found == {"reward": "unknown field; check its spelling"}


class TestComparisonRequest:
    def test_both_sides_accept_every_form_of_a_response(self) -> None:
        messages = [{"role": "assistant", "content": "hello"}]
        request = ComparisonRequest.model_validate({"pairs": [PAIR | {"a": messages, "b": {"text": "hi"}}]})
        pair = request.pairs[0]
        assert (type(as_response(pair.a).text), as_response(pair.b).text) == (tuple, "hi")

    def test_a_question_is_trimmed_and_an_empty_one_refused(self) -> None:
        request = ComparisonRequest.model_validate({"pairs": [PAIR], "question": " Which is kinder? "})
        assert request.question == "Which is kinder?"
        assert list(problems(ComparisonRequest, {"pairs": [PAIR], "question": "  "})) == ["question"]

    @pytest.mark.parametrize(
        ("changes", "field"),
        [
            ({"pairs": []}, "pairs"),
            ({"pairs": [PAIR, {k: v for k, v in PAIR.items() if k != "b"}]}, "pairs.1.b"),
            ({"pairs": [PAIR | {"ground_truth": "x"}]}, "pairs.0.ground_truth"),
            ({"pairs": [PAIR | {"rubric": {"criteria": []}}]}, "pairs.0.rubric.criteria"),
            ({"judging": {"votes": 3}}, "judging.votes"),
            ({"judging": {"reasoning": "some"}}, "judging.reasoning"),
            ({"deadline_s": 0}, "deadline_s"),
        ],
    )
    def test_errors_are_named_by_their_path(self, changes: dict[str, Any], field: str) -> None:
        assert list(problems(ComparisonRequest, {"pairs": [PAIR]} | changes)) == [field]


def rewarded(**reward: Any) -> dict[str, Any]:
    group = {"id": "g", "prompt": "?", "responses": [{"text": "x", "tokens": 3}]}
    return {"rubric": {"criteria": [{"id": "a", "description": "b"}]}, "groups": [group], "reward": reward}


@pytest.mark.parametrize("number", [1e200, 1.1e6, 1e-300, 5e-324, 10**400])
def test_a_weight_that_is_too_large_or_too_small_is_refused(number: float) -> None:
    with pytest.raises(ValidationError, match=r"too large|too small"):
        RecomputeRequest.model_validate({"weights": {"a": number}})


@pytest.mark.parametrize("number", [1e200, 1.1e6, 10**400, -1e-4])
def test_a_coefficient_below_zero_or_too_large_is_refused(number: float) -> None:
    with pytest.raises(ValidationError, match=r"too large|less than or equal to 1000000|greater than or equal to 0"):
        RewardRequest.model_validate(rewarded(length_penalty={"coefficient": number}))


@pytest.mark.parametrize("tokens", [2**53, 10**30, 10**400])
def test_a_length_or_step_beyond_the_exact_integers_of_json_is_refused(tokens: int) -> None:
    body = rewarded(length_penalty={})
    body["groups"][0]["responses"][0]["tokens"] = tokens
    for request in (body, rewarded(length_penalty={"target_tokens": tokens}), rewarded() | {"step": tokens}):
        with pytest.raises(ValidationError, match="too large; use at most 9007199254740991"):
            RewardRequest.model_validate(request)


def test_the_square_of_the_largest_reward_is_finite() -> None:
    request = rewarded(length_penalty={"coefficient": 1e6, "target_tokens": 0})
    request["groups"][0]["responses"][0]["tokens"] = 2**53 - 1
    made = RewardRequest.model_validate(request)
    penalty = made.reward.length_penalty
    assert penalty is not None
    assert math.isfinite((penalty.coefficient * (2**53 - 1)) ** 2)
    assert math.isfinite((512 * 1e6 / 1e-9) ** 2)  # a rubric of the heaviest pitfalls over the lightest point


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**53), 2**53)
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


@given(
    st.lists(st.dictionaries(st.text(), VALUES, max_size=4), min_size=1, max_size=5), st.sampled_from(["\n", "\r\n"])
)
def test_jsonl_lines_equal_a_list(inputs: list[dict[str, Any]], ends: str) -> None:
    text = ends.join(json.dumps(one) for one in inputs) + ends
    of_lines, of_list = (GenerateOperation.model_validate({"generator": "g", "inputs": one}) for one in (text, inputs))
    assert of_lines == of_list


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ('{"id": "q", "prompt": "?", "responses": ["!"], "id": "r"}', "line 3: this has 'id' twice"),
        (
            '{"id": "q", "prompt": "?", "responses": [{"text": "!", "tokens": NaN}]}',
            "line 3, responses.0.tokens: JSON has",
        ),
        (
            '{"id": "q", "prompt": "?", "responses": [{"text": "!", "tokens": 1e999}]}',
            "line 3, responses.0.tokens: JSON",
        ),
        ("[" * 100_000, "line 3: this is nested too deeply"),
        ("not json", "line 3: not JSON"),
    ],
)
@pytest.mark.parametrize(
    ("request_of", "named"), [(ScoreOperation, "groups"), (EvaluateOperation, "groups"), (GenerateOperation, "inputs")]
)
def test_a_line_that_is_not_strict_json_is_refused_and_named(request_of: Any, named: str, line: str, says: str) -> None:
    text = f"{json.dumps(GROUP)}\n\n{line}\n"
    with pytest.raises(ValidationError) as refused:
        request_of.model_validate({"generator": "g", named: text} if named == "inputs" else {named: text})
    messages = [error["msg"] for error in refused.value.errors() if error["loc"] == (named,)]
    assert any(says in message for message in messages), messages
