"""What each id of a vocabulary says, as bytes, and what a sequence of ids says when their bytes are joined.

Knows the decoders that join bytes: byte-level ones, and those of SentencePiece's kind, with or without byte fallback.
What it says of a sequence is a claim, for the caller to check against the decoded text: clean-up, exotic decoders and
tokens added later are not looked at.
"""

import json
import re
from collections.abc import Callable, Iterator, Sequence
from itertools import groupby
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    from transformers import PreTrainedTokenizerBase

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
