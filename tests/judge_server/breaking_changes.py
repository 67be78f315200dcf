"""Find what a new version of an HTTP API takes away from clients of an old one, by their OpenAPI documents.

A request must still be accepted, and an answer must still have its fields, in their types. Additions are allowed:
routes, optional fields, values of an enum, alternatives of the same type. Prose and defaults are not compared.

`python -m tests.judge_server.breaking_changes`, in the root folder, makes today's API that of the last release.
"""

import gzip
import json
from collections.abc import Iterator, Mapping
from typing import Any, Literal

from tests.judge_server.golden_files import GOLDEN, openapi

RELEASED = GOLDEN / "released_api.json.gz"
"""The document of the last release, without prose and examples."""

_PROSE = {"title", "summary", "description", "example", "examples", "default", "deprecated", "discriminator"}
_STRUCTURE = {"$ref", "type", "anyOf", "oneOf", "enum", "const", "properties", "required", "items", "prefixItems"}
_LOWER = {"minimum", "exclusiveMinimum", "minLength", "minItems", "minProperties"}
_UPPER = {"maximum", "exclusiveMaximum", "maxLength", "maxItems", "maxProperties"}

Side = Literal["request", "answer"]
Schema = Mapping[str, Any]
Problems = list[tuple[str, str]]
"""Places, which begin with `.` or `[` where they are relative, and what is wrong there."""


def released_api() -> dict[str, Any]:
    """The document of the last release."""
    document: dict[str, Any] = json.loads(gzip.decompress(RELEASED.read_bytes()))
    return document


def breaking_changes(old: Mapping[str, Any], new: Mapping[str, Any]) -> list[str]:
    """Every change that breaks clients of `old`: its place and what changed there."""
    return list(dict.fromkeys(f"{place}: {what}" for place, what in _Comparison(old, new).routes()))


class _Comparison:
    """A walk through both documents, which compares each pair of schemas once."""

    def __init__(self, old: Mapping[str, Any], new: Mapping[str, Any]) -> None:
        self._old, self._new = old, new
        self._known: dict[tuple[str, str, Side], Problems] = {}

    def routes(self) -> Iterator[tuple[str, str]]:
        for path, methods in self._old["paths"].items():
            for method, old in methods.items():
                route = f"{method.upper()} {path}"
                new = self._new["paths"].get(path, {}).get(method)
                if new is None:
                    yield route, "removed"
                else:
                    yield from self._parameters(route, old, new)
                    yield from self._body(route, old.get("requestBody", {}), new.get("requestBody", {}))
                    for status in old["responses"]:
                        answer = new["responses"].get(status)
                        if answer is None and status.startswith("2"):
                            yield f"{route} {status}", "removed"
                        elif answer is not None:
                            yield from self._content(f"{route} {status}", old["responses"][status], answer, "answer")

    def _parameters(self, route: str, old: Schema, new: Schema) -> Iterator[tuple[str, str]]:
        before, after = ({(p["in"], p["name"]): p for p in each.get("parameters", [])} for each in (old, new))
        for key in before.keys() - after.keys():
            yield f"{route} {key[1]}", "removed"
        for key, parameter in after.items():
            was = before.get(key, {})
            if parameter.get("required") and not was.get("required"):
                yield f"{route} {key[1]}", "now required"
            if was:
                yield from _within(f"{route} {key[1]}", self._schemas(was["schema"], parameter["schema"], "request"))

    def _body(self, route: str, old: Schema, new: Schema) -> Iterator[tuple[str, str]]:
        if new.get("required") and not old.get("required"):
            yield f"{route} body", "now required"
        yield from self._content(f"{route} body", old, new, "request")

    def _content(self, place: str, old: Schema, new: Schema, side: Side) -> Iterator[tuple[str, str]]:
        for kind, media in old.get("content", {}).items():
            if kind not in new.get("content", {}):
                yield f"{place} {kind}", "removed"
            else:
                after = new["content"][kind].get("schema", {})
                yield from _within(place, self._schemas(media.get("schema", {}), after, side))

    def _schemas(self, old: Schema, new: Schema, side: Side) -> Problems:
        """What breaks between two schemas; what is inside a named schema has a place of its own."""
        key = (json.dumps(old, sort_keys=True), json.dumps(new, sort_keys=True), side)
        if key not in self._known:
            self._known[key] = []  # where schemas contain themselves, the inner pair adds nothing
            befores, afters = _alternatives(old, self._old), _alternatives(new, self._new)
            problems: Problems = []
            for before in befores:
                # The alternative of the new schema that breaks least takes the place of the old one.
                problems += min([self._alternative(before, after, side) for after in afters], key=len)
            if side == "answer" and (more := _types(afters) - _types(befores)) and {} not in befores:
                problems.append(("", f"may now be of type {', '.join(sorted(more))}"))
            name = old["$ref"].rpartition("/")[2] if "$ref" in old and old["$ref"] == new.get("$ref") else ""
            self._known[key] = list(_within(f"{name} ({side})", problems)) if name else problems
        return self._known[key]

    def _alternative(self, old: Schema, new: Schema, side: Side) -> Problems:
        if missing := _type_lost(old, new, side):
            return [("", missing)] * 1000  # any alternative of the right type is nearer
        found: Problems = []
        if "enum" in old and (lost := [value for value in old["enum"] if value not in new.get("enum", [value])]):
            found.append(("", f"no longer has the value {', '.join(map(json.dumps, lost))}"))
        if side == "request":
            found += [("", what) for what in _narrowed(old, new)]
        found += self._object(old, new, side)
        found += _within("[]", self._schemas(old.get("items", {}), new.get("items", {}), side))
        befores, afters = old.get("prefixItems", []), new.get("prefixItems", [])
        if len(befores) != len(afters):
            found.append(("", f"has {len(afters)} items, not {len(befores)}"))
        for number, (before, after) in enumerate(zip(befores, afters, strict=False)):
            found += _within(f"[{number}]", self._schemas(before, after, side))
        return found

    def _object(self, old: Schema, new: Schema, side: Side) -> Iterator[tuple[str, str]]:
        befores, afters = old.get("properties", {}), new.get("properties", {})
        for name, before in befores.items():
            if name not in afters:
                yield f".{name}", "removed"
            else:
                yield from _within(f".{name}", self._schemas(before, afters[name], side))
        required, requires = set(old.get("required", [])), set(new.get("required", []))
        if side == "request":
            yield from ((f".{name}", "now required") for name in sorted(requires - required))
        else:
            yield from ((f".{name}", "may now be absent") for name in sorted((required - requires) & afters.keys()))
        before, after = (each.get("additionalProperties", True) for each in (old, new))
        if after is False and before is not False:
            yield "", "no longer has other fields"
        elif isinstance(before, dict) and isinstance(after, dict):
            yield from _within(".*", self._schemas(before, after, side))


