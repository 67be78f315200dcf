"""A user's template is accepted if it shows what it must and does no more; otherwise it is refused by name."""

import os
from dataclasses import fields
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judge_server.prompts import CriterionView, Material, PromptForm, PromptTemplates
from judge_server.prompts.fencing import fence
from judge_server.prompts.grammar import CRITERION
from judge_server.prompts.library import (
    ALLOWED_VARIABLES,
    MAX_TEMPLATE_BYTES,
    InvalidTemplate,
    builtin_templates,
    check_template,
    read_set,
)
from tests.judge_server.support import FENCED, criteria

OURS = builtin_templates()
QUESTION = "Holds this: {{ criterion.description }}"


def write(folder: Path, **texts: str) -> Path:
    """Write a template set to `folder`; `question="…"` is the file `question.j2`."""
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        (folder / f"{name.replace('__', '.')}.j2").write_text(text, encoding="utf-8")
    return folder


@pytest.mark.parametrize("name", ALLOWED_VARIABLES)
def test_builtin_templates_follow_the_rules_for_every_template(name: str) -> None:
    check_template(name, OURS[name], where=name)


def test_a_template_may_read_every_field_of_a_criterion() -> None:
    assert {field.name for field in fields(CriterionView)} == set(CRITERION)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("question", "{{ criterion.description }}"),
        ("question", "{{ criterion.description|trim|upper }} {# loud #}"),
        ("question", "{{ criterion.description if rationale else criterion.description|lower }}"),
        ("question", "{% if criterion.scale >= 3 and criterion.kind in ('pitfall', 'bonus') %}!{% endif %}" + QUESTION),
        (
            "questions",
            "{{ criteria|length }}:{% for c in criteria %}{{ loop.index ~ '. ' ~ c.description }}{% endfor %}",
        ),
        (
            "questions",
            "{% for c in criteria if c.negative %}{% else %}none{% endfor %}" + OURS["questions.j2"],
        ),
        ("verdict", "{% raw %}{{ So? }}{% endraw %}"),
        ("verdict", ""),
        ("binary__system", "{% if several is not none and not rationale %}Judge.{% endif %}"),
        ("holistic", OURS["holistic.j2"].replace("How good", "Of 1000 responses, how good")),
        ("verdict", "{% if protocol == 'graded' %}From 0 to 10:{% else %}Your verdict:{% endif %}"),
        ("binary__system", "Answer yes or no, in at most 10 letters."),
    ],
)
def test_a_template_may_use_output_conditions_and_loops_over_criteria(tmp_path: Path, name: str, text: str) -> None:
    assert list(read_set(write(tmp_path / "mine", **{name: text})).values()) == [text]


