"""The responses of a run, found by step, reward, status or verdict."""

from starlette.requests import Request
from starlette.responses import Response

from judge_server.api.auth import project_of
from judge_server.api.console.parameters import (
    choice_parameter,
    float_parameter,
    run_parameter,
    step_parameters,
    text_parameter,
)
from judge_server.api.console.rendering import Console
from judge_server.api.console.responses.shown import read_responses
from judge_server.api.console.routing import PageRouter
from judge_server.api.console.runs.run import no_run
from judge_server.api.console.tables import address
from judge_server.errors import InvalidRequest
from judge_server.ledger.rows import storable_text
from trainer_client.wire.ledger_rows import ResponseFilter, RunReportQuery

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
