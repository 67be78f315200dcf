"""The OpenAPI document is complete, and has working examples."""

from typing import Any

import httpx2
import pytest
from jsonschema import Draft202012Validator

from tests.judge_server.golden_files import openapi
from tests.judge_server.support import CRITERIA

DOCUMENT = openapi()
OPERATIONS = [
    (method, path, operation) for path, methods in DOCUMENT["paths"].items() for method, operation in methods.items()
]


@pytest.mark.parametrize(("method", "path", "operation"), OPERATIONS, ids=str)
def test_every_operation_describes_its_behaviour_and_its_errors(
    method: str, path: str, operation: dict[str, Any]
) -> None:
    assert operation["summary"]
    assert operation["description"]
    responses = operation["responses"]
    problems = {status: answer for status, answer in responses.items() if int(status) >= 400}
    assert problems or path in ("/healthz", "/v1", "/v1/ledger", "/metrics")
    for answer in problems.values():
        assert answer["description"]
        schema = answer["content"]["application/problem+json"]["schema"]
        assert schema == {"$ref": "#/components/schemas/Problem"}
    takes_body = "requestBody" in operation
    assert ("413" in responses) == takes_body
    if takes_body or operation.get("parameters"):
        assert "422" in responses


def references(node: Any) -> set[str]:
    """Every `$ref` under a node."""
    if isinstance(node, dict):
        found = {node["$ref"]} if isinstance(node.get("$ref"), str) else set()
        return found.union(*map(references, node.values()))
    return set().union(*map(references, node)) if isinstance(node, list) else set()


def properties(schemas: dict[str, Any]) -> list[tuple[str, str, dict[str, Any]]]:
    """Every property of the schemas: its schema, its name and its definition."""
    return [
        (schema, name, field) for schema, each in schemas.items() for name, field in each.get("properties", {}).items()
    ]


def test_every_property_has_a_description() -> None:
    found = properties(DOCUMENT["components"]["schemas"])
    assert len(found) > 700
    assert [(schema, name) for schema, name, field in found if not field.get("description")] == []


def test_every_response_has_an_example_that_its_schema_accepts() -> None:
    missing, checked = [], 0
    for method, path, operation in OPERATIONS:
        for status, response in operation["responses"].items():
            for media_type, content in response["content"].items():
                if "example" not in content:
                    missing.append((method, path, status, media_type))
                    continue
                schema = {**content["schema"], "components": DOCUMENT["components"]}
                Draft202012Validator(schema).validate(content["example"])
                checked += 1
    assert missing == []
    assert checked > 400


def test_operation_ids_are_distinct_and_tags_are_described() -> None:
    ids = [operation["operationId"] for _, _, operation in OPERATIONS]
    assert len(ids) == len(set(ids))
    described = {tag["name"] for tag in DOCUMENT["tags"] if tag["description"]}
    assert {tag for _, _, operation in OPERATIONS for tag in operation["tags"]} == described
    assert DOCUMENT["servers"]


def values_of(node: Any, name: str) -> list[Any]:
    """Every value under this key, anywhere in a node."""
    if isinstance(node, dict):
        own = [node[name]] if name in node else []
        return own + [value for child in node.values() for value in values_of(child, name)]
    return [value for child in node for value in values_of(child, name)] if isinstance(node, list) else []


def test_every_reference_in_the_document_resolves() -> None:
    schemas = {f"#/components/schemas/{name}" for name in DOCUMENT["components"]["schemas"]}
    assert references(DOCUMENT) <= schemas


_NEED_SOMETHING_THERE = ("/v1/operations", "/v1/labels", "/v1/measures")


async def test_the_documents_request_examples_are_accepted(http: httpx2.AsyncClient) -> None:
    tried = set()
    await http.post("/v1/rubrics/math/primes/versions", json={"criteria": CRITERIA})  # named in examples
    for method, path, operation in OPERATIONS:
        if "{" in path or path in _NEED_SOMETHING_THERE or path.startswith("/v1/compat/"):
            continue  # the tests of these routes try their examples
        media = operation.get("requestBody", {}).get("content", {}).get("application/json", {})
        for example in media.get("examples", {}).values():
            answer = await http.request(method, path, json=example["value"])
            assert answer.status_code == 200, answer.text
            assert "failed" not in values_of(answer.json(), "status")
            assert None not in values_of(answer.json(), "reward")
            tried.add(path)
    assert tried == {f"/v1/{name}" for name in ("rewards", "verdicts", "comparisons", "score", "rerank", "systemone")}


async def test_the_document_is_served_and_the_docs_page_shows_it(http: httpx2.AsyncClient) -> None:
    assert (await http.get("/openapi.json")).json() == openapi()
    assert "openapi.json" in (await http.get("/docs")).text
