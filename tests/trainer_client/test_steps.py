import json
import re
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_client.steps import Step, has_format, split_steps, step_deltas, token_spans

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


CASES = json.loads((Path(__file__).parent / "vectors" / "stepwise.json").read_text())["cases"]
ROLLOUTS = [
    pytest.param(case["criteria"], rollout, deltas, id=f"case{i}-rollout{j}")
    for i, case in enumerate(CASES)
    for j, (rollout, deltas) in enumerate(zip(case["rollouts"], case["step_deltas"], strict=True))
]
KINDS = ["suggest", "pitfall", "bonus", "answer", "factual", "point"]


def criteria(*kinds):
    return [{"id": f"c{i}", "kind": kind} for i, kind in enumerate(kinds)]


@st.composite
def judged(draw):
    """(criteria, scores, steps, n_steps) of a response."""
    n_steps = draw(st.integers(0, 4))
    kinds = draw(st.lists(st.sampled_from(KINDS), max_size=10))
    scores = [draw(st.sampled_from([None, 0, 1])) for _ in kinds]
    return criteria(*kinds), scores, [draw(st.integers(-1, n_steps)) for _ in kinds], n_steps


@pytest.mark.parametrize(("rubric", "rollout", "expected"), ROLLOUTS)
def test_the_worked_cases_hold(rubric, rollout, expected):
    n_steps = max(map(int, rollout["spans"]))
    deltas = step_deltas(rubric, rollout["scores"], rollout["steps"], n_steps)
    assert deltas == pytest.approx({int(step): delta for step, delta in expected.items()}, abs=1e-9)


@given(judged())
def test_the_total_stays_within_the_budgets(case):
    assert -1.0 - 1e-9 <= sum(step_deltas(*case).values()) <= 1.8 + 1e-9


@given(judged())
def test_satisfying_all_criteria_of_a_kind_spends_its_whole_budget(case):
    rubric, _, _, n_steps = case
    deltas = step_deltas(rubric, [1] * len(rubric), [0] * len(rubric), n_steps)
    kinds = {c["kind"] for c in rubric}
    spent = 0.8 * ("suggest" in kinds) - 1.0 * ("pitfall" in kinds) + 1.0 * ("bonus" in kinds)
    assert sum(deltas.values()) == pytest.approx(spent)


@given(judged())
def test_a_step_has_a_delta_exactly_if_a_scored_criterion_of_a_step_kind_names_it(case):
    rubric, scores, steps, _ = case
    attributed = {
        step
        for c, score, step in zip(rubric, scores, steps, strict=True)
        if c["kind"] in ("suggest", "pitfall", "bonus") and score is not None and step != -1
    }
    assert set(step_deltas(*case)) == attributed


@given(judged())
def test_counting_satisfied_criteria_only_removes_steps_and_changes_no_delta(case):
    every, satisfied = step_deltas(*case), step_deltas(*case, count_satisfied_only=True)
    assert satisfied == {step: delta for step, delta in every.items() if step in satisfied}
    assert all(every[step] == 0.0 for step in set(every) - set(satisfied))


def test_an_unscored_criterion_is_left_out_but_counts_in_the_size_of_its_kind():
    assert step_deltas(criteria("suggest", "suggest"), [1, None], [1, 1], 1) == {1: 0.4}


def test_a_step_with_only_unsatisfied_criteria_has_a_zero_unless_only_satisfied_ones_count():
    assert step_deltas(criteria("suggest"), [0], [1], 2) == {1: 0.0}
    assert step_deltas(criteria("suggest"), [0], [1], 2, count_satisfied_only=True) == {}


def test_budgets_are_parameters_and_a_pitfall_always_subtracts():
    rubric = criteria("suggest", "pitfall", "bonus")
    spent = step_deltas(rubric, [1, 1, 1], [1, 2, 3], 3, suggest=2, pitfall=0.5, bonus=4)
    assert spent == {1: 2.0, 2: -0.5, 3: 4.0}


def test_a_response_without_headers_accepts_only_no_step_and_the_whole_response():
    assert step_deltas(criteria("bonus", "bonus"), [1, 1], [-1, 0], 0) == {0: 0.5}
    with pytest.raises(ValueError, match=r"steps\[0\]"):
        step_deltas(criteria("bonus"), [1], [1], 0)


def test_deltas_outside_any_step_are_kept_on_request():
    criteria = [{"id": str(n), "kind": "suggest", "description": "d"} for n in range(4)]
    given = (criteria, [1.0, 1.0, 0.0, None], [-1, 1, -1, -1], 1)
    assert step_deltas(*given) == pytest.approx({1: 0.2})
    assert step_deltas(*given, keep_no_step=True) == pytest.approx({-1: 0.2, 1: 0.2})


