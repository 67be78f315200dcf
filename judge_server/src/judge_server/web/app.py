"""The FastAPI application: routes, problems, the boundary, and an OpenAPI document worth reading."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from typing import Any

from fastapi import FastAPI
from fastapi.routing import APIRoute
from fastapi_offline import FastAPIOffline

from judge_server.web import comparisons, health, ledger, metrics, problems, recompute, rewards, rubrics, verdicts
from judge_server.web.boundary import Boundary
from judge_server.web.service import Service
from trainer_client import __version__
from trainer_client.wire import Problem, RewardLine

Lifespan = Callable[[FastAPI], AbstractAsyncContextManager[None]]


def create_app(service: Service, *, max_body_bytes: int = 64 * 2**20, lifespan: Lifespan | None = None) -> FastAPI:
    """The application over a service. `lifespan` starts and stops what the service stands on."""
    app = FastAPIOffline(
        title="Adjudge",
        version=__version__,
        summary="Rubric verdicts and rewards for RL of language models.",
        lifespan=lifespan,
        generate_unique_id_function=_operation_id,
    )
    app.state.service = service
    for module in (rewards, recompute, verdicts, ledger, comparisons, rubrics, health, metrics):
        app.include_router(module.router)
    problems.install(app)
    app.add_middleware(Boundary, max_body_bytes=max_body_bytes)
    document = app.openapi

    def openapi() -> dict[str, Any]:
        schema = document()
        schema["components"]["schemas"].update(_undeclared_schemas())
        return schema

    app.openapi = openapi  # type: ignore[method-assign]
    return app


def _operation_id(route: APIRoute) -> str:
    return route.name


def _undeclared_schemas() -> dict[str, Any]:
    """What routes refer to without declaring it as their model: problems, and the lines of a stream."""
    schemas: dict[str, Any] = {}
    for model in (RewardLine, Problem):
        schema = model.model_json_schema(mode="serialization", ref_template="#/components/schemas/{model}")
        schemas |= schema.pop("$defs", {}) | {model.__name__: schema}
    return schemas
