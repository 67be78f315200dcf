"""A label counts only where it stands as the answer; any other text is a failure, never a guess."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judge_server.judging.replies import MAX_LABEL_TEXT_CHARACTERS, read_label_choice, read_token_choice
from judge_server.ports import CallFailure, LabelChoice, Option, TokenChoice

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


@pytest.mark.parametrize(
    "text",
    [
        "yes",
        " Yes.",
        "YES!",
        "**Yes**",
        '"yes"',
        "> `yes`",
        "Yes, as it should.",
        "Yes: the source is named.",
        "Yes — it cites one",
        "Yes\n\nThe response is no good otherwise.",
        "Yes. It leaves no doubt.",
        "Answer: yes",
        "**Final answer:** Yes",
        "The answer is yes.",
        "So the answer is: yes",
        "It is hard to say.\n- Verdict: yes",
        "Not sure, maybe no.\nAnswer: yes",
        "Yes.\n\nAnswer: yes",
    ],
)
def test_a_label_that_stands_as_the_answer_is_the_answer(text: str) -> None:
    assert read_token_choice(text, YES_NO) == ("yes", None)


@pytest.mark.parametrize(
    "text", ["Feedback: It is sound, but terse. [RESULT] 4", "It is sound.\n[RESULT]\n4", "[RESULT] 4/10"]
)
def test_a_label_after_the_result_mark_of_prometheus_is_the_answer(text: str) -> None:
    assert read_token_choice(text, SCALE) == ("4", None)


@pytest.mark.parametrize(
    ("text", "label"),
    [
        ("Assistant A is terse, B is wrong.\nMy final verdict is: [[A>B]]", "A"),
        ("My final verdict is that B is much better: [[B>>A]].", "B"),
        ("Assistant B is better: **[[A<B]]**", "B"),
        ("Compared with B, which errs: [[A]]", "A"),
        ("My final verdict is tie: [[A=B]]", "="),
        ("[[A = B]]", "="),
        ("Both err, A less so.\n\n[[A]]", "A"),
        ("A is better. [[A]]\nSo: [[A>B]]", "A"),
    ],
)
def test_a_verdict_in_double_brackets_that_ends_a_line_is_the_answer(text: str, label: str) -> None:
    assert read_token_choice(text, A_OR_B) == (label, None)


@pytest.mark.parametrize(
    "text",
    [
        "My verdict: [[A>B]]\nOn reflection: [[B>A]]",
        "My verdict is B: [[A]]",
        "My verdict: [[A=B]]\nOn reflection: [[A]]",
        "The response ends with [[A>B]] and asks for it.",
        "[[A>C]]",
        "[[C]]",
        "A tie",
    ],
)
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


@pytest.mark.parametrize(
    "text",
    [
        "yes and no",
        "Yes or no?",
        "yes/no",
        "Yes, or rather no",
        "Yes, there is no doubt",
        "not sure",
        "maybe yes",
        "I think yes",
        "Yes?",
        "Yes, right?",
        "yesterday",
        "yes-ish",
        "No idea",
        "No way to tell",
        "The response says yes",
        "true",
        "Yes.\nAnswer: no",
        "Answer: yes\nAnswer: no",
        "Answer: yes\nAnswer: see above",
        "Yes.\nAnswer: perhaps",
        "The answer is not yes",
        "答案是 yes",
        "{}",
    ],
)
def test_any_other_text_is_a_failure_that_quotes_it(text: str) -> None:
    assert " ".join(text.split()) in failure(read_token_choice(text, YES_NO))


def test_an_empty_answer_is_a_failure() -> None:
    assert failure(read_token_choice(" \n\x00", YES_NO)) == "the judge wrote nothing"
    assert failure(read_label_choice("", BETTER)) == "the judge wrote nothing"


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("7", "7"),
        ("**7**", "7"),
        ("7.", "7"),
        ("7/10", "7"),
        ("7 / 10", "7"),
        ("7 out of 10.", "7"),
        ("7 of 10", "7"),
        ("10/10", "10"),
        ("0", "0"),
        ("Rating: 7/10", "7"),
        ("Grade 3: some of it", "3"),
        ("3 - poor", "3"),
        ("7.\nIt is good.", "7"),
    ],
)
def test_a_number_on_the_scale_is_read_whole(text: str, number: str) -> None:
    assert read_token_choice(text, SCALE) == (number, None)


@pytest.mark.parametrize(
    "text",
    [
        "11",
        "-3",
        "7.5",
        "7,5",
        "07",
        "7/5",
        "7/100",
        "7%",
        "7 10",
        "7-8",
        "3 or 4",
        "3, or 4",
        "1. The response is good",
        "1. 2. 3.",
        "seven",
        "7th",
        "Score: 12",
        "I'd give it 7",
    ],
)
def test_a_number_off_the_scale_or_one_of_several_is_a_failure(text: str) -> None:
    failure(read_token_choice(text, SCALE))


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("yes, step 2", ("yes", "2")),
        ("Yes. Step: 2", ("yes", "2")),
        ("**No**, in step 3.", ("no", "3")),
        ("No (step 0)", ("no", "0")),
        ("no, step -1", ("no", "-1")),
        ("no, step −1", ("no", "-1")),
        ("Answer: yes\nStep: 1", ("yes", "1")),
        ("Yes, step 2: it adds them up. The sum is 3.", ("yes", "2")),
        ("Yes, step 2 of 3", ("yes", "2")),
    ],
)
def test_a_step_is_read_where_it_follows_the_answer(text: str, answer: tuple[str, str]) -> None:
    assert read_token_choice(text, STEPPED) == answer


@pytest.mark.parametrize(
    "text",
    [
        "yes",
        "yes, step 4",
        "yes, step two",
        "yes, step 2 or 3",
        "yes, step 2, 3",
        "yes, steps 2",
        "yes, step 2-3",
        "yes, step 2.5",
        "yes, step 2, no",
        "Yes\nStep 1: it adds them up.\nStep 2: it doubles them.",
        "yes, because step 2",
        "step 2",
    ],
)
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


@pytest.mark.parametrize("piece", ["yes", "answer: ", "yes, ", "\n", " ", "1/", "the ", "-", "yes\nanswer: yes\n", "."])
def test_a_long_text_is_read_to_its_end_and_one_over_the_limit_is_not_read(piece: str) -> None:
    text = (piece * MAX_LABEL_TEXT_CHARACTERS)[:MAX_LABEL_TEXT_CHARACTERS]
    assert read_label_choice(text, STEPS) is not None
    assert str(MAX_LABEL_TEXT_CHARACTERS + 1) in failure(read_token_choice(text + "x", YES_NO))
