import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from trainer_client.steps import extract_final_answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"So \boxed{42}.", "42"),
        (r"First \boxed{1}. But then x would be odd, so \boxed{2}.", "1, 2"),
        (r"First \boxed{1}. But that leaves out the case that x is negative. Counting it gives \boxed{2}.", "2"),
        (r"\boxed{\frac{1}{2}}", r"\frac{1}{2}"),
        (r"\boxed {7}", "7"),
        (r"\boxed{\{1, 2\}}", r"\{1, 2\}"),
        (r"\boxed{\left\{ x \right.}", r"\left\{ x \right."),
        (r"\boxed{a\\}", r"a\\"),
        (r"\\boxed{5}", "5"),
        (r"\boxed{3} and \boxed{}", "3"),
        (r"\boxed{3} and \boxed{4", "3"),
        (r"\boxed{1 + \boxed{2}}", "2"),
        (r"Final answer: 1, that is \boxed{2}", "2"),
        ("\\boxed{4}\nThe final answer must be positive.", "4"),
        ("\\boxed{4}\nA: what else?", "4"),
        ("\\boxed{4}\n### Final Answer", "4"),
    ],
)
def test_the_last_boxed_answer_is_found_with_its_braces_balanced(text, answer):
    assert extract_final_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"$\boxed{2}, \boxed{3}, \boxed{5}$", "2, 3, 5"),
        (r"\boxed{-2} and \boxed{1}", "-2, 1"),
        (r"\boxed{5} or \boxed{7}", "5, 7"),
        (r"$$\boxed{k = 45} \quad \text{and} \quad \boxed{n = 2}$$", "k = 45, n = 2"),
        (r"\boxed{4}, that is \boxed{4}", "4"),
        (r"\boxed{1} and \boxed{} and \boxed{2}", "1, 2"),
        (r"\boxed{1}" + " " * 60 + r"or \boxed{2}", "1, 2"),
        (r"\boxed{1}" + " " * 70 + r"or \boxed{2}", "2"),
        (r"\boxed{1} but then again \boxed{2}", "2"),
    ],
)
def test_boxes_that_stand_together_are_one_answer(text, answer):
    assert extract_final_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("So \\boxed{4}.\nWait, no.\nFinal Answer: 5", "5"),
        ("So \\boxed{4}.\n\n**Final Answer**\n\n5", "5"),
        ("Final answer: 5\nI mean \\boxed{4}", "4"),
    ],
)
def test_of_a_box_and_a_final_answers_line_the_later_one_counts(text, answer):
    assert extract_final_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"Therefore $x \geq 5$ is the solution.", r"x \geq 5"),
        ("Steps.\nThus, $5$ or $7$ it is.\n", "5, 7"),
        (r"Hence \[ x = 2 \]", "x = 2"),
        ("Adding them up.\nSo the answer is 12.", "12."),
        ("The solution is $x != 5$", "$x != 5$"),
        ("A: 3\nTherefore $x = 4$.", "3"),
    ],
)
def test_a_last_line_that_concludes_states_the_answer_where_nothing_else_does(text, answer):
    assert extract_final_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("A: 42", "42"),
        ("A: 1\nno\nA: 2\nbye", "2"),
        ("Answer: yes", "yes"),
        ("thus\nFinal answer: x = 3\n", "x = 3"),
        ("The final answer is 3", "3"),
        ("**Final Answer:** 12", "12"),
        ("### Final Answer\n\n12 apples\n\nBye", "12 apples"),
        ("steps\n#### 18", "18"),
        ("A: 1\n#### 18\n", "18"),
        ("#### A heading\ntext\nA: 5", "5"),
    ],
)
def test_without_a_box_the_marked_answer_is_taken(text, answer):
    assert extract_final_answer(text) == answer


@pytest.mark.parametrize(
    "text",
    [
        "",
        "no answer here",
        "#### A heading\nand text",
        "a: lower case",
        "Finally answer",
        "Final answer:",
        "\\boxed{",
        "We have $x = 3$",
        "So be it.",
        "Therefore $x = 5$.\nAnything else?",
    ],
)
def test_a_text_that_marks_no_answer_has_none(text):
    assert extract_final_answer(text) is None


def test_a_hostile_text_costs_no_more_than_its_length():
    assert extract_final_answer("\\boxed{" * 100_000) is None
    assert extract_final_answer("\\boxed{" * 50_000 + "}" * 50_000) is not None
    assert extract_final_answer("\\boxed{" * 50_000 + "x" + "}" * 50_000) == "x"
    assert extract_final_answer("\\boxed{1}" * 50_000 + "\\boxed{2}") == "1, 2"
    assert extract_final_answer("\n####" + " " * 100_000 + "\nx") is None
    assert extract_final_answer("A:\n****\n" * 50_000) is None
    assert extract_final_answer("So " + "$" * 100_000) is None
    assert extract_final_answer("So " + "\\(" * 100_000) is None


@given(st.text())
def test_any_text_is_read_without_error_into_a_stripped_answer_or_none(text):
    answer = extract_final_answer(text)
    assert answer is None or (answer and answer == answer.strip())


@given(st.text(), st.text(st.characters(exclude_characters="{}\\", exclude_categories=["Cs", "Z", "C"]), min_size=1))
def test_a_box_at_the_end_is_always_the_answer(text, answer):
    assume("\\boxed" not in text)
    assert extract_final_answer(f"{text}\n\\boxed{{{answer}}}") == answer
