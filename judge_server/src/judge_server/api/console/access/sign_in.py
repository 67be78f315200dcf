"""Signing in with a key, and out again."""

from starlette.requests import Request
from starlette.responses import Response

from judge_server.api.console.forms import read_form
from judge_server.api.console.rendering import Console
from judge_server.api.console.routing import PageRouter
from judge_server.api.console.sessions import begin_session, end_session, local_page
from judge_server.errors import Forbidden, NotReady, RateLimited, TooLarge, Unauthorized

router = PageRouter()

_MAX_FORM_BYTES = 16 * 1024


@router.open("/sign-in", "GET")
async def form(console: Console, request: Request) -> Response:
    """The form that asks for a key."""
    return _page(console, request, request.query_params.get("next", ""))


@router.open("/sign-in", "POST")
async def sign_in(console: Console, request: Request) -> Response:
    """Begin a session; a key that is refused gets the form again, with the reason."""
    wanted = ""
    try:
        sent = await read_form(request, _MAX_FORM_BYTES)
        wanted = sent.text("next")
        return await begin_session(request, console.service, console.signer, sent)
    except (Forbidden, Unauthorized, RateLimited, NotReady, TooLarge) as error:
        return _page(console, request, wanted, error.detail, error.status)


@router.open("/sign-out", "POST")
async def sign_out(console: Console, request: Request) -> Response:
    """End the session of this browser."""
    return end_session(request, console.signer, await read_form(request, _MAX_FORM_BYTES))


def _page(console: Console, request: Request, wanted: str, problem: str = "", status: int = 200) -> Response:
    return console.page(request, "sign_in.html.jinja", status, problem=problem, next=local_page(wanted))
