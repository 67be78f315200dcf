"""`GET /metrics`: what the judge counts and times, for Prometheus and for `adjudge top`."""

from collections.abc import Iterable, Mapping

from fastapi import APIRouter, Depends, Request, Response
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4

from judge_server.judging.judge import Judge
from judge_server.metrics import LedgerMetrics, PoolMetrics, metrics_page
from judge_server.metrics.page import MetricSource
from judge_server.web.access import RequiredScope
from judge_server.web.service import service_of

router = APIRouter(tags=["service"], dependencies=[Depends(RequiredScope("metrics"))])

_EXAMPLE = 'adjudge_calls_waiting 96.0\nadjudge_run_share{run="llama-srar-3"} 0.62\n'


@router.get(
    "/metrics",
    summary="Metrics for Prometheus",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}, "example": _EXAMPLE}}}},
)
async def metrics(request: Request) -> Response:
    """Queue, cache and engine times, verdicts by outcome, tokens, and each run's share, in the text format 0.0.4.

    How the ledger and operations stand, and what projects used, come with them. Of a judge there is nothing until it
    has loaded. With several judges, all but the default one have the label `judge`.
    At most 20 runs have a label of their own; the rest count as `(other)`.
    """
    service = service_of(request)
    others: list[MetricSource] = [] if service.recorder is None else [LedgerMetrics(service.recorder.state)]
    if service.authenticator is not None:
        others.append(service.authenticator.metrics)
    await service.operation_metrics.read()
    others.append(service.operation_metrics)
    return Response(judge_metrics_page(service.judges, others), media_type=CONTENT_TYPE_PLAIN_0_0_4)


def judge_metrics_page(judges: Mapping[str, Judge], others: Iterable[MetricSource] = ()) -> bytes:
    """The page of some judges by name, their pools', and others' metrics."""
    pools = PoolMetrics({name: judge.executor.members() for name, judge in judges.items()})
    return metrics_page({name: judge.metrics for name, judge in judges.items()}, [pools, *others])
