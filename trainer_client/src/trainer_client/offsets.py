"""Where the tokens of a response lie in its text, computed from the token ids themselves.

Where the tokens of a response lie in its text, found from the very ids that were sampled.

A sampled response is seldom what the tokenizer would make of its text, so that tokenising the text again gives other
tokens. Makes no step and no advantage; `steps.token_spans` states whose a token is.

What each id of a vocabulary says, as bytes, and what a sequence of ids says when their bytes are joined.

Knows the decoders that join bytes: byte-level ones, and those of SentencePiece's kind, with or without byte fallback.
What it says of a sequence is a claim, for the caller to check against the decoded text: clean-up, exotic decoders and
tokens added later are not looked at.
"""

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, takewhile
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

from trainer_client.steps import token_spans

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

__all__ = ["TokenAlignment", "TokenOffsets"]

Array = npt.NDArray[np.int64]

_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class DecodedBytes(NamedTuple):
    """What T ids say: `data`, the T + 1 byte positions between the tokens, and which tokens are fallback bytes."""

    data: bytes
    edges: Array
    byte_fallback: npt.NDArray[np.bool_]

    def invalid_ranges(self) -> Iterator[tuple[int, int]]:
        """Find the bytes that are no UTF-8, as ranges of positions, each of which decodes to one U+FFFD.

        Byte-level decoders replace what can begin no character; byte fallback replaces every byte of a run of bytes
        that is not valid as a whole.
        """
        if not self.byte_fallback.any():
            yield from _maximal_subparts(self.data)
            return
        nonempty = np.flatnonzero(np.diff(self.edges))
        for _, run in groupby(nonempty.tolist(), key=self.byte_fallback.__getitem__):
            tokens = list(run)
            first, last = int(self.edges[tokens[0]]), int(self.edges[tokens[-1] + 1])
            if any(_maximal_subparts(self.data[first:last])):
                yield from ((at, at + 1) for at in range(first, last))


class TokenBytes:
    """The bytes of V ids, in one block.

    Attributes:
        bare: the first token loses its spaces, as Metaspace decoders have it.
        strip: how many spaces at the very start are dropped.
    """

    def __init__(
        self, pieces: Sequence[bytes], byte_fallback: Sequence[int], *, bare: bool = False, strip: int = 0
    ) -> None:
        self._block = np.frombuffer(b"".join(pieces), dtype=np.uint8)
        self._lengths = np.fromiter(map(len, pieces), np.int64, len(pieces))
        self._starts = self._lengths.cumsum() - self._lengths
        self._byte_fallback = np.zeros(len(pieces), np.bool_)
        self._byte_fallback[list(byte_fallback)] = True
        self.bare, self.strip = bare, strip

    @classmethod
    def from_tokenizer(cls, tokenizer: "PreTrainedTokenizerBase") -> "TokenBytes | None":
        """Read a tokenizer's vocabulary; None where its decoder is none of those known here."""
        backend = getattr(tokenizer, "backend_tokenizer", None)
        reader = None if backend is None else _reader(_decoders(backend))
        if backend is None or reader is None:
            return None
        vocabulary: dict[str, int] = backend.get_vocab(with_added_tokens=True)
        pieces = [b""] * (max(vocabulary.values(), default=-1) + 1)
        for token, index in vocabulary.items():
            pieces[index] = reader.read(token)
        for index, added in backend.get_added_tokens_decoder().items():
            if added.special:
                pieces[index] = b""
        byte_fallback = [i for token, i in vocabulary.items() if _FALLBACK.fullmatch(token)] if reader.fallback else []
        return cls(pieces, byte_fallback, bare=reader.bare, strip=reader.strip)

    def join(self, ids: Array) -> DecodedBytes | None:
        """Join the bytes of T ids; None where an id lies outside the vocabulary."""
        if ids.size and int(ids.max()) >= len(self._lengths):
            return None
        lengths = self._lengths[ids]
        edges = np.zeros(len(ids) + 1, np.int64)
        lengths.cumsum(out=edges[1:])
        at = np.repeat(self._starts[ids] - edges[:-1], lengths)
        at += np.arange(len(at))
        data = self._block[at].tobytes()
        if self.bare and data:
            data, edges = _without_spaces(data, edges, int(np.flatnonzero(lengths)[0]))
        elif self.strip and data.startswith(b" "):
            dropped = min(self.strip, len(data) - len(data.lstrip(b" ")))
            data, edges = data[dropped:], np.maximum(edges - dropped, 0)
        return DecodedBytes(data, edges, self._byte_fallback[ids])


class _Reader(NamedTuple):
    read: Callable[[str], bytes]
    fallback: bool = False
    bare: bool = False
    strip: int = 0


def _decoders(backend: Any) -> list[dict[str, Any]]:
    """Give the definition of a tokenizer's decoder: one mapping for each of its parts, in order."""
    if backend.decoder is None:
        return []
    from tokenizers import Tokenizer, models

    empty = Tokenizer(models.BPE())  # its JSON is the decoder's alone, where the backend's holds the vocabulary
    empty.decoder = backend.decoder
    definition = json.loads(empty.to_str())["decoder"]
    parts: list[dict[str, Any]] = definition["decoders"] if definition["type"] == "Sequence" else [definition]
    return parts


def _reader(parts: list[dict[str, Any]]) -> _Reader | None:
    kinds = [part["type"] for part in parts]
    if kinds == ["ByteLevel"]:
        return _Reader(_byte_level())
    if kinds == ["Metaspace"]:
        space = parts[0]["replacement"]
        return _Reader(lambda token: token.replace(space, " ").encode(), bare=parts[0]["prepend_scheme"] != "never")
    if kinds not in (["Replace", "ByteFallback", "Fuse"], ["Replace", "ByteFallback", "Fuse", "Strip"]):
        return None
    pattern, content = parts[0]["pattern"].get("String"), parts[0]["content"]
    if pattern is None:
        return None

    def read(token: str) -> bytes:
        byte = _FALLBACK.fullmatch(token)
        return bytes([int(byte[1], 16)]) if byte else token.replace(pattern, content).encode()

    return _Reader(read, fallback=True, strip=parts[3]["start"] if len(parts) == 4 else 0)


def _byte_level() -> Callable[[str], bytes]:
    """Make a reader of tokens in GPT-2's alphabet; one with another character in it says itself."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = [byte for byte in range(0x100) if byte not in printable]
    alphabet = {0x100 + place: byte for place, byte in enumerate(others)}
    alphabet |= dict.fromkeys(others, 0x10FFFF)

    def read(token: str) -> bytes:
        try:
            return token.translate(alphabet).encode("latin-1")
        except UnicodeEncodeError:
            return token.encode()

    return read


def _without_spaces(data: bytes, edges: Array, token: int) -> tuple[bytes, Array]:
    start, end = int(edges[token]), int(edges[token + 1])
    bare = data[start:end].replace(b" ", b"")
    return data[:start] + bare + data[end:], edges - (np.arange(len(edges)) > token) * (end - start - len(bare))


def _maximal_subparts(data: bytes) -> Iterator[tuple[int, int]]:
    """Find what Unicode calls the maximal subparts of ill-formed sequences, as ranges of positions."""
    rest, start = memoryview(data), 0
    while True:
        try:
            str(rest[start:], "utf-8")
        except UnicodeDecodeError as error:
            yield start + error.start, start + error.end
            start += error.end
        else:
            return


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
