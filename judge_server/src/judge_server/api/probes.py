"""Health, readiness, capabilities and metrics, of a service and of a worker.

A service has `/healthz`, `/readyz`, `GET /v1` and `/metrics`, which Prometheus and `adjudge top` read. The metrics page
merges those of all judges: the series of the default judge have no label `judge`, those of the others have their name
in it. A worker has only the probes and `/metrics`.
"""

from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping
from dataclasses import asdict
from typing import Annotated, Literal, Protocol, get_args

from fastapi import APIRouter, Depends, FastAPI, Query, Request, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, CollectorRegistry, ProcessCollector, generate_latest
from prometheus_client.core import Metric
from pydantic import Field

from judge_server.api.auth import RequiredScope
from judge_server.api.http import problems
from judge_server.api.http.middleware import BoundaryMiddleware
from judge_server.api.http.problems import problem_responses
from judge_server.api.http.requests import api_router
from judge_server.api.service import service_of
from judge_server.errors import NotReady
from judge_server.observability.metrics import LedgerMetrics, OperationMetrics, PoolMetrics, SleepMetrics
from judge_server.observability.tracing import FASTAPI_TELEMETRY_OFF
from judge_server.scheduling.metrics import JudgeMetrics
from judge_server.scoring.combined import AnyJudge
from trainer_client import __version__
from trainer_client.wire import (
    DEFAULT_JUDGE,
    PROTOCOLS_FOR,
    FailurePolicy,
    JudgingProtocol,
    RewardMode,
    VerificationMethod,
)
from trainer_client.wire.base import AnswerModel, is_unset
from trainer_client.wire.judges import SleepState

health_router = APIRouter(tags=["service"])

SelectedChecks = Annotated[
    tuple[str, ...],
    Query(description="The parts to check, as named in `checks`, or `replica`; all parts by default."),
]


class Health(AnswerModel):
    """The process is alive.

    Attributes:
        status: `ok`.
    """

    status: str = "ok"


class Readiness(AnswerModel):
    """Every checked part is ready. A judge that is asleep is ready: it takes calls, and answers them when it is awake.

    Attributes:
        checks: by part, whether it is ready.
        sleep: the judges that are asleep or on their way, by name; left out if all are awake.
    """

    checks: dict[str, bool]
    sleep: dict[str, SleepState] = Field(default={}, exclude_if=is_unset)


class EngineCapabilities(AnswerModel):
    """What the judge's engine supports; see `judge_server.ports.Capabilities`.

    Attributes:
        logprobs: it returns the probabilities of the next token.
        token_menus: it can be held to a few tokens.
        json_schema: it can be held to a JSON Schema.
        prompt_logprobs: it returns the probabilities of the tokens of a prompt.
        prefix_in_flight: calls share a prefix that is being computed.
        seeds: sampling can be repeated.
        typed_questions: it answers typed questions with probabilities.
        images: it takes images in prompts and responses.
    """

    logprobs: bool
    token_menus: bool
    json_schema: bool
    prompt_logprobs: bool
    prefix_in_flight: bool
    seeds: bool
    typed_questions: bool
    images: bool


class JudgeDescription(AnswerModel):
    """A judge by name. Model and kind are null while it loads; `members` names the judges of a cascade or panel.

    Attributes:
        name: the name that requests use.
        model: its model; null while it loads.
        kind: one engine, a cascade or a panel; null while it loads.
        members: the judges of a cascade or panel.
    """

    name: str
    model: str | None = None
    kind: Literal["engine", "cascade", "panel"] | None = None
    members: tuple[str, ...] = ()


class ServerCapabilities(AnswerModel):
    """What this server supports, so that clients can adapt to it. `model` and `engine` are of the default judge.

    Attributes:
        version: the version of the service.
        model: the model of the default judge; null while it loads.
        judges: the judges.
        modes: the reward modes.
        protocols: the judging protocols.
        protocols_for: by reward mode, the protocols that it takes.
        failure_policies: what a response can get if judging fails.
        verification_methods: how criteria can be verified.
        templates: the sets of prompt templates.
        engine: what the engine of the default judge supports; null while it loads.
    """

    version: str
    model: str | None
    judges: list[JudgeDescription]
    modes: list[str]
    protocols: list[str]
    protocols_for: dict[str, list[str]]
    failure_policies: list[str]
    verification_methods: list[str]
    templates: list[str]
    engine: EngineCapabilities | None


@health_router.head("/healthz", include_in_schema=False)
@health_router.get("/healthz", summary="Check that the process is alive")
async def healthz() -> Health:
    """Does not check the judge: use `/readyz` for that."""
    return Health()


@health_router.head("/readyz", include_in_schema=False, response_model=Readiness)
@health_router.get(
    "/readyz",
    summary="Check that the service can judge",
    response_model=Readiness,
    responses=problem_responses(422, 503),
)
async def readyz(request: Request, only: SelectedChecks = ()) -> Readiness | Response:
    """The rubric store can be read, the judge model is loaded, the verdict cache answers, and the ledger can spool.

    Load balancers must use `?only=replica`, which says whether this replica should receive traffic. It fails while a
    judge in this process is not loaded or does not answer. If judges run elsewhere, it fails until a first one is
    found, and while all of them speak another protocol. Store, cache and remote judges are shared by all replicas,
    which keep serving what they can without them, and rewards do not need the ledger.
    """
    service = service_of(request)
    checks = await service.checks(only)
    if not all(checks.values()):
        failing = ", ".join(name for name, ok in checks.items() if not ok)
        failure_reason = (
            service.recorder.failure_reason if service.recorder is not None and not checks.get("ledger", True) else None
        )
        reasons = [service.not_ready_reason, f"ledger: {failure_reason}" if failure_reason else ""]
        why = f" ({'; '.join(filter(None, reasons))})" if any(reasons) else ""
        raise NotReady(f"not ready: {failing}{why}", retry_after_s=2)
    states = {name: judge.executor.sleep_state for name, judge in service.judges.items()}
    return Readiness(checks=checks, sleep={name: state for name, state in states.items() if state != "awake"})


