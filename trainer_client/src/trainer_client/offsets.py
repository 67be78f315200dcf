"""Where the tokens of a response lie in its text, found from the very ids that were sampled.

A sampled response is seldom what the tokenizer would make of its text, so that tokenising the text again gives other
tokens. Makes no step and no advantage; `steps.token_spans` states whose a token is.
"""

from collections.abc import Iterable, Sequence
from itertools import takewhile
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt

from trainer_client._token_bytes import DecodedBytes, TokenBytes
from trainer_client.steps import token_spans

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["TokenAlignment", "TokenOffsets"]

Array = npt.NDArray[np.int64]


class TokenAlignment(NamedTuple):
    """Which tokens of a response have text, and where each of them begins.

    Attributes:
        tokens: their M places among the response's tokens, ascending.
        starts: M code points of the judged text; below 0 for a token that begins before it.
    """

    tokens: Array
    starts: Array

    def steps(self, steps: Iterable[tuple[int, int, int]]) -> dict[int, tuple[int, int]]:
        """Give the tokens of every step that has some, from the steps that `TokenOffsets.step_tokens` takes.

        Raises:
            ValueError: two steps overlap.
        """
        return self.spans_of(_ordered(steps))

    def spans_of(self, ordered: Sequence[tuple[int, int, int]]) -> dict[int, tuple[int, int]]:
        """Give the tokens of steps that are (start, end, number) and in order."""
        edges = np.array([(start, end) for start, end, _ in ordered], np.int64).reshape(-1, 2)
        ranges = np.searchsorted(self.starts, edges).tolist()
        spans: dict[int, tuple[int, int]] = {}
        for (first, last), (_, _, number) in zip(ranges, ordered, strict=True):
            if first < last:
                begin, end = int(self.tokens[first]), int(self.tokens[last - 1]) + 1
                spans[number] = (spans[number][0] if number in spans else begin, end)
        return spans


class TokenOffsets:
    """Finds where each token of a response lies in its text.

    Reads the vocabulary's bytes once; joining them gives the offsets, which count only where the joined bytes are the
    text. Other tokenizers, and responses where the two differ, are decoded token by token: exact as well, and slower
    by two orders of magnitude.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        self._tokenizer = tokenizer
        self._table = TokenBytes.from_tokenizer(tokenizer)

    def text_and_offsets(self, ids: Sequence[int]) -> tuple[str, Array]:
        """Decode a response, special tokens left out, and find each token's place in the text.

        Args:
            ids: T token ids, sampled in any tokenisation, with or without padding.

        Returns:
            The text, and T x 2 places [start, end) in its code points. Tokens that make a character together, or the
            U+FFFD for what is none, all have it in their span (the last alone, where a decoder leaves incomplete ones
            out). A token without text is at (0, 0): a special token, an id that the vocabulary lacks, a leading space
            that the decoder drops. The others' starts and ends never decrease, and together they cover the text.

        Raises:
            ValueError: an id is negative.
        """
        numbers = _numbers(ids)
        text = self._decode(numbers.tolist())
        spans = self._offsets_from_bytes(numbers, text)
        return text, self._offsets_by_decoding(numbers.tolist(), text) if spans is None else spans

    def step_tokens(
        self, ids: Sequence[int], text: str, steps: Iterable[tuple[int, int, int]]
    ) -> dict[int, tuple[int, int]] | None:
        """Find each step's tokens: {number: [first, last + 1)}, as `steps.token_spans` defines them.

        A token that begins before the judged text belongs to no step, as one before the first header does.

        Args:
            ids: T token ids of the response.
            text: what was judged: what the ids say without special tokens, or a part of it that occurs in it once, as
                where a chat parser dropped a thinking block or white space.
            steps: (number, start, end) triples in code points of `text`, such as `steps.split_steps` gives.

        Returns:
            The tokens of every step that has some; None where the judged text does not occur in what the ids say, or
            more than once, so that no step can be placed.

        Raises:
            ValueError: two steps overlap, or an id is negative.
        """
        ordered = _ordered(steps)
        if not ordered:
            return {}
        alignment = self.place(ids, text)
        return None if alignment is None else alignment.spans_of(ordered)

    def place(self, ids: Sequence[int], text: str) -> TokenAlignment | None:
        """Find where the tokens of a response begin in the judged text, before its steps are known.

        Args:
            ids, text: as `step_tokens` takes them.

        Returns:
            None where the judged text does not occur in what the ids say, or more than once.

        Raises:
            ValueError: an id is negative.
        """
        shift, offsets = 0, self._offsets_from_bytes(_numbers(ids), text)
        if offsets is None:
            whole, offsets = self.text_and_offsets(ids)
            shift = whole.find(text)
            if shift < 0 or whole.find(text, shift + 1) >= 0:
                return None
        tokens = np.flatnonzero(offsets[:, 1])
        return TokenAlignment(tokens, offsets[tokens, 0] - shift)

    def _decode(self, ids: list[int]) -> str:
        text = self._tokenizer.decode(ids, skip_special_tokens=True)
        assert isinstance(text, str)
        return text

    def _offsets_from_bytes(self, ids: Array, text: str) -> Array | None:
        """Find T x 2 places from the vocabulary's bytes; None where these are not the text."""
        decoded = None if self._table is None else self._table.join(ids)
        if decoded is None:
            return None
        invalid_ranges: list[tuple[int, int]] = []
        if decoded.data != text.encode(errors="surrogatepass"):
            if "\ufffd" not in text:
                return None
            invalid_ranges = list(decoded.invalid_ranges())
            if _decode_with_replacements(decoded.data, invalid_ranges) != text:
                return None
        return _code_points(decoded, invalid_ranges)

    def _offsets_by_decoding(self, ids: list[int], text: str) -> Array:
        """Find T x 2 places by decoding ever longer parts of the response."""
        spans = self._align_by_decoding(ids, text, windows=True)
        if spans is None:
            spans = self._align_by_decoding(ids, text, windows=False)
        assert spans is not None  # all the ids together say the text
        return spans

    def _align_by_decoding(self, ids: list[int], text: str, *, windows: bool) -> Array | None:
        """Follow the text as it grows with each token; None where it is lost on the way.

        What the ids up to a token say agrees with the text up to a place: there the next token starts. They may say
        more, which later tokens will change, such as an incomplete character or a space that is cleaned up; that
        counts as the text's next character. `windows` decodes from the tokens that agreed last, as streaming does,
        rather than from the first.
        """
        spans = np.zeros((len(ids), 2), np.int64)
        window = settled = 0  # tokens: what is decoded begins at the one, and agrees with the text up to the other
        context = before = ""  # what the tokens between the two say; what was decoded last
        place = reached = end = 0  # code points: the text's at `settled`, the agreement's, the last span's
        for token, index in enumerate(ids):
            decoded = self._decode(ids[window : token + 1])
            if decoded == before and not self._decode([index]):
                continue
            before = decoded
            new = decoded.removeprefix(context)
            agreed = _common_prefix_length(new, text, place) if decoded.startswith(context) else 0
            begin, reached = reached, max(reached, place + agreed)
            end = max(end, min(reached + (agreed < len(new)), len(text)))
            spans[token] = max(0, min(begin, end - 1)), end
            if windows and 0 < agreed == len(new):
                window, settled, place = settled, token + 1, place + agreed
                context = before = self._decode(ids[window:settled])
        return spans if reached == len(text) else None


