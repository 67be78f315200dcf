"""promptfoo's assertions: `{"assert": [{"type": "contains", "value": "…", "weight": 2}, …]}`, of one test.

Model-graded assertions become criteria for the judge, and deterministic ones become programs; `not-` negates either.
An `assert-set` counts with its weight, which its assertions share. What has no counterpart, such as a `threshold` or
code, is named, and the other assertions are read. A configuration with several tests holds a rubric per test.
"""

import csv
import json
import re
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pydantic import Field, JsonValue

from rubric_store.formats import programs
from rubric_store.formats.documents import (
    Changes,
    InvalidValueError,
    OmittedItemError,
    Path,
    RubricDocument,
    read_items,
)
from rubric_store.formats.published.trees import Node, read_leaves
from trainer_client.wire.base import RequestModel

_JUDGED: Final = {
    "llm-rubric": "{}",
    "g-eval": "{}",
    "model-graded-closedqa": "{}",
    "search-rubric": "{}",
    "factuality": "It agrees with this statement in all facts: {}",
    "model-graded-factuality": "It agrees with this statement in all facts: {}",
}
"""The types that a model grades, and how each words what it asks for."""

_MARKS: Final = frozenset({"value", "threshold", "metric", "assert"})
"""Fields by which an assertion of a type without a counterpart is recognised."""

_VARIABLE = re.compile(r"\{\{-?\s*([\w.]+)\s*-?\}\}")
_EXPRESSION = re.compile(r"\{\{[^{}]{1,200}+\}\}")
_INLINE_FLAGS = re.compile(r"\(\?i\)")
_MAX_PATTERN = 2_000
_MAX_TEXTS = 64


class _Item(RequestModel):
    type: str
    value: JsonValue = None
    weight: float
    metric: str | None = None
    threshold: JsonValue = None
    variables: dict[str, JsonValue] = Field(default_factory=dict)


def matches(value: object) -> bool:
    """Whether a value is clearly one test's assertions, alone or in the test."""
    assertions = value.get("assert") if isinstance(value, dict) else value
    return isinstance(assertions, list) and any(map(_is_assertion, assertions))


def _is_assertion(value: object) -> bool:
    if not isinstance(value, dict) or not isinstance(value.get("type"), str):
        return False
    kind = value["type"].removeprefix("not-")
    return kind in _JUDGED or kind in _PROGRAMS or bool(value.keys() & _MARKS)


def tests(value: object) -> list[tuple[Path, object]] | None:
    """The tests of a configuration, each with its path and with the assertions of `defaultTest`; None for no such."""
    if not isinstance(value, dict) or not isinstance(value.get("tests") or value.get("default_test"), list | dict):
        return None
    default = value.get("default_test")
    shared: Mapping[str, Any] = default if isinstance(default, dict) else {}
    listed = value.get("tests")
    given = listed if isinstance(listed, list) else [{}]
    descriptions = Counter(str(test.get("description")) for test in given if isinstance(test, dict))
    found: list[tuple[Path, object]] = []
    for index, test in enumerate(given):
        if not isinstance(test, dict):
            continue
        own, common = test.get("assert") or [], shared.get("assert") or []
        assertions = [*own, *common] if isinstance(own, list) and isinstance(common, list) else own
        if any(map(_is_assertion, assertions)) if isinstance(assertions, list) else False:
            variables = {**_object(shared.get("vars")), **_object(test.get("vars"))}
            merged = {**shared, **test, "assert": assertions, "vars": variables}
            if isinstance(test.get("description"), str) and descriptions[test["description"]] == 1:
                merged["name"] = test["description"]
            found.append((("tests", index) if isinstance(listed, list) else ("default_test",), merged))
    return found or None


