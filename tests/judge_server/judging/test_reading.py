"""A label counts only where it stands as the answer; any other text is a failure, never a guess."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judge_server.judging.replies import MAX_LABEL_TEXT_CHARACTERS, read_label_choice, read_token_choice
from judge_server.ports import CallFailure, LabelChoice, Option, TokenChoice
from tests.cases import each_case

YES_NO = TokenChoice(
    (Option("yes", ("yes", "Yes", "YES", " yes", " Yes")), Option("no", ("no", "No", "NO", " no", " No")))
)
STEPPED = TokenChoice(YES_NO.options, LabelChoice(("1", "2", "3", "0", "-1"), ", step "))
SCALE = TokenChoice(tuple(Option(str(n), (str(n), f" {n}")) for n in range(11)))
A_OR_B = TokenChoice((Option("A", ("A", " A")), Option("B", ("B", " B"))))
BETTER = LabelChoice(("A", "B", "tie"))
STEPS = LabelChoice(("1", "2", "3", "0", "-1"), "step ")


def failure(outcome: object) -> str:
    """The detail of a parse failure."""
    assert isinstance(outcome, CallFailure), outcome
    assert outcome.kind == "parse"
    return outcome.detail


@each_case("text")
def test_a_label_that_stands_as_the_answer_is_the_answer(text: str) -> None:
    assert read_token_choice(text, YES_NO) == ("yes", None)


@pytest.mark.parametrize(
    "text", ["Feedback: It is sound, but terse. [RESULT] 4", "It is sound.\n[RESULT]\n4", "[RESULT] 4/10"]
)
def test_a_label_after_the_result_mark_of_prometheus_is_the_answer(text: str) -> None:
    assert read_token_choice(text, SCALE) == ("4", None)


@each_case("text", "label")
def test_a_verdict_in_double_brackets_that_ends_a_line_is_the_answer(text: str, label: str) -> None:
    assert read_token_choice(text, A_OR_B) == (label, None)


@each_case("text")
def test_brackets_that_disagree_quote_or_name_other_labels_fail(text: str) -> None:
    failure(read_token_choice(text, A_OR_B))


def test_equality_is_not_an_answer_where_other_labels_are_offered() -> None:
    failure(read_token_choice("[[A=B]]", YES_NO))
    failure(read_label_choice("[[A=B]]", BETTER))
    failure(read_token_choice("=", A_OR_B))
    assert read_token_choice("Sound but terse. Rating: [[4]]", SCALE) == ("4", None)


def test_reasons_that_quote_another_result_fail() -> None:
    assert "more than one" in failure(read_token_choice("It says [RESULT] 5, which is wrong. [RESULT] 1", SCALE))
    failure(read_token_choice("So [RESULT] is what I am to write.", SCALE))


@pytest.mark.parametrize("text", ["GRADE\u200e:\u200fC", "\ufeffC", "\u2066C\u2069", "GRA\u00adDE: C\u200b"])
def test_formatting_characters_are_ignored(text: str) -> None:
    assert read_label_choice(text, LabelChoice(("C", "I"))) == "C"


@each_case("text")
def test_any_other_text_is_a_failure_that_quotes_it(text: str) -> None:
    assert " ".join(text.split()) in failure(read_token_choice(text, YES_NO))


def test_a_number_that_ends_the_text_after_another_answer_fails() -> None:
    assert "ends with another answer" in failure(read_token_choice("Score: 8\nIt has an error.\n\n3", SCALE))


def test_an_empty_answer_is_a_failure() -> None:
    assert failure(read_token_choice(" \n\x00", YES_NO)) == "the judge wrote nothing"
    assert failure(read_label_choice("", BETTER)) == "the judge wrote nothing"


@each_case("text", "number")
def test_a_number_on_the_scale_is_read_whole(text: str, number: str) -> None:
    assert read_token_choice(text, SCALE) == (number, None)


@each_case("text")
def test_a_number_off_the_scale_or_one_of_several_is_a_failure(text: str) -> None:
    failure(read_token_choice(text, SCALE))


@each_case("text", "answer")
def test_a_step_is_read_where_it_follows_the_answer(text: str, answer: list[str]) -> None:
    assert read_token_choice(text, STEPPED) == tuple(answer)


@each_case("text")
def test_a_step_that_is_missing_not_offered_or_one_of_several_fails_the_answer(text: str) -> None:
    failure(read_token_choice(text, STEPPED))


@pytest.mark.parametrize(
    ("text", "label"),
    [("Step 3", "3"), ("3", "3"), ("**Step -1**", "-1"), ("step: 0.", "0"), ("Answer: step 2", "2")],
)
def test_a_step_choice_is_read_with_and_without_the_word_step(text: str, label: str) -> None:
    assert read_label_choice(text, STEPS) == label


def test_a_letter_is_a_label_only_where_it_stands_alone() -> None:
    assert read_label_choice("B", BETTER) == "B"
    assert read_label_choice("b.", BETTER) == "B"
    assert read_label_choice("**B**: a reference is given", BETTER) == "B"
    assert read_label_choice("Tie", BETTER) == "tie"
    for text in ("A tie", "A response", "B, not A", "A/B", "A and B", "B is better than A", "AB"):
        failure(read_label_choice(text, BETTER))


LABELS = st.lists(st.from_regex(r"[a-g]{2,8}", fullmatch=True), min_size=2, max_size=5, unique=True)


@given(LABELS, st.data())
def test_one_label_is_read_and_two_labels_fail(labels: list[str], data: st.DataObject) -> None:
    choice = LabelChoice(tuple(labels))
    first, second = data.draw(st.permutations(labels))[:2]
    before = data.draw(st.sampled_from(["", " ", "Answer: ", "**Answer:** ", "Hm, hard.\nFinal answer: "]))
    after = data.draw(st.sampled_from(["", ".", "\n", "!", ", xx xx.", ": xx"]))
    plain = before + data.draw(st.sampled_from([first, first.upper(), first.title(), f"**{first}**"])) + after
    assert read_label_choice(plain, choice) == first
    for between in (" ", ", ", "/", " or ", ", not ", " and "):
        assert isinstance(read_label_choice(before + first + between + second + after, choice), CallFailure)


@given(st.text(st.characters()) | st.text("yesno YESNO.,:?!\n-*/0123457answer step"))
def test_no_text_raises_and_every_label_read_was_offered_and_written(text: str) -> None:
    for token_choice in (YES_NO, STEPPED, SCALE):
        outcome = read_token_choice(text, token_choice)
        if not isinstance(outcome, CallFailure):
            label, step = outcome
            assert label in [option.label for option in token_choice.options]
            assert label in text.lower()
            assert (step is None) == (token_choice.then is None)
            assert step is None or (step in STEPS.labels and step.lstrip("-") in text)
    chosen = read_label_choice(text, STEPS)
    assert isinstance(chosen, CallFailure) or chosen.lstrip("-") in text


LEADS = ("<think>\n</think>\n<score>", '{"score": "', "Verdict:")


@given(st.sampled_from(LEADS), st.sampled_from(("", " ", "\n", " \n\t ")), st.text('yesno <>"{}\n'))
def test_a_lead_ends_where_its_last_word_does_however_it_is_spaced(lead: str, space: str, rest: str) -> None:
    token_choice = TokenChoice(YES_NO.options, lead=lead)
    written = space + space.join(lead.split())
    assert token_choice.lead_end(written + rest) == len(written)
    assert token_choice.lead_end(f"x{written}") == 0


@given(st.sampled_from(LEADS), st.text() | st.text('<think>/score {}":Verdict\n'))
def test_what_is_taken_for_a_lead_ends_in_its_last_line(lead: str, text: str) -> None:
    end = TokenChoice(YES_NO.options, lead=lead).lead_end(text)
    last = "".join(lead.splitlines()[-1].split())
    assert 0 <= end <= len(text)
    assert end == 0 or "".join(text[:end].split()).endswith(last)


@pytest.mark.parametrize("piece", ["yes", "answer: ", "yes, ", "\n", " ", "1/", "the ", "-", "yes\nanswer: yes\n", "."])
def test_a_long_text_is_read_to_its_end_and_one_over_the_limit_is_not_read(piece: str) -> None:
    text = (piece * MAX_LABEL_TEXT_CHARACTERS)[:MAX_LABEL_TEXT_CHARACTERS]
    assert read_label_choice(text, STEPS) is not None
    assert str(MAX_LABEL_TEXT_CHARACTERS + 1) in failure(read_token_choice(text + "x", YES_NO))
