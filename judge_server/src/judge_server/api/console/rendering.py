"""Pages: their addresses, templates and headers, the files that they load, and tables of numbers.

A router per module gives pages their addresses. It checks scope, budget and form, and shows errors as pages.
"""

import csv
import hashlib
import io
import logging
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from datetime import datetime
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple, TypeVar
from urllib.parse import urlencode

from jinja2 import Environment, PackageLoader, StrictUndefined
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from judge_server.api.auth import CONSOLE, identity_of, require_permission
from judge_server.api.console.charts import signed
from judge_server.api.console.forms import Form, read_form
from judge_server.api.console.sessions import (
    FORM_COOKIE,
    SessionSigner,
    form_cookie,
    new_form_cookie,
    refuse_other_sites,
    require_form_token,
    session_of,
    set_cookie,
)
from judge_server.api.http.problems import STORE_UNAVAILABLE_DETAIL
from judge_server.api.service import Service
from judge_server.auth.authenticator import require_scope
from judge_server.errors import InvalidRequest, NotReady, ServiceError
from judge_server.ports import Identity, LedgerReader
from trainer_client import __version__
from trainer_client.wire.problems import error_url, findings_url
from trainer_client.wire.tenants import Scope

log = logging.getLogger("adjudge")

ChoiceT = TypeVar("ChoiceT", bound=str)
Value = str | int | float | None


class Row(NamedTuple):
    """A row of a table, and the address that its first value links to, if any."""

    values: tuple[Value, ...]
    href: str = ""


class Table(NamedTuple):
    """The numbers of a chart."""

    headings: tuple[str, ...]
    rows: tuple[Row, ...]


def address(page: str, **parameters: Value) -> str:
    """The address of a page of the console; parameters that are None or empty are left out, except the run."""
    given = {name: value for name, value in parameters.items() if value not in (None, "") or name == "run"}
    return f"{CONSOLE}/{page}" + (f"?{urlencode(given)}" if given else "")


