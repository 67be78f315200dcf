"""The JSON Schema of a pydantic model, as engines take it: whole in itself, without what only people read."""

import json
from functools import cache
from typing import Any

from pydantic import BaseModel

_ANNOTATION_KEYS = frozenset({"title", "description", "default", "examples"})


@cache
def schema_of(shape: type[BaseModel]) -> str:
    """Compact JSON text. References are put in place, and every field is required, in the model's order.

    Raises:
        ValueError: the model contains itself.
    """
    schema = shape.model_json_schema()
    definitions = schema.pop("$defs", {})
    return json.dumps(_inline_references(schema, definitions, ()), separators=(",", ":"), ensure_ascii=False)


def _inline_references(schema: dict[str, Any], definitions: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    if (reference := schema.get("$ref")) is not None:
        name = reference.rpartition("/")[2]
        if name in path:
            raise ValueError(f"{name} contains itself, so no model can be held to it; give it a depth")
        return _inline_references(definitions[name], definitions, (*path, name))
    inlined: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "properties":
            inlined[key] = {name: _inline_references(part, definitions, path) for name, part in value.items()}
        elif key in ("items", "additionalProperties") and isinstance(value, dict):
            inlined[key] = _inline_references(value, definitions, path)
        elif key in ("anyOf", "oneOf", "allOf", "prefixItems"):
            inlined[key] = [_inline_references(part, definitions, path) for part in value]
        elif key not in _ANNOTATION_KEYS:
            inlined[key] = value
    if inlined.get("type") == "object" and "properties" in inlined:
        inlined |= {"required": list(inlined["properties"]), "additionalProperties": False}
    return inlined
