"""Where the tokens of a response lie in its text."""

from itertools import pairwise

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Regex, decoders

from tests.trainer_client import small_tokenizers as small
from tests.trainer_client.small_tokenizers import bytes_of, decode, encode, ids_of, said_by, sampled
from trainer_client.steps import split_steps, token_spans
from trainer_client.text.offsets import TokenOffsets

pytestmark = pytest.mark.trl

LETTERS = "ab 7.,'\t\n#Stepé漢🙂\u0301"


class RecordingTokenizer:
    """A tokenizer that records how many tokens it decodes at a time. Without a backend, its vocabulary is unknown."""

    def __init__(self, tokenizer, backend=None):
        self.tokenizer, self.backend_tokenizer, self.lengths = tokenizer, backend, []

    def decode(self, ids, **options):
        self.lengths.append(len(ids))
        return self.tokenizer.decode(ids, **options)


def parts(tokenizer, ids):
    """The text at each token's offsets."""
    text, offsets = TokenOffsets(tokenizer).text_and_offsets(ids)
    return [text[start:end] for start, end in offsets]


def followed(tokenizer, ids, windows=True):
    """Offsets found by decoding alone, as for a tokenizer whose bytes are unknown."""
    offsets = TokenOffsets(RecordingTokenizer(tokenizer))
    found = offsets._align_by_decoding(ids, decode(tokenizer, ids), windows=windows)
    return offsets.text_and_offsets(ids)[1] if found is None else found


def every_way(tokenizer, ids):
    """Offsets found the default way, by decoding the last tokens, and by decoding every prefix."""
    first = TokenOffsets(tokenizer).text_and_offsets(ids)[1]
    return [found.tolist() for found in (first, followed(tokenizer, ids), followed(tokenizer, ids, windows=False))]


@given(sampled())
def test_the_text_is_what_the_tokenizer_decodes(case):
    tokenizer, ids = case
    text, offsets = TokenOffsets(tokenizer).text_and_offsets(ids)
    assert [text] == tokenizer.batch_decode([ids], skip_special_tokens=True)
    assert (offsets.shape, offsets.dtype) == ((len(ids), 2), np.int64)


@given(sampled())
def test_offsets_never_decrease_and_cover_the_text(case):
    tokenizer, ids = case
    length = len(decode(tokenizer, ids))
    for offsets in every_way(tokenizer, ids):
        heard = [(start, end) for start, end in offsets if end > 0]
        assert all(start < end for start, end in heard)
        assert all(a <= c and b <= d for (a, b), (c, d) in pairwise(heard))
        assert set().union(*(range(start, end) for start, end in heard)) == set(range(length))


@given(sampled())
def test_a_token_starts_where_the_text_of_its_predecessors_ends(case):
    """Checked wherever the decoded prefix ends in a whole character of the text."""
    tokenizer, ids = case
    text = decode(tokenizer, ids)
    ends = [decode(tokenizer, ids[:token]) for token in range(len(ids) + 1)]
    for offsets in every_way(tokenizer, ids):
        for token, before in enumerate(ends):
            if text.startswith(before) and not before.endswith("\ufffd"):
                assert all(start >= len(before) for start, end in offsets[token:] if end)
                assert all(end <= len(before) for _, end in offsets[:token])


@given(sampled())
def test_all_methods_find_the_same_offsets(case):
    """Except within invalid UTF-8, where the text does not show which byte became which U+FFFD."""
    tokenizer, ids = case
    text = decode(tokenizer, ids)
    for places in zip(*every_way(tokenizer, ids), strict=True):
        (start, *_), (*_, end) = sorted(place[0] for place in places), sorted(place[1] for place in places)
        assert places[0] == places[1] == places[2] or "\ufffd" in text[start:end]


@given(st.sampled_from(sorted(small.JOINING)), st.text(LETTERS))
def test_a_canonical_tokenisation_has_the_tokenizers_own_offsets(kind, drawn):
    tokenizer = small.JOINING[kind]()
    text = decode(tokenizer, encode(tokenizer, drawn))
    encoding = tokenizer(text, add_special_tokens=False, return_offsets_mapping=True)
    ids = encoding["input_ids"]
    if decode(tokenizer, ids) == text:
        dropped = next((at for at in range(len(ids)) if decode(tokenizer, ids[: at + 1])), len(ids))
        expected = [(0, 0)] * dropped + [tuple(pair) for pair in encoding["offset_mapping"][dropped:]]
        assert [tuple(pair) for pair in TokenOffsets(tokenizer).text_and_offsets(ids)[1].tolist()] == expected


def test_tokens_that_form_one_character_all_span_it():
    tokenizer = said_by(b"a", b"\xf0", b"\x9f\x99", b"\x82", b"\xc3", b"\xa9")
    assert parts(tokenizer, range(6)) == ["a", "🙂", "🙂", "🙂", "é", "é"]
    assert parts(small.llama(), bytes_of(small.llama(), "a🙂é".encode())) == ["a", *"🙂🙂🙂🙂", "é", "é"]


