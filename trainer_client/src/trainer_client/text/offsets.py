"""Where the tokens of a response lie in its text, computed from the token ids themselves.

Tokenising the text again would not do: a policy seldom samples the tokens that the tokenizer gives for its text.

`TokenBytes` knows the bytes of each id of a vocabulary, for decoders that join bytes: byte-level ones, and those of
SentencePiece with or without byte fallback. It ignores clean-up, other decoders and tokens added later, so
`TokenOffsets` compares the joined bytes with the decoded text before using them.
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


class TokenAlignment(NamedTuple):
    """The tokens of a response that have text, and where each of them begins.

    Attributes:
        tokens: the M indices of these tokens in the response, ascending.
        starts: M positions in code points of the judged text; negative for a token that begins before it.
    """

    tokens: Array
    starts: Array

    def steps(self, steps: Iterable[tuple[int, int, int]]) -> dict[int, tuple[int, int]]:
        """Return each step's tokens: {number: [first, last + 1)}, as `steps.token_spans` defines them.

        A token that begins before the judged text belongs to no step, like one before the first header.

        Args:
            steps: (number, start, end) triples in code points of the judged text, such as those of `steps.split_steps`.

        Raises:
            ValueError: two steps overlap.
        """
        ordered = _ordered(steps)
        edges = np.array([(start, end) for start, end, _ in ordered], np.int64).reshape(-1, 2)
        ranges = np.searchsorted(self.starts, edges).tolist()
        spans: dict[int, tuple[int, int]] = {}
        for (first, last), (_, _, number) in zip(ranges, ordered, strict=True):
            if first < last:
                begin, end = int(self.tokens[first]), int(self.tokens[last - 1]) + 1
                spans[number] = (spans[number][0] if number in spans else begin, end)
        return spans


class TokenOffsets:
    """Computes where each token of a response lies in its text.

    The vocabulary's bytes are read once. Joining the bytes of a response's tokens gives their offsets if the result is
    the text. If it is not, or the tokenizer's decoder is not supported, the response is decoded token by token, which
    is also exact, but slower by two orders of magnitude.
    """

    def __init__(self, tokenizer: "PreTrainedTokenizerBase") -> None:
        self._tokenizer = tokenizer
        self._table = TokenBytes.from_tokenizer(tokenizer)

    def text_and_offsets(self, ids: Sequence[int]) -> tuple[str, Array]:
        """Decode a response without special tokens, and find each token's span in the text.

        Args:
            ids: T token ids, sampled in any tokenisation, with or without padding.

        Returns:
            The text, and T x 2 positions [start, end) in its code points. If several tokens form one character, or one
            U+FFFD for invalid bytes, all of their spans contain it (only that of the last, if the decoder drops
            incomplete characters). A token without text is at (0, 0): a special token, an id that is not in the
            vocabulary, a leading space that the decoder drops. The starts and ends of the others never decrease, and
            together they cover the text.

        Raises:
            ValueError: an id is negative.
        """
        numbers = _numbers(ids)
        text = self._decode(numbers.tolist())
        spans = self._offsets_from_bytes(numbers, text)
        return text, self._offsets_by_decoding(numbers.tolist(), text) if spans is None else spans

    def place(self, ids: Sequence[int], text: str) -> TokenAlignment | None:
        """Find where the tokens of a response begin in the judged text.

        Args:
            ids: T token ids of the response.
            text: the judged text: the decoded ids without special tokens, or a part that occurs in them exactly once,
                for example if a chat parser dropped a thinking block or whitespace.

        Returns:
            The alignment; None if the judged text does not occur in the decoded ids exactly once.

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
        """Compute T x 2 positions from the vocabulary's bytes; None if the joined bytes are not the text."""
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
        """Compute T x 2 positions by decoding longer and longer parts of the response."""
        spans = self._align_by_decoding(ids, text, windows=True)
        if spans is None:
            spans = self._align_by_decoding(ids, text, windows=False)
        assert spans is not None  # all ids together decode to the text
        return spans

    def _align_by_decoding(self, ids: list[int], text: str, *, windows: bool) -> Array | None:
        """Follow the text as it grows with each token; None if the decoded text does not reach its end.

        The ids up to a token decode to a text that agrees with `text` up to some position: the next token starts there.
        Beyond it, the decoded text may have characters that later tokens will change, such as an incomplete character
        or a space that is cleaned up; these count as the next character of `text`. With `windows`, decoding starts at
        the tokens that agreed last, as in streaming, instead of the first one.
        """
        spans = np.zeros((len(ids), 2), np.int64)
        window = settled = 0  # tokens: where decoding starts; up to where the decoded text agrees with `text`
        context = before = ""  # the decoded tokens between these two; the text decoded last
        place = reached = end = (
            0  # code points of `text`: at `settled`; up to where it agrees; the end of the last span
        )
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


