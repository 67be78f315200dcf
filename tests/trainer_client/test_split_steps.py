import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_client.steps import Step, has_format, split_steps

HEADERLESS = st.text(st.characters(exclude_characters="#", exclude_categories=["Cs"]) | st.just("𝔸") | st.just("🙂"))


@st.composite
def stepped(draw):
    """A text made of a preamble and steps, with its expected spans."""
    preamble = draw(HEADERLESS)
    text = preamble + ("\n" if preamble else "")
    spans = {}
    for number in draw(st.lists(st.integers(1, 12), max_size=6)):
        start = len(text)
        text += f"### Step {number}: {draw(HEADERLESS)}\n"
        spans.setdefault(number, Step(number, start, len(text)))
    return text, list(spans.values())


@given(stepped())
def test_generated_steps_are_found_at_their_positions(case):
    text, steps = case
    assert split_steps(text) == steps


@given(st.one_of(st.text(), stepped().map(lambda case: case[0]), st.text("#Step 12:\n.a")))
def test_spans_are_disjoint_ordered_within_the_text_and_begin_with_their_header(text):
    steps = split_steps(text)
    ends = [0, *(step.end for step in steps)]
    for step, previous_end in zip(steps, ends, strict=False):
        assert previous_end <= step.start < step.end <= len(text)
        assert text[step.start :].lstrip(" \t").startswith("###")
        assert str(step.number) in text[step.start : step.end].split("\n")[0]
        assert step.start == 0 or text[step.start - 1] == "\n"
    assert len({step.number for step in steps}) == len(steps)


def test_text_before_the_first_header_belongs_to_no_step():
    text = "Let me think.\n### Step 1: add\n2+2\n### Step 2: done"
    assert split_steps(text) == [Step(1, 14, 34), Step(2, 34, len(text))]
    assert text[14:34] == "### Step 1: add\n2+2\n"


def test_positions_are_code_points():
    assert split_steps("🙂𝔸\n### Step 1: 🙂") == [Step(1, 3, 16)]


def test_a_repeated_number_counts_once_and_still_ends_the_step_before_it():
    text = "### Step 1: a\n### Step 2: b\n### Step 1: c\n### Step 3: d"
    assert split_steps(text) == [Step(1, 0, 14), Step(2, 14, 28), Step(3, 42, 55)]


def test_numbers_may_be_unordered_and_have_gaps():
    assert [step.number for step in split_steps("### Step 7:\n### Step 2:\n### Step 10:")] == [7, 2, 10]


@pytest.mark.parametrize(
    "header",
    [
        "### Step 3:",
        "### Step 3",
        "###Step 3:",
        "###  Step\t3 :",
        "### Step 03:",
        "### Step 3. Then",
        "### Step 3: 1.5",
        "#### Step 3:",
        "###### Step 3:",
        "### Step3:",
        "####Step3:",
        "  ### Step 3:",
        "\t### Step 3:",
    ],
)
def test_headers_may_have_other_spacing_and_no_colon(header):
    assert [step.number for step in split_steps(f"x\n{header}\ny")] == [3]
    assert has_format(f"x\n{header}\n\\boxed{{1}}")


def test_a_step_with_an_indented_header_begins_at_its_line():
    assert split_steps("x\n  #### Step1: a\n\t### Step 2: b") == [Step(1, 2, 18), Step(2, 18, 32)]


def test_a_hostile_text_is_split_in_linear_time():
    for text in (" " * 100_000, "#" * 100_000, "### Step " + "0" * 100_000, "###" + " " * 100_000):
        assert split_steps(text) == []


@pytest.mark.parametrize(
    "line",
    [
        "## Step 1:",
        "see ### Step 1:",
        "### step 1:",
        "### Step 0:",
        "### Step -1:",
        "### Step one:",
        "### Step 1.5:",
        "### Step 2a:",
        "### Step1a:",
        "### Steps 1:",
        "### Step ٣:",
        "### Step 12345678901234567890:",
    ],
)
def test_text_that_only_resembles_a_header_is_ignored(line):
    assert split_steps(f"x\n{line} y\nz") == []


def test_a_windows_line_ending_ends_a_line():
    assert [step.number for step in split_steps("a\r\n### Step 1:\r\nb\r\n### Step 2:\r\n")] == [1, 2]


def test_an_empty_text_has_no_steps():
    assert split_steps("") == []


@pytest.mark.parametrize(
    ("text", "kept"),
    [
        ("### Step 1: add\nSo \\boxed{4}.", True),
        ("### Step 1: add\nSo 4.", False),
        ("So \\boxed{4}.", False),
        ("### Step 1: add\nSo \\boxed{}.", False),
        ("### Step 1: add\nSo \\boxed{4", False),
    ],
)
def test_the_format_requires_step_headers_and_a_boxed_answer(text, kept):
    assert has_format(text) is kept