def test_a_token_of_a_partial_and_a_whole_character_spans_both():
    tokenizer = said_by(b"ab\xc3", b"\xa9x", b"y")
    assert parts(tokenizer, [0, 1, 2]) == ["abé", "éx", "y"]
    assert followed(tokenizer, [0, 1, 2]).tolist() == [[0, 3], [2, 4], [4, 5]]


def test_a_truncated_character_becomes_a_replacement_character_spanned_by_its_tokens():
    tokenizer = said_by(b"ab\xf0", b"\x9f", b"\x99")
    assert parts(tokenizer, [0, 1, 2]) == ["ab\ufffd", "\ufffd", "\ufffd"]
    assert followed(tokenizer, [0, 1, 2]).tolist() == [[0, 3], [2, 3], [2, 3]]


def test_invalid_utf8_gives_a_replacement_character_for_each_invalid_part():
    tokenizer = said_by(b"\xff\xfe", b"\xe2\x82", b"\xe2\x82\xac\xf0", b"\x80")
    text, offsets = TokenOffsets(tokenizer).text_and_offsets([0, 1, 2, 3])
    assert text == "\ufffd\ufffd\ufffd€\ufffd\ufffd"
    assert offsets.tolist() == [[0, 2], [2, 3], [3, 5], [5, 6]]


def test_byte_fallback_replaces_every_byte_of_a_run_with_an_invalid_one():
    tokenizer = small.gemma()
    ids = [*bytes_of(tokenizer, "é".encode()), *ids_of(tokenizer, "a"), *bytes_of(tokenizer, b"\n\xc3\xa9\xf0")]
    text, offsets = TokenOffsets(tokenizer).text_and_offsets(ids)
    assert text == "éa\ufffd\ufffd\ufffd\ufffd"
    assert offsets.tolist() == [[0, 1], [0, 1], [1, 2], [2, 3], [3, 4], [4, 5], [5, 6]]
    assert every_way(tokenizer, bytes_of(tokenizer, b"\xff!\xee\xff")) == [[[0, 1], [1, 2], [2, 3], [3, 4]]] * 3


def test_special_tokens_have_no_offsets_in_any_position():
    tokenizer = said_by(b"a", b"\xc3", b"\xa9b")
    pad, end = tokenizer.pad_token_id, tokenizer.eos_token_id
    expected = [(0, 0), (0, 0), (0, 1), (0, 0), (1, 2), (0, 0), (1, 3), (0, 0), (0, 0)]
    for found in (TokenOffsets(tokenizer).text_and_offsets, lambda ids: ("", followed(tokenizer, ids))):
        assert [tuple(place) for place in found([pad, pad, 0, end, 1, pad, 2, end, pad])[1].tolist()] == expected


def test_added_tokens_that_are_not_special_have_offsets():
    tokenizer = small.llama()
    assert parts(tokenizer, ids_of(tokenizer, "<think>", "▁", "</think>")) == ["<think>", " ", "</think>"]
    tokenizer = said_by(b"a")
    tokenizer.add_tokens(["two words", "日本", "soft\u00adly"])
    assert parts(tokenizer, [0, 3, 4, 5]) == ["a", "two words", "日本", "soft\u00adly"]


def test_a_leading_space_dropped_by_the_decoder_has_no_offsets():
    assert parts(small.llama(), ids_of(small.llama(), "</s>", "▁", "▁", "a")) == ["", "", " ", "a"]
    assert parts(small.unigram(), ids_of(small.unigram(), "</s>", "▁", "▁", "a")) == ["", "", " ", "a"]
    assert parts(small.gemma(), ids_of(small.gemma(), "</s>", "▁", "a")) == ["", " ", "a"]


def test_a_space_removed_by_clean_up_spans_the_character_that_replaced_it():
    tokenizer = small.cleaned()
    ids = ids_of(tokenizer, "it", "'", "s", "done", ".")
    assert decode(tokenizer, ids) == "it's done."
    assert parts(tokenizer, ids) == ["it", "'", "'s", " done", "."]


def test_tokens_whose_text_the_decoder_removes_span_the_text_in_its_place():
    tokenizer = said_by(b"x", b"a", b"b", b"c")
    tokenizer.backend_tokenizer.decoder = decoders.Sequence([decoders.Fuse(), decoders.Replace("ab", "")])
    assert parts(tokenizer, [0, 1, 2]) == ["x", "x", "x"]
    assert parts(tokenizer, [0, 1, 2, 3]) == ["x", "c", "c", "c"]
    assert followed(tokenizer, [1, 2]).tolist() == [[0, 0], [0, 0]]