_FALLBACK = re.compile(r"<0x([0-9A-Fa-f]{2})>")


class DecodedBytes(NamedTuple):
    """The joined bytes of T ids, the T + 1 byte positions between the tokens, and which tokens are fallback bytes."""

    data: bytes
    edges: Array
    byte_fallback: npt.NDArray[np.bool_]

    def invalid_ranges(self) -> Iterator[tuple[int, int]]:
        """Find the bytes that are not valid UTF-8, as ranges of positions that each decode to one U+FFFD.

        Byte-level decoders replace each maximal sequence that cannot be part of a character. Byte fallback replaces
        each byte of a run of bytes that is not valid as a whole.
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
        bare: whether the first token loses its spaces, as with Metaspace decoders.
        strip: how many spaces at the start of the text are dropped.
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
        """Read a tokenizer's vocabulary; None if its decoder is not supported."""
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
        """Join the bytes of T ids; None if an id is not in the vocabulary."""
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
    """Return the definition of a tokenizer's decoder: one mapping for each of its parts, in order."""
    if backend.decoder is None:
        return []
    from tokenizers import Tokenizer, models

    empty = Tokenizer(models.BPE())  # so that the JSON below has only the decoder, without the backend's vocabulary
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
    """Make a reader of tokens in GPT-2's alphabet; a token with any other character stands for its own text."""
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
    """Find the maximal subparts of ill-formed sequences, as Unicode defines them, as ranges of positions."""
    rest, start = memoryview(data), 0
    while True:
        try:
            str(rest[start:], "utf-8")
        except UnicodeDecodeError as error:
            yield start + error.start, start + error.end
            start += error.end
        else:
            return


def _ordered(steps: Iterable[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Sort steps by their start without step 0, the whole response; raise `ValueError` if two overlap."""
    ordered = sorted((start, end, number) for number, start, end in steps if number != 0)
    token_spans((), [(number, start, end) for start, end, number in ordered])
    return ordered


def _numbers(ids: Sequence[int]) -> Array:
    numbers = np.fromiter(ids, np.int64, len(ids))
    if numbers.size and numbers.min() < 0:
        raise ValueError(f"a token id is {numbers.min()}; give the sampled ids, not labels masked with -100")
    return numbers


def _common_prefix_length(new: str, text: str, place: int) -> int:
    """Count the code points at the start of `new` that equal those of `text` from `place` on."""
    if text.startswith(new, place):
        return len(new)
    pairs = zip(new, text[place : place + len(new)], strict=False)
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], pairs))


def _decode_with_replacements(data: bytes, invalid_ranges: Sequence[tuple[int, int]]) -> str | None:
    """Decode UTF-8 with one U+FFFD for each invalid range; None if other bytes are invalid too."""
    starts = [0, *(end for _, end in invalid_ranges)]
    ends = [*(start for start, _ in invalid_ranges), len(data)]
    try:
        return "\ufffd".join(data[start:end].decode() for start, end in zip(starts, ends, strict=True))
    except UnicodeDecodeError:
        return None


def _code_points(decoded: DecodedBytes, invalid_ranges: Sequence[tuple[int, int]]) -> Array:
    """Convert byte positions of T tokens to T x 2 positions in code points, (0, 0) for a token without bytes."""
    starts, ends = decoded.edges[:-1], decoded.edges[1:]
    nonempty = starts < ends
    if not decoded.data.isascii():
        leads = (np.frombuffer(decoded.data, np.uint8) & 0xC0) != 0x80
        leads[[start for start, _ in invalid_ranges]] = True
        counts = np.zeros(len(leads) + 2, np.int64)  # at each byte: the number of characters that begin before it
        leads.cumsum(out=counts[1:-1])
        starts, ends = counts[starts + 1] - 1, counts[ends]
    spans = np.empty((len(nonempty), 2), np.int64)
    spans[:, 0], spans[:, 1] = starts * nonempty, ends * nonempty
    return spans
