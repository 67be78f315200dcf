"""The page that audits a run: what its judge credits more and more, and others do not."""

from starlette.requests import Request
from starlette.responses import Response

from judge_server.api.auth import project_of
from judge_server.api.console.forms import run_parameter
from judge_server.api.console.rendering import Console, PageRouter, address
from judge_server.api.http.responses import run_while_connected
from judge_server.api.ledger import audited
from judge_server.ledger.rows import decode_cursor
from trainer_client.wire.runs import AuditExample

router = PageRouter()


@router.get("/run/audit")
async def audit(console: Console, request: Request) -> Response:
    """The report on a run, against the runs that the query names."""
    run = run_parameter(request)
    against = [name for name in request.query_params.getlist("against") if name]
    report = await run_while_connected(request, audited(console.service, project_of(request), run, against))

    def example_href(example: AuditExample) -> str:
        recorded, place, _ = decode_cursor(example.verdict)
        group = address("group", run=run, request=recorded.hex(), group=example.group)
        return f"{group}#response-{recorded.hex()}-{place}"

    return console.page(request, "audit.html.jinja", run=run, against=against, report=report, example_href=example_href)
