"""Judging options, and requests for verdicts and comparisons alone."""

from typing import Any

import pytest
from pydantic import BaseModel, ValidationError

from trainer_client.wire import ComparisonRequest, JudgingOptions, VerdictRequest, as_response
from trainer_client.wire.problems import field_errors

CRITERION = {"id": "a", "description": "Says hello."}
GROUP = {"id": "g", "prompt": "Greet.", "responses": ["hello"]}
PAIR = {"id": "p", "prompt": "Greet.", "a": "hello", "b": "hi"}


def problems(model: type[BaseModel], body: dict[str, Any]) -> dict[str, str]:
    with pytest.raises(ValidationError) as refused:
        model.model_validate(body)
    return {error.field: error.message for error in field_errors(refused.value.errors())}


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
            ("votes", 33),
            ("temperature", 2.1),
            ("think_tokens", -1),
            ("think_tokens", 32_769),
            ("reasoning", "some"),
            ("grounding_characters", 0),
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
