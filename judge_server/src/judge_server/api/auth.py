"""API keys over HTTP: authenticate before the body is read, check scopes, allow keyless loopback.

Keys over HTTP: who asks is settled before a body is read, what they may do before a route does anything.

`AccessMiddleware` is the middleware; `RequiredScope` is the dependency that a router or a route names its scope with, which also writes
it into the OpenAPI document.

Who does without a key must have meant this machine.

A page in a browser may give its own host name the address 127.0.0.1, and is then let read what is answered there (DNS
rebinding). The header `Host` tells: the browser sends the page's name.
"""

import ipaddress
from typing import Annotated

from fastapi import Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from judge_server.api.problems import problem_response
from judge_server.api.service import service_of
from judge_server.auth import ANONYMOUS, Authenticator, Identity, identity_context
from judge_server.auth.authenticator import require_scope
from judge_server.errors import Forbidden, ServiceError
from judge_server.observability.logs import bind_log_context
from trainer_client.wire.tenants import Scope as KeyScope


def require_loopback_host(headers: Headers) -> None:
    """Refuse a request that was meant for another host than this machine's own; one that names none is let in.

    Raises:
        Forbidden: `Host` is neither `localhost` nor an address of the loopback.
    """
    host = headers.get("host")
    if host is None or is_loopback(_name_of(host)):
        return
    raise Forbidden(
        f"Without a key this service answers to localhost and 127.0.0.1, and not to {host[:100]!r}. Ask it by one of "
        "those names, or with an API key: adjudge keys create --scope score"
    )


def is_loopback(name: str) -> bool:
    """Whether a host's name or address stands for this machine alone, wherever it is read."""
    name = name.rstrip(".").lower()
    if name == "localhost" or name.endswith(".localhost"):
        return True
    try:
        return ipaddress.ip_address(name).is_loopback
    except ValueError:
        return False


def _name_of(host: str) -> str:
    """`localhost:8000` without its port, `[::1]:8000` without that and its brackets."""
    if host.startswith("["):
        return host[1:].partition("]")[0]
    return host.partition(":")[0]


OPEN_PATHS = frozenset({"/healthz", "/readyz", "/docs", "/docs/oauth2-redirect", "/redoc", "/openapi.json"})
"""Open to everybody: whether the process lives, and what its API looks like."""

_OPEN_FOLDER = "/static-offline-docs/"
_READ_METHODS = frozenset({"GET", "HEAD"})

_bearer_scheme = HTTPBearer(
    auto_error=False, scheme_name="apiKey", bearerFormat="adj_…", description="An API key; none is needed on loopback."
)


class AccessMiddleware:
    """ASGI middleware: finds out for whom a request is, and has it served for them. Without a gate all is open."""

    def __init__(self, app: ASGIApp, *, authenticator: Authenticator | None) -> None:
        self._app = app
        self._authenticator = authenticator

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
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
        headers = Headers(scope=scope)
        authorization = headers.get("authorization")
        if path == "/metrics" and authenticator.open_metrics and authorization is None:
            return ANONYMOUS
        identity = await authenticator.identify(authorization)
        if identity is ANONYMOUS:
            require_loopback_host(headers)
        await authenticator.admit(identity)
        return identity


class RequiredScope:
    """A dependency that insists on a scope: `reading` for GET, `changing` for all else where it is another.

    What takes `score` to POST is refused too where the project's budget is spent, unless `judges` is false. A route
    that takes a body calls `insist` before it reads the body, so that a key without the scope costs nothing.
    """

    def __init__(
        self, read_scope: KeyScope, write_scope: KeyScope | None = None, *, checks_budget: bool = True
    ) -> None:
        self._read_scope, self._write_scope, self._checks_budget = read_scope, write_scope or read_scope, checks_budget

    async def __call__(
        self, request: Request, _: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer_scheme)]
    ) -> None:
        """Insist, as FastAPI has it done; a second time does nothing."""
        await self.require_scope(request)

    async def require_scope(self, request: Request) -> None:
        """Raise `Forbidden` or `BudgetExhausted`, once per request."""
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
    """Whom a request is for."""
    identity: Identity = request.state.identity
    return identity


def project_of(request: Request) -> str:
    """The project that a request is for."""
    return identity_of(request).project_id
