"""The API of the last release still works, and every kind of change that would break its clients is found."""

from copy import deepcopy
from fnmatch import fnmatchcase
from typing import Any

import pytest

from tests.judge_server.breaking_changes import breaking_changes, released_api
from tests.judge_server.golden_files import openapi

ACCEPTED: tuple[str, ...] = ()
"""The changes since the last release that are meant, each in the changelog."""


def test_nothing_breaks_clients_of_the_last_release() -> None:
    found = breaking_changes(released_api(), openapi())
    broken = [change for change in found if not any(fnmatchcase(change, known) for known in ACCEPTED)]
    assert broken == [], "take it back, or add it to ACCEPTED and to the changelog"
    unused = [known for known in ACCEPTED if not any(fnmatchcase(change, known) for change in found)]
    assert unused == [], "no such change: remove it from ACCEPTED"


ITEM = {
    "type": "object",
    "required": ["id"],
    "additionalProperties": False,
    "properties": {
        "id": {"type": "string", "maxLength": 64, "minLength": 1, "pattern": "[a-z]+"},
        "kind": {"type": "string", "enum": ["point", "pitfall"]},
        "weight": {"anyOf": [{"type": "number", "minimum": 0, "maximum": 10}, {"type": "null"}]},
        "parts": {"type": "array", "items": {"$ref": "#/components/schemas/Item"}, "maxItems": 8},
        "range": {"type": "array", "prefixItems": [{"type": "integer"}, {"type": "integer"}]},
        "labels": {"type": "object", "additionalProperties": {"type": "string"}},
        "title": {"title": "Title", "type": "string"},
    },
}
SHAPE = {
    "oneOf": [
        {"type": "object", "required": ["kind"], "properties": {"kind": {"const": kind}, "size": {"type": "number"}}}
        for kind in ("circle", "square")
    ]
}


def content(schema: dict[str, Any]) -> dict[str, Any]:
    return {"content": {"json": {"schema": schema}}}


def document() -> dict[str, Any]:
    """A small API whose request and answer have the same item, and whose answer has a shape too."""
    item = {"$ref": "#/components/schemas/Item"}
    answer = {"type": "object", "required": ["item"], "properties": {"item": item, "shape": SHAPE}}
    post = {
        "parameters": [{"in": "query", "name": "limit", "schema": {"type": "integer", "maximum": 100}}],
        "requestBody": content(item),
        "responses": {"200": content(answer), "409": content({"type": "object", "properties": {"detail": {}}})},
    }
    return deepcopy({"paths": {"items": {"post": post, "get": post}}, "components": {"schemas": {"Item": ITEM}}})


def changed(path: str, value: Any) -> dict[str, Any]:
    """The document with another value at a place; None removes what is there."""
    new = document()
    *above, last = path.replace("ITEM", "components/schemas/Item/properties").split("/")
    node: Any = new
    for key in above:
        node = node[int(key) if isinstance(node, list) else key]
    if value is None:
        del node[last]
    else:
        node[last] = value
    return new


