"""Keys over HTTP: who asks is settled before a body is read, what they may do before a route does anything.

`Access` is the middleware; `Needs` is the dependency that a router or a route names its scope with, which also writes
it into the OpenAPI document.
"""

from typing import Annotated

from fastapi import Request, Security
from fastapi.security import HTTPAuthorizationCredentials, HTTPBearer
from starlette.datastructures import Headers
from starlette.types import ASGIApp, Receive, Scope, Send

from judge_server.access import KEYLESS, Gate, Identity, acting_for
from judge_server.access.gate import insist
from judge_server.errors import ServiceError
from judge_server.telemetry.about import tell
from judge_server.web.hosts import insist_on_loopback
from judge_server.web.problems import problem_response
from judge_server.web.service import service_of
from trainer_client.wire.tenants import Scope as KeyScope

OPEN_PATHS = frozenset({"/healthz", "/readyz", "/docs", "/docs/oauth2-redirect", "/redoc", "/openapi.json"})
"""Open to everybody: whether the process lives, and what its API looks like."""

_OPEN_FOLDER = "/static-offline-docs/"
_READING = frozenset({"GET", "HEAD"})

_bearer = HTTPBearer(
    auto_error=False, scheme_name="apiKey", bearerFormat="adj_…", description="An API key; none is needed on loopback."
)


class Access:
    """ASGI middleware: finds out for whom a request is, and has it served for them. Without a gate all is open."""

    def __init__(self, app: ASGIApp, *, gate: Gate | None) -> None:
        self._app = app
        self._gate = gate

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
        tell(project=identity.project_id)
        with acting_for(identity):
            await self._app(scope, receive, send)

    async def _identity(self, scope: Scope) -> Identity:
        path = scope["path"]
        gate = self._gate
        if gate is None or path in OPEN_PATHS or path.startswith(_OPEN_FOLDER):
            return KEYLESS
        headers = Headers(scope=scope)
        authorization = headers.get("authorization")
        if path == "/metrics" and gate.open_metrics and authorization is None:
            return KEYLESS
        identity = await gate.identify(authorization)
        if identity is KEYLESS:
            insist_on_loopback(headers)
        await gate.admit(identity)
        return identity


class Needs:
    """A dependency that insists on a scope: `reading` for GET, `changing` for all else where it is another.

    What takes `score` to POST is refused too where the project's budget is spent, unless `judges` is false. A route
    that takes a body calls `insist` before it reads the body, so that a key without the scope costs nothing.
    """

    def __init__(self, reading: KeyScope, changing: KeyScope | None = None, *, judges: bool = True) -> None:
        self._reading, self._changing, self._judges = reading, changing or reading, judges

    async def __call__(
        self, request: Request, _: Annotated[HTTPAuthorizationCredentials | None, Security(_bearer)]
    ) -> None:
        """Insist, as FastAPI has it done; a second time does nothing."""
        await self.insist(request)

    async def insist(self, request: Request) -> None:
        """Raise `Forbidden` or `BudgetExhausted`, once per request."""
        if getattr(request.state, "insisted", None) is self:
            return
        scope = self._reading if request.method in _READING else self._changing
        identity = identity_of(request)
        insist(identity, scope)
        gate = service_of(request).gate
        if gate is not None and self._judges and (scope, request.method) == ("score", "POST"):
            await gate.usage.check_budget(identity)
        request.state.insisted = self


def identity_of(request: Request) -> Identity:
    """Whom a request is for."""
    identity: Identity = request.state.identity
    return identity


def project_of(request: Request) -> str:
    """The project that a request is for."""
    return identity_of(request).project_id
