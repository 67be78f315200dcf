"""Parse text strictly as the JSON of RFC 8259: no duplicate names, no NaN, exactly one value.

Python's parser keeps the last of two equal names, while a proxy that inspects a request first may keep the other one.
Refusing duplicates ensures that both read the same document.
"""

import json
from collections import Counter
from functools import partial
from math import isfinite
from typing import Any


class NotStrictJsonError(ValueError):
    """The text is not strict JSON. `field` is the dotted path of the invalid value, empty for the whole document."""

    def __init__(self, message: str, field: str = "") -> None:
        super().__init__(message)
        self.field = field


def strict_json(text: str) -> Any:
    """Parse a text, in time linear in its length.

    Raises:
        NotStrictJsonError: the text is not strict JSON; the message says where, and `field` names a non-finite number.
    """
    if text.startswith("\ufeff"):
        raise NotStrictJsonError("this begins with a byte order mark; leave it out")
    try:
        non_finite: list[float] = []
        value = json.loads(
            text,
            object_pairs_hook=_object_without_duplicates,
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


def _object_without_duplicates(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result = dict(pairs)
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
