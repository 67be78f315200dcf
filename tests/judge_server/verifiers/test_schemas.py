"""`json_schema` and `regex`: the shape of a response."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judge_server.verifiers.schemas import last_block
from judge_server.verifiers.worker import decide
from tests.judge_server.verifiers.checks import check

PERSON = {"type": "object", "required": ["name"], "properties": {"name": {"type": "string"}}}


def of(text, schema):
    return decide(check("json_schema", text, schema=schema))


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "Ada"}',
        '\n {"name": "Ada"} \n',
        'Here it is:\n```json\n{"name": "Ada"}\n```\nBye.',
        '```\n{"name": 1}\n```\nor rather\n~~~json\n{"name": "Ada"}\n~~~',
        '````\n{"name": "```"}\n````',
        'cut off:\n```json\n{"name": "Ada"}',
    ],
)
def test_json_is_found_bare_or_in_the_last_fenced_block(text):
    assert of(text, PERSON).score == 1.0


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Ada",
        '{"name": 1}',
        '{"name": "Ada"',
        'It is {"name": "Ada"}.',
        '```json\n{"name": "Ada"}\n```\n```\nno\n```',
        "[" * 100_000,
    ],
)
def test_text_that_is_not_json_or_breaks_the_schema_does_not_satisfy_it(text):
    assert of(text, PERSON).score == 0.0


def test_nan_and_infinity_are_refused():
    assert of("NaN", {}).score == 0.0
    assert of("[1, -Infinity]", {}).score == 0.0


@pytest.mark.parametrize(
    ("schema", "says"),
    [
        ({"$ref": "https://example.com/person.json"}, "https://example.com/person.json"),
        ({"$ref": "#/$defs/none"}, "does not contain"),
        ({"type": "nope"}, "not a valid JSON Schema"),
        ({"pattern": "("}, "at $.pattern: '(' is not a 'regex'"),
        ({"$ref": "#"}, "endlessly"),
    ],
)
def test_an_unusable_schema_is_a_failure_and_nothing_is_fetched(schema, says):
    failed = of('"x"', schema)
    assert failed.kind == "parse"
    assert says in failed.detail


def test_a_schema_may_refer_to_its_own_definitions():
    tree = {"$ref": "#/$defs/tree", "$defs": {"tree": {"type": "array", "items": {"$ref": "#/$defs/tree"}}}}
    assert of("[[], [[]]]", tree).score == 1.0
    assert of("[[], [1]]", tree).score == 0.0


NO_FENCE = st.text(st.characters(exclude_characters="`~"))


@given(NO_FENCE, NO_FENCE, NO_FENCE)
def test_the_last_fenced_block_counts(first, last, after):
    assert last_block(f"```\n{first}\n`````\n~~~~ json\n{last}\n```\n~~~~~\n{after}") == f"{last}\n```"
    assert last_block(first) is None


@given(st.text() | st.text("`~ \n\rab{}", max_size=60))
def test_any_text_is_read_without_error(text):
    last_block(text)
    assert of(text, PERSON).score in (0.0, 1.0)


def test_a_pattern_is_searched_for_or_must_match_the_whole_text():
    def score(text, **options):
        return decide(check("regex", text, **options)).score

    assert score("call 555-0199 now", pattern=r"\d{3}-\d{4}") == 1.0
    assert score("call 555-0199 now", pattern=r"\d{3}-\d{4}", match="full") == 0.0
    assert score("Yes", pattern="yes") == 0.0
    assert score("Yes", pattern="yes", case_sensitive=False) == 1.0
    assert score("no\nA: 17", pattern="1.", match="full", of="final_answer") == 1.0
