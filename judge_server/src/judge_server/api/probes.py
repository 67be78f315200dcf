"""Health, readiness, capabilities and metrics, of a service and of a worker.

`/healthz`, `/readyz` and `GET /v1`: is the process alive, can it judge, and what does it know.

`GET /metrics`: what the judge counts and times, for Prometheus and for `adjudge top`.

The page that Prometheus reads: several judges' metrics, and others', as one.

The default judge's series have no label `judge`, the others' have their name in it.

The probes and the metrics of a worker, which serves nothing else. What they look at, the process says.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Annotated, Protocol, get_args

from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import Metric
from pydantic import BaseModel

from judge_server.api import problems
from judge_server.api.auth import RequiredScope
from judge_server.api.middleware import BoundaryMiddleware
from judge_server.api.problems import problem_responses
from judge_server.api.service import service_of
from judge_server.errors import NotReady
from judge_server.observability.metrics import LedgerMetrics, OperationMetrics, PoolMetrics
from judge_server.observability.requests import FASTAPI_TELEMETRY_OFF
from judge_server.scheduling.metrics import JudgeMetrics
from judge_server.scoring.judge import Judge
from trainer_client import __version__
from trainer_client.wire import (
    DEFAULT_JUDGE,
    PROTOCOLS_FOR,
    FailurePolicy,
    JudgingProtocol,
    RewardMode,
    VerificationMethod,
)

health_router = APIRouter(tags=["service"])

SelectedChecks = Annotated[
    tuple[str, ...],
    Query(description="The parts that count, as `checks` names them, or `replica`; all parts unless given."),
]


class Health(BaseModel):
    """The process answers."""

    status: str = "ok"


class Readiness(BaseModel):
    """Every part is ready."""

    checks: dict[str, bool]


class EngineCapabilities(BaseModel):
    """What the judge's engine can do, see `judge_server.ports.Capabilities`."""

    logprobs: bool
    token_menus: bool
    json_schema: bool
    prompt_logprobs: bool
    prefix_in_flight: bool
    seeds: bool


class ServerCapabilities(BaseModel):
    """What this server understands, so that a client can leave out what it does not."""

    version: str
    model: str | None
    modes: list[str]
    protocols: list[str]
    protocols_for: dict[str, list[str]]
    failure_policies: list[str]
    verification_methods: list[str]
    templates: list[str]
    engine: EngineCapabilities | None


@health_router.get("/healthz", summary="Is the process alive")
async def healthz() -> Health:
    """Says nothing of the judge: use `/readyz` for that."""
    return Health()


@health_router.get("/readyz", summary="Can it judge", response_model=Readiness, responses=problem_responses(422, 503))
async def readyz(request: Request, only: SelectedChecks = ()) -> Readiness | Response:
    """The rubric store can be read, the judge model is loaded, the verdict cache answers, and the ledger can spool.

    What takes replicas out of use must ask for `?only=replica`, which says no where another replica may do better:
    while a judge of its own is not loaded or does not answer; where judges are elsewhere, until a first one was found,
    and while all speak another protocol. Store, cache and judges elsewhere are the same for all replicas, which go on
    serving what they can without; and rewards do not need the ledger.
    """
    service = service_of(request)
    checks = await service.checks(only)
    if not all(checks.values()):
        waiting = ", ".join(name for name, ok in checks.items() if not ok)
        failure_reason = (
            service.recorder.failure_reason if service.recorder is not None and not checks.get("ledger", True) else None
        )
        reasons = [service.not_ready_reason, f"ledger: {failure_reason}" if failure_reason else ""]
        why = f" ({'; '.join(filter(None, reasons))})" if any(reasons) else ""
        raise NotReady(f"not ready: {waiting}{why}", retry_after_s=2)
    return Readiness(checks=checks)


