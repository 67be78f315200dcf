"""Text read as the JSON of RFC 8259 and nothing looser: no name twice, no NaN, one value and no more.

Python's reader takes the last of two equal names, so that whoever looks at a text before us may read another one than
we do. Knows JSON; refuses to know what a value should say.
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
"""Characters of a text that are read at once where other threads are to have their turn."""

_PAIRS = 2**12
"""Names of an object that are taken at once where other threads are to have their turn."""

_BETWEEN_ESCAPES = re.compile(r'[^\\"0-9a-fA-Fu]')
"""A character behind which a text can be cut: it ends no `\\u` escape, and so parts no pair of them either."""


class NotStrictJsonError(ValueError):
    """A text that is no such JSON; `field` is the dotted path of what is wrong, empty where it is all of it."""

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


def strict_json(text: str, *, incremental: bool = False) -> Any:
    """The value that a text holds, read in time that grows as the text does.

    With `incremental` it is read value by value in Python: more slowly, but other threads have their turn meanwhile.

    Raises:
        NotStrictJsonError: it is not JSON; it says where, and names the field of a number that is none.
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
        where = _non_finite_path(value) if non_finite else ""
    except json.JSONDecodeError as error:
        raise NotStrictJsonError(f"not JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise NotStrictJsonError("this is nested too deeply to be read") from None
    except NotStrictJsonError:
        raise
    except ValueError:
        raise NotStrictJsonError("this holds a number with more digits than anybody can use") from None
    if non_finite:
        raise NotStrictJsonError("JSON has no infinite numbers and no NaN; write a finite number, or null", where)
    return value


class _IncrementalDecoder(json.JSONDecoder):
    """Python's reader, which is written in Python too, with long texts read piece by piece."""

    def __init__(self, **hooks: Any) -> None:
        super().__init__(**hooks)
        self.parse_string = _scan_string
        self.scan_once = py_make_scanner(self)


def _scan_string(source: str, start: int, strict: bool = True) -> tuple[str, int]:
    """The text that begins behind the quote before `start`, and where it ends, behind its quote."""
    pieces: list[str] = []
    at = start
    while (cut := _BETWEEN_ESCAPES.search(source, at + _CHUNK_CHARACTERS)) is not None:
        # A character behind a backslash belongs to it, whatever it is: the reader sees both in one piece.
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
        begun = error.pos == at - 1  # it never ends, and is said to begin where its last piece does
        raise json.JSONDecodeError(error.msg, source, start - 1 if begun else error.pos) from None
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
        raise NotStrictJsonError(f"this says {repeated[:100]!r} twice in one object; say it once")
    return result


def _parse_number(non_finite: list[float], text: str) -> float:
    """A number, which is noted if it is none that JSON has."""
    number = float(text)
    if not isfinite(number):
        non_finite.append(number)
    return number


def _non_finite_path(value: Any) -> str:
    """The dotted path of the first number in a value that is not finite."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in inside:
        if isinstance(inner, float) and not isfinite(inner):
            return str(key)
        if isinstance(inner, dict | list) and (path := _non_finite_path(inner)):
            return f"{key}.{path}"
    return ""
