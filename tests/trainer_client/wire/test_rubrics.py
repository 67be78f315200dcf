"""Rubrics on the wire: criteria, how they are verified, digests, references and bounded metadata."""

from typing import Any, get_args

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from tests.hypothesis_examples import examples
from tests.trainer_client.fake_service import CRITERION, VERSION, summary
from trainer_client.wire import (
    AliasName,
    Criterion,
    NewRubricName,
    RetirementRequest,
    RubricContent,
    RubricName,
    RubricPublication,
    RubricSummary,
    RubricTag,
    RubricVersion,
    VerificationMethod,
    parse_reference,
)
from trainer_client.wire.base import MAX_JSON_BYTES
from trainer_client.wire.rubrics import RESERVED_PARTS

PUBLICATION: dict[str, Any] = {
    "criteria": [CRITERION],
    "metadata": {"by": "Ada", "nested": {"a": [1, None, "é"]}},
    "tags": ["math"],
    "lineage": {"author": "team", "parameters": {"seed": 3}},
    "parent": 2,
}


def test_metadata_does_not_enter_the_digest() -> None:
    publication = RubricPublication.model_validate(PUBLICATION)
    assert publication.digest == RubricContent.model_validate({"criteria": [CRITERION]}).digest


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("metadata", [1]),
        ("metadata", {"a": float("inf")}),
        ("metadata", {"a": "\ud800"}),
        ("metadata", {1: "a"}),
        ("lineage", {"autor": "x"}),
        ("lineage", {"author": " "}),
        ("lineage", {"author": "x" * 201}),
        ("lineage", {"parameters": {"a": "x" * MAX_JSON_BYTES}}),
        ("parent", 0),
        ("notes", "x"),
    ],
)
def test_invalid_metadata_is_refused(field: str, value: Any) -> None:
    with pytest.raises(ValidationError, match=field):
        RubricPublication.model_validate(PUBLICATION | {field: value})


@pytest.mark.parametrize(("size", "fits"), [(MAX_JSON_BYTES, True), (MAX_JSON_BYTES + 1, False)])
@pytest.mark.parametrize("letter", ["x", "é"])
def test_metadata_is_bounded_in_bytes(size: int, fits: bool, letter: str) -> None:
    room = size - len('{"a": ""}')
    text = letter * (room // len(letter.encode())) + "x" * (room % len(letter.encode()))
    if fits:
        assert RubricPublication.model_validate(PUBLICATION | {"metadata": {"a": text}}).metadata == {"a": text}
    else:
        with pytest.raises(ValidationError, match=f"{size} bytes"):
            RubricPublication.model_validate(PUBLICATION | {"metadata": {"a": text}})


def test_deeply_nested_metadata_is_refused() -> None:
    nested: dict[str, Any] = {}
    for _ in range(5_000):
        nested = {"a": nested}
    with pytest.raises(ValidationError):
        RubricPublication.model_validate(PUBLICATION | {"metadata": nested})


def test_answers_of_older_services_get_defaults_and_those_of_newer_ones_are_read() -> None:
    old = RubricVersion.model_validate(VERSION)
    assert (old.parent, old.metadata, old.lineage, old.retirement) == (None, {}, None, None)
    assert RubricVersion.model_validate(VERSION | {"rating": 5}) == old
    listed = RubricSummary.model_validate(summary("a") | {"rating": 5})
    assert (listed.tags, listed.aliases, listed.retired) == ((), {}, False)


@pytest.mark.parametrize("part", sorted(RESERVED_PARTS))
def test_reserved_path_segments_are_refused_in_new_names_after_a_slash(part: str) -> None:
    new, any_name = TypeAdapter(NewRubricName), TypeAdapter(RubricName)
    for name in (f"a/{part}", f"a/{part}/b"):
        with pytest.raises(ValidationError, match=part):
            new.validate_python(name)
        assert any_name.validate_python(name) == name
    for name in (part, f"{part}/a", f"a/{part}2"):
        assert new.validate_python(name) == name


@settings(max_examples=examples(200), deadline=None)
@given(
    st.from_regex(r"[a-z0-9][a-z0-9._-]{0,20}(/[a-z0-9][a-z0-9._-]{0,20}){0,3}", fullmatch=True),
    st.from_regex(r"[a-z][a-z0-9._-]{0,20}", fullmatch=True).filter(lambda alias: alias != "latest"),
    st.integers(1, 999_999_999),
)
def test_every_name_alias_and_version_make_a_reference(name: str, alias: str, version: int) -> None:
    assert TypeAdapter(RubricName).validate_python(name) == name
    assert TypeAdapter(AliasName).validate_python(alias) == alias
    assert parse_reference(f"{name}@{alias}") == (name, None, None, alias)
    assert parse_reference(f"{name}@{version}") == (name, version, None, None)


@pytest.mark.parametrize(
    ("kind", "text"),
    [
        *[(AliasName, alias) for alias in ("", "3", "A", "a/b", "a@b", "x" * 65, "latest", "a\n")],
        *[(RubricTag, tag) for tag in ("", "A", " a", "x" * 65, "a\n")],
    ],
)
def test_an_alias_that_no_reference_could_spell_and_a_tag_of_several_words_are_refused(kind: Any, text: str) -> None:
    with pytest.raises(ValidationError):
        TypeAdapter(kind).validate_python(text)


def test_a_retirement_needs_a_reason() -> None:
    assert RetirementRequest(reason=" Wrong. ").reason == "Wrong."
    with pytest.raises(ValidationError):
        RetirementRequest(reason="  ")


HELLO = {"id": "a", "description": "Says hello."}

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
    return Criterion.model_validate(HELLO | changes)


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
        ({"method": "contains", "any_of": [""]}, "at least 1 character"),
        ({"method": "numeric", "expected": float("inf")}, "finite number"),
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


def test_a_published_rubric_without_a_positive_weight_is_refused() -> None:
    with pytest.raises(ValidationError, match="above 0"):
        RubricContent.model_validate({"criteria": [HELLO | {"weight": -1}, HELLO | {"id": "b", "weight": 0}]})


def test_equal_content_has_equal_digests_and_any_change_gives_another() -> None:
    digest = RubricContent.model_validate({"criteria": [HELLO]}).digest
    assert digest == RubricContent.model_validate({"criteria": [HELLO | {"weight": 1.0}]}).digest
    for change in ({"weight": 2}, {"kind": "factual"}, {"description": "Says hi."}, {"id": "b"}, {"tags": ["x"]}):
        assert RubricContent.model_validate({"criteria": [HELLO | change]}).digest != digest


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


@pytest.mark.parametrize("weight", [1e308, -1e7, 1e-300, -1e-10])
def test_a_rubric_whose_weights_exceed_the_bounds_is_refused(weight: float) -> None:
    criteria = [{"id": "a", "description": "b"}, {"id": "heavy", "description": "c", "weight": weight}]
    with pytest.raises(ValidationError, match=r"the weight of criterion 'heavy': .* is too (large|small)"):
        RubricContent.model_validate({"criteria": criteria})


def test_a_stored_rubric_with_a_weight_beyond_the_bounds_is_still_read() -> None:
    assert Criterion.model_validate({"id": "a", "description": "b", "weight": 1e7}).weight == 1e7


def test_a_number_in_a_verification_may_be_large() -> None:
    check = {"method": "numeric", "expected": 6.022e23, "relative": 1e-3}
    assert Criterion.model_validate({"id": "a", "description": "b", "verification": check})