@health_router.get(
    "/v1",
    summary="Version and capabilities",
    dependencies=[Depends(RequiredScope("read"))],
    responses=problem_responses(401, 403, 414, 429, 431, 503),
)
async def capabilities(request: Request) -> ServerCapabilities:
    """Lists the reward modes, judging protocols and failure policies of this server, and what its engine supports."""
    service = service_of(request)
    judge = service.judge
    return ServerCapabilities(
        version=__version__,
        model=judge.identity.model if judge else None,
        judges=[_describe(name, service.judges.get(name)) for name in service.names],
        modes=list(get_args(RewardMode)),
        protocols=list(get_args(JudgingProtocol)),
        protocols_for={mode: list(protocols) for mode, protocols in PROTOCOLS_FOR.items()},
        failure_policies=list(get_args(FailurePolicy)),
        verification_methods=list(get_args(VerificationMethod)),
        templates=judge.preparer.templates.names if judge else [],
        engine=EngineCapabilities(**asdict(judge.identity.capabilities)) if judge else None,
    )


def _describe(name: str, judge: AnyJudge | None) -> JudgeDescription:
    if judge is None:
        return JudgeDescription(name=name)
    return JudgeDescription(name=name, model=judge.identity.model, kind=judge.kind, members=tuple(judge.members))


class MetricSource(Protocol):
    """A source of metrics."""

    def collect(self) -> Iterable[Metric]:
        """The current metrics."""


def metrics_page(judges: Mapping[str, JudgeMetrics], others: Iterable[MetricSource] = ()) -> bytes:
    """All metrics in Prometheus' text format 0.0.4."""
    return generate_latest(_MergedRegistry(judges, others))


class _MergedRegistry:
    """All sources as one registry, with each metric family once and without the `_created` series."""

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


metrics_router = api_router("service", "metrics", prefix="")

_EXAMPLE = 'adjudge_calls_waiting 96.0\nadjudge_run_share{run="llama-srar-3"} 0.62\n'


@metrics_router.get(
    "/metrics",
    summary="Metrics for Prometheus",
    response_class=Response,
    responses={200: {"content": {"text/plain": {"schema": {"type": "string"}, "example": _EXAMPLE}}}},
)
async def metrics(request: Request) -> Response:
    """Queue, cache and engine times, verdicts by outcome, tokens, and each run's share, in the text format 0.0.4.

    The page includes the status of the ledger and of operations, and the usage of projects. A judge appears once it
    has loaded. With several judges, all but the default one have the label `judge`. At most 20 runs have a label of
    their own; the rest count as `(other)`.
    """
    service = service_of(request)
    others: list[MetricSource] = [] if service.recorder is None else [LedgerMetrics(service.recorder.state)]
    if service.authenticator is not None:
        others.append(service.authenticator.metrics)
    await service.operation_metrics.read()
    others.append(service.operation_metrics)
    if service.gold is not None:
        others.append(service.gold.metrics)
    if service.monitor_metrics is not None:
        await service.monitor_metrics.read()
        others.append(service.monitor_metrics)
    if service.prediction_metrics is not None:
        await service.prediction_metrics.read()
        others.append(service.prediction_metrics)
    return Response(judge_metrics_page(service.judges, others), media_type=CONTENT_TYPE_PLAIN_0_0_4)


def judge_metrics_page(judges: Mapping[str, AnyJudge], others: Iterable[MetricSource] = ()) -> bytes:
    """The metrics page of judges by name, of their pools and sleep, and of other sources."""
    pools = PoolMetrics({name: judge.executor.members() for name, judge in judges.items()})
    sleep = SleepMetrics({name: judge.executor.sleep_state for name, judge in judges.items()})
    return metrics_page({name: judge.metrics for name, judge in judges.items()}, [pools, sleep, *others])


MAX_PROBE_BODY_BYTES = 1024
"""The maximum size of a body sent to a worker, whose routes take none."""


def create_worker_app(
    metrics: OperationMetrics,
    checks: Callable[[], Awaitable[Mapping[str, bool]]],
    stalled: Callable[[], bool],
) -> FastAPI:
    """Create the application of a worker.

    Args:
        metrics: the metrics of its operations.
        checks: checks the parts that the worker needs, by name.
        stalled: whether the worker receives none of the waiting work, which only a restart repairs.
    """
    app = FastAPI(
        title="Adjudge worker", docs_url=None, redoc_url=None, openapi_url=None, telemetry=FASTAPI_TELEMETRY_OFF
    )
    process = ProcessCollector(registry=CollectorRegistry())

    @app.head("/healthz")
    @app.get("/healthz")
    async def healthz() -> Response:
        if stalled():
            raise NotReady("work is waiting, but none of it reaches this worker, which has free capacity: restart it")
        return JSONResponse({"status": "ok"})

    @app.head("/readyz")
    @app.get("/readyz")
    async def readyz() -> Response:
        results = await checks()
        if failing := [name for name, ok in results.items() if not ok]:
            raise NotReady(f"not ready: {', '.join(failing)}", retry_after_s=2)
        return JSONResponse({"checks": dict(results)})

    @app.get("/metrics")
    async def page() -> Response:
        return Response(metrics_page({}, [metrics, process]), media_type=CONTENT_TYPE_PLAIN_0_0_4)

    problems.install_problem_handlers(app)
    app.add_middleware(BoundaryMiddleware, max_body_bytes=MAX_PROBE_BODY_BYTES)
    return app
