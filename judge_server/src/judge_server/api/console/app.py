"""The console's application: its pages, and errors as pages."""

from collections.abc import Callable
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from judge_server.api.auth import CONSOLE
from judge_server.api.console.access import keys, sign_in
from judge_server.api.console.groups import group
from judge_server.api.console.groups.advantages import segments, strip
from judge_server.api.console.judges import judge, judges
from judge_server.api.console.labels import labels
from judge_server.api.console.operations import operations
from judge_server.api.console.playground import playground
from judge_server.api.console.rendering import Console, static_file
from judge_server.api.console.responses import ledger, responses
from judge_server.api.console.responses.shown import group_address, is_close, outcome_of, read_text
from judge_server.api.console.routing import NotFound
from judge_server.api.console.rubrics import discriminate, rubric, rubric_changes, rubrics
from judge_server.api.console.runs import run, runs
from judge_server.api.console.sessions import ConsoleAccess
from judge_server.api.http.problems import INTERNAL_ERROR_DETAIL
from judge_server.api.service import Service
from judge_server.errors import InvalidRequest, ServiceError

_ROUTERS = (
    runs.router,
    run.router,
    responses.router,
    group.router,
    rubrics.router,
    rubric.router,
    rubric_changes.router,
    discriminate.router,
    judge.router,
    judges.router,
    labels.router,
    playground.router,
    ledger.router,
    operations.router,
    keys.router,
    sign_in.router,
)

_TEMPLATE_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "group_address": group_address, "is_close": is_close, "outcome_of": outcome_of, "read_text": read_text,
    "segments": segments, "strip": strip,
}  # fmt: skip


def create_console(service: Service) -> Starlette:
    """Create the console's application, to be mounted under `/console`."""
    console = Console(service, _TEMPLATE_FUNCTIONS)

    async def on_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 404:
            missing = NotFound("The console has no page at this address. Runs are listed first.")
            return console.error_page(request, missing)
        refused = InvalidRequest(f"This address does not answer to {request.method}.")
        refused.status, refused.title = error.status_code, str(error.detail)
        return console.error_page(request, refused)

    async def on_any(request: Request, error: Exception) -> Response:
        return console.error_page(request, ServiceError(INTERNAL_ERROR_DETAIL))  # the middleware around logs it

    routes = [Route("/", _home), *(route for router in _ROUTERS for route in router.routes(console))]
    return Starlette(
        routes=[*routes, Route("/static/{file}", static_file)],
        middleware=[Middleware(ConsoleAccess, service=service, error_page=console.error_page)],
        exception_handlers={HTTPException: on_http, Exception: on_any},
    )


async def _home(request: Request) -> Response:
    """The list of runs is the first page."""
    return RedirectResponse(f"{CONSOLE}/runs", 303)
