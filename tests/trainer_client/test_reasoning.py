import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_client.text.thinking import ReasoningSplit, find_answer, split_reasoning

PIECES = ["<think>", "</think>", "Final answer: 3", "### Final Answer\n", "\\boxed{3}", "\\boxed{}", "\n", " so ", "x"]
TEXTS = st.lists(st.sampled_from(PIECES), max_size=10).map("".join) | st.text()


def answer(text):
    return split_reasoning(text).answer


@given(TEXTS)
def test_reasoning_and_answer_make_up_the_response_and_an_unsplit_one_is_both(text):
    split = split_reasoning(text)
    if find_answer(text) is None:
        assert split == (text, text, 0)
    else:
        assert split.reasoning + split.answer == text
        assert len(split.reasoning) == split.answer_start == find_answer(text)


@given(TEXTS, st.text("abc .\n"))
def test_the_text_after_thinking_is_the_answer_whatever_was_thought(thought, said):
    assert answer(f"<think>{thought}\n</think>\n\n{said}") == said.lstrip()


def test_the_reasoning_keeps_its_tags_so_that_another_answer_can_follow():
    assert split_reasoning("<think>\nHm.\n</think>\n\nIt is 4.") == ("<think>\nHm.\n</think>\n\n", "It is 4.", 22)
    assert split_reasoning("Hm.</think>4").reasoning == "Hm.</think>"


def test_a_thinking_block_takes_precedence_over_every_final_answer():
    text = "<think>\nFinal answer: 3\n\\boxed{3}\n</think>\nSteps.\nFinal answer: 4"
    assert answer(text) == "Steps.\nFinal answer: 4"


def test_truncated_thinking_has_an_empty_answer():
    text = "<think>Final answer: 3"
    assert split_reasoning(text) == (text, "", len(text))


@pytest.mark.parametrize(
    "line",
    [
        "Final answer: 3",
        "final answer is 3",
        "The final answer is 3.",
        "**Final Answer:** 3",
        "**Final Answer**",
        "## Final Answer ##",
        "  Final answer",
        "__The Final Answer__: 3",
        "Final answer\r",
        "✅ **My final answer:** 3",
        "> - Final answer: 3",
        "最终答案：3",
        "Respuesta final: 3",
    ],
)
def test_without_thinking_the_answer_begins_at_the_final_answer_line(line):
    assert split_reasoning(f"So x is 3.\n{line}\nMore of it.") == ("So x is 3.\n", f"{line}\nMore of it.", 11)


@pytest.mark.parametrize(
    "line",
    [
        "The final answer must be positive",
        "final answers: 3",
        "Her final answer: 3",
        "Answer: 3",
        "A: 3",
        "Finally: 3",
        "The final answer isolates x",
        r"\boxed{} and \boxed{3",
    ],
)
def test_other_lines_do_not_split_the_response(line):
    text = f"So x is 3.\n{line}\nMore of it."
    assert split_reasoning(text) == (text, text, 0)


def test_the_last_final_answer_counts_and_takes_precedence_over_any_box():
    assert answer("Final answer: 3\nNo.\nFinal answer: 4\nYes.") == "Final answer: 4\nYes."
    assert answer("So \\boxed{3}\nFinal answer: 3") == "Final answer: 3"
    assert answer("So.\n### Final Answer\n\nThe dose:\n\\boxed{3}") == "### Final Answer\n\nThe dose:\n\\boxed{3}"


def test_without_either_the_answer_begins_at_the_line_of_the_last_box():
    assert split_reasoning("So:\nx is \\boxed{3}.\nOr\n  it is \\boxed{\n4}, I say.\nBye \\boxed{}") == (
        "So:\nx is \\boxed{3}.\nOr\n",
        "  it is \\boxed{\n4}, I say.\nBye \\boxed{}",
        23,
    )


def test_a_response_that_is_all_answer_has_no_reasoning():
    assert split_reasoning("\\boxed{3}") == ("", "\\boxed{3}", 0)
    assert split_reasoning("") == ("", "", 0)


def test_a_custom_rule_may_be_given():
    assert split_reasoning("a; b", rule=lambda text: text.index(";") + 1) == ReasoningSplit("a;", " b", 2)
    assert split_reasoning("a; b", rule=lambda text: None) == ("a; b", "a; b", 0)
    assert split_reasoning("ab", rule=len) == ("ab", "", 2)


@pytest.mark.parametrize("place", [-1, 3])
def test_a_position_outside_the_text_is_refused(place):
    with pytest.raises(ValueError, match=f"the rule returned {place}"):
        split_reasoning("ab", rule=lambda text: place)
