"""API keys over HTTP: authenticate before the body is read, check scopes, allow keyless loopback.

`AccessMiddleware` identifies the caller before the body is read. `RequiredScope` is the dependency by which a router or
route declares its scope; it checks the scope before the route runs and adds it to the OpenAPI document.
"""

import base64
from collections.abc import Awaitable, Callable
from typing import Annotated

from fastapi import Request, Response, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from judge_server.api.http.middleware import require_loopback_host
from judge_server.api.http.problems import problem_response
from judge_server.api.http.responses import STATIC_FOLDER
from judge_server.api.service import service_of
from judge_server.auth import Authenticator
from judge_server.auth.authenticator import require_scope
from judge_server.errors import ServiceError
from judge_server.observability.logs import bind_log_context
from judge_server.ports import ANONYMOUS, Identity, identity_context
from judge_server.scheduling.time_sharing import next_slice
from trainer_client.wire.tenants import Scope as KeyScope

PROBE_PATHS = frozenset({"/healthz", "/readyz"})
OPEN_PATHS = PROBE_PATHS | {"/docs", "/docs/oauth2-redirect", "/redoc", "/openapi.json"}
"""The paths that need no key: the probes and the API documentation."""

CONSOLE = "/console"
"""The folder of the console, which signs people in by itself."""

COMPAT = "/v1/compat/"
"""The folder of the routes of trainers, most of which cannot send an `Authorization` header of their own."""

_READ_METHODS = frozenset({"GET", "HEAD"})

_bearer_scheme = HTTPBearer(
    auto_error=False, scheme_name="apiKey", bearerFormat="adj_…", description="An API key; none is needed on loopback."
)


class AccessMiddleware:
    """ASGI middleware that identifies the caller of a request.

    Args:
        identify: identifies the caller; None for a request that goes on without an identity, so that a route that needs
            one fails.
        refuse: the response to a caller who is refused.
    """

    def __init__(
        self,
        app: ASGIApp,
        *,
        identify: Callable[[Request], Awaitable[Identity | None]],
        refuse: Callable[[Request, ServiceError], Response],
    ) -> None:
        self._app, self._identify, self._refuse = app, identify, refuse

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            identity = await self._identify(request)
        except ServiceError as error:
            await self._refuse(request, error)(scope, receive, send)
            return
        if identity is None:
            await self._app(scope, receive, send)
            return
        request.state.identity = identity
        bind_log_context(project=identity.project_id)
        with identity_context(identity):
            await self._app(scope, receive, send)


class ApiCallers:
    """Identifies the callers of the API. Without an authenticator, all of them are anonymous."""

    def __init__(self, authenticator: Authenticator | None) -> None:
        self._authenticator = authenticator

    async def __call__(self, request: Request) -> Identity | None:
        """Identify a caller and count the request; None for the console, which signs people in by itself."""
        path, authenticator = request.scope["path"], self._authenticator
        if f"{path}/".startswith(f"{CONSOLE}/"):
            return None
        if authenticator is None or path in PROBE_PATHS:
            return ANONYMOUS
        authorization = authorization_of(request.scope)
        if not authorization:
            await next_slice()  # a burst of requests that need no key, or lack theirs, begins one by one
        is_open = path in OPEN_PATHS or path.startswith(STATIC_FOLDER)
        if is_open or (path == "/metrics" and authenticator.open_metrics and not authorization):
            return ANONYMOUS
        identity = await identify(authenticator, request)
        await authenticator.admit(identity)
        return identity


async def identify(authenticator: Authenticator, request: Request) -> Identity:
    """Identify a caller by the `Authorization` header; without a key, the request must name a loopback host.

    Raises:
        Unauthorized: the key is invalid, or missing and required.
        Forbidden: a request without a key names another host.
        RateLimited, NotReady: the key cannot be looked up now.
    """
    identity = await authenticator.identify(authorization_of(request.scope))
    if identity is ANONYMOUS:
        require_loopback_host(request.headers)
    return identity


def refuse(request: Request, error: ServiceError) -> Response:
    """The response to a caller who is refused: a problem."""
    return problem_response(error, request.state.request_id)


def authorization_of(scope: Scope) -> str | None:
    """The `Authorization` header of a request.

    For the routes of trainers, also a key in the headers that these can send: in the basic scheme, which clients use
    for `http://key:adj_…@host/`, or in ROLL's `XRL-Authorization`.
    """
    headers = Headers(scope=scope)
    authorization = headers.get("authorization")
    if not scope["path"].startswith(COMPAT):
        return authorization
    key = _key_of_basic(authorization or "")
    return f"Bearer {key}" if key is not None else authorization or headers.get("xrl-authorization")


def _key_of_basic(authorization: str) -> str | None:
    """The API key that is the password, or the user name, of a header in the basic scheme."""
    scheme, _, credentials = authorization.strip().partition(" ")
    if scheme.lower() != "basic":
        return None
    try:
        user, _, password = base64.b64decode(credentials, validate=True).decode("ascii").partition(":")
    except ValueError:
        return None
    return next((text for text in (password, user) if text.startswith("adj_")), None)


class RequiredScope:
    """A dependency that requires a scope: `read_scope` for GET and HEAD, `write_scope`, if given, for other methods.

    A POST that requires `score` is also rejected if the project's budget is spent, unless `checks_budget` is false. A
    route with a body calls `require_scope` before it reads the body, so that a key without the scope costs nothing.
    """

    def __init__(
        self, read_scope: KeyScope, write_scope: KeyScope | None = None, *, checks_budget: bool = True
    ) -> None:
        self._read_scope, self._write_scope, self._checks_budget = read_scope, write_scope or read_scope, checks_budget

    async def __call__(
        self, request: Request, _: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer_scheme)]
    ) -> None:
        """Check the scope as a FastAPI dependency."""
        await self.require_scope(request)

    async def require_scope(self, request: Request) -> None:
        """Check the scope and the budget, once per request; raises `Forbidden` or `BudgetExhausted`."""
        if getattr(request.state, "scope_checked", None) is self:
            return
        scope = self._read_scope if request.method in _READ_METHODS else self._write_scope
        if self._checks_budget and request.method == "POST":
            await require_permission(request, scope)
        else:
            require_scope(identity_of(request), scope)
        request.state.scope_checked = self


async def require_permission(request: Request, scope: KeyScope) -> None:
    """Require a scope of the caller and, for `score`, that the budget of its project is not spent.

    Raises:
        Forbidden: the key lacks the scope.
        BudgetExhausted: the budget is spent.
    """
    identity, authenticator = identity_of(request), service_of(request).authenticator
    require_scope(identity, scope)
    if scope == "score" and authenticator is not None:
        await authenticator.usage.check_budget(identity)


def identity_of(request: Request) -> Identity:
    """The identity of the caller."""
    identity: Identity = request.state.identity
    return identity


def project_of(request: Request) -> str:
    """The project of the caller."""
    return identity_of(request).project_id
