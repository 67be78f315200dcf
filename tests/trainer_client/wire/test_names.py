"""Errors about names say in words what a name may be."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from trainer_client.wire.criteria import CriterionId
from trainer_client.wire.ledger import MeasureName
from trainer_client.wire.names import ALLOWED, Name, require_name
from trainer_client.wire.problems import field_errors
from trainer_client.wire.rubrics import AliasName, RubricName, RubricTag


@pytest.mark.parametrize("kind", [AliasName, CriterionId, MeasureName, Name, RubricName, RubricTag])
def test_an_error_about_a_name_says_in_words_what_is_allowed_and_gives_a_valid_example(kind: Any) -> None:
    adapter = TypeAdapter(kind)
    with pytest.raises(ValidationError) as refused:
        adapter.validate_python("-No name!")
    message = field_errors(refused.value.errors())[0].message
    assert message in ALLOWED.values()
    assert "[" not in message
    adapter.validate_python(message.rpartition("such as ")[2])


@given(st.text(max_size=70) | st.from_regex(r"[a-z0-9][a-z0-9._-]{0,70}\n?", fullmatch=True))
def test_a_name_outside_a_message_is_held_to_the_same_rule(text: str) -> None:
    try:
        TypeAdapter(Name).validate_python(text)
    except ValidationError:
        with pytest.raises(ValueError, match="cannot name a judge; use lower-case"):
            require_name(text, "a judge")
    else:
        assert require_name(text, "a judge") == text
