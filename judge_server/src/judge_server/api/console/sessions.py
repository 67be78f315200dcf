"""Sessions of the console: signing in with an API key, and who a request of the console is from.

A session is a signed cookie with the public id of a key and the time at which it ends; the key's secret is not in it.
Each request looks the key up, so a key that is revoked or expires ends its sessions within seconds, and its scopes and
project are those that it has now. No process stores sessions: any process with the same secret accepts them.

Forms carry a token, and HTMX sends it as a header. It is bound to a cookie which no other site can send or read
(`SameSite=Strict`, `HttpOnly`).
"""

import hmac
import secrets
import time
from collections.abc import Callable
from urllib.parse import quote, urlsplit

from starlette.datastructures import Headers
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.types import ASGIApp, Receive, Scope, Send

from judge_server.api.auth import CONSOLE, authorization_of, require_loopback_host
from judge_server.api.console.forms import Form
from judge_server.api.service import Service
from judge_server.auth import ANONYMOUS, Identity, identity_context
from judge_server.auth.authenticator import require_scope
from judge_server.auth.keys import parse_key_id
from judge_server.errors import Forbidden, ServiceError, Unauthorized
from judge_server.observability.logs import bind_log_context

SESSION_LIFETIME_S = 43_200.0
"""The seconds after which one has to sign in again."""

SESSION_COOKIE = "adjudge_session"
FORM_COOKIE = "adjudge_form"
"""The cookie that the token of forms is bound to without a session."""

_HTMX_HEADER = "X-Form-Token"
"""The header in which HTMX sends the token, for buttons outside forms."""

SIGN_IN, SIGN_OUT = f"{CONSOLE}/sign-in", f"{CONSOLE}/sign-out"
_OPEN_PATHS = frozenset({SIGN_IN, SIGN_OUT})
_STATIC_FOLDER = f"{CONSOLE}/static/"


class SessionSigner:
    """Signs sessions and the tokens of forms. `clock` returns seconds since 1970."""

    def __init__(self, secret: bytes, clock: Callable[[], float] = time.time) -> None:
        self._secret, self._clock = secret, clock

    def begin(self, key_id: str) -> str:
        """The cookie of a new session of a key, such as `ID.1790000000.MAC`."""
        signed = f"{key_id}.{int(self._clock() + SESSION_LIFETIME_S)}"
        return f"{signed}.{self._mac('session', signed)}"

    def key_of(self, cookie: str) -> str | None:
        """The id of the key of a session; None if the cookie is not signed by this service or the session is over."""
        signed, _, mac = cookie.rpartition(".")
        if not hmac.compare_digest(mac.encode(), self._mac("session", signed).encode()):
            return None
        key_id, _, end = signed.partition(".")
        return key_id if int(end) > self._clock() else None

    def form_token(self, cookie: str) -> str:
        """The token that a form has to send with this cookie."""
        return self._mac("form", cookie)

    def is_form_token(self, token: str, cookie: str) -> bool:
        """Whether the token is that of the cookie; never without a cookie."""
        return bool(cookie) and hmac.compare_digest(token.encode(), self.form_token(cookie).encode())

    def _mac(self, purpose: str, text: str) -> str:
        return hmac.new(self._secret, f"console {purpose}\0{text}".encode(), "sha256").hexdigest()


