"""How pages get their addresses: a router per page, which checks scope, budget and form, and makes errors pages."""

import logging
from collections.abc import Awaitable, Callable
from typing import NamedTuple

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from judge_server.api.auth import CONSOLE, identity_of
from judge_server.api.console.forms import Form, read_form
from judge_server.api.console.rendering import Console
from judge_server.api.console.sessions import refuse_other_sites, require_form_token
from judge_server.api.http.problems import STORE_UNAVAILABLE_DETAIL
from judge_server.auth.authenticator import require_scope
from judge_server.errors import NotReady, ServiceError
from trainer_client.wire.tenants import Scope

log = logging.getLogger("adjudge")

PageHandler = Callable[[Console, Request], Awaitable[Response]]
FormHandler = Callable[[Console, Request, Form], Awaitable[Response]]


class NotFound(ServiceError):
    """The page does not exist, or what it is about."""

    type = "urn:adjudge:not-found"
    title = "Not found"
    status = 404


class PageRouter:
    """The pages of a module. A page shows errors as pages, and the log names it by its path.

    Example:
        >>> router = PageRouter()
        >>> @router.get("/labels")
        ... async def labels(console: Console, request: Request) -> Response:
        ...     return console.page(request, "labels.html.jinja")
    """

    def __init__(self) -> None:
        self._pages: list[_Page] = []

    def get(self, path: str, *, scope: Scope = "read") -> Callable[[PageHandler], PageHandler]:
        """Serve a page at a path below `/console` to keys with a scope; every page requires `read` too."""

        def add(handler: PageHandler) -> PageHandler:
            async def shown(console: Console, request: Request) -> Response:
                require_scope(identity_of(request), scope)
                return await handler(console, request)

            self._pages.append(_Page(path, "GET", shown))
            return handler

        return add

    def post(self, path: str, *, scope: Scope, with_file: bool = False) -> Callable[[FormHandler], FormHandler]:
        """Accept a form at a path from keys with a scope, and only from pages of this console: see `form_token`.

        With the scope `score` the project's budget is checked too, as by the API. Nothing of the form is read before.
        """

        def add(handler: FormHandler) -> FormHandler:
            async def accepted(console: Console, request: Request) -> Response:
                identity = identity_of(request)
                require_scope(identity, scope)
                if scope == "score" and console.service.authenticator is not None:
                    await console.service.authenticator.usage.check_budget(identity)
                refuse_other_sites(request, console.signer)
                form = await read_form(request, with_file=with_file)
                require_form_token(request, console.signer, form)
                return await handler(console, request, form)

            self._pages.append(_Page(path, "POST", accepted))
            return handler

        return add

    def open(self, path: str, method: str) -> Callable[[PageHandler], PageHandler]:
        """Serve a path of the sign-in, which checks its callers by itself."""

        def add(handler: PageHandler) -> PageHandler:
            self._pages.append(_Page(path, method, handler))
            return handler

        return add

    def routes(self, console: Console) -> list[Route]:
        """The routes of the pages."""
        return [Route(page.path, _endpoint(console, page), methods=[page.method]) for page in self._pages]


class _Page(NamedTuple):
    path: str
    method: str
    handler: PageHandler


class _NamedRoute(NamedTuple):
    """The route of a page, for the log."""

    path: str


def _endpoint(console: Console, page: _Page) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        request.scope["route"] = _NamedRoute(f"{CONSOLE}{page.path}")
        try:
            return await page.handler(console, request)
        except ServiceError as error:
            return console.error_page(request, error)
        except ConnectionError as error:
            log.warning("a page of the console needs a store that cannot be reached: %s", error)
            return console.error_page(request, NotReady(STORE_UNAVAILABLE_DETAIL, retry_after_s=2))

    return endpoint
