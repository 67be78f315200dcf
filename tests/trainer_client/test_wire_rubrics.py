"""Rubrics on the wire: bounded metadata outside the digest, and answers that may gain fields."""

from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from tests.hypothesis_examples import examples
from tests.trainer_client.fake_service import CRITERION, VERSION, summary
from trainer_client.wire import (
    AliasName,
    NewRubricName,
    RetirementRequest,
    RubricContent,
    RubricName,
    RubricPublication,
    RubricSummary,
    RubricTag,
    RubricVersion,
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
        ("tags", ["A"]),
        ("tags", ["x"] * 65),
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
