"""The FastAPI application: routers, middleware, problem handlers and the OpenAPI document."""

from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager, nullcontext

from fastapi import FastAPI
from fastapi.routing import APIRoute
from fastapi_offline import FastAPIOffline

from judge_server.api import decisions, keys, labels, ledger, operations, probes, projects, rubrics, scoring
from judge_server.api.auth import CONSOLE, AccessMiddleware
from judge_server.api.compat import routers as compat_routers
from judge_server.api.compat.roll import RollTasks
from judge_server.api.console import create_console
from judge_server.api.http import problems
from judge_server.api.http.documents import serve_documents
from judge_server.api.http.middleware import BoundaryMiddleware
from judge_server.api.http.openapi import install_openapi
from judge_server.api.http.problems import problem_responses
from judge_server.api.http.requests import MAX_BODIES, BodyReader
from judge_server.api.service import Service
from judge_server.observability.requests import FASTAPI_TELEMETRY_OFF, RequestLoggingMiddleware
from trainer_client import __version__

_AUTHENTICATED_ROUTERS = (
    scoring.rewards_router,
    scoring.recompute_router,
    scoring.verdicts_router,
    scoring.scores_router,
    decisions.decisions_router,
    *compat_routers,
    ledger.ledger_router,
    ledger.run_parts_router,
    ledger.runs_router,
    labels.router,
    scoring.comparisons_router,
    rubrics.rubrics_router,
    probes.metrics_router,
    ledger.measures_router,
    projects.router,
    projects.projects_router,
    keys.router,
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
    app.add_middleware(AccessMiddleware, authenticator=service.authenticator)
    app.add_middleware(BoundaryMiddleware, max_body_bytes=max_body_bytes, body_timeout_s=body_timeout_s)
    app.add_middleware(RequestLoggingMiddleware)
    keys_are_optional = service.authenticator is not None and not service.authenticator.required
    install_openapi(app, keys_are_optional=keys_are_optional)
    serve_documents(app)
    return app


def _operation_id(route: APIRoute) -> str:
    return route.name