def test_numpy_arrays_work_like_lists():
    assert step_deltas(criteria("bonus", "suggest"), np.array([1.0, 0.0]), np.array([1, 2]), 2) == {1: 1.0, 2: 0.0}


@pytest.mark.parametrize("step", [-2, 4, None, 1.0, "1"])
def test_a_step_outside_the_response_is_refused_by_its_index(step):
    with pytest.raises(ValueError, match=r"steps\[1\]"):
        step_deltas(criteria("bonus", "bonus"), [1, 1], [1, step], 3)


def test_the_step_of_a_failed_verdict_is_ignored():
    assert step_deltas(criteria("bonus", "bonus"), [1, None], [1, None], 3) == {1: 0.5}


def test_an_answer_needs_no_step():
    assert step_deltas(criteria("answer", "bonus"), [1, 1], [None, 1], 3) == {1: 1.0}


def test_a_different_number_of_steps_than_criteria_is_refused():
    with pytest.raises(ValueError, match="1 steps for 2 criteria"):
        step_deltas(criteria("bonus", "bonus"), [1, 1], [1], 3)


TEXT = "Hi.\n### Step 1: 🙂 one\n### Step 2: two\n### Step 1: again"


def words(text):
    """Offsets of a tokenizer with one token per word and the space after it."""
    return [match.span() for match in re.finditer(r"\S+\s*", text)]


@st.composite
def tokenized(draw):
    """A stepped text and its split into tokens, with special tokens around them."""
    numbers = draw(st.lists(st.integers(1, 4), max_size=5))
    text = draw(st.text("ab 🙂", max_size=5)) + "".join(
        f"\n### Step {n}: {draw(st.text('ab 🙂', max_size=6))}" for n in numbers
    )
    cuts = sorted(draw(st.sets(st.integers(0, len(text)), max_size=20)) | {0, len(text)})
    offsets = [(a, b) for a, b in pairwise(cuts) if a < b]
    before, after = draw(st.integers(0, 2)), draw(st.integers(0, 2))
    return text, [(0, 0)] * before + offsets + [(0, 0)] * after


def test_each_step_has_the_tokens_that_start_in_it_including_its_header():
    offsets = words(TEXT)
    spans = token_spans(offsets, split_steps(TEXT))
    tokens = {n: "".join(TEXT[a:b] for a, b in offsets[start:end]) for n, (start, end) in spans.items()}
    assert tokens == {1: "### Step 1: 🙂 one\n", 2: "### Step 2: two\n"}


def test_several_tokens_of_one_character_all_belong_to_its_step():
    assert token_spans([(0, 1), (1, 2), (1, 2), (1, 2)], [Step(1, 0, 1), Step(2, 1, 2)]) == {1: (0, 1), 2: (1, 4)}


def test_a_step_after_the_last_token_has_no_span():
    assert token_spans([(0, 4)], [Step(1, 0, 4), Step(2, 4, 9)]) == {1: (0, 1)}


def test_step_zero_for_the_whole_response_has_no_span():
    assert token_spans([(0, 4)], [Step(0, 0, 4), Step(1, 0, 4)]) == {1: (0, 1)}


def test_numpy_offsets_give_plain_integers():
    spans = token_spans(np.array([[0, 2], [2, 4]]), [(5, 0, 4)])
    assert spans == {5: (0, 2)}
    assert all(type(position) is int for position in spans[5])


def test_overlapping_steps_are_refused():
    with pytest.raises(ValueError, match="steps 1 and 2 overlap"):
        token_spans([(0, 4)], [Step(1, 0, 3), Step(2, 2, 4)])


@given(tokenized())
def test_every_token_is_in_exactly_the_step_of_its_first_character(case):
    text, offsets = case
    steps = split_steps(text)
    spans = token_spans(offsets, steps)
    for token, (start, end) in enumerate(offsets):
        holding = [s.number for s in steps if s.start <= start < s.end and end > 0]
        assert [n for n, (first, last) in spans.items() if first <= token < last] == holding


@given(tokenized())
def test_spans_are_disjoint_half_open_and_not_empty(case):
    text, offsets = case
    spans = sorted(token_spans(offsets, split_steps(text)).values())
    edges = [0, *(edge for span in spans for edge in span), len(offsets)]
    assert edges == sorted(edges)
    assert all(start < end for start, end in spans)
