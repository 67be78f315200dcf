"""Give a chat model's GGUF file other keys with the same weights: those of a decision model, or another chat template.

GGUF: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md. Tensors are addressed from the start of their section,
so only that start has to be aligned again.
"""

import shutil
import struct
from collections.abc import Mapping
from pathlib import Path
from typing import BinaryIO

_STRING, _ARRAY = 8, 9
_SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}
_ALIGNMENT = 32

TEMPLATE = """<|im_start|>system
Answer with one letter.<|im_end|>
<|im_start|>user
{{ state if state is string else state | tojson }}

{{ instructions }}
{% for option in options %}
{{ option.label }}. {{ option.key }}{% if option.description %}: {{ option.description }}{% endif %}

{% endfor %}
<|im_end|>
<|im_start|>assistant
"""
"""How the server renders a question. The state comes first, so that questions about one state share its tokens."""


def make_decision_model(source: Path, target: Path) -> Path:
    """Write `source` to `target` with the keys of a decision model."""
    return with_keys(
        source, target, {"{architecture}.decision.type": "openjev", "tokenizer.chat_template.systemone": TEMPLATE}
    )


def with_keys(source: Path, target: Path, keys: Mapping[str, str]) -> Path:
    """Write `source` to `target` with these keys, in place of those with the same names."""
    with source.open("rb") as file:
        magic, version, tensors, count = struct.unpack("<4sIQQ", file.read(24))
        assert (magic, version) == (b"GGUF", 3)
        old = _read_keys(file, count)
        at_tensors = file.tell()
        _skip_tensors(file, tensors)
        end_of_header = file.tell()
        file.seek(at_tensors)
        tensor_infos = file.read(end_of_header - at_tensors)
        file.seek(_aligned(end_of_header))
        (size,) = struct.unpack_from("<Q", old["general.architecture"], len(_text("general.architecture")) + 4)
        architecture = old["general.architecture"][-size:].decode()
        named = {name.format(architecture=architecture): value for name, value in keys.items()}
        written = {**old, **{name: _pair(name, value) for name, value in named.items()}}
        header = (
            struct.pack("<4sIQQ", magic, version, tensors, len(written)) + b"".join(written.values()) + tensor_infos
        )
        with target.open("wb") as made:
            made.write(header.ljust(_aligned(len(header)), b"\0"))
            shutil.copyfileobj(file, made, 2**24)
    return target


def _aligned(size: int) -> int:
    return -(-size // _ALIGNMENT) * _ALIGNMENT


def _pair(key: str, value: str) -> bytes:
    return _text(key) + struct.pack("<I", _STRING) + _text(value)


def _text(text: str) -> bytes:
    return struct.pack("<Q", len(text.encode())) + text.encode()


def _read_keys(file: BinaryIO, count: int) -> dict[str, bytes]:
    """Return each key's bytes, with its name and its value, by name."""
    found = {}
    for _ in range(count):
        start = file.tell()
        name = _read_text(file).decode()
        assert name != "general.alignment"
        (kind,) = struct.unpack("<I", file.read(4))
        _skip_value(file, kind)
        end = file.tell()
        file.seek(start)
        found[name] = file.read(end - start)
    return found


def _skip_value(file: BinaryIO, kind: int) -> None:
    if kind == _STRING:
        _read_text(file)
    elif kind == _ARRAY:
        inner, length = struct.unpack("<IQ", file.read(12))
        if inner in _SIZES:
            file.seek(_SIZES[inner] * length, 1)
        else:
            for _ in range(length):
                _skip_value(file, inner)
    else:
        file.seek(_SIZES[kind], 1)


def _skip_tensors(file: BinaryIO, count: int) -> None:
    for _ in range(count):
        _read_text(file)
        (dimensions,) = struct.unpack("<I", file.read(4))
        file.seek(8 * dimensions + 4 + 8, 1)


def _read_text(file: BinaryIO) -> bytes:
    (length,) = struct.unpack("<Q", file.read(8))
    return file.read(length)
