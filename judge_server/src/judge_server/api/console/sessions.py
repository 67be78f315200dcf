"""Sessions of the console: signing in with an API key, and who a request of the console is from.

A session is a signed cookie with the public id of a key, an id of its own and the time at which it expires; the key's
secret is not in it. Each request looks the key up, so a key that is revoked or expires ends its sessions within
seconds, and its scopes and project are those that it has now. Any process with the same secret accepts a session. The
store knows only the sessions that were ended by signing out, and every request asks it.

Forms carry a token, and HTMX sends it as a header. It is bound to a cookie which no other site can send or read
(`SameSite=Strict`, `HttpOnly`).
"""

import hmac
import secrets
import time
from collections.abc import Callable
from datetime import UTC, datetime
from typing import NamedTuple
from urllib.parse import quote, urlsplit

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from judge_server.api.auth import CONSOLE, authorization_of, identify
from judge_server.api.console.forms import Form
from judge_server.api.service import Service
from judge_server.auth.authenticator import require_scope
from judge_server.auth.keys import parse_key_id
from judge_server.errors import Forbidden, NotReady, Unauthorized
from judge_server.ports import ANONYMOUS, Identity

SESSION_LIFETIME_S = 43_200.0
"""Lifetime of a session of the console: a working day. A longer one leaves browsers signed in overnight; a shorter one
asks for the key again in the middle of the work."""

SESSION_COOKIE = "adjudge_session"
FORM_COOKIE = "adjudge_form"
"""The cookie that the token of forms is bound to without a session."""

_SESSION = "session with an id"
"""What the cookie of a session is signed as. Those of 0.2 had no id, and are refused."""

_HTMX_HEADER = "X-Form-Token"
"""The header in which HTMX sends the token, for buttons outside forms."""

SIGN_IN, SIGN_OUT = f"{CONSOLE}/sign-in", f"{CONSOLE}/sign-out"
_OPEN_PATHS = frozenset({SIGN_IN, SIGN_OUT})
_STATIC_FOLDER = f"{CONSOLE}/static/"


class Session(NamedTuple):
    """What the cookie of a session says.

    Attributes:
        key_id: the key that began it.
        id: 32 random hexadecimal digits.
        expires_at: in seconds since 1970.
    """

    key_id: str
    id: str
    expires_at: int


class SessionSigner:
    """Signs sessions and the tokens of forms. `clock` returns seconds since 1970."""

    def __init__(self, secret: bytes, clock: Callable[[], float] = time.time) -> None:
        self._secret, self._clock = secret, clock

    def begin(self, key_id: str) -> str:
        """The cookie of a new session of a key, such as `KEY.ID.1790000000.MAC`."""
        signed = f"{key_id}.{secrets.token_hex(16)}.{int(self._clock() + SESSION_LIFETIME_S)}"
        return f"{signed}.{self._mac(_SESSION, signed)}"

    def read(self, cookie: str) -> Session | None:
        """The session of a cookie, ended or not; None if this service did not sign it or the session has expired."""
        signed, _, mac = cookie.rpartition(".")
        if not hmac.compare_digest(mac.encode(), self._mac(_SESSION, signed).encode()):
            return None
        key_id, id_, expires_at = signed.split(".")
        session = Session(key_id, id_, int(expires_at))
        return session if session.expires_at > self._clock() else None

    def form_token(self, cookie: str) -> str:
        """The token that a form has to send with this cookie."""
        return self._mac("form", cookie)

    def is_form_token(self, token: str, cookie: str) -> bool:
        """Whether the token is that of the cookie; never without a cookie."""
        return bool(cookie) and hmac.compare_digest(token.encode(), self.form_token(cookie).encode())

    def _mac(self, purpose: str, text: str) -> str:
        return hmac.new(self._secret, f"console {purpose}\0{text}".encode(), "sha256").hexdigest()


