"""Build the application: its routes, middleware, OpenAPI document and documentation pages."""

import asyncio
import gzip
import json
import mimetypes
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext
from functools import cache, partial
from hashlib import sha256
from importlib.resources import files
from itertools import chain
from pathlib import Path
from threading import Lock
from typing import Any, NamedTuple

from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute
from fastapi_offline import FastAPIOffline
from starlette.exceptions import HTTPException
from starlette.routing import Mount, Route
from starlette.staticfiles import StaticFiles

from judge_server.api import decisions, judges, ledger, operations, probes, projects, rubrics, scores, scoring
from judge_server.api.auth import CONSOLE, AccessMiddleware, ApiCallers, refuse
from judge_server.api.compat import routers as compat_routers
from judge_server.api.compat.roll import RollTasks
from judge_server.api.console import create_console
from judge_server.api.http import problems
from judge_server.api.http.middleware import BoundaryMiddleware
from judge_server.api.http.problems import problem_responses
from judge_server.api.http.requests import MAX_BODIES, BodyReader
from judge_server.api.http.responses import STATIC_FOLDER
from judge_server.api.service import Service
from judge_server.observability.tracing import FASTAPI_TELEMETRY_OFF, RequestLoggingMiddleware
from trainer_client import __version__
from trainer_client.wire import Problem, RewardEvent
from trainer_client.wire.ledger import ExportEvent, RecomputeEvent

_AUTHENTICATED_ROUTERS = (
    scoring.rewards_router,
    scoring.recompute_router,
    scoring.verdicts_router,
    scores.scores_router,
    decisions.decisions_router,
    *compat_routers,
    ledger.ledger_router,
    ledger.run_parts_router,
    ledger.runs_router,
    ledger.router,
    scoring.comparisons_router,
    rubrics.rubrics_router,
    probes.metrics_router,
    ledger.measures_router,
    projects.router,
    projects.projects_router,
    projects.keys_router,
    judges.router,
    judges.weights_router,
    operations.router,
)
"""The routers that require an API key with the scope they declare. The health routes are open."""

_COMMON_PROBLEM_STATUSES = (401, 403, 414, 429, 431, 503)
"""The problem statuses of every route that requires a key."""

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]


def create_app(
    service: Service,
    *,
    max_body_bytes: int = 64 * 2**20,
    body_timeout_s: float = 30.0,
    lifespan: Lifespan | None = None,
) -> FastAPI:
    """Create the application over a service. `lifespan` starts and stops the service's parts.

    A body larger than `max_body_bytes`, or one that arrives too slowly, is rejected: see `BoundedBody`.
    """
    reader, roll_tasks = BodyReader(MAX_BODIES * max_body_bytes), RollTasks()

    @asynccontextmanager
    async def with_reader(app: FastAPI) -> AsyncIterator[None]:
        try:
            async with lifespan(app) if lifespan is not None else nullcontext():
                try:
                    yield
                finally:
                    await roll_tasks.close()  # before the judge and the database
        finally:
            await reader.close()

    app = FastAPIOffline(
        title="Adjudge",
        version=__version__,
        summary="Rubric verdicts and rewards for RL of language models.",
        lifespan=with_reader,
        generate_unique_id_function=_operation_id,
        telemetry=FASTAPI_TELEMETRY_OFF,
    )
    app.state.service, app.state.body_reader, app.state.roll_tasks = service, reader, roll_tasks
    for router in _AUTHENTICATED_ROUTERS:
        app.include_router(router, responses=problem_responses(*_COMMON_PROBLEM_STATUSES))
    app.include_router(probes.health_router)
    app.mount(CONSOLE, create_console(service))
    problems.install_problem_handlers(app)
    app.add_middleware(AccessMiddleware, identify=ApiCallers(service.authenticator), refuse=refuse)
    app.add_middleware(BoundaryMiddleware, max_body_bytes=max_body_bytes, body_timeout_s=body_timeout_s)
    app.add_middleware(RequestLoggingMiddleware)
    keys_are_optional = service.authenticator is not None and not service.authenticator.required
    install_openapi(app, keys_are_optional=keys_are_optional)
    serve_documents(app)
    return app


def _operation_id(route: APIRoute) -> str:
    return route.name


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
    ("judges", "Put a judge to sleep, wake it, and change its weights."),
    ("service", "Health, capabilities and metrics."),
)
"""The tags of the routes, in the order of the document, and what each is about."""

SERVERS = ({"url": "/", "description": "The service that serves this document."},)


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