def _ordered(steps: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Sort steps by where they start, and refuse some that overlap; step 0 is the whole response."""
    ordered = sorted((start, end, number) for number, start, end in steps if number != 0)
    token_spans((), [(number, start, end) for start, end, number in ordered])
    return ordered


def _numbers(ids: Sequence[int]) -> Array:
    numbers = np.fromiter(ids, np.int64, len(ids))
    if numbers.size and numbers.min() < 0:
        raise ValueError(f"a token id is {numbers.min()}; give the sampled ids, not labels masked with -100")
    return numbers


def _common_prefix_length(new: str, text: str, place: int) -> int:
    """Count the code points at the start of `new` that stand in `text` at a place."""
    if text.startswith(new, place):
        return len(new)
    pairs = zip(new, text[place : place + len(new)], strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _decode_with_replacements(data: bytes, invalid_ranges: Sequence[tuple[int, int]]) -> str | None:
    """Decode UTF-8 with one U+FFFD for each of the broken ranges."""
    starts = [0, *(end for _, end in invalid_ranges)]
    ends = [*(start for start, _ in invalid_ranges), len(data)]
    try:
        return "\ufffd".join(data[start:end].decode() for start, end in zip(starts, ends, strict=True))
    except UnicodeDecodeError:
        return None


def _code_points(decoded: DecodedBytes, invalid_ranges: Sequence[tuple[int, int]]) -> Array:
    """Turn T tokens' places in bytes into T x 2 places in code points, (0, 0) for a token without bytes."""
    starts, ends = decoded.edges[:-1], decoded.edges[1:]
    nonempty = starts < ends
    if not decoded.data.isascii():
        leads = (np.frombuffer(decoded.data, np.uint8) & 0xC0) != 0x80
        leads[[start for start, _ in invalid_ranges]] = True
        begun = np.zeros(len(leads) + 2, np.int64)  # at each byte: how many characters have begun before it
        leads.cumsum(out=begun[1:-1])
        starts, ends = begun[starts + 1] - 1, begun[ends]
    spans = np.empty((len(nonempty), 2), np.int64)
    spans[:, 0], spans[:, 1] = starts * nonempty, ends * nonempty
    return spans
