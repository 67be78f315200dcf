import re
from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainer_client.steps import Step, split_steps, token_spans

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
