"""Shapes of model output: LaTeX survives JSON, and bounds are sent to engines but read leniently."""

import json
from typing import Annotated

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import BaseModel

from judge_server.generation.generator import (
    Phrase,
    Sentence,
    bounded,
    enum_schema,
    integer_schema,
    list_schema,
    restore_backslashes,
)
from judge_server.generation.writer import schema_of


class Item(BaseModel):
    """One item."""

    text: Sentence
    sign: Annotated[str, enum_schema("plus", "minus")]
    weight: Annotated[float, integer_schema(1, 5)]


class ItemList(BaseModel):
    """A list under the name that generators use."""

    criteria: list[Item]


@pytest.mark.parametrize(
    "latex",
    [
        r"\frac{1}{2}",
        r"\binom{4}{2}",
        r"\boxed{3}",
        r"\times 3",
        r"\text{ m}",
        r"\theta",
        r"a \neq b",
        r"\rho",
        r"\tan x",
        r"\beta",
    ],
)
def test_a_backslash_that_json_read_as_an_escape_is_restored(latex: str) -> None:
    read = json.loads(f'"{latex}"')
    assert read != latex
    assert restore_backslashes(read) == latex


@given(st.text(st.characters(exclude_categories=("Cc", "Cs"))))
def test_other_texts_are_unchanged(text: str) -> None:
    assert restore_backslashes(text) == text


@pytest.mark.parametrize("text", ["One.\nTwo.", "a\tb", "one\r\ntwo", "a\nequal", "x\tand y"])
def test_white_space_is_unchanged(text: str) -> None:
    assert restore_backslashes(text) == text


def test_bounds_are_sent_to_engines_but_not_enforced_when_reading() -> None:
    schema = json.loads(schema_of(bounded(ItemList, criteria=(2, 3))))["properties"]["criteria"]
    assert (schema["minItems"], schema["maxItems"]) == (2, 3)
    assert schema["items"]["properties"]["weight"] == {"type": "integer", "minimum": 1, "maximum": 5}
    assert schema["items"]["properties"]["sign"] == {"type": "string", "enum": ["plus", "minus"]}
    item = Item.model_validate({"text": "", "sign": "both", "weight": -2.5})
    assert (item.sign, item.weight) == ("both", -2.5)


def test_lists_of_phrases_are_bounded_only_for_engines() -> None:
    class Concepts(BaseModel):
        concepts: Annotated[list[Phrase], list_schema(Phrase, 1, 2)]

    schema = json.loads(schema_of(Concepts))["properties"]["concepts"]
    assert schema == {
        "type": "array",
        "items": {"type": "string", "minLength": 2, "maxLength": 60},
        "minItems": 1,
        "maxItems": 2,
    }
    assert Concepts.model_validate({"concepts": []}).concepts == []
    assert Concepts.model_validate({"concepts": ["\frac"] * 3}).concepts == [r"\frac"] * 3
