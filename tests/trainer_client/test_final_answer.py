import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from tests.cases import each_case
from trainer_client.final_answer import extract_final_answer


@each_case("text", "answer")
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
def test_adjacent_boxes_are_one_answer(text, answer):
    assert extract_final_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("So \\boxed{4}.\nWait, no.\nFinal Answer: 5", "5"),
        ("So \\boxed{4}.\n\n**Final Answer**\n\n5", "5"),
        ("Final answer: 5\nI mean \\boxed{4}", "4"),
        ("That is \\boxed{4}. No. Final Answer: The final answer is $5$. I hope it is correct.", "$5$"),
        ("That is \\boxed{4}. The final answer is therefore 4.", "4"),
    ],
)
def test_the_later_of_a_box_and_a_final_answer_line_counts(text, answer):
    assert extract_final_answer(text) == answer


@each_case("text", "answer")
def test_a_concluding_last_line_is_the_answer_where_nothing_else_is(text, answer):
    assert extract_final_answer(text) == answer


@each_case("text", "answer")
def test_without_a_box_the_marked_answer_is_used(text, answer):
    assert extract_final_answer(text) == answer


@each_case("text", "answer")
def test_a_formula_at_the_start_of_an_answer_is_read_to_its_end(text, answer):
    assert extract_final_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Final Answer: The final answer is $10,455$. I hope it is correct.", "$10,455$"),
        ("Final answer: the answer is:\n5", "5"),
        ("Final Answer\nThe answer is 5", "5"),
        ("Final answer: $5$. Or maybe $7$.", "$5$. Or maybe $7$"),
        ("Final answer: $5$. Or 7.", "$5$. Or 7"),
        ("Final answer: Dr. Smith", "Dr. Smith"),
    ],
)
def test_repeated_announcements_and_trailing_words_are_stripped_from_the_answer(text, answer):
    assert extract_final_answer(text) == answer


@each_case("text")
def test_a_text_without_a_marked_answer_has_none(text):
    assert extract_final_answer(text) is None


@given(st.text())
def test_any_text_gives_a_stripped_answer_or_none_without_an_error(text):
    answer = extract_final_answer(text)
    assert answer is None or (answer and answer == answer.strip())


@given(st.text(), st.text(st.characters(exclude_characters="{}\\", exclude_categories=["Cs", "Z", "C"]), min_size=1))
def test_a_box_at_the_end_is_always_the_answer(text, answer):
    assume("\\boxed" not in text)
    assert extract_final_answer(f"{text}\n\\boxed{{{answer}}}") == answer
