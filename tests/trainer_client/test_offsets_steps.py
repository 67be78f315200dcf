from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.trainer_client import small_tokenizers as small
from tests.trainer_client.small_tokenizers import bytes_of, decode, encode, ids_of, said_by, sampled
from trainer_client.steps import split_steps, token_spans
from trainer_client.text.offsets import TokenOffsets

pytestmark = pytest.mark.trl

TEXT = "We add.\n### Step 1: 3 and 4\n### Step 2: don't 🙂\n"


def step_tokens(tokenizer, ids, text=None):
    """The tokens of each step of a response in its judged text."""
    text = decode(tokenizer, ids) if text is None else text
    return placed(tokenizer, ids, text, split_steps(text))


def placed(tokenizer, ids, text, steps):
    """The tokens of given steps; None if the text is not placed."""
    alignment = TokenOffsets(tokenizer).place(ids, text)
    return None if alignment is None else alignment.steps(steps)


def heads(tokenizer, ids):
    """The response split into three equal parts, each after a header."""
    parts = [ids[: len(ids) // 3], ids[len(ids) // 3 : 2 * len(ids) // 3], ids[2 * len(ids) // 3 :]]
    return [index for n, part in enumerate(parts, 1) for index in [*encode(tokenizer, f"\n### Step {n}: "), *part]]


@given(sampled(), st.data())
def test_any_split_into_steps_agrees_with_token_spans(case, data):
    tokenizer, ids = case
    text, offsets = TokenOffsets(tokenizer).text_and_offsets(ids)
    cuts = sorted(data.draw(st.lists(st.integers(0, len(text)), max_size=6)))
    steps = [(number % 3, start, end) for number, (start, end) in enumerate(pairwise(cuts), 1)]
    expected = token_spans(offsets.tolist(), steps)
    assert placed(tokenizer, ids, text, steps) == expected


@given(sampled(), st.integers(0, 3), st.integers(0, 3))
def test_padding_on_either_side_belongs_to_no_step(case, left, right):
    tokenizer, ids = case
    ids, pad = heads(tokenizer, ids), [tokenizer.pad_token_id]
    padded = step_tokens(tokenizer, pad * left + ids + pad * right)
    assert padded == {n: (first + left, last + left) for n, (first, last) in step_tokens(tokenizer, ids).items()}


@given(sampled(small.JOINING), st.sampled_from(["<think> so </think>\n\n", "\n\n", "  "]), st.booleans())
def test_steps_of_a_part_of_the_response_have_the_same_tokens_as_in_the_whole(case, before, stripped):
    tokenizer, ids = case
    ids = encode(tokenizer, before) + encode(tokenizer, TEXT) + ids
    whole = decode(tokenizer, ids)
    shift = whole.index("We add.")
    judged = whole[shift:].rstrip() if stripped else whole[shift:]
    steps = split_steps(judged)
    shifted = [(number, start + shift, end + shift) for number, start, end in steps]
    _, offsets = TokenOffsets(tokenizer).text_and_offsets(ids)
    assert placed(tokenizer, ids, judged, steps) == token_spans(offsets.tolist(), shifted)


def test_the_end_of_sequence_belongs_to_no_step_unless_it_is_inside_one():
    tokenizer = said_by(b"### Step 1: a\n", b"b\n", b"### Step 2: c")
    end = tokenizer.eos_token_id
    assert step_tokens(tokenizer, [end, 0, end, 1, end, 2, end]) == {1: (1, 4), 2: (5, 6)}


@pytest.mark.parametrize("judged", ["### Step 1: a", "### Step 1: a\n"])
def test_a_token_that_starts_before_the_judged_text_belongs_to_no_step(judged):
    assert step_tokens(said_by(b"\n\n###", b" Step 1:", b" a", b"\n", b"b"), [0, 1, 2, 3, 4], judged)[1][0] == 1


@pytest.mark.parametrize("kind", ["byte-level", "llama", "gemma"])
def test_a_response_truncated_within_a_character_keeps_its_last_tokens_in_their_step(kind):
    tokenizer = small.ALL[kind]()
    cut = ids_of(tokenizer, "ð", "Ł") if kind == "byte-level" else bytes_of(tokenizer, b"\xf0\x9f")
    ids = encode(tokenizer, "### Step 1: a") + cut
    assert decode(tokenizer, ids).endswith("\ufffd")
    first = next(token for token in range(len(ids)) if decode(tokenizer, ids[: token + 1]))
    assert step_tokens(tokenizer, ids) == {1: (first, len(ids))}


@pytest.mark.parametrize("judged", ["### Step 1: b", "### Step 1: a", "### Step 1: A\n"])
def test_steps_are_unplaced_unless_the_response_contains_the_judged_text_exactly_once(judged):
    ids = encode(small.byte_level(), "### Step 1: a\n### Step 1: a\n")
    assert step_tokens(small.byte_level(), ids, judged) is None


def test_steps_of_a_judged_text_with_a_lone_surrogate_are_unplaced():
    assert placed(said_by(b"a"), [0], "\ud800", [(1, 0, 1)]) is None


def test_steps_are_unplaced_where_occurrences_of_the_judged_text_overlap():
    assert placed(said_by(b"aba"), [0, 0], "aba", [(1, 0, 3)]) is None
    assert placed(said_by(b"ab"), [0, 0, 0], "abab", [(1, 0, 4)]) is None


def test_overlapping_steps_are_refused():
    with pytest.raises(ValueError, match="steps 1 and 2 overlap"):
        placed(said_by(b"ab"), [0], "ab", [(1, 0, 2), (2, 1, 2)])


def test_spans_are_plain_integers():
    spans = placed(said_by(b"ab"), [0], "ab", [(1, 0, 2)])
    assert all(type(place) is int for place in spans[1])