def _object(value: object) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def from_value(value: object, changes: Changes) -> RubricDocument:
    """Read a rubric from parsed JSON or YAML; raises `InvalidValueError`."""
    root: Path = ("assert",) if isinstance(value, dict) else ()
    test = _object(value)
    assertions = test.get("assert") if isinstance(value, dict) else value
    if not isinstance(assertions, list):
        raise InvalidValueError.at(root, 'expected a list of assertions [{"type": "llm-rubric", "value": "…"}]')
    if "threshold" in test:
        changes.append((("threshold",), "a threshold of the test is not kept: the reward is the score itself"))
    in_sets = any(isinstance(one, dict) and isinstance(one.get("assert"), list) for one in assertions)
    placed = [((*root, index), one) for index, one in enumerate(assertions)]
    places: list[Path] = []
    items: list[object] = []
    for path, node, weight in _in_sets(placed, changes) if in_sets else ((*one, None) for one in placed):
        places.append(path)
        if isinstance(node, dict):
            given = node.get("weight", 1) if weight is None else weight
            node = {**node, "weight": given, "variables": _object(test.get("vars"))}
        items.append(node)

    def fields(index: int, item: _Item) -> dict[str, Any]:
        return _criterion(index, item, places[index], changes)

    names = {"description": "value", "verification": "value"}
    return read_items(items, root, _Item, fields, names, changes, places)


def _in_sets(placed: list[tuple[Path, object]], changes: Changes) -> list[tuple[Path, Node, float]]:
    """The assertions of sets and beside them, each with its share of the score."""
    leaves = read_leaves(placed, lambda node: "assert" if isinstance(node.get("assert"), list) else None, changes)
    sets = {id(node): (leaf.path, node) for leaf in leaves for node in leaf.above}
    for path, node in sets.values():
        if "threshold" in node:
            changes.append((path, "the threshold of an assert-set is not kept: the set counts with its score"))
    return [(leaf.path, leaf.node, leaf.share) for leaf in leaves]


def _criterion(index: int, item: _Item, place: Path, changes: Changes) -> dict[str, Any]:
    negated = item.type.startswith("not-")
    kind = item.type.removeprefix("not-")
    value = _filled(item.value, item.variables)
    if isinstance(value, str) and value.startswith("file://"):
        raise OmittedItemError(f"{item.type} reads {value[:60]!r}, which is another file; it is left out")
    if item.threshold is not None:
        changes.append(((*place, "threshold"), f"the threshold of {item.type} is not kept"))
    unfilled = _unfilled(value)
    fields = {
        "id": f"a{index + 1}",
        "name": item.metric and item.metric[:200],
        "weight": item.weight,
    }
    if kind in _JUDGED:
        asked = "\n".join(f"- {one}" for one in value) if isinstance(value, list) else str(value or "")
        if not asked.strip():
            raise OmittedItemError(f"{item.type} has no value, so there is nothing to ask; it is left out")
        if unfilled is not None:
            changes.append((place, f"its text has {unfilled}, which the test's vars do not fill"))
        text = _JUDGED[kind].format(asked)
        return {**fields, "description": f"It is not true that: {text}" if negated else text}
    if kind not in _PROGRAMS:
        raise OmittedItemError(f"{item.type[:40]!r} has no counterpart here; it is left out")
    if unfilled is not None:
        raise OmittedItemError(f"its value has {unfilled}, which the test's vars do not fill; it is left out")
    verification, description = _PROGRAMS[kind](value, negated)
    if len(verification.get("pattern", "")) > _MAX_PATTERN or any(
        len(verification.get(field, ())) > _MAX_TEXTS for field in ("all_of", "any_of")
    ):
        raise OmittedItemError(f"{item.type} has too long a value for a program; it is left out")
    return {**fields, "description": description, "verification": verification}


def _filled(value: JsonValue, variables: Mapping[str, JsonValue]) -> JsonValue:
    """A value with the test's variables in place of `{{name}}`, as far as they are plain."""

    def fill(match: re.Match[str]) -> str:
        given = variables.get(match[1])
        return str(given) if isinstance(given, str | int | float) and not isinstance(given, bool) else match[0]

    if isinstance(value, list):
        return [_filled(one, variables) for one in value]
    return _VARIABLE.sub(fill, value) if isinstance(value, str) else value


def _unfilled(value: JsonValue) -> str | None:
    """The first expression of a text or of a list of texts that no variable has filled."""
    texts = value if isinstance(value, list) else [value]
    found = (_EXPRESSION.search(text) for text in texts if isinstance(text, str))
    return next((match[0] for match in found if match), None)


_Program = Callable[[JsonValue, bool], tuple[dict[str, Any], str]]


