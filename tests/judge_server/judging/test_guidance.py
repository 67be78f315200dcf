"""The guidance fields of a criterion: where the judge sees them, and that they change nothing elsewhere."""

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from judge_server.prompts.library import check_template
from tests.hypothesis_examples import examples
from tests.judge_server.support import group, plan, prepared
from trainer_client.wire import Criterion, JudgingProtocol, content_digest
from trainer_client.wire.criteria import GUIDANCE_FIELDS

PLAIN = Criterion(id="a", description="Says why.")
GUIDED = Criterion(
    id="a",
    description="Says why.",
    name="Reasons",
    required_elements=("a cause", "an effect"),
    scoring_guide="2 with both, 1 with one.",
    expected_keywords=("since",),
    expected_concepts=("causality",),
    verification_method="Look for the word since.",
)
LINES = """Name: Reasons
Required elements: a cause; an effect
Scoring guide: 2 with both, 1 with one.
Expected keywords: since
Expected concepts: causality
How to check it: Look for the word since.
"""


def asked(protocol: JudgingProtocol, *criteria: Criterion, per_call: int | str = 1) -> str:
    """The question about these criteria."""
    way = prepared(protocol, per_call=per_call)
    return plan(way, group("Yes."), "Yes.", list(criteria)).batch.calls[0].question


def test_a_graded_question_shows_all_guidance_after_the_description() -> None:
    assert f"Statement: Says why.\n{LINES}How far is the statement true" in asked("graded", GUIDED)


def test_a_checklist_shows_guidance_under_its_own_criterion() -> None:
    other = PLAIN.model_copy(update={"id": "b", "description": "Is short."})
    indented = "".join(f"   {line}\n" for line in LINES.splitlines())
    for protocol, points in (("checklist", "(at most 1 point)"), ("graded", "(grade 0 to 4)")):
        text = asked(protocol, GUIDED, other, per_call="all")  # type: ignore[arg-type]
        assert f"1. Says why. {points}\n{indented}2. Is short. {points}\n\nWrite one entry" in text


@pytest.mark.parametrize("protocol", ["binary", "stepwise"])
@pytest.mark.parametrize("per_call", [1, "all"])
def test_a_yes_or_no_question_omits_the_scoring_guide(protocol: JudgingProtocol, per_call: int | str) -> None:
    text = asked(protocol, GUIDED, PLAIN.model_copy(update={"id": "b"}), per_call=per_call)
    assert "Required elements: a cause; an effect\n" in text
    assert "Scoring guide" not in text


@pytest.mark.parametrize("protocol", ["binary", "stepwise", "graded", "checklist"])
@pytest.mark.parametrize("field", GUIDANCE_FIELDS)
def test_an_unset_guidance_field_leaves_no_trace(protocol: JudgingProtocol, field: str) -> None:
    shown = asked(protocol, GUIDED.model_copy(update={field: getattr(PLAIN, field)}))
    hidden = field == "scoring_guide" and protocol in ("binary", "stepwise")
    assert (shown == asked(protocol, GUIDED)) == hidden
    assert "\n\n\n" not in shown
    assert "None" not in shown


def test_guidance_shows_no_control_token_of_a_chat_template() -> None:
    tricky = PLAIN.model_copy(update={"scoring_guide": "<|im_end|>", "required_elements": ("<|im_start|>",)})
    assert "<|" not in asked("graded", tricky)


def test_custom_templates_may_show_guidance() -> None:
    text = "{{ criterion.description }}{% if criterion.name %} ({{ criterion.name }}){% endif %}"
    check_template("question.j2", text, where="x")


@settings(max_examples=examples(30))
@given(st.sampled_from(GUIDANCE_FIELDS), st.text(st.characters(exclude_categories=["C", "Z"]), min_size=1, max_size=20))
def test_a_digest_changes_with_guidance_only_if_it_is_set(field: str, text: str) -> None:
    value = (text,) if isinstance(getattr(PLAIN, field), tuple) else text
    guided = Criterion.model_validate({**PLAIN.model_dump(), field: value})
    assert content_digest([guided]) != content_digest([PLAIN])
    assert content_digest([guided.model_copy(update={field: getattr(PLAIN, field)})]) == content_digest([PLAIN])


def test_digests_from_before_guidance_existed_stay_valid() -> None:
    assert content_digest([PLAIN]) == "sha256:2eece02d418e4f75ffe09fc22a09c81495c08454bf6bc17e981a4e25200c8cb3"


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("name", "x" * 201),
        ("name", " "),
        ("required_elements", ["x"] * 65),
        ("required_elements", [""]),
        ("expected_keywords", ["x" * 2_001]),
        ("scoring_guide", "x" * 20_001),
        ("verification_method", ""),
    ],
)
def test_guidance_fields_are_bounded(field: str, value: object) -> None:
    with pytest.raises(ValueError, match=field):
        Criterion.model_validate({"id": "a", "description": "x", field: value})
