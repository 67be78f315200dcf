"""API keys over HTTP: authenticate before the body is read, check scopes, allow keyless loopback.

`AccessMiddleware` identifies the caller before the body is read. `RequiredScope` is the dependency by which a router or
route declares its scope; it checks the scope before the route runs and adds it to the OpenAPI document.
"""

import base64
from typing import Annotated

from fastapi import Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from judge_server.api.http.middleware import require_loopback_host
from judge_server.api.http.problems import problem_response
from judge_server.api.service import service_of
from judge_server.auth import ANONYMOUS, Authenticator, Identity, identity_context
from judge_server.auth.authenticator import require_scope
from judge_server.errors import ServiceError
from judge_server.observability.logs import bind_log_context
from judge_server.scheduling.time_sharing import next_slice
from trainer_client.wire.tenants import Scope as KeyScope

PROBE_PATHS = frozenset({"/healthz", "/readyz"})
OPEN_PATHS = PROBE_PATHS | {"/docs", "/docs/oauth2-redirect", "/redoc", "/openapi.json"}
"""The paths that need no key: the probes and the API documentation."""

CONSOLE = "/console"
"""The folder of the console, which signs people in by itself."""

COMPAT = "/v1/compat/"
"""The folder of the routes of trainers, most of which cannot send an `Authorization` header of their own."""

_OPEN_FOLDER = "/static-offline-docs/"
_READ_METHODS = frozenset({"GET", "HEAD"})

_bearer_scheme = HTTPBearer(
    auto_error=False, scheme_name="apiKey", bearerFormat="adj_…", description="An API key; none is needed on loopback."
)


class AccessMiddleware:
    """ASGI middleware that identifies the caller of a request. Without an authenticator, all requests are anonymous."""

    def __init__(self, app: ASGIApp, *, authenticator: Authenticator | None) -> None:
        self._app = app
        self._authenticator = authenticator

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http" or f"{scope['path']}/".startswith(f"{CONSOLE}/"):
            await self._app(scope, receive, send)  # without an identity: a route that needs one fails
            return
        if self._authenticator is not None and scope["path"] not in PROBE_PATHS and not authorization_of(scope):
            await next_slice()  # a burst of requests that need no key, or lack theirs, begins one by one
        try:
            identity = await self._identity(scope)
        except ServiceError as error:
            await problem_response(error, scope["state"]["request_id"])(scope, receive, send)
            return
        scope["state"]["identity"] = identity
        bind_log_context(project=identity.project_id)
        with identity_context(identity):
            await self._app(scope, receive, send)

    async def _identity(self, scope: Scope) -> Identity:
        path = scope["path"]
        authenticator = self._authenticator
        if authenticator is None or path in OPEN_PATHS or path.startswith(_OPEN_FOLDER):
            return ANONYMOUS
        authorization = authorization_of(scope)
        if path == "/metrics" and authenticator.open_metrics and not authorization:
            return ANONYMOUS
        identity = await authenticator.identify(authorization)
        if identity is ANONYMOUS:
            require_loopback_host(Headers(scope=scope))
        await authenticator.admit(identity)
        return identity


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
        identity = identity_of(request)
        require_scope(identity, scope)
        authenticator = service_of(request).authenticator
        if authenticator is not None and self._checks_budget and (scope, request.method) == ("score", "POST"):
            await authenticator.usage.check_budget(identity)
        request.state.scope_checked = self


def identity_of(request: Request) -> Identity:
    """The identity of the caller."""
    identity: Identity = request.state.identity
    return identity


def project_of(request: Request) -> str:
    """The project of the caller."""
    return identity_of(request).project_id
