"""Random requests from the service's OpenAPI document: any operation or all, from 1 KB to beyond the body limit.

Most values follow the document's schemas; some do not. The requests depend only on the seed.
"""

import json
import math
import random
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

from benchmarks.attacks.target import Attack, Target

SMALLEST, LARGEST = 2**10, 68 * 2**20
_WRONG = 0.03
_DEEPEST = 8
_MOST_AT_ONCE = 3
UNITS = (
    "a", "so it is 7, and ", "\n", '\\"\n', "1,234.5 ", "\\boxed{", "{[", "$ $$", "### Step 1: a\n", "<think></think",
    "<|im_start|>", "Final answer: ", "```\n", "\U0001f600", "\x00", "\ud800",
)  # fmt: skip
_SMALL, _SMALL_AT_ONCE = 2**14, 8
_NUMBERS = (0, 1, -1, 7, 0.5, 1e-9, 1e6, 1e308, 2**31, 2**53, 2**63, 10**400)
_NAMES = ("a", "team/a", "production", "a@1", "sha256:" + "0" * 64, "attack", "x" * 200, "\x00", "..", "é", "")


class RandomValues:
    """Generates random JSON of about `size` bytes for the schemas of a document."""

    def __init__(self, document: Mapping[str, Any], draw: random.Random, size: int) -> None:
        self._document = document
        self._draw = draw
        self._left = size

    def value(self, schema: Mapping[str, Any], depth: int = 0) -> Any:
        """Generate a value for a schema, or occasionally an invalid one."""
        draw = self._draw
        schema = self._resolved(schema)
        if draw.random() < _WRONG or depth > _DEEPEST:
            return draw.choice((None, True, 7, "", [], {}, "x" * 100, [None] * 50, {"unknown": 0}))
        if "const" in schema:
            return schema["const"]
        if "enum" in schema:
            return draw.choice(schema["enum"])
        for several in ("anyOf", "oneOf"):
            if several in schema:
                return self.value(draw.choice(schema[several]), depth + 1)
        if "allOf" in schema:
            return self.value(schema["allOf"][0], depth + 1)
        match schema.get("type"):
            case "object":
                return self._object(schema, depth)
            case "array":
                return self._array(schema, depth)
            case "string":
                return self._text(schema)
            case "integer" | "number":
                return draw.choice(_NUMBERS) if draw.random() < 0.2 else draw.randint(0, 30)
            case "boolean":
                return draw.random() < 0.5
            case _:
                return None

    def _resolved(self, schema: Mapping[str, Any]) -> Mapping[str, Any]:
        while "$ref" in schema:
            target: Any = self._document
            for part in schema["$ref"].removeprefix("#/").split("/"):
                target = target[part]
            schema = target
        return schema

    def _object(self, schema: Mapping[str, Any], depth: int) -> dict[str, Any]:
        properties, required = schema.get("properties", {}), schema.get("required", ())
        chosen = [name for name in properties if name in required or self._draw.random() < 0.15]
        fields = {name: self.value(properties[name], depth + 1) for name in chosen}
        if isinstance(schema.get("additionalProperties"), dict) and self._draw.random() < 0.5:
            fields["a"] = self.value(schema["additionalProperties"], depth + 1)
        return fields

    def _array(self, schema: Mapping[str, Any], depth: int) -> list[Any]:
        items = [self.value(schema.get("items", {}), depth + 1) for _ in range(self._draw.randint(1, 3))]
        if self._draw.random() < 0.2:
            written = len(json.dumps(items))
            items *= max(1, min(self._left // written, 2_000_000 // len(items)))
            self._left -= written * len(items)
        return items

    def _text(self, schema: Mapping[str, Any]) -> str:
        if "pattern" in schema and self._draw.random() < 0.9:
            return self._draw.choice(("a", "b1", "attack"))
        unit = self._draw.choice(UNITS)
        length = self._left if self._draw.random() < 0.2 else min(self._left, self._draw.randint(1, 200))
        text = unit * max(1, length // len(json.dumps(unit)))
        self._left = max(0, self._left - length)
        return text


def operations(document: Mapping[str, Any]) -> list[tuple[str, str]]:
    """Return the method and the path of every operation of a document."""
    return [(method, path) for path, methods in document["paths"].items() for method in methods]


def drawn(
    document: Mapping[str, Any], draw: random.Random, most: int = LARGEST, chosen: tuple[str, str] | None = None
) -> tuple[str, str, bytes | None]:
    """Generate a method, a path with its query, and a body of up to about `most` bytes, or None.

    `chosen` is the operation, which is drawn if there is none.
    """
    method, path = chosen or draw.choice(operations(document))
    operation = document["paths"][path][method]
    at, query = path, []
    for parameter in operation.get("parameters", ()):
        value = quote(str(draw.choice(_NAMES + _NUMBERS[:8])), safe="/@")
        if parameter["in"] == "path":
            at = at.replace(f"{{{parameter['name']}}}", value)
        elif parameter["in"] == "query" and draw.random() < 0.4:
            query.append(f"{parameter['name']}={value}")
    if "requestBody" not in operation:
        return method.upper(), at + ("?" + "&".join(query) if query else ""), None
    size = round(math.exp(draw.uniform(math.log(SMALLEST), math.log(most))))
    schema = next(iter(operation["requestBody"]["content"].values()))["schema"]
    body = json.dumps(RandomValues(document, draw, size).value(schema)).encode()
    if draw.random() < 0.1:
        body = body[: draw.randrange(len(body) + 1)]
    return method.upper(), at, body


async def random_requests(on: Target) -> None:
    """Send a few random requests at once."""
    requests = [drawn(on.document, on.draw) for _ in range(on.draw.randint(1, _MOST_AT_ONCE))]
    await on.at_once(*(on.send(method, path, body=body) for method, path, body in requests))


async def every_operation(on: Target) -> None:
    """Send a small random request to every operation, in random order, a few at once."""
    chosen = operations(on.document)
    on.draw.shuffle(chosen)
    for place in range(0, len(chosen), _SMALL_AT_ONCE):
        requests = [drawn(on.document, on.draw, _SMALL, one) for one in chosen[place : place + _SMALL_AT_ONCE]]
        await on.at_once(*(on.send(method, path, body=body) for method, path, body in requests))


FUZZING: dict[str, Attack] = {
    "random requests, 1 KB to 68 MB": random_requests,
    "every operation, to 16 KB": every_operation,
}
