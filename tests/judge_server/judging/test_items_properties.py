"""For any text: the verdicts that `read_items` returns stand in it, and reading takes linear time."""

import json
import re
import sys
from types import FrameType

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from judge_server.judging.items import Item, ItemForm, items_schema, read_items
from judge_server.ports import CallFailure

SATISFIED = ItemForm("satisfied")

FORMS = st.lists(
    st.builds(
        ItemForm,
        st.sampled_from(["satisfied", "grade", "awarded"]),
        st.sampled_from([1.0, 2.5, 4.0]),
        st.none() | st.lists(st.integers(1, 30), max_size=4, unique=True).map(tuple),
        st.booleans(),
    ).map(lambda f: ItemForm(f.value, float(int(f.high)), f.steps, f.reason) if f.value == "grade" else f),
    min_size=1,
    max_size=5,
)
REASONS = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=80).map(str.strip)


@st.composite
def answers(draw: st.DrawFn, reasons: st.SearchStrategy[str]) -> tuple[list[ItemForm], list[Item], object]:
    """Forms, a verdict on each, and the answer that states them."""
    forms, verdicts, written = draw(FORMS), [], []
    for number, form in enumerate(forms, 1):
        value = {
            "satisfied": st.booleans(),
            "grade": st.integers(0, int(form.high)),
            "awarded": st.floats(0, form.high),
        }[form.value]
        item: dict[str, object] = {"id": number}
        if form.reason:
            item["reason"] = draw(reasons)
        item[form.value] = draw(value)
        if form.steps is not None:
            item["step"] = draw(st.sampled_from(form.steps_on_offer))
        written.append(item)
        verdicts.append(Item(float(item[form.value]), item.get("step"), item.get("reason")))  # type: ignore[arg-type]
    return forms, verdicts, {"verdicts": written}


@given(answers(REASONS), st.booleans(), st.sampled_from([None, 1, 4]), st.sampled_from(["", "So it's:\n", "```json\n"]))
def test_a_well_formed_answer_is_read_back_unchanged(
    answer: tuple[list[ItemForm], list[Item], object], ascii_only: bool, indent: int | None, before: str
) -> None:
    forms, verdicts, value = answer
    text = json.dumps(value, ensure_ascii=ascii_only, indent=indent)
    assert read_items(f"{before}{text}\n```", False, forms) == verdicts
    jsonschema.Draft202012Validator(json.loads(items_schema(forms))).validate(value)


@given(answers(st.sampled_from(["", "it is so", "no"])), st.data())
def test_only_verdicts_still_present_in_a_damaged_answer_are_read(
    answer: tuple[list[ItemForm], list[Item], object], data: st.DataObject
) -> None:
    forms, _, value = answer
    text = json.dumps(value)
    for _ in range(data.draw(st.integers(1, 6))):
        at = data.draw(st.integers(0, len(text)))
        inserted = data.draw(st.text("{}[]\",: \n01-.truefalse'\\", max_size=3))
        text = text[:at] + inserted + text[at + data.draw(st.integers(0, 3)) :]
    for number, (form, outcome) in enumerate(
        zip(forms, read_items(text, data.draw(st.booleans()), forms), strict=True), 1
    ):
        if isinstance(outcome, CallFailure):
            assert outcome.kind == "parse"
            continue
        assert form.value == "awarded" or 0 <= outcome.value <= form.high
        alone = len(forms) == 1
        assert any(says(item, number, form, outcome, alone) for item in braced(text)), (text, outcome)


def braced(text: str) -> list[str]:
    """Every substring from an opening brace to a closing one."""
    ends = [match.end() for match in re.finditer("}", text)]
    return [text[match.start() : end] for match in re.finditer("{", text) for end in ends if end > match.start()]


def says(item: str, number: int, form: ItemForm, outcome: Item, alone: bool) -> bool:
    """Whether a piece, read with simple patterns, gives only this number, from 1 or from 0, and this value."""
    ids = re.findall(r"""id["']?\s*:\s*["']?\s*([0-9.e+-]+)""", item)
    values = re.findall(rf"""{form.value}["']?\s*:\s*["']?\s*([-+\w.]+)""", item)
    numbers = [float({"true": "1", "false": "0"}.get(v.lower(), v)) for v in values if re.fullmatch(NUMERAL, v)]
    named = {float(i) for i in ids if re.fullmatch(NUMERAL, i)}
    return (named in ({number}, {number - 1}) or (alone and "id" not in item)) and outcome.value in numbers


NUMERAL = r"(?i:[-+]?(?:\d+\.?\d*|\.\d+)(?:e[-+]?\d+)?|true|false)"


@given(st.text(st.characters()) | st.text("{}[]\",:'\\/*1tfIN \n.-idsatfe\ud800"), st.booleans(), FORMS)
def test_any_text_is_read_without_an_exception(text: str, cut: bool, forms: list[ItemForm]) -> None:
    outcomes = read_items(text, cut, forms)
    assert len(outcomes) == len(forms)


HARD = [
    "{",
    "[",
    "[{",
    '{"',
    "{'",
    '["',
    "{a'",
    "{a:",
    '{"a":[',
    "{/*",
    "{//",
    "[1,",
    "[-",
    '["\\',
    '{"x\n',
    '{"id":1,',
    '{"id":1,"satisfied":true},',
    '{"verdicts":[{"id":1,"satisfied":true}]}',
    '[{"id":1,"satisfied":2},',
    "{'\\'{'\"",
    "1",
    " ",
    '{"a":{},"a":[1],',
]
"""Pieces that, repeated, could cause backtracking or deep recursion."""


@pytest.mark.parametrize("piece", HARD)
def test_ten_times_the_text_takes_ten_times_the_steps(piece: str) -> None:
    few, many = (steps((piece * n)[:n]) for n in (2_000, 20_000))
    assert many <= 11 * few + 200


@pytest.mark.parametrize("piece", HARD)
def test_a_long_text_is_read_to_its_end(piece: str) -> None:
    """A search restarted at each bracket would take hours."""
    outcomes = read_items((piece * 300_000)[:300_000], True, [SATISFIED, SATISFIED])
    assert len(outcomes) == 2


def steps(text: str) -> int:
    """The number of function calls that reading makes, in Python and in C."""
    count = 0

    def called(frame: FrameType, event: str, argument: object) -> None:
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(called)
    try:
        read_items(text, False, [SATISFIED, SATISFIED])
    finally:
        sys.setprofile(None)
    return count
