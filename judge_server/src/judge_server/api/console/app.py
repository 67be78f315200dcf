"""The console's application: its addresses, its pages, and errors as pages."""

import csv
import hashlib
import io
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime
from functools import cache
from importlib.resources import files
from typing import Any, NamedTuple, TypeVar

from jinja2 import Environment, FunctionLoader, StrictUndefined
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response
from starlette.routing import Route

from judge_server.api.auth import CONSOLE, project_of
from judge_server.api.console.charts import sparkline
from judge_server.api.console.judges import judge_details
from judge_server.api.console.responses import (
    TEXT_LIMIT,
    group_address,
    outcome_of,
    read_criteria,
    read_group,
    read_responses,
    read_text,
)
from judge_server.api.console.run_page import RunView, Table, address
from judge_server.api.console.sessions import (
    FORM_COOKIE,
    SESSION_COOKIE,
    ConsoleAccess,
    SessionSigner,
    local_page,
    new_form_cookie,
    read_form,
    set_cookie,
    sign_in,
    sign_out,
)
from judge_server.api.http.problems import INTERNAL_ERROR_DETAIL, STORE_UNAVAILABLE_DETAIL
from judge_server.api.service import Service
from judge_server.errors import Forbidden, InvalidRequest, NotReady, RateLimited, ServiceError, TooLarge, Unauthorized
from judge_server.ledger.rows import digest_bytes, storable_text
from trainer_client import __version__
from trainer_client.wire.ledger import RunReport
from trainer_client.wire.ledger_rows import ResponseFilter, RunChartQuery, RunReportQuery

log = logging.getLogger("adjudge")

CONTENT_SECURITY_POLICY = (
    "default-src 'none'; style-src 'self'; img-src 'self'; form-action 'self'; base-uri 'none'; frame-ancestors 'none'"
)
"""Pages load only the style sheet and the icon of this service. No script runs, neither inline nor from a file."""

_RUNS_A_PAGE, _RESPONSES_A_PAGE, _GROUP_PAGE = 25, 25, 32
_SPARKLINE_POINTS = 40
_CRITERIA, _ALL_CRITERIA = 25, 200
_MAX_STEP = 2**63 - 1
_CHARTS = ("reward", "histogram", "criteria", "failures", "cost")

T = TypeVar("T")
Handler = Callable[["_Console", Request], Awaitable[Response]]


class NotFound(ServiceError):
    """The page, run or group does not exist."""

    type = "urn:adjudge:not-found"
    title = "Not found"
    status = 404


def create_console(service: Service) -> Starlette:
    """Create the console's application, to be mounted under `/console`."""
    console = _Console(service)
    routes = [
        Route("/", console.home),
        Route("/runs", console.handle("runs", _runs)),
        Route("/run", console.handle("run", _run)),
        Route("/run/{chart}.csv", console.handle("run/{chart}.csv", _run_csv)),
        Route("/responses", console.handle("responses", _responses)),
        Route("/group", console.handle("group", _group)),
        Route("/group.csv", console.handle("group.csv", _group_csv)),
        Route("/rubric", console.handle("rubric", _rubric)),
        Route("/judge", console.handle("judge", _judge)),
        Route("/sign-in", console.handle("sign-in", _sign_in), methods=["GET", "POST"]),
        Route("/sign-out", console.handle("sign-out", _sign_out), methods=["POST"]),
        Route("/static/{file}", _static),
    ]
    access = Middleware(ConsoleAccess, service=service, error_page=console.error_page)
    return Starlette(
        routes=routes,
        middleware=[access],
        exception_handlers={HTTPException: console.on_http, Exception: console.on_any},
    )