@cache
def recorded_examples() -> dict[str, dict[str, Any]]:
    """By operation id and media type, what a service answered."""
    return _examples("examples.json")


@cache
def example_requests() -> dict[str, dict[str, Any]]:
    """By operation id and name, requests to try, each with a summary."""
    return _examples("example_requests.json")


def _examples(file: str) -> dict[str, dict[str, Any]]:
    found: dict[str, dict[str, Any]] = json.loads(files("judge_server.api.http").joinpath(file).read_bytes())
    return found


def _add_examples(document: dict[str, Any]) -> None:
    for operation in chain.from_iterable(path.values() for path in document["paths"].values()):
        recorded = recorded_examples().get(operation["operationId"], {})
        for response in operation["responses"].values():
            for media_type, content in response.get("content", {}).items():
                if media_type in recorded:
                    content["example"] = recorded[media_type]
        if operation["operationId"] in example_requests():
            content = operation["requestBody"]["content"]["application/json"]
            content["examples"] = example_requests()[operation["operationId"]]


def _make_keys_optional(document: dict[str, Any]) -> None:
    """Mark the API key as optional in every operation."""
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    for operation in operations:
        if {} not in operation.get("security", [{}]):
            operation["security"].append({})


def _undeclared_schemas() -> dict[str, Any]:
    """The schemas that routes refer to without declaring them as a model: problems and the lines of a stream."""
    schemas: dict[str, Any] = {}
    for model in (RewardEvent, RecomputeEvent, ExportEvent, Problem):
        schema = model.model_json_schema(mode="serialization", ref_template="#/components/schemas/{model}")
        schemas |= schema.pop("$defs", {}) | {model.__name__: schema}
    return schemas


class Document(NamedTuple):
    """The content of a document, its gzip encoding, and an entity tag that changes with it."""

    content: bytes
    compressed: bytes
    media_type: str
    etag: str

    @classmethod
    def of(cls, content: bytes, media_type: str) -> "Document":
        """Compress a document; megabytes take tenths of a second."""
        return cls(content, gzip.compress(content, mtime=0), media_type, f'"{sha256(content).hexdigest()[:32]}"')

    def response(self, request: Request) -> Response:
        """Answer with the encoding that the caller accepts; 304 if the caller has the document."""
        headers = {"ETag": self.etag, "Vary": "Accept-Encoding"}
        if request.headers.get("if-none-match") == self.etag:
            return Response(status_code=304, headers=headers)
        accepted = {part.strip().partition(";") for part in request.headers.get("accept-encoding", "").split(",")}
        if any(name == "gzip" and quality.strip() not in {"q=0", "q=0.0"} for name, _, quality in accepted):
            headers["Content-Encoding"] = "gzip"
            return Response(self.compressed, media_type=self.media_type, headers=headers)
        return Response(self.content, media_type=self.media_type, headers=headers)


def serve_documents(app: FastAPI) -> None:
    """Serve the OpenAPI document and the scripts of `/docs` and `/redoc` from memory, in place of FastAPI's routes."""
    routes = app.router.routes
    (built_per_request,) = [route for route in routes if isinstance(route, Route) and route.path == app.openapi_url]
    ((mount, static),) = [
        (route, route.app) for route in routes if isinstance(route, Mount) and isinstance(route.app, StaticFiles)
    ]
    routes.remove(built_per_request)
    routes.remove(mount)
    files = {path.name: path for path in Path(str(static.directory)).iterdir() if path.is_file()}
    documents: dict[str, Document] = {}
    making = asyncio.Lock()

    async def answer(request: Request, name: str, make: Callable[[], Document]) -> Response:
        async with making:
            if name not in documents:
                documents[name] = await asyncio.to_thread(make)
        return documents[name].response(request)

    def openapi() -> Document:
        text = json.dumps(app.openapi(), ensure_ascii=False, separators=(",", ":"))
        return Document.of(text.encode(), "application/json")

    async def openapi_document(request: Request) -> Response:
        return await answer(request, "", openapi)

    async def static_file(request: Request) -> Response:
        name = request.path_params["name"]
        if name not in files:
            raise HTTPException(404)
        return await answer(request, name, partial(_file, files[name]))

    app.add_route(str(app.openapi_url), openapi_document, include_in_schema=False)
    app.add_route(STATIC_FOLDER + "{name}", static_file, include_in_schema=False)


def _file(path: Path) -> Document:
    media_type = mimetypes.guess_type(path.name)[0] or "application/octet-stream"
    return Document.of(path.read_bytes(), media_type)
