"""`GET /metrics`: what the judge counts and times, for Prometheus and for `adjudge top`."""

from fastapi import APIRouter, Request, Response
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from judge_server.web.service import service_of

router = APIRouter(tags=["service"])

_EXAMPLE = 'adjudge_calls_waiting 96.0\nadjudge_run_share{run="llama-srar-3"} 0.62\n'


@router.get(
    "/metrics",
    summary="Metrics for Prometheus",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}, "example": _EXAMPLE}}}},
)
async def metrics(request: Request) -> Response:
    """Queue, cache and engine times, verdicts by outcome, tokens, and each run's share, in the text format 0.0.4.

    Empty until the judge has loaded. At most 20 runs have a label of their own; the rest count as `(other)`.
    """
    judge = service_of(request).judge
    return Response(judge.metrics.text() if judge is not None else b"", media_type=CONTENT_TYPE_PLAIN_0_0_4)