POST = "paths/items/post"
ANSWER = f"{POST}/responses/200/content/json/schema"
BREAKING = {
    "a route": ("paths/items", None, "POST items: removed"),
    "a method": (POST, None, "POST items: removed"),
    "a parameter": (f"{POST}/parameters", [], "POST items limit: removed"),
    "a parameter's bound": (f"{POST}/parameters/0/schema/maximum", 50, "POST items limit: maximum is now 50, not 100"),
    "a required parameter": (f"{POST}/parameters/0/required", True, "POST items limit: now required"),
    "a required body": (f"{POST}/requestBody/required", True, "POST items body: now required"),
    "a media type": (f"{POST}/requestBody/content", {}, "POST items body json: removed"),
    "an answer": (f"{POST}/responses/200", None, "POST items 200: removed"),
    "a field of a problem": (
        f"{POST}/responses/409/content/json/schema/properties/detail",
        None,
        "POST items 409.detail: removed",
    ),
    "a field of an answer": (f"{ANSWER}/properties/item", None, "POST items 200.item: removed"),
    "a field that may be absent": (f"{ANSWER}/required", [], "POST items 200.item: may now be absent"),
    "an alternative": (
        f"{ANSWER}/properties/shape/oneOf",
        SHAPE["oneOf"][:1],
        'POST items 200.shape.kind: no longer has the value "square"',
    ),
    "an answer that may be null": (
        f"{ANSWER}/properties/shape/oneOf",
        [*SHAPE["oneOf"], {"type": "null"}],
        "POST items 200.shape: may now be of type null",
    ),
    "a field of a request": ("ITEM/title", None, "Item (request).title: removed"),
    "a required field": ("components/schemas/Item/required", ["id", "kind"], "Item (request).kind: now required"),
    "a value": ("ITEM/kind/enum", ["point"], 'Item (request).kind: no longer has the value "pitfall"'),
    "a choice of values": ("ITEM/title/enum", ["a"], 'Item (request).title: now one of ["a"]'),
    "a type": ("ITEM/title/type", "integer", "Item (request).title: no longer of type string"),
    "null": ("ITEM/weight/anyOf", [{"type": "number"}], "Item (request).weight: no longer of type null"),
    "a number": ("ITEM/weight/anyOf/0/type", "integer", "Item (request).weight: no longer of type number"),
    "an upper bound": ("ITEM/id/maxLength", 32, "Item (request).id: maxLength is now 32, not 64"),
    "a lower bound": ("ITEM/id/minLength", 2, "Item (request).id: minLength is now 2, not 1"),
    "a new bound": ("ITEM/parts/minItems", 1, "Item (request).parts: minItems is now 1, not null"),
    "a pattern": ("ITEM/id/pattern", "[a-c]+", 'Item (request).id: pattern is now "[a-c]+", not "[a-z]+"'),
    "an item's type": ("ITEM/parts/items", {"type": "string"}, "Item (request).parts[]: no longer of type object"),
    "a tuple's item": ("ITEM/range/prefixItems/1/type", "string", "Item (request).range[1]: no longer of type integer"),
    "a tuple's length": ("ITEM/range/prefixItems", [{"type": "integer"}], "Item (request).range: has 1 items, not 2"),
    "a map's values": (
        "ITEM/labels/additionalProperties", {"type": "null"}, "Item (request).labels.*: no longer of type string",
    ),
    "a closed map": ("ITEM/labels/additionalProperties", False, "Item (request).labels: no longer has other fields"),
}  # fmt: skip


@pytest.mark.parametrize("name", BREAKING)
def test_a_breaking_change_is_found_and_named(name: str) -> None:
    path, value, expected = BREAKING[name]
    assert expected in breaking_changes(document(), changed(path, value))


ADDITIONS = {
    "a route": ("paths/more", {"get": {"responses": {}}}),
    "a method": ("paths/items/delete", {"responses": {}}),
    "a parameter": (f"{POST}/parameters/0/schema/maximum", 200),
    "an answer": (f"{POST}/responses/503", content({})),
    "a field of an answer": (f"{ANSWER}/properties/more", {"type": "string"}),
    "an alternative of the same type": (
        f"{ANSWER}/properties/shape/oneOf",
        [*SHAPE["oneOf"], {"type": "object", "required": ["kind"], "properties": {"kind": {"const": "line"}}}],
    ),
    "an optional field": ("ITEM/more", {"type": "string", "maxLength": 3}),
    "a value": ("ITEM/kind/enum", ["point", "pitfall", "fact"]),
    "a wider bound": ("ITEM/id/maxLength", 128),
    "a bound that is gone": ("ITEM/id/minLength", None),
    "open fields": ("components/schemas/Item/additionalProperties", True),
    "prose": ("ITEM/id/description", "What it is called."),
}


@pytest.mark.parametrize("name", ADDITIONS)
def test_an_addition_breaks_nothing(name: str) -> None:
    assert breaking_changes(document(), changed(*ADDITIONS[name])) == []


def test_a_wider_type_breaks_answers_and_not_requests() -> None:
    wider = changed("ITEM/range/prefixItems/0/type", "number")
    assert breaking_changes(document(), wider) == ["Item (answer).range[0]: may now be of type number"]
    narrower = breaking_changes(wider, document())
    assert narrower == ["Item (request).range[0]: no longer of type number"]
