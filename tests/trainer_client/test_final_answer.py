import time

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from trainer_client.text.final_answer import extract_final_answer, final_answer_line


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


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        (r"Therefore $x \geq 5$ is the solution.", r"x \geq 5"),
        ("Steps.\nThus, $5$ or $7$ it is.\n", "5, 7"),
        (r"Hence \[ x = 2 \]", "x = 2"),
        ("Adding them up.\nSo the answer is 12.", "12"),
        ("The solution is $x != 5$", "$x != 5$"),
        ("Half of 16 is 8. The answer is 8.", "8"),
        ("5 + 3 = 8! Therefore, the final answer is 8", "8"),
        ("It has $10,200 + $255. Final Answer: The final answer is $10,455$. I hope it is correct.", "$10,455$"),
        ("The answer is 5. The answer is 7", "7"),
        ("The final answer is 1,023. I hope it is correct. Note: $A$ and $B$ are digits.", "1,023"),
        ("We ask what the answer is. So $x = 5$.", None),
        ("A: 3\nTherefore $x = 4$.", "3"),
    ],
)
def test_a_concluding_last_line_is_the_answer_where_nothing_else_is(text, answer):
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
def test_without_a_box_the_marked_answer_is_used(text, answer):
    assert extract_final_answer(text) == answer


@pytest.mark.parametrize(
    ("text", "answer"),
    [
        ("Answer $ 9 $", "$ 9 $"),
        ("**Answer** \\(x + 1\\).", "\\(x + 1\\)"),
        ("Answer $$\n9\n$$", "9"),
        ("Answer: \\(\n9\n\\)", "9"),
        ("**Final Answer:**\n\n\\[\nx = 5\n\\]\nThat is all.", "x = 5"),
        (
            "Final answer:\n$$\n\\begin{matrix} 1 \\\\[2pt] 2 \\end{matrix}\n$$",
            "\\begin{matrix} 1 \\\\[2pt] 2 \\end{matrix}",
        ),
        ("Answer:\n\\[ 5 \\] or\n\\[ 7 \\]", "\\[ 5 \\] or"),
        ("Answer:\n$$\n5", "5"),
    ],
)
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


@pytest.mark.parametrize(
    "text",
    [
        "",
        "Answer $x$ is wrong",
        "Answer $5 at once",
        "no answer here",
        "#### A heading\nand text",
        "a: lower case\nand more",
        "Finally answer",
        "Final answer:",
        "\\boxed{",
        "We have $x = 3$\nand more",
        "So be it.\nAnything else?",
        "Therefore $x = 5$.\nAnything else?",
    ],
)
def test_a_text_without_a_marked_answer_has_none(text):
    assert extract_final_answer(text) is None


BOX = "\\boxed{"
HOSTILE = [
    BOX,
    BOX + "1}",
    BOX + "1} and ",
    BOX + " } ",
    "\\boxed\\a{",
    "\\boxed\\a",
    "\\fbox[",
    "A:\n****\n",
    "Answer $$\n",
    "Answer:\n\\(",
    "Answer $x",
    "Answer " + "$" * 50,
    "\n#### ",
    "Final answer: ",
    ". Final answer:",
    "**Final answer:** x ",
    "So $",
    "So $x",
    "So \\(",
    "The answer is. ",
    "The answer is well known. ",
    "the answer is 5, ",
    "Answer:\n- ",
    "Answer:\n(a) ",
    "Answer: 5, which is ",
    "5 because since, as ",
    "Answer: 5. It is ",
    ". ",
    "* * ",
    "# ",
    "✅ ",
    "> - 1. ",
    "so ",
    "so the final correct ",
    "answer",
    "答案",
    "答",
    "，所以答案是",
    "الإجابة: ",
    "<answer>",
    "</answer>",
    "<answer></answer>",
    "[answer]",
    '{"answer": "',
    "'answer': \"",
    '"answer": [',
    '"answer": 5, ',
    "<|im_end|>",
    "</s>\n",
    "Wait. ",
    "Wait, no, ",
    "* (> ",
    "! ",
    "“",
    "((",
    "b*",
    "\n",
    " ",
    "İ answer: ",
]


def processor_time(text: str) -> float:
    """The least of three measurements of the time in which a text is read, in seconds."""
    taken = []
    for _ in range(3):
        began = time.process_time()
        extract_final_answer(text), final_answer_line(text)
        taken.append(time.process_time() - began)
    return min(taken)


@pytest.mark.parametrize("unit", HOSTILE)
def test_a_hostile_text_takes_linear_time(unit):
    for shape in ("{}", "The answer is 5. {}"):
        few, many = (shape.format(unit * (size // len(unit))) for size in (2_000, 16_000))
        # Eight times the text takes about eight times as long, and 64 times if the time is quadratic.
        assert processor_time(many) < 24 * processor_time(few) + 0.05


def test_a_long_hostile_text_is_read():
    for unit in HOSTILE:
        extract_final_answer(unit * (100_000 // len(unit)))


@given(st.text())
def test_any_text_gives_a_stripped_answer_or_none_without_an_error(text):
    answer = extract_final_answer(text)
    assert answer is None or (answer and answer == answer.strip())


@given(st.text(), st.text(st.characters(exclude_characters="{}\\", exclude_categories=["Cs", "Z", "C"]), min_size=1))
def test_a_box_at_the_end_is_always_the_answer(text, answer):
    assume("\\boxed" not in text)
    assert extract_final_answer(f"{text}\n\\boxed{{{answer}}}") == answer
