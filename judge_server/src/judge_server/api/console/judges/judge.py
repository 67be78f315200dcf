"""The judge that a fingerprint names."""

from starlette.requests import Request
from starlette.responses import Response

from judge_server.api.console.judges.judge_view import judge_details
from judge_server.api.console.parameters import text_parameter
from judge_server.api.console.rendering import Console
from judge_server.api.console.routing import PageRouter

router = PageRouter()


@router.get("/judge")
async def judge(console: Console, request: Request) -> Response:
    """The judge with its calibration, if it is loaded now."""
    fingerprint = text_parameter(request, "fingerprint")
    details = judge_details(console.service.judges, fingerprint)
    return console.page(
        request, "judge.html.jinja", fingerprint=fingerprint, details=details, run=text_parameter(request, "run")
    )