@pytest.mark.parametrize(
    ("name", "text", "says"),
    [
        (
            "quesion",
            QUESTION,
            "mine/quesion.j2: there is no template of this name; rename it to one of binary.system.j2, ",
        ),
        ("question", "\n{% if %}", "mine/question.j2:2: Expected an expression"),
        ("question", "\n\n{{ criterion.description", "mine/question.j2:3: unexpected end of template"),
        ("question", "Is it good?", "mine/question.j2 does not show {{ criterion.description }}, so the judge would"),
        (
            "question",
            "{% if criterion.kind != 'pitfall' %}{{ criterion.description }}{% endif %}",
            "does not show {{ criterion.description }} where criterion.kind is 'pitfall'",
        ),
        ("question", "{{ criterion.text }}", "mine/question.j2:1: criterion has no 'text'; it has description, "),
        (
            "question",
            QUESTION + "\n{{ response }}",
            "mine/question.j2:2: it uses 'response', which is not one of its variables",
        ),
        ("question", QUESTION + "{{ loop.index }}", "uses 'loop', which is not one of its variables"),
        ("question", "{{ criterion }}", "criterion cannot be shown by itself; write {{ criterion.description }}"),
        ("questions", "{{ criteria }}", "criteria cannot be shown by itself; write {{ criterion.description }}"),
        (
            "questions",
            "{% for c in criteria %}{% if loop.first %}{{ c.description }}{% endif %}{% endfor %}",
            "does not show {{ criterion.description }} of each criterion, so",
        ),
        ("shared", OURS["shared.j2"].replace("{{ grounding }}", ""), "shared.j2 does not show {{ grounding }}, so the"),
        (
            "shared",
            OURS["shared.j2"].replace("{{ prompt }}", "", 1),
            "does not show {{ prompt }} where conversation is true, so",
        ),
        (
            "shared",
            OURS["shared.j2"].replace("{% if ground_truth %}", "{% if ground_truth and reference_answer %}"),
            "does not show {{ ground_truth }} where there is no reference_answer, so",
        ),
        ("pair", OURS["pair.j2"].removesuffix("\n"), "mine/pair.j2 does not end in a line break, but a question"),
        ("pair", OURS["pair.j2"].replace("{{ b }}", "{{ a }}"), "mine/pair.j2 does not show {{ b }}, so"),
        ("comparison", "{{ asked }}", "does not show {{ criterion.description }} of each criterion"),
        (
            "holistic",
            "{% for c in criteria %}{{ c.description }}{% endfor %}{% set n = 1 %}",
            "{% set %} is not allowed",
        ),
        ("holistic", "{% for c in range(10**9) %}{% endfor %}", "it loops over something other than criteria"),
        ("holistic", "{% for c in criteria %}" * 2 + "{% endfor %}" * 2, "it has a loop inside a loop"),
        ("holistic", "{% for c in criteria recursive %}{% endfor %}", "it has a loop inside a loop"),
        ("holistic", "{% for a, b in criteria %}{% endfor %}", "the loop variable needs a name of its own"),
        ("holistic", "{% for protocol in criteria %}{% endfor %}", "the loop variable needs a name of its own"),
        (
            "holistic",
            "{% for c in criteria if d.negative %}{% endfor %}",
            "uses 'd', which is not one of its variables",
        ),
        ("holistic", "{% for c in criteria %}{% else %}{{ c.description }}{% endfor %}", "uses 'c', which is not one"),
        (
            "holistic",
            "{% if rationale %}{% elif rationales %}{% endif %}",
            "uses 'rationales', which is not one of its variables",
        ),
        ("holistic", "{{ 'x' * 10**9 }}", "a template cannot compute (mul)"),
        ("holistic", "{{ ''.__class__.__mro__ }}", "a template cannot compute (getattr)"),
        ("holistic", "{{ protocol.upper() }}", "a template cannot compute (call)"),
        ("holistic", "{{ protocol.__class__ }}", "protocol has no '__class__'"),
        ("holistic", "{{ lipsum(n=10**9) }}", "a template cannot compute (call)"),
        ("holistic", "{{ protocol|center(10**9) }}", "it uses the filter 'center'; only capitalize, length"),
        ("holistic", "{{ protocol|trim('x') }}", "allowed, without arguments"),
        ("holistic", "{{ protocol|length }}", "only criteria have a length"),
        ("holistic", "{{ 'x' if rationale }}", "an if inside {{ … }} needs an else"),
        ("holistic", "{% if protocol < 3 %}{% endif %}", "only numbers can be compared by size"),
        ("holistic", "{% if 'a' in protocol %}{% endif %}", '"in" needs a list of values'),
        ("holistic", "{% if rationale is divisibleby 0 %}{% endif %}", "a template cannot compute (test)"),
        (
            "holistic",
            OURS["holistic.j2"].replace("0 to 9", "1 to 10"),
            "says 10 where it asks for a rating, but a rating",
        ),
        ("holistic", OURS["holistic.j2"].replace("0 to 9", "one to TEN"), "ask for 0 to 9, which is reported"),
        ("likert__system", "Rate it.{% if not rationale %} Answer 1-10.{% endif %}", "says 10 where it asks for a"),
        ("verdict", "{% if protocol == 'likert' %}1..10:{% else %}Your verdict:{% endif %}", "says 10 where it asks"),
        ("holistic", "{% macro m() %}{{ m() }}{% endmacro %}", "{% macro %} is not allowed in prompt templates"),
        ("holistic", "{% include 'x' %}", "{% include %} is not allowed in prompt templates"),
        ("holistic", "{% filter upper %}{% endfilter %}", "{% filter %} is not allowed in prompt templates"),
        (
            "shared",
            "{{ response|trim }}",
            "response may only be shown as it is, {{ response }}, not changed or compared",
        ),
        ("shared", "{{ response[14:] }}", "a template cannot compute (getitem)"),
        ("shared", "{{ (response ~ prompt)|upper }}", "a template cannot compute (concat)"),
        ("verdict", "{% if rationale %}" * 50 + "{% endif %}" * 50, "nested more than 40 deep"),
        ("verdict", "{{ " + "(" * 3000 + "1" + ")" * 3000 + " }}", "too complex to compile"),
        ("verdict", "{{ " + "9" * 5000 + " }}", "too complex to compile"),
        ("verdict", "{{ 'a'" + " ~ 'a'" * 4000 + " }}", "larger than 20,000 bytes"),
        ("verdict", "x" * 10_000_000, "mine/verdict.j2 is larger than 20,000 bytes; shorten it"),
    ],
)
def test_an_invalid_template_is_refused_by_name(tmp_path: Path, name: str, text: str, says: str) -> None:
    with pytest.raises(InvalidTemplate) as refused:
        read_set(write(tmp_path / "mine", **{name: text}))
    assert says in str(refused.value)
    assert str(refused.value).startswith(f"mine/{name.replace('__', '.')}.j2")