@health_router.get(
    "/v1",
    summary="Version and capabilities",
    dependencies=[Depends(RequiredScope("read"))],
    responses=problem_responses(401, 403, 414, 429, 431, 503),
)
async def capabilities(request: Request) -> ServerCapabilities:
    """Lists the reward modes, judging protocols and failure policies of this server, and what its engine can do."""
    judge = service_of(request).judge
    return ServerCapabilities(
        version=__version__,
        model=judge.identity.model if judge else None,
        modes=list(get_args(RewardMode)),
        protocols=list(get_args(JudgingProtocol)),
        protocols_for={mode: list(protocols) for mode, protocols in PROTOCOLS_FOR.items()},
        failure_policies=list(get_args(FailurePolicy)),
        verification_methods=list(get_args(VerificationMethod)),
        templates=judge.templates.names if judge else [],
        engine=EngineCapabilities(**asdict(judge.identity.capabilities)) if judge else None,
    )


class MetricSource(Protocol):
    """Whatever has metrics."""

    def collect(self) -> Iterable[Metric]:
        """Its metrics at this moment."""


def metrics_page(judges: Mapping[str, JudgeMetrics], others: Iterable[MetricSource] = ()) -> bytes:
    """Everything, as Prometheus' text format 0.0.4."""
    return generate_latest(_MergedRegistry(judges, others))


class _MergedRegistry:
    """All of them as one registry, each family once, without the time at which each series began."""

    def __init__(self, judges: Mapping[str, JudgeMetrics], others: Iterable[MetricSource]) -> None:
        self._judges = judges
        self._others = others

    def collect(self) -> Iterator[Metric]:
        families: dict[str, Metric] = {}
        for name, judge in self._judges.items():
            for metric in judge.families():
                if name != DEFAULT_JUDGE:
                    if metric.name.startswith("process_"):
                        continue
                    metric.samples = [s._replace(labels={**s.labels, "judge": name}) for s in metric.samples]
                families.setdefault(metric.name, _empty(metric)).samples.extend(metric.samples)
        for other in self._others:
            for metric in other.collect():
                families.setdefault(metric.name, _empty(metric)).samples.extend(metric.samples)
        for metric in families.values():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric


def _empty(metric: Metric) -> Metric:
    return Metric(metric.name, metric.documentation, metric.type, metric.unit)


metrics_router = APIRouter(tags=["service"], dependencies=[Depends(RequiredScope("metrics"))])

_EXAMPLE = 'adjudge_calls_waiting 96.0\nadjudge_run_share{run="llama-srar-3"} 0.62\n'


@metrics_router.get(
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


MAX_PROBE_BODY_BYTES = 1024
"""What a request may bring: nobody has anything to send here."""


def create_worker_app(
    metrics: OperationMetrics,
    checks: Callable[[], Awaitable[Mapping[str, bool]]],
    stalled: Callable[[], bool],
) -> FastAPI:
    """The application of a worker.

    Args:
        metrics: what it did.
        checks: what it needs, each part by itself, and whether it is there.
        deaf: whether it hears nothing of the work that waits for it; only a restart helps then.
    """
    app = FastAPI(
        title="Adjudge worker", docs_url=None, redoc_url=None, openapi_url=None, telemetry=FASTAPI_TELEMETRY_OFF
    )
    process = ProcessCollector(registry=CollectorRegistry())

    @app.get("/healthz")
    async def healthz() -> Response:
        if stalled():
            raise NotReady("work waits, and none of it is handed to this worker, which has room: restart it")
        return JSONResponse({"status": "ok"})

    @app.get("/readyz")
    async def readyz() -> Response:
        found = await checks()
        if away := [name for name, there in found.items() if not there]:
            raise NotReady(f"not ready: {', '.join(away)}", retry_after_s=2)
        return JSONResponse({"checks": dict(found)})

    @app.get("/metrics")
    async def page() -> Response:
        return Response(metrics_page({}, [metrics, process]), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    problems.install_problem_handlers(app)
    app.add_middleware(BoundaryMiddleware, max_body_bytes=MAX_PROBE_BODY_BYTES)
    return app