class _Console:
    """The service and the templates of the pages."""

    def __init__(self, service: Service) -> None:
        self.service = service
        self._templates = _environment()

    async def home(self, request: Request) -> Response:
        """The list of runs is the first page."""
        return RedirectResponse(f"{CONSOLE}/runs", 303)

    def handle(self, name: str, handler: Handler) -> Callable[[Request], Awaitable[Response]]:
        """The endpoint of a page: errors become pages, and the log names the route."""

        async def endpoint(request: Request) -> Response:
            request.scope["route"] = _Named(f"{CONSOLE}/{name}")
            try:
                return await handler(self, request)
            except ServiceError as error:
                return self.error_page(request, error)
            except ConnectionError as error:
                log.warning("a page of the console needs a store that cannot be reached: %s", error)
                return self.error_page(request, NotReady(STORE_UNAVAILABLE_DETAIL, retry_after_s=2))

        return endpoint

    def page(self, request: Request, template: str, status: int = 200, **values: Any) -> Response:
        """A page from a template."""
        identity = getattr(request.state, "identity", None)
        session = request.cookies.get(SESSION_COOKIE, "")
        signer = SessionSigner(self.service.session_secret)
        signed_in = identity is not None and signer.key_of(session) is not None
        body = self._templates.get_template(template).render(
            identity=identity,
            project=identity.project_id if identity else None,
            sign_out_token=signer.form_token(session) if signed_in else None,
            release=__version__,
            style=f"{CONSOLE}/static/console.css?v={_digest('console.css')}",
            **values,
        )
        return Response(body, status, {"Content-Security-Policy": CONTENT_SECURITY_POLICY}, "text/html")

    def error_page(self, request: Request, error: ServiceError) -> Response:
        """The page of an error."""
        shown = {"error": error, "request_id": request.scope.get("state", {}).get("request_id", "")}
        response = self.page(request, "error.html.jinja", error.status, **shown)
        if error.retry_after_s is not None:
            response.headers["Retry-After"] = str(error.retry_after_s)
        return response

    async def on_http(self, request: Request, error: Exception) -> Response:
        """The page for an address that does not exist, or not with this method."""
        assert isinstance(error, HTTPException)
        if error.status_code == 404:
            return self.error_page(request, NotFound("The console has no page at this address. Runs are listed first."))
        refused = InvalidRequest(f"This address does not answer to {request.method}.")
        refused.status, refused.title = error.status_code, str(error.detail)
        return self.error_page(request, refused)

    async def on_any(self, request: Request, error: Exception) -> Response:
        """The page of an unexpected error, which the middleware around logs."""
        return self.error_page(request, ServiceError(INTERNAL_ERROR_DETAIL))


class _Named(NamedTuple):
    """The route of a page, for the log."""

    path: str


# -- runs


async def _runs(console: _Console, request: Request) -> Response:
    ledger, project = console.service.readable_ledger(), project_of(request)
    text, after = _text(request, "q"), _text(request, "after") or None
    try:
        page = await ledger.runs(project, text=text, after=after, limit=_RUNS_A_PAGE)
    except ValueError:
        raise InvalidRequest("after: the cursor is invalid; go back to the first page of runs") from None
    curves = await ledger.run_curves(project, [run.run or "" for run in page.runs], _SPARKLINE_POINTS)
    shown = [
        (run, address("run", run=run.run or ""), sparkline(curves.get(run.run or "", ()), "mean reward over steps"))
        for run in page.runs
    ]
    next_href = address("runs", q=text, after=page.next_cursor) if page.next_cursor else ""
    recording = console.service.recorder is not None
    return console.page(
        request, "runs.html.jinja", runs=shown, q=text, after=after, next_href=next_href, recording=recording
    )


async def _view(console: _Console, request: Request) -> tuple[RunReport, RunView]:
    """The report and the charts of the run that the query names."""
    ledger, project = console.service.readable_ledger(), project_of(request)
    run, (first, last) = _run_name(request), _steps(request)
    criteria = _ALL_CRITERIA if request.query_params.get("criteria") == "all" else _CRITERIA
    report = await ledger.run(RunReportQuery(project, storable_text(run), criteria=criteria, limit=1))
    if report is None:
        raise _no_run(run)
    ids = tuple([figures.criterion for figures in report.criteria])
    charts = await ledger.run_charts(RunChartQuery(project, storable_text(run), first, last, ids))
    return report, RunView(run, charts, report.criteria, first, last)


def _no_run(run: str) -> NotFound:
    return NotFound(
        f"This project's ledger has no record of run {run!r}. The list of runs shows those that it has; verdicts of "
        "the last second may not be written yet."
    )


async def _run(console: _Console, request: Request) -> Response:
    report, view = await _view(console, request)
    more = address("run", run=view.run, first=view.first, last=view.last, criteria="all")
    return console.page(request, "run.html.jinja", report=report, view=view, all_criteria_href=more)


async def _run_csv(console: _Console, request: Request) -> Response:
    chart = request.path_params["chart"]
    if chart not in _CHARTS:
        raise NotFound(f"This page has no chart {chart!r}; use one of {', '.join(_CHARTS)}.")
    _, view = await _view(console, request)
    return _csv(view.table(chart), f"{chart}.csv")


# -- responses