def test_a_template_that_is_not_a_utf8_text_file_is_refused(tmp_path: Path) -> None:
    mine = write(tmp_path / "mine")
    (mine / "verdict.j2").write_bytes(b"Your\nverdi\xe7t:")
    with pytest.raises(InvalidTemplate, match=r"mine/verdict\.j2:2: this is not UTF-8 text"):
        read_set(mine)
    (mine / "verdict.j2").unlink()
    (mine / "verdict.j2").mkdir()
    with pytest.raises(InvalidTemplate, match=r"mine/verdict\.j2 is not a file"):
        read_set(mine)
    (mine / "verdict.j2").rmdir()
    os.mkfifo(mine / "verdict.j2")
    with pytest.raises(InvalidTemplate, match=r"mine/verdict\.j2 is not a file"):
        read_set(mine)
    (mine / "verdict.j2").unlink()
    (mine / "verdict.j2").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InvalidTemplate, match=r"mine/verdict\.j2 is not a file"):
        read_set(mine)


def test_a_folder_without_templates_is_refused(tmp_path: Path) -> None:
    mine = write(tmp_path / "mine")
    (mine / "README.md").write_text("Soon.")
    with pytest.raises(InvalidTemplate, match=r"the folder 'mine' holds no template; it may hold binary\.system\.j2"):
        read_set(mine)
    with pytest.raises(InvalidTemplate, match=r"there is no template folder 'other'"):
        read_set(tmp_path / "other")


def test_a_template_of_the_largest_size_may_have_a_bom_and_crlf_line_ends(tmp_path: Path) -> None:
    mine = write(tmp_path / "mine")
    (mine / "verdict.j2").write_bytes(b"\xef\xbb\xbfOne\r\n" + b"x" * (MAX_TEMPLATE_BYTES - 8))
    assert read_set(mine)["verdict.j2"] == "One\n" + "x" * (MAX_TEMPLATE_BYTES - 8)


def test_a_set_replaces_only_the_templates_it_contains() -> None:
    ours = PromptTemplates(PromptForm("binary", rationale=True))
    mixed = PromptTemplates(PromptForm("binary", rationale=True), {"question.j2": QUESTION})
    (one,) = criteria("7 is prime.")
    assert mixed.question(one) == "Holds this: 7 is prime."
    assert (mixed.system, mixed.ask, mixed.questions((one,))) == (ours.system, ours.ask, ours.questions((one,)))


VARIABLES = st.sampled_from(sorted(ALLOWED_VARIABLES["shared.j2"]))
EXPRESSIONS = st.recursive(
    VARIABLES | st.sampled_from(["'text'", "1", "true", "none", "nothing"]),
    lambda inner: st.one_of(
        st.builds("({} ~ {})".format, inner, inner),
        st.builds("({} if {} else {})".format, inner, inner, inner),
        st.builds("({} if {})".format, inner, inner),
        st.builds("{} | {}".format, inner, st.sampled_from(["trim", "upper", "lower", "title", "length", "e", "list"])),
        st.builds("({})[{}:]".format, inner, st.integers(0, 20)),
        st.builds("({} {} {})".format, inner, st.sampled_from(["==", "<", "in", "and", "or", "+", "*", "%"]), inner),
        st.builds("({}).{}".format, inner, st.sampled_from(["upper()", "__class__", "x"])),
        st.builds("(not {})".format, inner),
        st.builds("({} is {})".format, inner, st.sampled_from(["none", "defined", "string", "odd"])),
    ),
    max_leaves=6,
)
CONDITIONS = (
    VARIABLES
    | st.builds("not {} or {}".format, VARIABLES, VARIABLES)
    | st.builds("{} == {}".format, VARIABLES, VARIABLES)
)
SHOWN = VARIABLES | st.builds("{} if {} else 'none' ~ {}".format, VARIABLES, CONDITIONS, VARIABLES)
PIECES = st.recursive(
    st.builds("{{{{ {} }}}}\n".format, SHOWN),
    lambda inner: st.one_of(
        st.builds("{}{}".format, inner, inner),
        st.builds("{{% if {} %}}{}{{% else %}}{}{{% endif %}}".format, CONDITIONS, inner, inner),
        st.builds("{{% if {} %}}{}{{% elif {} %}}{}{{% endif %}}".format, CONDITIONS, inner, EXPRESSIONS, inner),
        st.builds("{{{{ {} }}}}{}".format, EXPRESSIONS, inner),
        st.builds("{{% set response = {} %}}{}".format, EXPRESSIONS, inner),
    ),
    max_leaves=5,
)


@given(piece=PIECES, words=st.text(max_size=20), given_all=st.booleans())
def test_no_accepted_template_shows_a_text_without_its_fence_or_fails(piece: str, words: str, given_all: bool) -> None:
    text = piece + OURS["shared.j2"]
    try:
        check_template("shared.j2", text, where="mine/shared.j2")
    except InvalidTemplate:
        return
    hostile = f"qqqq{words}qqqq"
    given = hostile if given_all else None
    shown = PromptTemplates(PromptForm("binary"), {"shared.j2": text}).shared(
        Material(fence(hostile), given_all, *[given] * 3),
        fence(hostile),
        show_final_answer=given_all,
        final_answer=given,
    )
    assert fence(hostile) in shown
    assert "qqqq" not in FENCED.sub("", shown).casefold()
