"""What the scripted engine draws its answers from, and JSON that satisfies a schema."""

import hashlib
import json
from collections.abc import Callable
from itertools import count
from typing import Any

Draw = Callable[[int], int]
"""Of `n` things, which one: a number from 0 to n - 1."""

_QUARTERS = 5
_UNBOUNDED = 10
_MOST_SENTENCES = 8


def fraction(text: str) -> float:
    """A number in [0, 1] that a hash makes of the text."""
    return hashlib.blake2b(text.encode(), digest_size=8).digest()[0] / 255


def drawing(text: str) -> Draw:
    """Draws from a hash of the text: always the same ones, in the same order."""
    calls = count()

    def draw(among: int) -> int:
        digest = hashlib.blake2b(f"{next(calls)}\0{text}".encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") % among

    return draw


def say(label: Draw) -> str:
    """A sentence or a few."""
    return " ".join(f"Thought {label(10_000)}." for _ in range(2 + label(_MOST_SENTENCES)))


def fill(schema: str, value: Draw, label: Draw) -> str:
    """JSON that satisfies a JSON Schema: `label` picks among listed values, `value` decides booleans and numbers.

    Knows const, enum, boolean, integer, number, string, array (prefixItems, items, minItems) and object.

    Raises:
        ValueError: the schema asks for something else.
    """
    return json.dumps(_filled(json.loads(schema), value, label), ensure_ascii=False)


def _filled(schema: dict[str, Any], value: Draw, label: Draw) -> Any:
    match schema:
        case {"const": only}:
            return only
        case {"enum": [*among]}:
            return among[label(len(among))]
        case {"type": "boolean"}:
            return bool(value(2))
        case {"type": "integer"}:
            low, high = schema.get("minimum", 0), schema.get("maximum", _UNBOUNDED)
            return int(low + value(int(high - low) + 1))
        case {"type": "number"}:
            low, high = schema.get("minimum", 0), schema.get("maximum", _UNBOUNDED)
            return low + (high - low) * value(_QUARTERS) / (_QUARTERS - 1)
        case {"type": "string"}:
            return f"Reason {label(1000)}."[: schema.get("maxLength")].ljust(schema.get("minLength", 0), ".")
        case {"type": "array"}:
            first = schema.get("prefixItems", [])
            others = [schema.get("items", {})] * (schema.get("minItems", 0) - len(first))
            return [_filled(item, value, label) for item in [*first, *others]]
        case {"type": "object"}:
            return {name: _filled(part, value, label) for name, part in schema.get("properties", {}).items()}
    raise ValueError(f"the scripted engine cannot answer in the form {json.dumps(schema)[:200]}")
