"""The FastAPI application: routes, problems, the boundary, and an OpenAPI document worth reading."""

import asyncio
import json
from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from threading import Lock
from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.routing import APIRoute
from fastapi_offline import FastAPIOffline
from starlette.routing import Route

from judge_server.api import ledger, operations, probes, problems, rubrics, scoring
from judge_server.api.auth import AccessMiddleware
from judge_server.api.middleware import BoundaryMiddleware
from judge_server.api.problems import problem_responses
from judge_server.api.service import Service
from judge_server.observability.requests import FASTAPI_TELEMETRY_OFF, RequestLoggingMiddleware
from trainer_client import __version__
from trainer_client.wire import Problem, RewardEvent

_AUTHENTICATED_ROUTERS = (
    scoring.rewards_router,
    scoring.recompute_router,
    scoring.verdicts_router,
    scoring.scores_router,
    ledger.ledger_router,
    ledger.runs_router,
    scoring.comparisons_router,
    rubrics.rubrics_router,
    probes.metrics_router,
    ledger.projects_router,
    operations.router,
)
"""The routers whose routes need a key, each with the scope it declares. The health routes are open."""

_COMMON_PROBLEM_STATUSES = (401, 403, 414, 429, 431, 503)
"""What any request may be answered with, where a key may be needed."""

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]


def create_app(
    service: Service,
    *,
    max_body_bytes: int = 64 * 2**20,
    body_timeout_s: float = 30.0,
    lifespan: Lifespan | None = None,
) -> FastAPI:
    """The application over a service. `lifespan` starts and stops what the service stands on.

    Bodies are refused that are larger than `max_body_bytes`, or come too slowly: see `web.bodies`.
    """
    app = FastAPIOffline(
        title="Adjudge",
        version=__version__,
        summary="Rubric verdicts and rewards for RL of language models.",
        lifespan=lifespan,
        generate_unique_id_function=_operation_id,
        telemetry=FASTAPI_TELEMETRY_OFF,
    )
    app.state.service = service
    for router in _AUTHENTICATED_ROUTERS:
        app.include_router(router, responses=problem_responses(*_COMMON_PROBLEM_STATUSES))
    app.include_router(probes.health_router)
    problems.install_problem_handlers(app)
    app.add_middleware(AccessMiddleware, authenticator=service.authenticator)
    app.add_middleware(BoundaryMiddleware, max_body_bytes=max_body_bytes, body_timeout_s=body_timeout_s)
    app.add_middleware(RequestLoggingMiddleware)
    document = app.openapi

    making = Lock()

    def openapi() -> dict[str, Any]:
        with making:
            made = app.openapi_schema is not None
            schema = document()
            if not made:
                schema["components"]["schemas"].update(_undeclared_schemas())
                if service.authenticator is not None and not service.authenticator.required:
                    _make_keys_optional(schema)
            return schema

    app.openapi = openapi  # type: ignore[method-assign]
    _serve_document(app)
    return app


def _serve_document(app: FastAPI) -> None:
    """Answer `/openapi.json` with bytes that are made once, by the first request for them, off the event loop."""
    (route,) = [one for one in app.router.routes if isinstance(one, Route) and one.path == app.openapi_url]
    app.router.routes.remove(route)
    making = asyncio.Lock()
    made: list[bytes] = []

    def make() -> bytes:
        return json.dumps(app.openapi(), ensure_ascii=False, separators=(",", ":")).encode()

    async def document(request: Request) -> Response:
        async with making:
            if not made:
                made.append(await asyncio.to_thread(make))
        return Response(made[0], media_type="application/json")

    app.add_route(route.path, document, include_in_schema=False)


def _operation_id(route: APIRoute) -> str:
    return route.name


def _make_keys_optional(document: dict[str, Any]) -> None:
    """Say that requests may do without the key that this service does not need."""
    operations = [operation for path in document["paths"].values() for operation in path.values()]
    for operation in operations:
        if {} not in operation.get("security", [{}]):
            operation["security"].append({})


def _undeclared_schemas() -> dict[str, Any]:
    """What routes refer to without declaring it as their model: problems, and the lines of a stream."""
    schemas: dict[str, Any] = {}
    for model in (RewardEvent, Problem):
        schema = model.model_json_schema(mode="serialization", ref_template="#/components/schemas/{model}")
        schemas |= schema.pop("$defs", {}) | {model.__name__: schema}
    return schemas
