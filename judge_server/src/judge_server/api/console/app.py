"""The console's application: its pages, sign-in and API keys, and errors as pages."""

from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import cache
from typing import Any

from jinja2 import Environment
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from judge_server.api.auth import CONSOLE, AccessMiddleware
from judge_server.api.console import (
    groups,
    judges,
    labels,
    operations,
    playground,
    responses,
    rubrics,
    runs,
)
from judge_server.api.console.forms import Form, read_form
from judge_server.api.console.groups import segments, strip
from judge_server.api.console.rendering import Console, PageRouter, Visit, address, page_environment, static_file
from judge_server.api.console.responses import (
    group_address,
    is_close,
    outcome_of,
    quote_passages,
    read_text,
    response_address,
)
from judge_server.api.console.sessions import (
    Visitors,
    begin_session,
    end_session,
    local_page,
    refuse_other_sites,
    to_sign_in,
)
from judge_server.api.http.problems import INTERNAL_ERROR_DETAIL
from judge_server.api.http.responses import ClientDisconnected, client_closed_response
from judge_server.api.projects import revoke_key
from judge_server.api.service import Service
from judge_server.auth.administration import create_key, grantable_scopes
from judge_server.errors import (
    Forbidden,
    InvalidRequest,
    NotFound,
    NotReady,
    RateLimited,
    ServiceError,
    TooLarge,
    Unauthorized,
    UnsupportedMediaType,
)
from judge_server.ports import ANONYMOUS
from trainer_client.wire.tenants import SCOPES, AuditEntry, CreatedApiKey

router = PageRouter()

_MAX_FORM_BYTES = 16 * 1024


@router.open("/sign-in", "GET")
async def form(visit: Visit) -> Response:
    """The form that asks for a key."""
    return _sign_in_page(visit, visit.query.get("next", ""))


@router.open("/sign-in", "POST")
async def sign_in(visit: Visit) -> Response:
    """Begin a session; a key that is refused gets the form again, with the reason."""
    wanted = ""
    try:
        refuse_other_sites(visit.request, visit.console.signer)
        sent = await read_form(visit.request, _MAX_FORM_BYTES)
        wanted = sent.text("next")
        return await begin_session(visit.request, visit.service, visit.console.signer, sent)
    except (Forbidden, InvalidRequest, Unauthorized, UnsupportedMediaType, RateLimited, NotReady, TooLarge) as error:
        return _sign_in_page(visit, wanted, error.detail, error.status)


@router.open("/sign-out", "POST")
async def sign_out(visit: Visit) -> Response:
    """End the session of this browser."""
    refuse_other_sites(visit.request, visit.console.signer)
    return await end_session(
        visit.request, visit.service, visit.console.signer, await read_form(visit.request, _MAX_FORM_BYTES)
    )


def _sign_in_page(visit: Visit, wanted: str, problem: str = "", status: int = 200) -> Response:
    return visit.page("sign_in.html.jinja", status, problem=problem, next=local_page(wanted))


_AUDIT_ENTRIES = 50
_MAX_DAYS = 3650


@router.get("/keys", scope="admin")
async def keys(visit: Visit) -> Response:
    """The keys of the project, its limits, and its audit log."""
    return await _keys_page(visit, None)


@router.post("/keys", scope="admin")
async def create(visit: Visit, form: Form) -> Response:
    """Create a key and show its text, once."""
    chosen = form.texts("scope")
    scopes = [scope for scope in SCOPES if scope in chosen]
    if not scopes or len(scopes) < len(chosen):
        raise InvalidRequest("scope: choose what the key may do")
    label = form.text("label").strip()[:200]
    made = await create_key(visit.service.key_store(), visit.identity, scopes, label=label, expires_at=_end(form))
    return await _keys_page(visit, made)


@router.post("/keys/revoke", scope="admin")
async def revoke(visit: Visit, form: Form) -> Response:
    """Revoke a key."""
    await revoke_key(visit.service.key_store(), visit.request, form.text("id"))
    return RedirectResponse(address("keys"), 303)


async def _keys_page(visit: Visit, made: CreatedApiKey | None) -> Response:
    identity, service = visit.identity, visit.service
    subject = visit.text("subject") or None
    listed = await visit.service.key_store().keys(identity.project_id)
    entries: tuple[AuditEntry, ...] = ()
    if service.audit is not None:
        tail = await service.audit.audit(identity.project_id, subject=subject, limit=_AUDIT_ENTRIES)
        entries = tail.entries
    used = None if service.authenticator is None else await service.authenticator.usage.used(identity.project_id)
    return visit.page(
        "keys.html.jinja", keys=listed[::-1], made=made, entries=entries, used=used, limits=identity.limits,
        subject=subject, now=datetime.now(UTC), scopes=grantable_scopes(identity), may_change=identity is not ANONYMOUS,
    )  # fmt: skip


def _end(form: Form) -> datetime | None:
    days = form.text("days").strip()
    if not days:
        return None
    if not (days.isascii() and days.isdecimal()) or not 1 <= int(days[:9]) <= _MAX_DAYS:
        raise InvalidRequest(f"days: write a whole number from 1 to {_MAX_DAYS:,}, or nothing for a key that stays")
    return datetime.now(UTC) + timedelta(days=int(days))


_ROUTERS = (
    runs.router,
    responses.router,
    groups.router,
    rubrics.router,
    judges.router,
    labels.router,
    playground.router,
    operations.router,
    router,
)

_TEMPLATE_FUNCTIONS: dict[str, Callable[..., Any]] = {
    "group_address": group_address, "is_close": is_close, "outcome_of": outcome_of, "quote_passages": quote_passages,
    "read_text": read_text, "response_address": response_address,
    "segments": segments, "strip": strip,
}  # fmt: skip


@cache
def _templates() -> Environment:
    """The templates of all pages, which a process compiles once."""
    return page_environment(_TEMPLATE_FUNCTIONS)


def load_templates() -> None:
    """Compile every template, which takes tenths of a second, so that no page waits for it."""
    for name in _templates().list_templates():
        _templates().get_template(name)


def create_console(service: Service) -> Starlette:
    """Create the console's application, to be mounted under `/console`."""
    console = Console(service, _templates())

    def refuse(request: Request, error: ServiceError) -> Response:
        return to_sign_in(request) if isinstance(error, Unauthorized) else console.error_page(request, error)

    async def on_http(request: Request, error: Exception) -> Response:
        assert isinstance(error, HTTPException)
        if error.status_code == 404:
            missing = NotFound("The console has no page at this address. Runs are listed first.")
            return console.error_page(request, missing)
        refused = InvalidRequest(f"This address does not answer to {request.method}.")
        refused.status, refused.title = error.status_code, str(error.detail)
        return console.error_page(request, refused)

    async def on_disconnect(request: Request, error: Exception) -> Response:
        return client_closed_response()

    async def on_any(request: Request, error: Exception) -> Response:
        return console.error_page(request, ServiceError(INTERNAL_ERROR_DETAIL))  # the middleware around logs it

    routes = [Route("/", _home), *(route for router in _ROUTERS for route in router.routes(console))]
    app = Starlette(
        routes=[*routes, Route("/static/{file}", static_file)],
        middleware=[Middleware(AccessMiddleware, identify=Visitors(service), refuse=refuse)],
        exception_handlers={HTTPException: on_http, ClientDisconnected: on_disconnect, Exception: on_any},
    )
    app.state.service = service
    return app


async def _home(request: Request) -> Response:
    """The list of runs is the first page."""
    return RedirectResponse(f"{CONSOLE}/runs", 303)