async def _responses(console: _Console, request: Request) -> Response:
    ledger, project, run = console.service.readable_ledger(), project_of(request), _run_name(request)
    given = request.query_params
    first, last = _steps(request)
    status = _choice(request, "status", ("scored", "partial", "unscored"))
    outcome = _choice(request, "outcome", ("passed", "not passed", "failed", "uncertain", "left out"))
    criterion = _text(request, "criterion") or None
    wanted = ResponseFilter(
        project, storable_text(run), first, last, _float(request, "low"), _float(request, "high"),
        given.get("includes_high") == "1", status, after=_after(request), limit=_RESPONSES_A_PAGE,
    )  # fmt: skip
    found, after = await read_responses(ledger, wanted, criterion and storable_text(criterion), outcome)
    report = await ledger.run(RunReportQuery(project, storable_text(run), criteria=_ALL_CRITERIA, limit=1))
    if report is None:
        raise _no_run(run)
    kept = {name: value for name, value in given.items() if name not in ("after", "run")}
    next_href = "" if after is None else address("responses", run=run, **kept, after=f"{after[0].hex()}.{after[1]}")
    return console.page(
        request, "responses.html.jinja", run=run, found=found, next_href=next_href, report=report, given=given,
        criterion=criterion, outcome=outcome, searching=criterion is not None,
    )  # fmt: skip


async def _read_group(console: _Console, request: Request) -> Any:
    ledger, project, run = console.service.readable_ledger(), project_of(request), _run_name(request)
    name, key = _text(request, "group"), b""
    with suppress(ValueError):
        key = bytes.fromhex(_text(request, "request"))
    after = _int(request, "after")
    wanted = ResponseFilter(
        project, storable_text(run), request=key, group_id=storable_text(name), limit=_GROUP_PAGE,
        after=None if after is None else (key, min(after, 2**31 - 1)),
    )  # fmt: skip
    group = await read_group(ledger, wanted) if len(key) == 16 else None
    if group is None:
        raise NotFound(
            f"This project's ledger has no group {name!r} of this request in run {run!r}. The run's responses link to "
            "its groups."
        )
    return group


async def _group(console: _Console, request: Request) -> Response:
    group = await _read_group(console, request)
    whole = request.query_params.get("whole") == "1"
    record = group.responses[0].record
    csv_href = group_address(record).replace("/group?", "/group.csv?")
    rubric = record.response.rubric
    known = None
    if rubric is not None:
        known = await console.service.rubrics.find(project_of(request), f"sha256:{rubric.hex()}")
    return console.page(
        request, "group.html.jinja", group=group, request_row=record.request, run=record.request.run,
        limit=None if whole else TEXT_LIMIT, whole_href=group_address(record, whole=1), csv_href=csv_href,
        rubric=None if rubric is None else f"sha256:{rubric.hex()}", rubric_version=known,
    )  # fmt: skip


async def _group_csv(console: _Console, request: Request) -> Response:
    group = await _read_group(console, request)
    return _csv(group.table, "group.csv")


# -- what judged


async def _rubric(console: _Console, request: Request) -> Response:
    project, digest = project_of(request), _text(request, "digest")
    version = await console.service.rubrics.find(project, digest) if digest.startswith("sha256:") else None
    criteria = None if version is None else version.criteria
    if criteria is None:
        with suppress(ValueError):
            key = digest_bytes(digest)
            criteria = read_criteria((await console.service.readable_ledger().texts(project, [key])).get(key))
    if criteria is None:
        raise NotFound("This project has no rubric with this digest, neither published nor in its ledger.")
    return console.page(request, "rubric.html.jinja", digest=digest, version=version, criteria=criteria)


async def _judge(console: _Console, request: Request) -> Response:
    fingerprint = _text(request, "fingerprint")
    details = judge_details(console.service.judges, fingerprint)
    return console.page(
        request, "judge.html.jinja", fingerprint=fingerprint, details=details, run=_text(request, "run")
    )


# -- sessions


async def _sign_in(console: _Console, request: Request) -> Response:
    problem, status, page = "", 200, request.query_params.get("next", "")
    if request.method == "POST":
        form = await read_form(request)
        page = form.get("next", "")
        try:
            return await sign_in(request, console.service, form)
        except (Forbidden, Unauthorized, RateLimited, NotReady, TooLarge) as error:
            problem, status = error.detail, error.status
    cookie = request.cookies.get(FORM_COOKIE) or new_form_cookie()
    token = SessionSigner(console.service.session_secret).form_token(cookie)
    response = console.page(request, "sign_in.html.jinja", status, token=token, problem=problem, next=local_page(page))
    set_cookie(request, response, FORM_COOKIE, cookie)
    return response


