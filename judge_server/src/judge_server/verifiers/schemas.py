"""Validate JSON in a response against a JSON Schema. Nothing is fetched: references must lead within the schema."""

import json
import re
from typing import NoReturn

from jsonschema import Draft202012Validator  # type: ignore[import-untyped]
from jsonschema.exceptions import SchemaError  # type: ignore[import-untyped]
from pydantic import JsonValue
from referencing import Registry
from referencing.exceptions import Unresolvable

_FENCE = re.compile(r" {0,3}(?P<marks>`{3,}|~{3,})(?P<rest>.*)")


class UnusableSchema(ValueError):
    """The schema is invalid, or refers to something that it does not contain."""


def satisfies(text: str, schema: dict[str, JsonValue]) -> bool:
    """Whether a text is JSON, bare or in its last fenced block, that satisfies a schema (draft 2020-12).

    `format` is not asserted. Raises `UnusableSchema`.
    """
    _check(schema)
    try:
        value = _read(text)
    except (ValueError, RecursionError):
        return False
    return _is_valid(value, schema)


def arguments_satisfy(arguments: str | dict[str, JsonValue], schema: dict[str, JsonValue]) -> bool:
    """Whether the arguments of a tool call are an object that satisfies a schema; raises `UnusableSchema`."""
    _check(schema)
    try:
        value = _json(arguments) if isinstance(arguments, str) else arguments
    except (ValueError, RecursionError):
        return False
    return isinstance(value, dict) and _is_valid(value, schema)


def _check(schema: dict[str, JsonValue]) -> None:
    try:
        Draft202012Validator.check_schema(schema)
    except SchemaError as error:
        raise UnusableSchema(
            f"the schema is not a valid JSON Schema, at {error.json_path}: {error.message[:200]}"
        ) from None


def _is_valid(value: JsonValue, schema: dict[str, JsonValue]) -> bool:
    empty: Registry[JsonValue] = Registry()
    try:
        return bool(Draft202012Validator(schema, registry=empty).is_valid(value))
    except Unresolvable as error:
        raise UnusableSchema(
            f"the schema refers to {error.ref[:200]!r}, which it does not contain; define it under $defs"
        ) from None
    except RecursionError:
        raise UnusableSchema("the schema refers to itself endlessly, or the JSON nests too deeply") from None


def last_block(text: str) -> str | None:
    """Return the content of the last fenced block of a Markdown text, or None; an open block runs to the end."""
    last: list[str] | None = None
    opened = ""
    for line in text.split("\n"):
        fence = _FENCE.fullmatch(line.rstrip("\r"))
        if not opened:
            if fence and not (fence["marks"][0] == "`" and "`" in fence["rest"]):
                opened, last = fence["marks"], []
        elif fence and fence["marks"].startswith(opened) and not fence["rest"].strip():
            opened = ""
        elif last is not None:
            last.append(line)
    return None if last is None else "\n".join(last)


def _read(text: str) -> JsonValue:
    try:
        return _json(text)
    except ValueError:
        block = last_block(text)
        if block is None:
            raise
        return _json(block)


def _json(text: str) -> JsonValue:
    value: JsonValue = json.loads(text, parse_constant=_refuse)
    return value


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")
