"""JSON texts read strictly: one place to say where one breaks off, and to refuse a field given twice."""

import json
from collections import Counter

from rubric_store.formats.errors import FormatError


def parse_json(text: str) -> object:
    """Parse a JSON text.

    Raises:
        FormatError: the text is no JSON (line and column named), nests too deeply, or gives a field twice.
    """
    try:
        value: object = json.loads(text, object_pairs_hook=_object)
    except json.JSONDecodeError as error:
        raise FormatError(f"line {error.lineno}, column {error.colno}", f"expected JSON: {error.msg}") from None
    except FormatError:
        raise
    except (RecursionError, ValueError) as error:
        raise FormatError("JSON", f"cannot be read: {error}") from None
    return value


def _object(pairs: list[tuple[str, object]]) -> dict[str, object]:
    repeated = [key for key, n in Counter(key for key, _ in pairs).items() if n > 1]
    if repeated:
        raise FormatError(repeated[0], "given twice in one object; keep one")
    return dict(pairs)