class Visitors:
    """Identifies the callers of pages, by header or session, who need the scope `read`, and counts their requests."""

    def __init__(self, service: Service) -> None:
        self._authenticator, self._signer = service.authenticator, SessionSigner(service.session_secret)

    async def __call__(self, request: Request) -> Identity | None:
        """Identify a caller; None for the sign-in and for the files that pages load."""
        path, authenticator = request.scope["path"], self._authenticator
        if path.startswith(_STATIC_FOLDER):
            return None
        request.state.session = session = await self._session(request)
        if path in _OPEN_PATHS:
            return None
        if authenticator is None:
            return ANONYMOUS
        if authorization_of(request.scope) is None and session is not None:
            identity = await authenticator.identify_session(session.key_id)
        else:
            identity = await identify(authenticator, request)
        require_scope(identity, "read")
        await authenticator.admit(identity)
        return identity

    async def _session(self, request: Request) -> Session | None:
        """The session of a request, unless it has expired or was ended."""
        session, authenticator = self._signer.read(request.cookies.get(SESSION_COOKIE, "")), self._authenticator
        if session is None or authenticator is None:
            return None
        try:
            return None if await authenticator.has_ended(session.key_id, session.id) else session
        except ConnectionError as error:
            raise NotReady("Sessions cannot be checked now: the store does not answer.", retry_after_s=2) from error


_MAX_PAGE_CHARACTERS = 4096


def to_sign_in(request: Request) -> Response:
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

    It replaces the session that this browser has, which ends. Signing in counts as a request of the project.

    Raises:
        Forbidden: the form was not sent from this console's page, or the key lacks the scope `read`.
        Unauthorized: the key is unknown, revoked or expired.
        RateLimited: the project exceeds its rate.
        RateLimited, NotReady: the key cannot be looked up now.
        ConnectionError: the session that it replaces cannot be ended now.
    """
    require_form_token(request, signer, form)
    key = form.text("key").strip()
    key_id = parse_key_id(key)
    if key_id is None or service.authenticator is None:
        raise Unauthorized("This is not an API key. A key begins with adj_ and has 64 characters; copy all of it.")
    identity = await service.authenticator.identify(f"Bearer {key}")
    require_scope(identity, "read")
    await service.authenticator.admit(identity)
    await _end(session_of(request), service)
    response = RedirectResponse(local_page(form.text("next")), 303)
    set_cookie(request, response, SESSION_COOKIE, signer.begin(key_id), max_age=int(SESSION_LIFETIME_S))
    response.delete_cookie(FORM_COOKIE, path=CONSOLE)
    return response


async def end_session(request: Request, service: Service, signer: SessionSigner, form: Form) -> Response:
    """End the session of this browser for good: no process accepts a copy of its cookie.

    Raises:
        Forbidden: the form was not sent from this console's page.
        RateLimited, NotReady, ConnectionError: the store cannot be written now. The session goes on.
    """
    require_form_token(request, signer, form)
    await _end(session_of(request), service)
    response = RedirectResponse(SIGN_IN, 303)
    response.delete_cookie(SESSION_COOKIE, path=CONSOLE)
    return response


async def _end(session: Session | None, service: Service) -> None:
    if session is not None and service.authenticator is not None:
        expires_at = datetime.fromtimestamp(session.expires_at, UTC)
        await service.authenticator.end_session(session.key_id, session.id, expires_at)


def session_of(request: Request) -> Session | None:
    """The session of a request that was let through; None without one."""
    session: Session | None = getattr(request.state, "session", None)
    return session


def form_cookie(request: Request) -> str:
    """The cookie that the token of a form is bound to: that of the session, or else the one that pages set for it."""
    return request.cookies.get(FORM_COOKIE if session_of(request) is None else SESSION_COOKIE, "")


_OWN_SITE = frozenset({"same-origin", "none"})


def refuse_other_sites(request: Request, signer: SessionSigner) -> None:
    """Refuse a form, before anything of it is read, that cannot have been sent from a page of this console.

    Raises:
        Forbidden: the form has no cookie of this console, a wrong token in `X-Form-Token`, or the browser says that
            another site sent it.
    """
    cookie, token = form_cookie(request), request.headers.get(_HTMX_HEADER)
    is_wrong = token is not None and not signer.is_form_token(token, cookie)
    if not cookie or is_wrong or request.headers.get("sec-fetch-site", "same-origin") not in _OWN_SITE:
        raise _not_from_this_page()


def require_form_token(request: Request, signer: SessionSigner, form: Form) -> None:
    """Require that a form was sent from a page of this console, by its field `token` or the header `X-Form-Token`.

    Raises:
        Forbidden: the token is missing, or is not that of the cookie.
    """
    token = form.text("token") or request.headers.get(_HTMX_HEADER, "")
    if not signer.is_form_token(token, form_cookie(request)):
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
