"""How much is decoded to find a response's tokens: usually nothing, and never the whole response repeatedly."""

import pytest
from hypothesis import given

from tests.trainer_client import small_tokenizers as small
from tests.trainer_client.small_tokenizers import bytes_of, decode, encode, ids_of, said_by, sampled
from trainer_client.text.offsets import TokenOffsets

pytestmark = pytest.mark.trl


def longest_decoded(tokenizer, ids):
    """The most tokens that are decoded at a time while a text is aligned."""
    offsets, text, lengths = TokenOffsets(tokenizer), decode(tokenizer, ids), []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(offsets, "_decode", lambda part: lengths.append(len(part)) or decode(tokenizer, part))
        assert offsets._align_by_decoding(ids, text, windows=True) is not None
    return max(lengths)


@pytest.mark.parametrize("kind", sorted(small.ALL))
def test_the_decoded_window_does_not_grow_with_the_response(kind):
    tokenizer = small.ALL[kind]()
    assert longest_decoded(tokenizer, [index for text in small.TEXTS * 5 for index in encode(tokenizer, text)]) < 12


def test_the_decoded_window_does_not_grow_where_tokens_end_within_characters():
    assert longest_decoded(said_by(b"ab\xc3", b"\xa9x"), [0, 1] * 20) < 6


def decoded_nothing(tokenizer, ids):
    """Whether a step's tokens are found without decoding any token."""
    offsets, text = TokenOffsets(tokenizer), decode(tokenizer, ids)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(offsets, "_decode", lambda part: pytest.fail(f"decoded {part}"))
        return offsets.place(ids, text) is not None


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
