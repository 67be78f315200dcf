"""Criteria on the wire that a program verifies."""

from typing import Any, get_args

import pytest
from pydantic import ValidationError

from trainer_client.wire import Criterion, RubricContent, VerificationMethod

CRITERION = {"id": "a", "description": "Says hello."}
VERIFICATIONS: list[dict[str, Any]] = [
    {"method": "judge"},
    {"method": "math", "expected": "1/2"},
    {"method": "exact", "expected": "Paris", "case_sensitive": True, "of": "response"},
    {"method": "contains", "all_of": ["x"], "any_of": ["y", "z"]},
    {"method": "regex", "pattern": r"^\d+$", "match": "full"},
    {"method": "json_schema", "schema": {"type": "object", "required": ["a"]}},
    {"method": "numeric", "expected": 3.0, "relative": 0.01},
    {"method": "tool_call", "name": "search", "arguments": {"required": ["q"]}, "at_least": 2},
    {"method": "turns", "at_most": 3},
]


def criterion(**changes: Any) -> Criterion:
    return Criterion.model_validate(CRITERION | changes)


def test_every_method_has_an_example_here() -> None:
    assert [v["method"] for v in VERIFICATIONS] == list(get_args(VerificationMethod))


@pytest.mark.parametrize("verification", VERIFICATIONS, ids=lambda v: v["method"])
def test_a_verification_survives_a_json_round_trip(verification: dict[str, Any]) -> None:
    sent = RubricContent(criteria=(criterion(verification=verification),))
    assert RubricContent.model_validate_json(sent.model_dump_json()) == sent
    assert RubricContent.model_validate(sent.model_dump(mode="json")) == sent
    dumped = sent.model_dump(mode="json")["criteria"][0]["verification"]
    assert dumped == dumped | verification


@pytest.mark.parametrize("verification", VERIFICATIONS, ids=lambda v: v["method"])
def test_a_verification_enters_the_digest(verification: dict[str, Any]) -> None:
    plain, verified = (RubricContent(criteria=(c,)) for c in (criterion(), criterion(verification=verification)))
    assert plain.digest != verified.digest


def test_a_rubric_without_scale_and_verification_keeps_its_old_digest() -> None:
    digest = "sha256:c079781f7dfa53e5323f1e03b1f4b0d2b7cb84b08140d011df45de9e08779aed"
    assert RubricContent(criteria=(criterion(),)).digest == digest
    assert RubricContent(criteria=(criterion(scale=4, verification=None),)).digest == digest
    assert RubricContent(criteria=(criterion(scale=5),)).digest != digest


@pytest.mark.parametrize(
    ("search", "digest"),
    [
        (VERIFICATIONS[3], "sha256:1107c28a5075c7746ef736e142f9b42835a1de33c299ecc5c1f1351be8f1b915"),
        (VERIFICATIONS[4], "sha256:6db22b3acf0fca63496d1ee411f6f49f14b24710ca344a9e7488d12319c28be9"),
    ],
    ids=["contains", "regex"],
)
def test_a_search_without_a_step_keeps_its_old_digest(search: dict[str, Any], digest: str) -> None:
    assert RubricContent(criteria=(criterion(verification=search),)).digest == digest
    assert RubricContent(criteria=(criterion(verification=search | {"step": None}),)).digest == digest
    others = {RubricContent(criteria=(criterion(verification=search | {"step": n}),)).digest for n in (0, 1, 2)}
    assert len(others - {digest}) == 3


@pytest.mark.parametrize(
    ("verification", "of"),
    [
        *[({"method": method}, "final_answer") for method in ("math", "exact", "numeric")],
        *[(each, "response") for each in VERIFICATIONS[3:6]],
    ],
    ids=str,
)
def test_an_answer_is_compared_with_the_final_one_and_a_text_searched_in_the_whole_response(
    verification: dict[str, Any], of: str
) -> None:
    read = criterion(verification=verification).verification
    assert read is not None
    assert read.model_dump()["of"] == of


@pytest.mark.parametrize(
    ("verification", "message"),
    [
        ({"method": "contains"}, "contains has nothing to search for; give texts in all_of or any_of"),
        ({"method": "regex", "pattern": ""}, "at least 1 character"),
        ({"method": "exact", "expected": ""}, "at least 1 character"),
        ({"method": "contains", "any_of": [""]}, "at least 1 character"),
        ({"method": "contains", "any_of": ["x"] * 65}, "at most 64 items"),
        ({"method": "numeric", "absolute": -1}, "greater than or equal to 0"),
        ({"method": "numeric", "expected": float("inf")}, "finite number"),
        ({"method": "contains", "any_of": ["x"], "step": -1}, "greater than or equal to 0"),
        ({"method": "regex", "pattern": "x", "step": 10**9}, "less than or equal to 999999999"),
        ({"method": "regex", "pattern": "x", "step": 1, "of": "final_answer"}, "a final answer has no steps"),
        ({"method": "exact", "expected": "x", "step": 1}, "Extra inputs are not permitted"),
        ({"method": "math", "of": "prompt"}, "'final_answer' or 'response'"),
        ({"method": "judge", "expected": "x"}, "Extra inputs are not permitted"),
        ({"method": "json_schema"}, "Field required"),
        ({"method": "json_schema", "schema": True}, "valid dictionary"),
        ({"method": "json_schema", "schema": {"enum": ["x" * 65_536]}}, "at most 65536"),
        ({"method": "vibes"}, "name a method: judge, math"),
        ({"expected": "x"}, "name a method: judge, math"),
    ],
)
def test_a_verification_that_cannot_run_is_refused(verification: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        criterion(verification=verification)