def _texts(value: JsonValue, *, several: bool) -> list[str]:
    """The texts of a value: a list, a text, or a text of several with commas between."""
    given = value if isinstance(value, list) else next(csv.reader([value], skipinitialspace=True), []) if (
        several and isinstance(value, str) and "\n" not in value
    ) else [value]  # fmt: skip
    texts = [str(one).strip() if several else str(one) for one in given if isinstance(one, str | int | float)]
    if not (texts := [text for text in texts if text]):
        raise OmittedItemError("it has no text to look for; it is left out")
    return texts


def _search(*, any_of: bool, several: bool, case_sensitive: bool) -> _Program:
    def program(value: JsonValue, negated: bool) -> tuple[dict[str, Any], str]:
        texts = _texts(value, several=several)
        joined = (" or " if any_of else " and ").join(map(json.dumps, texts[:10])) + (" …" if len(texts) > 10 else "")
        if negated:
            check = programs.absent(texts, all_of=not any_of, case_sensitive=case_sensitive)
            return check, f"Does not contain {joined}."[:20_000]
        check = programs.present(texts, any_of=any_of, case_sensitive=case_sensitive)
        return check, f"Contains {joined}."[:20_000]

    return program


def _regex(value: JsonValue, negated: bool) -> tuple[dict[str, Any], str]:
    pattern = _texts(value, several=False)[0]
    flags = _INLINE_FLAGS.match(pattern)
    pattern = pattern[flags.end() :] if flags else pattern
    shown = json.dumps(pattern)
    if negated:
        return programs.unmatched(pattern, case_sensitive=not flags), f"Does not match {shown}."
    return programs.matched(pattern, case_sensitive=not flags), f"Matches {shown}."


def _equals(value: JsonValue, negated: bool) -> tuple[dict[str, Any], str]:
    if isinstance(value, list | dict):
        raise OmittedItemError("equals with a JSON value has no counterpart here; it is left out")
    text = _texts(value, several=False)[0]
    if negated:
        words = r"\s+".join(map(re.escape, text.split()))
        pattern = rf"(?!\s*{words}\s*\Z)[\s\S]*"
        return {"method": "regex", "match": "full", "pattern": pattern}, f"Is not {json.dumps(text)}."
    return (
        {"method": "exact", "expected": text, "of": "response", "case_sensitive": True},
        f"Is {json.dumps(text)}.",
    )


def _starts_with(value: JsonValue, negated: bool) -> tuple[dict[str, Any], str]:
    text = _texts(value, several=False)[0]
    pattern = rf"\A{re.escape(text)}"
    if negated:
        return programs.unmatched(pattern, case_sensitive=True), f"Does not start with {json.dumps(text)}."
    return programs.matched(pattern), f"Starts with {json.dumps(text)}."


def _is_json(value: JsonValue, negated: bool) -> tuple[dict[str, Any], str]:
    if negated:
        raise OmittedItemError("not-is-json has no counterpart here; it is left out")
    schema = value if isinstance(value, dict) else _parsed_object(value)
    return {"method": "json_schema", "schema": schema}, "Is JSON that fits the schema." if schema else "Is JSON."


def _parsed_object(value: JsonValue) -> dict[str, Any]:
    if not value:
        return {}
    try:
        parsed = json.loads(value) if isinstance(value, str) else None
    except (ValueError, RecursionError):
        parsed = None
    if not isinstance(parsed, dict):
        raise OmittedItemError("its schema is neither an object nor JSON; it is left out")
    return parsed


def _word_count(value: JsonValue, negated: bool) -> tuple[dict[str, Any], str]:
    bounds: Sequence[object] = (value, value)
    if isinstance(value, dict):
        bounds = (value.get("min", 0), value.get("max"))
    match bounds:
        case (int() as low, (int() | None) as high) if not negated and low >= 0 and (high is None or low <= high):
            span = f"{low} words" if low == high else f"{low} to {high} words" if high else f"at least {low} words"
            return programs.word_count(low, high), f"Has {span}."
    raise OmittedItemError("its number of words has no counterpart here; it is left out")


_PROGRAMS: Final[dict[str, _Program]] = {
    **{
        f"{case}contains{which}": _search(any_of=which == "-any", several=bool(which), case_sensitive=not case)
        for case in ("", "i")
        for which in ("", "-any", "-all")
    },
    "regex": _regex,
    "equals": _equals,
    "starts-with": _starts_with,
    "is-json": _is_json,
    "word-count": _word_count,
}
