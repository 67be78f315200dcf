"""Model files made of the lower layers of another: for reading its hidden states, and for answering by a probe.

Every GGUF language model ends in a normalisation with weights g and a matrix W with a row per token, so that a state x,
normalised to a root mean square of 1, gives the logits W (g x). For a probe with the direction w, on states of mean m,

    g = |w| / 2,  W[yes] = sign(w),  W[no] = -sign(w),  and -6 sign(m) for all other tokens

so that logit(yes) - logit(no) is the product of w and x. The logits of all other tokens are far below, since states at
the same place of a prompt resemble their mean. The rows are small integers, so four bits hold them exactly. Such a file
is an ordinary model: it reads prompts in blocks, reuses prefixes and is hashed like any other. Writing one needs the
package gguf, of the extra `evaluate`.
"""

import json
import struct
from collections.abc import Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from numpy.typing import NDArray

from judge_server.models.catalogue import ModelError, NotAModel
from judge_server.models.files import check_gguf

PROBE_KEY = "adjudge.probe"
"""The key of a probe's file with what it was fitted on, as JSON."""

LAYER_SHARE = 0.65
"""The share of a model's layers below its default probe: layer 18 of 28, and 16 of 24."""

_BELOW = 6
"""How much larger the rows of all other tokens are than those of yes and no."""

_BLOCK, _ZERO = 32, 8
"""Elements of a block of GGUF's type Q4_0, and the four bits that stand for 0 in it."""

_STRING, _ARRAY = 8, 9
_SCALAR_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_LONGEST_TEXT = 2**20

Vector = NDArray[np.floating[Any]]


class LayeredModel:
    """A GGUF model of which files with fewer layers can be written. Opening it takes seconds: it reads the vocabulary.

    Attributes:
        layers: the number of layers.
        hidden: the number of dimensions of a state.
    """

    def __init__(self, path: Path) -> None:
        """Read a model file. Raises `ModelError` if it cannot be read, or the package gguf is not installed."""
        try:
            self._gguf = import_module("gguf")
        except ImportError:
            raise ModelError(
                "writing a model file needs the package gguf; install it with: pip install 'adjudge-server[evaluate]'"
            ) from None
        try:
            self._reader = self._gguf.GGUFReader(path)
        except (OSError, ValueError) as error:
            raise NotAModel(f"{path} cannot be read as a GGUF model: {error}.") from None
        self._path = path
        self._architecture = str(self._field("general.architecture"))
        self.layers = int(self._field(f"{self._architecture}.block_count"))
        self.hidden = int(self._field(f"{self._architecture}.embedding_length"))
        self._tensors = {tensor.name: tensor for tensor in self._reader.tensors}
        if "output_norm.weight" not in self._tensors or "output_norm.bias" in self._tensors or self.hidden % _BLOCK:
            raise ModelError(f"{path} does not end in a plain RMS normalisation, so no probe can be put in its place.")

    def default_layer(self) -> int:
        """Return the number of layers below a probe unless the user chooses another."""
        return max(1, round(LAYER_SHARE * self.layers))

    def write_states(self, target: Path, layers: int) -> None:
        """Write the model's first layers, to be loaded as an embedding model: it gives normalised states."""
        self._write(target, layers, np.ones(self.hidden), None, {})

    def write_probe(
        self,
        target: Path,
        layers: int,
        direction: Vector,
        mean: Vector,
        answers: tuple[int, int],
        about: Mapping[str, Any],
    ) -> None:
        """Write the model's first layers with a head that answers by a probe.

        Args:
            target: the file; an existing one is replaced.
            layers: the number of layers below the probe.
            direction, mean: the probe's direction, and the mean state; shape (hidden,).
            answers: the tokens of yes and of no.
            about: what is kept in the file about the probe, as JSON; `asks` is the digest of the question it answers.
        """
        vocabulary = int(self._tensors["token_embd.weight"].shape[1])
        head = np.tile(_four_bits(-_BELOW * np.sign(mean)), (vocabulary, 1))
        head[list(answers)] = [_four_bits(np.sign(direction)), _four_bits(-np.sign(direction))]
        self._write(target, layers, np.abs(direction) / 2, head, {PROBE_KEY: json.dumps(dict(about))})

    def _field(self, name: str) -> Any:
        field = self._reader.fields.get(name)
        if field is None:
            raise ModelError(f"{self._path} has no key {name}.")
        return field.contents()

    def _write(
        self, target: Path, layers: int, norm: Vector, head: NDArray[np.uint8] | None, keys: Mapping[str, str]
    ) -> None:
        scratch = target.with_name(target.name + ".part")
        try:
            writer = self._gguf.GGUFWriter(scratch, self._architecture)
            for key, text in keys.items():  # before the others, where `read_about` looks for them
                writer.add_string(key, text)
            for key, field in self._reader.fields.items():
                if not key.startswith(("GGUF.", PROBE_KEY)) and key != "general.architecture":
                    self._copy_key(writer, key, field, layers)
            for name, tensor in self._tensors.items():
                if name != "output.weight" and _layer_of(name) < layers:
                    data = norm.astype(np.float32) if name == "output_norm.weight" else tensor.data
                    kind = None if name == "output_norm.weight" else tensor.tensor_type
                    writer.add_tensor(name, data, raw_dtype=kind)
            if head is not None:
                writer.add_tensor("output.weight", head, raw_dtype=self._gguf.GGMLQuantizationType.Q4_0)
            writer.write_header_to_file()
            writer.write_kv_data_to_file()
            writer.write_tensors_to_file()
            writer.close()
            scratch.replace(target)
        except OSError as error:
            raise ModelError(f"Cannot write {target}: {error.strerror or error}.") from error
        finally:
            scratch.unlink(missing_ok=True)

    def _copy_key(self, writer: Any, key: str, field: Any, layers: int) -> None:
        value, kind = field.contents(), field.types[0]
        if key == f"{self._architecture}.block_count":
            value = layers
        listed = kind == self._gguf.GGUFValueType.ARRAY
        if listed and key.startswith(f"{self._architecture}.") and len(value) == self.layers:
            value = value[:layers]  # a value for each layer
        writer.add_key_value(key, value, kind, sub_type=field.types[-1] if listed else None)