def _within(place: str, problems: Problems) -> Problems:
    """The problems with places inside `place`, but for those in a named schema."""
    return [(f"{place}{inner}" if not inner or inner[0] in ".[" else inner, what) for inner, what in problems]


def _alternatives(schema: Schema, document: Mapping[str, Any]) -> list[dict[str, Any]]:
    """The alternatives of a schema, each of one type at most, without references; a constant is an enum of one."""
    while "$ref" in schema:
        schema = document["components"]["schemas"][schema["$ref"].rpartition("/")[2]]
    for choice in ("anyOf", "oneOf"):
        if choice in schema:
            return [one for option in schema[choice] for one in _alternatives(option, document)]
    plain = {key: value for key, value in schema.items() if key not in _PROSE and key != "const"}
    if "const" in schema:
        plain["enum"] = [schema["const"]]
    types = plain.get("type")
    return [{**plain, "type": one} for one in types] if isinstance(types, list) else [plain]


def _types(alternatives: list[dict[str, Any]]) -> set[str]:
    found = {str(one.get("type", "anything")) for one in alternatives}
    return found | {"integer"} if "number" in found else found


def _type_lost(old: Schema, new: Schema, side: Side) -> str:
    before, after = old.get("type"), new.get("type")
    wider = {before, None, "number" if before == "integer" else before}
    if after in wider or (side == "answer" and (before is None or (before, after) == ("number", "integer"))):
        return ""
    return f"no longer of type {before or 'anything'}"


def _narrowed(old: Schema, new: Schema) -> Iterator[str]:
    """The rules of a request's value that are new or stricter."""
    if "enum" in new and "enum" not in old:
        yield f"now one of {json.dumps(new['enum'])}"
    for key in sorted(new.keys() - _STRUCTURE - {"additionalProperties"}):
        before, after = old.get(key), new[key]
        looser = before is not None and (
            after < before if key in _LOWER else after > before if key in _UPPER else False
        )
        if after != before and not looser:
            yield f"{key} is now {json.dumps(after)}, not {json.dumps(before)}"


def _structure(node: Any, *, names: bool = False) -> Any:
    """A document without prose and examples; the keys of a node may be names of fields."""
    if isinstance(node, dict):
        kept = {key: value for key, value in node.items() if names or key not in _PROSE}
        return {key: _structure(value, names=key == "properties" and not names) for key, value in kept.items()}
    return [_structure(one) for one in node] if isinstance(node, list) else node


if __name__ == "__main__":
    text = json.dumps(_structure(openapi()), separators=(",", ":"))
    RELEASED.write_bytes(gzip.compress(text.encode(), mtime=0))
