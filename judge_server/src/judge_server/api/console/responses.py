"""The pages of responses: the list, one response, and the search in the ledger."""

from typing import get_args

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from judge_server.api.auth import project_of
from judge_server.api.console.explanation import ShownResponse, outcome_of, read_responses
from judge_server.api.console.forms import (
    choice_parameter,
    float_parameter,
    int_parameter,
    run_parameter,
    step_parameters,
    text_parameter,
)
from judge_server.api.console.rendering import Console, address
from judge_server.api.console.routing import NotFound, PageRouter
from judge_server.api.console.run_view import FAILURE_MEANINGS
from judge_server.api.console.runs import no_run
from judge_server.api.ledger import digest_of_reference
from judge_server.errors import InvalidRequest
from judge_server.ledger.rows import decode_cursor, digest_bytes, encode_cursor, recorded_verdict, storable_text
from judge_server.ports import LedgerReader
from rubric_store.ledger.rows import (
    ResponseFilter,
    ResponseRecord,
    RunReportQuery,
    UseFilter,
    UseRecord,
    VerdictOutcome,
)
from trainer_client.wire import Verdict
from trainer_client.wire.rewards import FailureKind, VerdictStatus

router = PageRouter()

_RESPONSES_A_PAGE = 25
_CRITERIA = 200


@router.get("/responses")
async def responses(console: Console, request: Request) -> Response:
    """A list of responses, with the beginning of each text."""
    ledger, project, run = console.service.readable_ledger(), project_of(request), run_parameter(request)
    given = request.query_params
    first, last = step_parameters(request)
    status = choice_parameter(request, "status", ("scored", "partial", "unscored"))
    outcome = choice_parameter(request, "outcome", ("passed", "not passed", "failed", "uncertain", "left out"))
    criterion = text_parameter(request, "criterion") or None
    wanted = ResponseFilter(
        project, storable_text(run), first, last, float_parameter(request, "low"), float_parameter(request, "high"),
        given.get("includes_high") == "1", status, criterion=criterion and storable_text(criterion),
        outcome=outcome if criterion else None,  # type: ignore[arg-type]
        after=_after(request), limit=_RESPONSES_A_PAGE,
    )  # fmt: skip
    found, after = await read_responses(ledger, wanted)
    report = await ledger.run(RunReportQuery(project, storable_text(run), criteria=_CRITERIA, limit=1))
    if report is None:
        raise no_run(run)
    kept = {name: value for name, value in given.items() if name not in ("after", "run")}
    next_href = "" if after is None else address("responses", run=run, **kept, after=f"{after[0].hex()}.{after[1]}")
    return console.page(
        request, "responses.html.jinja", run=run, found=found, next_href=next_href, report=report, given=given,
        criterion=criterion, outcome=outcome, searching=criterion is not None,
    )  # fmt: skip


def _after(request: Request) -> tuple[bytes, int] | None:
    value = text_parameter(request, "after")
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


_VERDICTS_A_PAGE = 50
_BATCH = 500
_MAX_BATCHES = 10
"""A search for verdicts that passed or did not looks at this many batches, and then offers to go on."""

_CRITERIA, _RUNS = 200, 50
_STATUS: dict[VerdictOutcome, VerdictStatus] = {
    "passed": "ok", "not passed": "ok", "failed": "failed", "uncertain": "uncertain", "left out": "left_out",
}  # fmt: skip

Cursor = tuple[bytes, int, int]


@router.get("/ledger")
async def ledger(console: Console, request: Request) -> Response:
    """A page of the verdicts of a run, oldest first; without a run, those of the latest one."""
    reader, project = console.service.readable_ledger(), project_of(request)
    recent = (await reader.runs(project, limit=_RUNS)).runs
    if "run" not in request.query_params:
        if recent:
            return RedirectResponse(address("ledger", run=recent[0].run or ""), 303)
        return console.page(request, "ledger.html.jinja", run=None)
    run, given = run_parameter(request), request.query_params
    outcome = choice_parameter(request, "outcome", get_args(VerdictOutcome))
    failure = choice_parameter(request, "failure", get_args(FailureKind))
    criterion, rubric = text_parameter(request, "criterion") or None, text_parameter(request, "rubric") or None
    report = await reader.run(RunReportQuery(project, storable_text(run), criteria=_CRITERIA, limit=1))
    if report is None:
        raise NotFound(f"This project's ledger has no record of run {run!r}. The list of runs shows those that it has.")
    digest = None if rubric is None else digest_bytes(await digest_of_reference(console.service, project, rubric))
    wanted = UseFilter(
        project, storable_text(run), int_parameter(request, "step"), digest, criterion and storable_text(criterion),
        None if outcome is None else _STATUS[outcome],  # type: ignore[index]
        _after_verdict(request), _VERDICTS_A_PAGE, failure,  # type: ignore[arg-type]
    )  # fmt: skip
    found, after = await _read(reader, wanted, outcome)
    kept = {name: value for name, value in given.items() if name not in ("after", "run")}
    return console.page(
        request, "ledger.html.jinja", run=run, runs=[one.run or "" for one in recent], report=report, found=found,
        given=given, next_href="" if after is None else address("ledger", run=run, **kept, after=after),
        outcomes=get_args(VerdictOutcome), failures=FAILURE_MEANINGS, record=_record,
    )  # fmt: skip


async def _read(
    reader: LedgerReader, wanted: UseFilter, outcome: str | None
) -> tuple[list[tuple[UseRecord, Verdict]], str | None]:
    """A page of verdicts, and the cursor to continue after; None at the end."""
    if outcome not in ("passed", "not passed"):
        uses = await reader.uses(wanted._replace(limit=wanted.limit + 1))
        shown = uses[: wanted.limit]
        after = encode_cursor(shown[-1].votes[0][0]) if len(uses) > len(shown) else None
        return [(use, recorded_verdict(use.votes)) for use in shown], after
    found: list[tuple[UseRecord, Verdict]] = []
    for _ in range(_MAX_BATCHES):
        batch = await reader.uses(wanted._replace(limit=_BATCH))
        for use in batch:
            verdict = recorded_verdict(use.votes)
            if outcome_of(verdict) == outcome:
                found.append((use, verdict))
                if len(found) == wanted.limit:
                    return found, encode_cursor(use.votes[0][0])
        if len(batch) < _BATCH:
            return found, None
        last = batch[-1].votes[0][0]
        wanted = wanted._replace(after=(last.request, last.place, last.slot))
    return found, encode_cursor(last)


def _record(use: UseRecord) -> str:
    """The page of the group of a verdict, at its response."""
    return ShownResponse(ResponseRecord(use.request, use.response, use.votes), None, None).group_href


def _after_verdict(request: Request) -> Cursor | None:
    cursor = text_parameter(request, "after")
    try:
        return decode_cursor(cursor) if cursor else None
    except ValueError:
        raise InvalidRequest("after: the place to continue after is invalid; go back to the first page") from None