CONTENT_SECURITY_POLICY = (
    "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'self'; img-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)
"""Pages load scripts, styles and images of this service only. Nothing inline and no `eval` runs."""

_STATIC_TYPES: Mapping[str, str] = {
    "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml", "txt": "text/plain",
}  # fmt: skip
_YEAR_S = 31_536_000


class Console:
    """The service and the templates of the pages."""

    def __init__(self, service: Service, templates: Environment) -> None:
        self.service = service
        self.signer = SessionSigner(service.session_secret)
        self._templates = templates

    def page(self, request: Request, template: str, status: int = 200, **values: Any) -> Response:
        """A page from a template; only its content if HTMX asks for it, to put it into a page that is open."""
        context, cookie = self._context(request)
        body = self._templates.get_template(template).render(context | values)
        response = Response(body, status, {"Content-Security-Policy": CONTENT_SECURITY_POLICY}, "text/html")
        if cookie is not None:
            set_cookie(request, response, FORM_COOKIE, cookie)
        return response

    def streamed_page(self, request: Request, template: str, parts: AsyncIterator[str], **values: Any) -> Response:
        """A page that is sent in parts: `stream` in its template stands for what follows, as it becomes known."""
        context, cookie = self._context(request)
        mark = secrets.token_hex(16)
        whole = self._templates.get_template(template).render(context | values | {"stream": mark})
        before, _, after = whole.partition(mark)

        async def sent() -> AsyncIterator[str]:
            yield before
            async for part in parts:
                yield part
            yield after

        headers = {"Content-Security-Policy": CONTENT_SECURITY_POLICY, "X-Accel-Buffering": "no"}
        response = StreamingResponse(sent(), 200, headers, "text/html")
        if cookie is not None:
            set_cookie(request, response, FORM_COOKIE, cookie)
        return response

    def render(self, template: str, **values: Any) -> str:
        """A part of a page."""
        return self._templates.get_template(template).render(values)

    def error_page(self, request: Request, error: ServiceError) -> Response:
        """The page of an error."""
        shown = {"error": error, "request_id": request.scope.get("state", {}).get("request_id", "")}
        response = self.page(request, "error.html.jinja", error.status, **shown)
        if error.retry_after_s is not None:
            response.headers["Retry-After"] = str(error.retry_after_s)
        if "HX-Request" in request.headers:  # whatever part of a page was asked for, show the error in its place
            response.headers.update({"HX-Reselect": "#error", "HX-Reswap": "innerHTML"})
        return response

    def _context(self, request: Request) -> tuple[dict[str, Any], str | None]:
        """What every page shows, and the cookie that the token of its forms is bound to, if it has to be set."""
        identity = getattr(request.state, "identity", None)
        bound = form_cookie(request)
        cookie = None if bound else new_form_cookie()
        permissions = identity.permissions if identity else frozenset()
        return {
            "project": identity.project_id if identity else None,
            "allows": permissions.__contains__,
            "signed_in": identity is not None and session_of(request) is not None,
            "token": self.signer.form_token(bound or cookie or ""),
            "here": request.url.path,
            "fragment": "HX-Request" in request.headers,
            "release": __version__,
        }, cookie


_MAX_STEP = 2**63 - 1
_MAX_CHARACTERS = 2000


class Visit:
    """A request for a page: who asks, what the address says, and the page that answers.

    The parameters of the address are None, or empty for a text, if they are not given. One that cannot be read raises
    `InvalidRequest`.
    """

    def __init__(self, console: Console, request: Request) -> None:
        self.console, self.service, self.request = console, console.service, request
        self.query = request.query_params

    @property
    def identity(self) -> Identity:
        """The caller."""
        return identity_of(self.request)

    @property
    def project(self) -> str:
        """The project of the caller."""
        return self.identity.project_id

    @property
    def ledger(self) -> LedgerReader:
        """The ledger; raises `NotReady` if this process has none."""
        return self.service.readable_ledger()

    def page(self, template: str, status: int = 200, **values: Any) -> Response:
        """The page from a template."""
        return self.console.page(self.request, template, status, **values)

    def text(self, name: str) -> str:
        """A text without white space around it."""
        value = self.query.get(name, "")
        if len(value) > _MAX_CHARACTERS:
            raise InvalidRequest(f"{name}: at most {_MAX_CHARACTERS:,} characters are allowed")
        return value.strip()

    def whole_number(self, name: str) -> int | None:
        """A whole number of 0 or more."""
        value = self.text(name)
        if not value:
            return None
        if not (value.isascii() and value.isdecimal()) or len(value) > 19 or int(value) > _MAX_STEP:
            raise InvalidRequest(f"{name}: {value[:40]!r} is not a whole number of 0 or more")
        return int(value)

    def number(self, name: str) -> float | None:
        """A finite number."""
        value = self.text(name)
        try:
            number = float(value) if value else None
        except ValueError:
            number = float("nan")
        if number is not None and not abs(number) < float("inf"):
            raise InvalidRequest(f"{name}: {value[:40]!r} is not a number, such as 0.5")
        return number

    def choice(self, name: str, choices: tuple[ChoiceT, ...]) -> ChoiceT | None:
        """One of some values."""
        value = self.text(name)
        if value and value not in choices:
            raise InvalidRequest(f"{name}: {value[:40]!r} is unknown; use one of {', '.join(choices)}")
        return next((choice for choice in choices if choice == value), None)

    @property
    def run(self) -> str:
        """The name of the run that the page is about; empty for requests without one."""
        run = self.query.get("run")
        if run is None or len(run) > 256:
            raise InvalidRequest("run: name the run, as the list of runs does; its name has at most 256 characters")
        return run

    @property
    def steps(self) -> tuple[int | None, int | None]:
        """The first and the last step that the page is about; None for no limit."""
        first, last = self.whole_number("first"), self.whole_number("last")
        if first is not None and last is not None and first > last:
            raise InvalidRequest(f"last: step {last} is before the first step, {first}")
        return first, last


def csv_response(table: Table, name: str) -> Response:
    """A table as CSV. No text in it begins as a spreadsheet formula does: ids begin with a letter or a digit."""
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\r\n")
    writer.writerow(table.headings)
    writer.writerows(row.values for row in table.rows)
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(written.getvalue(), 200, headers, "text/csv")


PageHandler = Callable[[Visit], Awaitable[Response]]
FormHandler = Callable[[Visit, Form], Awaitable[Response]]


class _NamedRoute(NamedTuple):
    """The route of a page, for the log."""

    path: str


class PageRouter:
    """The pages of a module. A page shows errors as pages, and the log names it by its path.

    Example:
        >>> router = PageRouter()
        >>> @router.get("/labels")
        ... async def labels(visit: Visit) -> Response:
        ...     return visit.page("labels.html.jinja")
    """

    def __init__(self) -> None:
        self._pages: list[tuple[str, str, PageHandler]] = []

    def get(self, path: str, *, scope: Scope = "read") -> Callable[[PageHandler], PageHandler]:
        """Serve a page at a path below `/console` to keys with a scope; every page requires `read` too."""

        def add(handler: PageHandler) -> PageHandler:
            async def shown(visit: Visit) -> Response:
                require_scope(visit.identity, scope)
                return await handler(visit)

            self._pages.append((path, "GET", shown))
            return handler

        return add

    def post(self, path: str, *, scope: Scope, with_file: bool = False) -> Callable[[FormHandler], FormHandler]:
        """Accept a form at a path from keys with a scope, and only from pages of this console: see `form_token`.

        With the scope `score` the project's budget is checked too, as by the API. Nothing of the form is read before.
        """

        def add(handler: FormHandler) -> FormHandler:
            async def accepted(visit: Visit) -> Response:
                request, signer = visit.request, visit.console.signer
                await require_permission(request, scope)
                refuse_other_sites(request, signer)
                form = await read_form(request, with_file=with_file)
                require_form_token(request, signer, form)
                return await handler(visit, form)

            self._pages.append((path, "POST", accepted))
            return handler

        return add

    def open(self, path: str, method: str) -> Callable[[PageHandler], PageHandler]:
        """Serve a path of the sign-in, which checks its callers by itself."""

        def add(handler: PageHandler) -> PageHandler:
            self._pages.append((path, method, handler))
            return handler

        return add

    def routes(self, console: Console) -> list[Route]:
        """The routes of the pages."""
        return [Route(path, _endpoint(console, path, page), methods=[method]) for path, method, page in self._pages]


def _endpoint(console: Console, path: str, handler: PageHandler) -> Callable[[Request], Awaitable[Response]]:
    async def endpoint(request: Request) -> Response:
        request.scope["route"] = _NamedRoute(f"{CONSOLE}{path}")
        try:
            return await handler(Visit(console, request))
        except ServiceError as error:
            return console.error_page(request, error)
        except ConnectionError as error:
            log.warning("a page of the console needs a store that cannot be reached: %s", error)
            return console.error_page(request, NotReady(STORE_UNAVAILABLE_DETAIL, retry_after_s=2))

    return endpoint


async def static_file(request: Request) -> Response:
    """A file that pages load. Its address changes with its content, so that browsers keep it."""
    name = request.path_params["file"]
    content, digest = _static_files().get(name, (b"", ""))
    if not digest:
        raise HTTPException(404)
    kept_s = _YEAR_S if request.query_params.get("v") == digest else 86_400
    caching = f"public, max-age={kept_s}" + (", immutable" if kept_s == _YEAR_S else "")
    return Response(content, 200, {"Cache-Control": caching}, _STATIC_TYPES[name.rpartition(".")[2]])


def static_address(name: str) -> str:
    """The address of a file that pages load."""
    return f"{CONSOLE}/static/{name}?v={_static_files()[name][1]}"


@cache
def _static_files() -> dict[str, tuple[bytes, str]]:
    """By name, each file and the beginning of its digest."""
    folder = files("judge_server.api.console") / "static"
    contents = {one.name: one.read_bytes() for one in folder.iterdir() if one.is_file()}
    return {name: (content, hashlib.sha256(content).hexdigest()[:12]) for name, content in contents.items()}


def page_environment(functions: Mapping[str, Callable[..., Any]]) -> Environment:
    """The environment of the pages' templates, which call `functions` by name."""
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        auto_reload=False,
        loader=PackageLoader("judge_server.api.console"),
    )
    environment.filters |= {
        "number": _number,
        "signed": _signed,
        "count": "{:,}".format,
        "moment": _moment,
        "value": _value,
        "duration": _duration,
    }
    addresses = {"address": address, "static": static_address, "error_url": error_url, "findings_url": findings_url}
    environment.globals |= addresses | dict(functions)
    return environment


def _number(value: float | None, digits: int = 3) -> str:
    if value is None:
        return "–"
    return f"{round(value, digits) + 0.0:.{digits}f}".replace("-", "−")  # adding 0 makes -0.0 plain


def _signed(value: float | None, digits: int = 2) -> str:
    return "–" if value is None else signed(value, digits)


def _moment(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M}"


def _duration(seconds: float) -> str:
    """A time such as `40 s`, `12 min` or `3.5 h`."""
    if seconds < 90:
        return f"{seconds:.0f} s"
    return f"{seconds / 60:.0f} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def _value(value: Any) -> str:
    """A value of a table as a page shows it."""
    if isinstance(value, float):
        return f"{value:.4g}".replace("-", "−")
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