async def _sign_out(console: _Console, request: Request) -> Response:
    return sign_out(request, console.service, await read_form(request))


# -- parts of requests


def _run_name(request: Request) -> str:
    run = request.query_params.get("run")
    if run is None or len(run) > 256:
        raise InvalidRequest("run: name the run, as the list of runs does; its name has at most 256 characters")
    return run


def _text(request: Request, name: str) -> str:
    value = request.query_params.get(name, "")
    if len(value) > 2000:
        raise InvalidRequest(f"{name}: at most 2,000 characters are allowed")
    return value.strip()


def _int(request: Request, name: str) -> int | None:
    value = _text(request, name)
    if not value:
        return None
    if not (value.isascii() and value.isdecimal()) or len(value) > 19 or int(value) > _MAX_STEP:
        raise InvalidRequest(f"{name}: {value[:40]!r} is not a whole number of 0 or more")
    return int(value)


def _float(request: Request, name: str) -> float | None:
    value = _text(request, name)
    try:
        number = float(value) if value else None
    except ValueError:
        number = float("nan")
    if number is not None and not abs(number) < float("inf"):
        raise InvalidRequest(f"{name}: {value[:40]!r} is not a number, such as 0.5")
    return number


def _steps(request: Request) -> tuple[int | None, int | None]:
    first, last = _int(request, "first"), _int(request, "last")
    if first is not None and last is not None and first > last:
        raise InvalidRequest(f"last: step {last} is before the first step, {first}")
    return first, last


def _choice(request: Request, name: str, choices: tuple[str, ...]) -> str | None:
    value = _text(request, name)
    if value and value not in choices:
        raise InvalidRequest(f"{name}: {value[:40]!r} is unknown; use one of {', '.join(choices)}")
    return value or None


def _after(request: Request) -> tuple[bytes, int] | None:
    value = _text(request, "after")
    if not value:
        return None
    key, _, place = value.partition(".")
    try:
        decoded = bytes.fromhex(key), int(place)
    except ValueError:
        decoded = b"", 0
    if len(decoded[0]) != 16 or not 0 <= decoded[1] < 2**31:
        raise InvalidRequest("after: the place to continue after is invalid; go back to the first page")
    return decoded


# -- files


def _csv(table: Table, name: str) -> Response:
    """A table as CSV. No text in it begins as a spreadsheet formula does: ids begin with a letter or a digit."""
    written = io.StringIO()
    writer = csv.writer(written, lineterminator="\r\n")
    writer.writerow(table.headings)
    writer.writerows(row.values for row in table.rows)
    headers = {"Content-Disposition": f'attachment; filename="{name}"'}
    return Response(written.getvalue(), 200, headers, "text/csv")


_MEDIA_TYPES = {"console.css": "text/css", "icon.svg": "image/svg+xml"}


async def _static(request: Request) -> Response:
    name = request.path_params["file"]
    if name not in _MEDIA_TYPES:
        raise HTTPException(404)
    return Response(_file(name), 200, {"Cache-Control": "public, max-age=86400"}, _MEDIA_TYPES[name])


@cache
def _file(name: str) -> bytes:
    return (files("judge_server.api.console") / "static" / name).read_bytes()


@cache
def _digest(name: str) -> str:
    return hashlib.sha256(_file(name)).hexdigest()[:12]


def _environment() -> Environment:
    folder = files("judge_server.api.console") / "templates"
    environment = Environment(
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        loader=FunctionLoader(lambda name: (folder / name).read_text(encoding="utf-8")),
    )
    environment.filters |= {"number": _number, "count": "{:,}".format, "moment": _moment, "value": _value}
    environment.globals |= {
        "address": address, "outcome_of": outcome_of, "read_text": read_text, "group_address": group_address,
    }  # fmt: skip
    return environment


def _number(value: float | None, digits: int = 3) -> str:
    return "–" if value is None else f"{value:.{digits}f}".replace("-", "−")


def _moment(at: datetime) -> str:
    return f"{at:%Y-%m-%d %H:%M}"


def _value(value: Any) -> str:
    """A value of a table as a page shows it."""
    if isinstance(value, float):
        return f"{value:.4g}".replace("-", "−")
    return "–" if value is None else f"{value:,}" if isinstance(value, int) else str(value)
