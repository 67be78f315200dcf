"""Parse text strictly as the JSON of RFC 8259: no duplicate names, no NaN, exactly one value.

Python's parser keeps the last of two equal names, while a proxy that inspects a request first may keep the other one.
Refusing duplicates ensures that both read the same document.
"""

import json
import re
from collections import Counter
from functools import partial
from json.decoder import scanstring  # type: ignore[attr-defined]
from json.scanner import py_make_scanner  # type: ignore[attr-defined]
from math import isfinite
from typing import Any

_CHUNK_CHARACTERS = 2**18
"""Characters of a string that incremental parsing reads at once, before other threads can run."""

_PAIRS = 2**12
"""Names of an object that are taken at once where other threads are to have their turn."""

_BETWEEN_ESCAPES = re.compile(r'[^\\"0-9a-fA-Fu]')
"""A character after which a string can be cut: it cannot end a `\\u` escape, so no surrogate pair is split."""


class NotStrictJsonError(ValueError):
    """The text is not strict JSON. `field` is the dotted path of the invalid value, empty for the whole document."""

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


def strict_json(text: str, *, incremental: bool = False) -> Any:
    """Parse a text, in time linear in its length.

    With `incremental`, the text is parsed value by value in Python, which is slower but lets other threads run.

    Raises:
        NotStrictJsonError: the text is not strict JSON; the message says where, and `field` names a non-finite number.
    """
    if text.startswith("\ufeff"):
        raise NotStrictJsonError("this begins with a byte order mark; leave it out")
    try:
        non_finite: list[float] = []
        value = json.loads(
            text,
            cls=_IncrementalDecoder if incremental else None,
            object_pairs_hook=_object_in_pieces if incremental else _object_without_duplicates,
            parse_constant=partial(_parse_number, non_finite),
            parse_float=partial(_parse_number, non_finite),
        )
        path = _non_finite_path(value) if non_finite else ""
    except json.JSONDecodeError as error:
        raise NotStrictJsonError(f"not JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise NotStrictJsonError("this is nested too deeply; flatten it") from None
    except NotStrictJsonError:
        raise
    except ValueError:
        raise NotStrictJsonError("this holds a number with too many digits; write fewer") from None
    if non_finite:
        raise NotStrictJsonError("JSON has no infinite numbers and no NaN; write a finite number, or null", path)
    return value


class _IncrementalDecoder(json.JSONDecoder):
    """The pure Python version of the standard library's decoder, which reads long strings in pieces."""

    def __init__(self, **hooks: Any) -> None:
        super().__init__(**hooks)
        self.parse_string = _scan_string
        self.scan_once = py_make_scanner(self)


def _scan_string(source: str, start: int, strict: bool = True) -> tuple[str, int]:
    """Read the string whose opening quote ends at `start`; return it and the position after its closing quote."""
    pieces: list[str] = []
    at = start
    while (cut := _BETWEEN_ESCAPES.search(source, at + _CHUNK_CHARACTERS)) is not None:
        # The cut is never a backslash, so a backslash and the character it escapes are in the same piece.
        piece = source[at : cut.end()] + '"'
        try:
            read, end = scanstring(piece, 0, strict)
        except json.JSONDecodeError as error:
            raise json.JSONDecodeError(error.msg, source, at + error.pos) from None
        pieces.append(read)
        if end < len(piece):
            return "".join(pieces), at + end
        at = cut.end()
    try:
        read, end = scanstring(source, at, strict)
    except json.JSONDecodeError as error:
        unterminated = error.pos == at - 1  # reported at the start of the last piece, not of the string
        raise json.JSONDecodeError(error.msg, source, start - 1 if unterminated else error.pos) from None
    return "".join([*pieces, read]), end


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    return _with_each_name_once(dict(pairs), pairs)


def _object_in_pieces(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    """Make an object and free the pairs that it was read as, some at a time."""
    result = dict(pairs[:_PAIRS])
    for start in range(_PAIRS, len(pairs), _PAIRS):
        result.update(pairs[start : start + _PAIRS])
    _with_each_name_once(result, pairs)
    while len(pairs) > _PAIRS:
        del pairs[-_PAIRS:]
    return result


def _with_each_name_once(result: dict[str, Any], pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    if len(result) < len(pairs):
        ((repeated, _),) = Counter(name for name, _ in pairs).most_common(1)
        raise NotStrictJsonError(f"this has {repeated[:100]!r} twice in one object; remove one")
    return result


def _parse_number(non_finite: list[float], text: str) -> float:
    """Parse a number, and append it to `non_finite` if JSON has no such number."""
    number = float(text)
    if not isfinite(number):
        non_finite.append(number)
    return number


def _non_finite_path(value: Any) -> str:
    """The dotted path of the first non-finite number in a value."""
    children = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in children:
        if isinstance(inner, float) and not isfinite(inner):
            return str(key)
        if isinstance(inner, dict | list) and (path := _non_finite_path(inner)):
            return f"{key}.{path}"
    return ""
