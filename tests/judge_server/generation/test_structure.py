"""The structural checks: each mistake of a model has its own reason."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judge_server.generation.structure import (
    Draft,
    check_distinct,
    check_drafts,
    check_leaks,
    check_self_contained,
    contains_result,
    criteria_from_drafts,
    words,
)
from judge_server.generation.writer import RubricDiscarded

RULES: dict[str, Any] = {"kinds": ("factual", "process"), "weights": (1, 5)}
FACT = Draft("States that there are 22 legs.", "factual", 5)
STEP = Draft("Adds 16 legs and 6 legs.", "process", 2)


def reason(*drafts: Draft, rules: dict[str, Any] = RULES, references: tuple[str, ...] = ()) -> str:
    """The reason why these drafts are discarded."""
    with pytest.raises(RubricDiscarded) as caught:
        check_drafts(drafts, references=references, **rules)
    return caught.value.reason


def test_criteria_that_follow_the_rules_pass() -> None:
    check_drafts([FACT, STEP], references=["There are 4 * 4 + 3 * 2 = 22 legs in all of the field."], **RULES)


@pytest.mark.parametrize(
    ("drafts", "expected"),
    [
        ([FACT, Draft("Is helpful to the reader.", "point", 1)], "unknown_kind"),
        ([FACT, Draft("  ", "process", 1)], "empty_criterion"),
        ([FACT, Draft("...", "process", 1)], "empty_criterion"),
        ([FACT, Draft("Process", "process", 1)], "empty_criterion"),
        ([FACT, Draft("Adds the legs.", "process", -3)], "bad_weight"),
        ([FACT, Draft("Adds the legs.", "process", 6)], "bad_weight"),
        ([FACT, Draft("Adds the legs.", "process", 1.5)], "bad_weight"),
        ([FACT, Draft("Adds the legs.", "process", float("nan"))], "bad_weight"),
        ([FACT, Draft("Adds the legs.", "process", float("inf"))], "bad_weight"),
        ([FACT, STEP, Draft("adds 16  legs, and 6 'legs'", "factual", 1)], "duplicate_criteria"),
    ],
)
def test_each_fault_has_its_own_reason(drafts: list[Draft], expected: str) -> None:
    assert reason(*drafts) == expected


def test_criteria_that_differ_in_a_sign_are_distinct() -> None:
    check_drafts([Draft("Works out 6 + 2.", "process"), Draft("Works out 6 - 2.", "process")], **RULES)


def test_signed_points_must_not_be_zero_and_one_must_be_positive() -> None:
    points = {"weights": (-10, 10)}
    bad = Draft("Counts a bird twice.", weight=-4)
    check_drafts([bad, Draft("Counts all legs.", weight=3)], weights=(-10, 10))
    assert reason(bad, Draft("Counts all legs.", weight=0), rules=points) == "bad_weight"
    assert reason(bad, rules=points) == "bad_weight"


def test_a_part_of_a_rubric_may_be_all_negative_where_the_rest_is_not() -> None:
    check_drafts([Draft("Counts a bird twice.", weight=-1)], weights=(-1, 1), positive=False)


@pytest.mark.parametrize(
    "description",
    [
        "He runs 3*3 = 9 sprints and so runs 540 meters in a week.",
        "Says: he runs 3*3 = 9 SPRINTS, and so runs 540 meters in a week!",
    ],
)
def test_a_criterion_that_quotes_the_reference_answer_is_a_leak(description: str) -> None:
    reference = "He runs 3*3 = 9 sprints and so\nruns 540 meters in a week."
    assert reason(FACT, Draft(description, "process", 1), references=(reference,)) == "leaks_reference"


def test_naming_the_result_is_not_a_leak() -> None:
    check_leaks(["States that the final answer is 540 meters."], ["540 meters", "The answer is 540.", ""])


def test_a_long_answer_leaks_by_any_twenty_words_in_a_row() -> None:
    reference = " ".join(f"w{n}" for n in range(100))
    check_leaks([" ".join(f"w{n}" for n in range(40, 59))], [reference])
    with pytest.raises(RubricDiscarded, match="20 words in a row"):
        check_leaks(["x", " ".join(f"w{n}" for n in range(40, 60))], [reference])


@pytest.mark.parametrize(
    "text",
    [
        "What does the document say of heaps?",
        "How does the given passage define a heap?",
        "According to this text, what is a heap?",
        "What is the main idea of the Article's author?",
        "Why, in the following excerpt, is a heap an array?",
    ],
)
def test_a_question_that_refers_to_an_unavailable_text_is_refused(text: str) -> None:
    with pytest.raises(RubricDiscarded) as caught:
        check_self_contained("the question", text)
    assert caught.value.reason == "not_self_contained"


@pytest.mark.parametrize(
    "text", ["How does a text editor keep its undo list?", "When does the text file get closed?", "What is a passage?"]
)
def test_a_question_about_texts_in_general_is_accepted(text: str) -> None:
    check_self_contained("the question", text)


@given(st.lists(st.text(alphabet="ab .,\n", min_size=1, max_size=12), min_size=1, max_size=6))
def test_texts_with_different_words_are_never_duplicates(texts: list[str]) -> None:
    distinct = len({tuple(words(text)) for text in texts}) == len(texts)
    try:
        check_distinct(texts)
    except RubricDiscarded:
        assert not distinct
    else:
        assert distinct


@given(st.lists(st.sampled_from("abc"), min_size=6, max_size=30), st.data())
def test_a_quotation_is_found_at_any_place(reference: list[str], data: Any) -> None:
    length = min(20, len(reference))
    at = data.draw(st.integers(0, len(reference) - length))
    before, after = data.draw(st.lists(st.sampled_from("xy"))), data.draw(st.lists(st.sampled_from("xy")))
    quoting = " ".join([*before, *reference[at : at + length], *after])
    with pytest.raises(RubricDiscarded):
        check_leaks([quoting], [" ".join(reference)])
    check_leaks([" ".join([*reference[at : at + length - 1], "x"])], [" ".join(reference)])


def test_criterion_ids_are_made_from_their_kinds() -> None:
    made = criteria_from_drafts([STEP, FACT, Draft("Multiplies 3 by 2.", "process", 1)])
    assert [(one.id, one.weight) for one in made] == [("process-1", 2), ("factual-1", 5), ("process-2", 1)]


@pytest.mark.parametrize(
    ("text", "result", "there"),
    [
        ("The final answer is 7.", "7", True),
        ("It costs $7, no more.", "7", True),
        ("The final answer is 57.", "7", False),
        ("The final answer is 7.5.", "7", False),
        ("The final answer is -7.", "7", False),
        ("It is 7,500.", "7", False),
        ("It is PARIS.", "Paris", True),
        (r"It is $\\frac{1}{2}$.", r"\\frac{1}{2}", True),
        ("It lies in Paris.", "Paris, France", False),
    ],
)
def test_a_result_is_found_only_as_a_separate_word(text: str, result: str, there: bool) -> None:
    assert contains_result(text, result) is there