class ConsoleAccess:
    """ASGI middleware that identifies the caller of every page, by header or session, and requires the scope `read`.

    A caller who has to sign in is sent to the form; other errors become pages by `error_page`.
    """

    def __init__(
        self, app: ASGIApp, *, service: Service, error_page: Callable[[Request, ServiceError], Response]
    ) -> None:
        self._app, self._service, self._error_page = app, service, error_page
        self._signer = SessionSigner(service.session_secret)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request."""
        path = scope.get("path", "")
        if scope["type"] != "http" or path in _OPEN_PATHS or path.startswith(_STATIC_FOLDER):
            await self._app(scope, receive, send)
            return
        request = Request(scope, receive)
        try:
            identity = await self._identity(request)
            require_scope(identity, "read")
            if self._service.authenticator is not None:
                await self._service.authenticator.admit(identity)
        except Unauthorized:
            await _to_sign_in(request)(scope, receive, send)
            return
        except ServiceError as error:
            await self._error_page(request, error)(scope, receive, send)
            return
        request.state.identity = identity
        bind_log_context(project=identity.project_id)
        with identity_context(identity):
            await self._app(scope, receive, send)

    async def _identity(self, request: Request) -> Identity:
        authenticator = self._service.authenticator
        if authenticator is None:
            return ANONYMOUS
        authorization = authorization_of(request.scope)
        key_id = self._signer.key_of(request.cookies.get(SESSION_COOKIE, ""))
        if authorization is None and key_id is not None:
            return await authenticator.identify_session(key_id)
        identity = await authenticator.identify(authorization)
        if identity is ANONYMOUS:
            require_loopback_host(Headers(scope=request.scope))
        return identity


_MAX_PAGE_CHARACTERS = 4096


def _to_sign_in(request: Request) -> Response:
    """Send the browser to the form, and from there back to the page that is asked for, or that HTMX was used on."""
    open_page = request.headers.get("HX-Current-URL")
    try:
        parts = urlsplit(f"?{request.scope['query_string'].decode()}" if open_page is None else open_page)
    except ValueError:
        parts = urlsplit("")
    here = (request.scope["path"] if open_page is None else parts.path) + (f"?{parts.query}" if parts.query else "")
    form = SIGN_IN if len(here) > _MAX_PAGE_CHARACTERS else f"{SIGN_IN}?next={quote(here, safe='')}"
    return (
        RedirectResponse(form, 303) if open_page is None else Response(status_code=401, headers={"HX-Redirect": form})
    )


def new_form_cookie() -> str:
    """A random cookie for the token of forms to be bound to."""
    return secrets.token_urlsafe(24)


async def begin_session(request: Request, service: Service, signer: SessionSigner, form: Form) -> Response:
    """Begin a session for the key of a form, and go on to the page that was asked for.

    Raises:
        Forbidden: the form was not sent from this console's page, or the key lacks the scope `read`.
        Unauthorized: the key is unknown, revoked or expired.
        RateLimited, NotReady: the key cannot be looked up now.
    """
    require_form_token(request, signer, form)
    key = form.text("key").strip()
    key_id = parse_key_id(key)
    if key_id is None or service.authenticator is None:
        raise Unauthorized("This is not an API key. A key begins with adj_ and has 64 characters; copy all of it.")
    identity = await service.authenticator.identify(f"Bearer {key}")
    require_scope(identity, "read")
    response = RedirectResponse(local_page(form.text("next")), 303)
    set_cookie(request, response, SESSION_COOKIE, signer.begin(key_id), max_age=int(SESSION_LIFETIME_S))
    response.delete_cookie(FORM_COOKIE, path=CONSOLE)
    return response


def end_session(request: Request, signer: SessionSigner, form: Form) -> Response:
    """End the session of this browser; raises `Forbidden` if the form was not sent from this console's page."""
    require_form_token(request, signer, form)
    response = RedirectResponse(SIGN_IN, 303)
    response.delete_cookie(SESSION_COOKIE, path=CONSOLE)
    return response


def form_cookie(request: Request, signer: SessionSigner) -> str:
    """The cookie that the token of a form is bound to: that of the session, or else the one that pages set for it."""
    session = request.cookies.get(SESSION_COOKIE, "")
    return session if signer.key_of(session) is not None else request.cookies.get(FORM_COOKIE, "")


_OWN_SITE = frozenset({"same-origin", "none"})


def refuse_other_sites(request: Request, signer: SessionSigner) -> None:
    """Refuse a form, before anything of it is read, that cannot have been sent from a page of this console.

    Raises:
        Forbidden: the form has no cookie of this console, a wrong token in `X-Form-Token`, or the browser says that
            another site sent it.
    """
    cookie, token = form_cookie(request, signer), request.headers.get(_HTMX_HEADER)
    is_wrong = token is not None and not signer.is_form_token(token, cookie)
    if not cookie or is_wrong or request.headers.get("sec-fetch-site", "same-origin") not in _OWN_SITE:
        raise _not_from_this_page()


def require_form_token(request: Request, signer: SessionSigner, form: Form) -> None:
    """Require that a form was sent from a page of this console, by its field `token` or the header `X-Form-Token`.

    Raises:
        Forbidden: the token is missing, or is not that of the cookie.
    """
    token = form.text("token") or request.headers.get(_HTMX_HEADER, "")
    if not signer.is_form_token(token, form_cookie(request, signer)):
        raise _not_from_this_page()


def _not_from_this_page() -> Forbidden:
    return Forbidden("This form is too old, or was not sent from this page. Open the page again and repeat.")


def set_cookie(request: Request, response: Response, name: str, value: str, max_age: int | None = None) -> None:
    """Set a cookie that only this console receives: no script reads it and no other site's request carries it."""
    secure = "https" in (request.scope["scheme"], request.headers.get("x-forwarded-proto"))
    response.set_cookie(name, value, max_age=max_age, path=CONSOLE, secure=secure, httponly=True, samesite="strict")


def local_page(path: str) -> str:
    """The path if it is one of the console, otherwise that of the list of runs: a link cannot lead to another site."""
    plain = path.startswith(f"{CONSOLE}/") and path.isprintable() and "\\" not in path
    return path if plain and not path.startswith(SIGN_IN) else f"{CONSOLE}/runs"