def _layer_of(tensor: str) -> int:
    """Return the layer of a tensor; -1 for one that belongs to none."""
    part, _, rest = tensor.partition(".")
    return int(rest.partition(".")[0]) if part == "blk" else -1


def _four_bits(row: Vector) -> NDArray[np.uint8]:
    """Return a row of small integers as GGUF's type Q4_0: blocks of a 16-bit scale, here 1, and 32 times 4 bits."""
    bits = (row.astype(int) + _ZERO).astype(np.uint8).reshape(-1, _BLOCK)
    scales = np.tile(np.array([1.0], dtype="<f2").view(np.uint8), (len(bits), 1))
    return np.hstack([scales, bits[:, : _BLOCK // 2] | (bits[:, _BLOCK // 2 :] << 4)]).ravel()


def read_about(path: Path) -> dict[str, Any] | None:
    """Return what a probe's file says about itself; None for the file of any other model.

    Only the keys before the first list are read, which comes soon and is long: that of the vocabulary.

    Raises:
        NotAModel: the file cannot be read, is not GGUF, or its keys are damaged.
    """
    check_gguf(path)
    try:
        with path.open("rb") as file:
            *_, keys = _unpack(file, "<4sIQQ")
            for _ in range(keys):
                name = _text(file)
                (kind,) = _unpack(file, "<I")
                if kind == _ARRAY:
                    return None
                if kind != _STRING:
                    file.seek(_SCALAR_SIZES[kind], 1)
                    continue
                text = _text(file)
                if name == PROBE_KEY:
                    about = json.loads(text)
                    return about if isinstance(about, dict) else None
    except (struct.error, ValueError, KeyError):
        raise NotAModel(f"{path} is not a GGUF model: its keys are damaged.") from None
    return None


def asks_of(path: Path) -> str:
    """Return the digest of the only question that a file can answer; '' for any other model. Raises as `read_about`."""
    about = read_about(path)
    return "" if about is None else str(about.get("asks", ""))


def _unpack(file: BinaryIO, form: str) -> Sequence[Any]:
    return struct.unpack(form, file.read(struct.calcsize(form)))


def _text(file: BinaryIO) -> str:
    (size,) = _unpack(file, "<Q")
    if size > _LONGEST_TEXT:
        raise ValueError("a text is too long")
    return file.read(size).decode(errors="replace")
