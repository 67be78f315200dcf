import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_client.steps import extract_final_answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"So \boxed{42}.", "42"),
        (r"First \boxed{1}, no: \boxed{2}.", "2"),
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
    ],
)
def test_the_last_boxed_answer_is_found_with_its_braces_balanced(text, answer):
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
    ["", "no answer here", "#### A heading\nand text", "a: lower case", "Finally answer", "Final answer:", "\\boxed{"],
)
def test_a_text_that_marks_no_answer_has_none(text):
    assert extract_final_answer(text) is None


def test_a_hostile_text_costs_no_more_than_its_length():
    assert extract_final_answer("\\boxed{" * 100_000) is None
    assert extract_final_answer("\\boxed{" * 50_000 + "}" * 50_000) is not None


@given(st.text())
def test_any_text_is_read_without_error_into_a_stripped_answer_or_none(text):
    answer = extract_final_answer(text)
    assert answer is None or (answer and answer == answer.strip())


@given(st.text(), st.text(st.characters(exclude_characters="{}\\", exclude_categories=["Cs", "Z", "C"]), min_size=1))
def test_a_box_at_the_end_is_always_the_answer(text, answer):
    assert extract_final_answer(f"{text}\n\\boxed{{{answer}}}") == answer
