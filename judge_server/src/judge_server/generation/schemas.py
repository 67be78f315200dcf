"""The JSON Schema of a pydantic model, as engines take it: whole in itself, without what only people read."""

import json
from functools import cache
from typing import Any

from pydantic import BaseModel

_FOR_PEOPLE = frozenset({"title", "description", "default", "examples"})


@cache
def schema_of(shape: type[BaseModel]) -> str:
    """Compact JSON text. References are put in place, and every field is required, in the model's order.

    Raises:
        ValueError: the model contains itself.
    """
    schema = shape.model_json_schema()
    definitions = schema.pop("$defs", {})
    return json.dumps(_placed(schema, definitions, ()), separators=(",", ":"), ensure_ascii=False)


def _placed(schema: dict[str, Any], definitions: dict[str, Any], inside: tuple[str, ...]) -> dict[str, Any]:
    if (reference := schema.get("$ref")) is not None:
        name = reference.rpartition("/")[2]
        if name in inside:
            raise ValueError(f"{name} contains itself, so no model can be held to it; give it a depth")
        return _placed(definitions[name], definitions, (*inside, name))
    made: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "properties":
            made[key] = {name: _placed(part, definitions, inside) for name, part in value.items()}
        elif key in ("items", "additionalProperties") and isinstance(value, dict):
            made[key] = _placed(value, definitions, inside)
        elif key in ("anyOf", "oneOf", "allOf", "prefixItems"):
            made[key] = [_placed(part, definitions, inside) for part in value]
        elif key not in _FOR_PEOPLE:
            made[key] = value
    if made.get("type") == "object" and "properties" in made:
        made |= {"required": list(made["properties"]), "additionalProperties": False}
    return made