def test_a_response_of_no_tokens_is_empty():
    text, offsets = TokenOffsets(small.byte_level()).text_and_offsets([])
    assert (text, offsets.shape) == ("", (0, 2))


def test_ids_outside_the_vocabulary_have_no_offsets():
    tokenizer = said_by(b"a", b"b")
    assert parts(tokenizer, [0, 7, 1]) == ["a", "", "b"]


def test_tokens_added_later_are_found_by_decoding():
    tokenizer = said_by(b"a", b"b")
    offsets = TokenOffsets(tokenizer)
    tokenizer.add_tokens("<new>")
    assert offsets.text_and_offsets([0, 4, 1])[1].tolist() == [[0, 1], [1, 6], [6, 7]]


FUSED = [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse()]


@pytest.mark.parametrize(
    ("decoder", "expected"),
    [
        (None, ["▁", " #", " <0xC3>", " <0xA9>", " a", " ▁"]),
        (decoders.BPEDecoder("▁"), ["", " #", "<0xC3>", "<0xA9>", "a", ""]),
        (decoders.Sequence(FUSED[:1]), [" ", "#", "<0xC3>", "<0xA9>", "a", " "]),
        (decoders.Sequence([decoders.Replace(Regex("▁"), "_"), *FUSED[1:]]), ["_", "#", "é", "é", "a", "_"]),
        (decoders.Sequence([*FUSED, decoders.Strip(" ", 3, 0)]), ["", "#", "é", "é", "a", " "]),
        (decoders.Sequence([*FUSED, decoders.Strip(" ", 0, 1)]), ["", " #", "é", "é", "a", ""]),
        (decoders.Sequence([*FUSED, decoders.Strip("#", 1, 0)]), [" ", "#", "é", "é", "a", " "]),
    ],
)
def test_other_kinds_of_decoders_are_supported(decoder, expected):
    tokenizer = small.wrapped(small.byte_fallback(decoder))
    ids = [*ids_of(tokenizer, "▁", "#"), *bytes_of(tokenizer, "é".encode()), *ids_of(tokenizer, "a", "▁")]
    assert parts(tokenizer, ids) == expected


def test_masked_labels_are_refused():
    with pytest.raises(ValueError, match="a token id is -100; give the sampled ids"):
        TokenOffsets(small.byte_level()).text_and_offsets([1, -100])


def test_arrays_of_ids_are_read_like_lists():
    tokenizer = small.word_piece()
    ids = encode(tokenizer, "### Step 1: done.")
    assert parts(tokenizer, np.array(ids)) == parts(tokenizer, ids)


def longest_decoded(tokenizer, ids):
    """The most tokens that are decoded at a time while a text is aligned."""
    recording = RecordingTokenizer(tokenizer)
    TokenOffsets(recording).text_and_offsets(ids)
    return max(recording.lengths[1:])  # the first are all tokens, for the text


@pytest.mark.parametrize("kind", sorted(small.ALL))
def test_the_decoded_window_does_not_grow_with_the_response(kind):
    tokenizer = small.ALL[kind]()
    assert longest_decoded(tokenizer, [index for text in small.TEXTS * 5 for index in encode(tokenizer, text)]) < 12


def test_the_decoded_window_does_not_grow_where_tokens_end_within_characters():
    assert longest_decoded(said_by(b"ab\xc3", b"\xa9x"), [0, 1] * 20) < 6


def decoded_nothing(tokenizer, ids):
    """Whether a step's tokens are found without decoding any token."""
    recording = RecordingTokenizer(tokenizer, tokenizer.backend_tokenizer)
    return TokenOffsets(recording).place(ids, decode(tokenizer, ids)) is not None and not recording.lengths


@given(sampled(small.JOINING))
def test_nothing_is_decoded_where_the_joined_bytes_equal_the_text(case):
    assert decoded_nothing(*case)


@pytest.mark.parametrize("kind", ["llama", "gemma", "unigram", "unigram without prefix"])
def test_leading_spaces_are_handled_without_decoding(kind):
    tokenizer = small.ALL[kind]()
    assert decoded_nothing(tokenizer, ids_of(tokenizer, "</s>", "▁", "▁", "a"))


def test_broken_characters_are_handled_without_decoding():
    for tokenizer in (small.llama(), small.gemma()):
        assert decoded_nothing(tokenizer, [*ids_of(tokenizer, "a"), *bytes_of(tokenizer, b"\n\xe2\x82")])
    assert decoded_nothing(said_by(b"a\xff\xff", b"\xe2\x82", b"\xff"), [0, 1, 0, 2, 1])


def test_added_tokens_outside_the_byte_alphabet_are_handled_without_decoding():
    tokenizer = said_by(b"a")
    tokenizer.add_tokens(["two words", "日本", "soft\u00adly"])
    assert decoded_nothing(tokenizer, [0, 3, 4, 5])


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
