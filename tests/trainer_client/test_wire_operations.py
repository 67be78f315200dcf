"""Operations on the wire: inputs given as the text of a JSONL file."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from trainer_client.wire.operations import EvaluateOperation, GenerateOperation, ScoreOperation

GROUP = {"id": "q", "prompt": "?", "responses": ["!"]}
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
