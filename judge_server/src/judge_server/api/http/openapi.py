"""The OpenAPI document: tags, servers, an example of every response, and schemas that no route declares.

Examples are recorded from a running service, by `python -m tests.services.record_examples`; examples of problems are
written here, since most need a fault.
"""

import json
from functools import cache
from importlib.resources import files
from threading import Lock
from typing import Any

from fastapi import FastAPI

from trainer_client.wire import Problem, RewardEvent
from trainer_client.wire.ledger import RecomputeEvent

TAGS = (
    ("rewards", "Judge groups of responses by a rubric and reward them."),
    ("verdicts", "Judge by a rubric, without rewards."),
    ("comparisons", "Judge which of two responses is better."),
    ("scores", "Rewards in the formats of vLLM and Cohere."),
    ("decisions", "Any judge as a decision model, in the form of System One."),
    ("compat", "Rewards in the formats of other trainers: OpenRLHF, slime and ROLL."),
    ("ledger", "What was judged: verdicts, training runs, monitors and labels."),
    ("rubrics", "Versions of rubrics, their aliases, tags and retirement."),
    ("operations", "Long work: submit, follow, read, cancel and retry it."),
    ("project", "The project of a key: its limits, usage, keys and audit log."),
    ("service", "Health, capabilities and metrics."),
)
"""The tags of the routes, in the order of the document, and what each is about."""

SERVERS = ({"url": "/", "description": "The service that serves this document."},)

_REQUEST_ID = "req_5d41402abc4b2a76"

_PROBLEM_EXAMPLES: dict[str, tuple[str, str, str]] = {
    "401": ("unauthorized", "Unauthorized", "An API key is needed. Send it as Authorization: Bearer adj_…"),
    "403": ("forbidden", "Forbidden", "This key lacks the scope 'score'. Its scopes are: read."),
    "404": ("not-found", "Not found", "There is nothing under that name in this project."),
    "408": ("too-slow", "Request too slow", "the body arrived too slowly: 4096 bytes so far; send it within 30 s"),
    "409": ("in-progress", "In progress", "The same request is still being processed; send it again when it is done."),
    "412": ("alias-moved", "Alias moved", "math/primes@production points to version 3, not 2."),
    "413": ("too-large", "Request too large", "the body is larger than the 67108864 bytes allowed"),
    "414": ("too-large", "Request too large", "The path and query are too long; send long texts in a body."),
    "415": (
        "unsupported-media-type",
        "Unsupported media type",
        "This route takes JSON, not 'text/plain'; send Content-Type: application/json.",
    ),
    "422": ("invalid-request", "Invalid request", "groups: needs at least 1, has 0"),
    "428": ("precondition-required", "Precondition required", "A precondition is required: send If-Match."),
    "429": ("overloaded", "Overloaded", "the queue of the judge is full; try again later"),
    "431": ("too-large", "Request too large", "The headers are too many or too large."),
    "502": ("judging-failed", "Judging failed", "1 of 4 verdicts failed, and on_failure is 'error'"),
    "503": ("not-ready", "Not ready", "The judge is still loading; try again in a moment."),
}
"""By status: the type, the title and the detail of a problem."""

_RETRYABLE = frozenset({"408", "409", "429", "502", "503"})


def install_openapi(app: FastAPI, *, keys_are_optional: bool) -> None:
    """Complete the OpenAPI document of an application when it is first asked for."""
    app.openapi_tags = [{"name": name, "description": description} for name, description in TAGS]
    app.servers = [dict(server) for server in SERVERS]
    generate, lock = app.openapi, Lock()

    def openapi() -> dict[str, Any]:
        with lock:
            is_cached = app.openapi_schema is not None
            document = generate()
            if not is_cached:
                document["components"]["schemas"].update(_undeclared_schemas())
                _add_examples(document)
                if keys_are_optional:
                    _make_keys_optional(document)
            return document

    app.openapi = openapi  # type: ignore[method-assign]


def problem_example(status: str) -> dict[str, Any]:
    """An example of a problem with this status."""
    kind, title, detail = _PROBLEM_EXAMPLES[status]
    problem: dict[str, Any] = {
        "type": f"urn:adjudge:{kind}",
        "title": title,
        "status": int(status),
        "detail": detail,
        "request_id": _REQUEST_ID,
        "retryable": status in _RETRYABLE,
        "errors": [],
    }
    if status == "422":
        problem["errors"] = [{"field": "groups", "message": "needs at least 1, has 0"}]
    return problem | ({"current_version": 3} if status == "412" else {})


@cache
def recorded_examples() -> dict[str, dict[str, Any]]:
    """By operation id and media type, what a service answered."""
    text = files("judge_server.api.http").joinpath("examples.json").read_text(encoding="utf-8")
    examples: dict[str, dict[str, Any]] = json.loads(text)
    return examples


def _add_examples(document: dict[str, Any]) -> None:
    recorded = recorded_examples()
    for path in document["paths"].values():
        for operation in path.values():
            for status, response in operation["responses"].items():
                for media_type, content in response.get("content", {}).items():
                    if media_type == "application/problem+json":
                        content["example"] = problem_example(status)
                    elif media_type in recorded.get(operation["operationId"], {}):
                        content["example"] = recorded[operation["operationId"]][media_type]


def _make_keys_optional(document: dict[str, Any]) -> None:
    """Mark the API key as optional in every operation."""
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    for operation in operations:
        if {} not in operation.get("security", [{}]):
            operation["security"].append({})


def _undeclared_schemas() -> dict[str, Any]:
    """The schemas that routes refer to without declaring them as a model: problems and the lines of a stream."""
    schemas: dict[str, Any] = {}
    for model in (RewardEvent, RecomputeEvent, Problem):
        schema = model.model_json_schema(mode="serialization", ref_template="#/components/schemas/{model}")
        schemas |= schema.pop("$defs", {}) | {model.__name__: schema}
    return schemas
