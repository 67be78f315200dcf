"""The web application of a judge process: its engine and queue, for the apis of the same deployment. Not public."""

import asyncio
import hmac
import re
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, AsyncExitStack, aclosing
from dataclasses import dataclass
from http import HTTPStatus
from typing import Annotated, TypeVar

from fastapi import APIRouter, Depends, FastAPI, HTTPException, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4
from pydantic import TypeAdapter, ValidationError

from judge_server.api.http import problems
from judge_server.api.http.middleware import BoundaryMiddleware, require_loopback_host
from judge_server.api.http.responses import run_while_connected
from judge_server.api.probes import SelectedChecks, judge_metrics_page
from judge_server.errors import CannotLoad, CannotSleep, EngineUnavailable, InvalidRequest, NotReady
from judge_server.judging.plan import ResponsePlan
from judge_server.judging.results import Outcomes, label_of_run
from judge_server.observability.logs import bind_log_context
from judge_server.observability.tracing import FASTAPI_TELEMETRY_OFF, RequestLoggingMiddleware
from judge_server.ports import Batch
from judge_server.remote.executor import ROOT, identity_digest
from judge_server.remote.messages import PROTOCOL_VERSION, Handshake, ResultEvent, ShardRequest
from judge_server.scheduling.sleep import Lease, SleepReport
from judge_server.scheduling.weights import WeightsOrder, WeightsReport
from judge_server.scoring.judge import Judge
from trainer_client import __version__
from trainer_client.wire import DEFAULT_JUDGE

MAX_BODY_BYTES = 256 * 2**20
"""The most an api may send at once. The limit on its own requests is far lower, but prompts repeat shared text."""

MessageT = TypeVar("MessageT")
NDJSON = "application/x-ndjson"

RESULT_FLUSH_INTERVAL_S = 0.2
"""How often the outcomes of unfinished responses are sent: the most work an api loses if the judge dies."""

HEARTBEAT_INTERVAL_S = 5.0
"""The longest time without a line, so that an api notices a connection that was lost silently. An api that misses
three treats the connection as lost and asks another judge. If it is shorter than the longest block of a judge's event
loop, calls are made twice needlessly."""


@dataclass(slots=True)
class JudgeProcess:
    """What the routes need: the judge, once its engine is loaded, and the token that apis must send, if any.

    Metrics name the runs of all projects, so they require the token too, unless `open_metrics` is set. `protocol` is
    the version of its messages. Outcomes of unfinished responses are sent every `flush_interval_s`, and a line at least
    every `heartbeat_interval_s`.
    """

    token: str | None
    judge: Judge | None = None
    problem: str = "the judge model is still loading"
    open_metrics: bool = False
    protocol: int = PROTOCOL_VERSION
    flush_interval_s: float = RESULT_FLUSH_INTERVAL_S
    heartbeat_interval_s: float = HEARTBEAT_INTERVAL_S

    def ready_judge(self) -> Judge:
        """Return the judge; raises `NotReady` before it has started."""
        if self.judge is None:
            raise NotReady(f"Cannot judge yet: {self.problem}", retry_after_s=2)
        return self.judge


def create_judge_app(
    process: JudgeProcess, lifespan: Callable[[FastAPI], AbstractAsyncContextManager[None]] | None = None
) -> FastAPI:
    """Create the application of a judge process."""
    app = FastAPI(
        title="Adjudge judge",
        lifespan=lifespan,
        docs_url=None,
        redoc_url=None,
        openapi_url=None,
        telemetry=FASTAPI_TELEMETRY_OFF,
    )
    app.state.process = process
    app.include_router(_probes)
    app.include_router(_judging)
    problems.install_problem_handlers(app)
    app.add_middleware(BoundaryMiddleware, max_body_bytes=MAX_BODY_BYTES)
    app.add_middleware(RequestLoggingMiddleware)
    return app


def _process(request: Request) -> JudgeProcess:
    process: JudgeProcess = request.app.state.process
    return process


Process = Annotated[JudgeProcess, Depends(_process)]


async def _authenticate(request: Request, process: Process) -> None:
    if process.token is None:
        require_loopback_host(request.headers)
        return
    token = request.headers.get("Authorization", "").removeprefix("Bearer ")
    if not hmac.compare_digest(token.encode(), process.token.encode()):
        raise HTTPException(HTTPStatus.UNAUTHORIZED, "send the deployment's ADJUDGE_JUDGE_TOKEN as a bearer token")


_probes = APIRouter()
_judging = APIRouter(prefix=ROOT, dependencies=[Depends(_authenticate)])


@_probes.head("/healthz")
@_probes.get("/healthz")
async def _healthz() -> Response:
    return JSONResponse({"status": "ok"})


@_probes.head("/readyz")
@_probes.get("/readyz")
async def _readyz(process: Process, only: SelectedChecks = ()) -> Response:
    judge = process.ready_judge()
    parts = {"judge": judge.executor.ready, "cache": judge.cache.ready}
    checks = {name: await parts[name]() if name in parts else False for name in only or parts}
    if not all(checks.values()):
        raise NotReady(f"not ready: {', '.join(name for name, ok in checks.items() if not ok)}", retry_after_s=2)
    return JSONResponse({"checks": checks})


@_probes.get("/metrics")
async def _metrics(request: Request, process: Process) -> Response:
    if not process.open_metrics:
        await _authenticate(request, process)
    judges = {} if process.judge is None else {DEFAULT_JUDGE: process.judge}
    return Response(judge_metrics_page(judges), media_type=CONTENT_TYPE_PLAIN_0_0_4)


@_judging.get("/judge")
async def _handshake(process: Process) -> Response:
    judge = process.judge
    message = Handshake(
        protocol=process.protocol,
        version=__version__,
        identity=judge.identity if judge else None,
        ready=judge is not None and await judge.executor.ready(),
        heartbeat_s=process.heartbeat_interval_s,
        sleep_state="awake" if judge is None else judge.executor.sleep_state,
        weights=None if judge is None else judge.executor.weights,
    )
    return Response(message.model_dump_json(), media_type="application/json")


@_judging.post("/tokens")
async def _tokens(request: Request, process: Process) -> Response:
    batch = await _message(request, _BATCH)
    if not batch.calls:
        raise InvalidRequest("calls: a batch needs at least one call")
    try:
        return JSONResponse({"tokens": await process.ready_judge().executor.count_tokens(batch)})
    except EngineUnavailable as error:
        raise NotReady(str(error), retry_after_s=2) from error


@_judging.post("/leases")
async def _leases(request: Request, process: Process) -> Response:
    lease = await _message(request, _LEASE)
    executor = process.ready_judge().executor
    try:
        report = await run_while_connected(request, executor.hold(lease))
    except CannotSleep as error:
        raise InvalidRequest(str(error)) from error
    return Response(_REPORT.dump_json(report), media_type="application/json")


@_judging.post("/weights")
async def _weights(request: Request, process: Process) -> Response:
    order = await _message(request, _ORDER)
    try:
        report = await process.ready_judge().executor.load(order)
    except CannotLoad as error:
        raise InvalidRequest(str(error)) from error
    return Response(_WEIGHTS.dump_json(report), media_type="application/json")


@_judging.post("/outcomes")
async def _outcomes(request: Request, process: Process) -> Response:
    shard = await _message(request, _SHARD)
    bind_log_context(project=shard.caller.project_id, run=label_of_run(shard.caller.run) or None)
    judge = process.ready_judge()
    if shard.protocol != process.protocol:
        raise NotReady(f"this judge speaks protocol {process.protocol}, not {shard.protocol}")
    try:
        plans = shard.response_plans()
    except ValueError as error:
        raise InvalidRequest(str(error)) from error
    events = _result_events(process, judge, plans, shard)
    first = await run_while_connected(request, anext(events))  # a full queue must not answer 200
    return StreamingResponse(_encoded(first, events), media_type=NDJSON)


async def _result_events(
    process: JudgeProcess, judge: Judge, plans: Sequence[ResponsePlan], shard: ShardRequest
) -> AsyncGenerator[ResultEvent, None]:
    """Yield outcomes as responses are done, then those left at the deadline, with heartbeats in between.

    Raises:
        Overloaded: the judge's queue is full; nothing is yielded.
        NotReady: the judge has other weights than those asked for, or is loading them; nothing is yielded.
    """
    now = asyncio.get_running_loop().time
    unsent, last_sent_at = Outcomes(), now()
    async with AsyncExitStack() as stack:
        await stack.enter_async_context(judge.executor.one_version(now()))
        if shard.identity != identity_digest(judge.identity):
            raise NotReady(f"this judge is now {judge.identity.model}, not the one asked for")
        judging = judge.judge(
            plans, now() + shard.deadline_s, caller=shard.batch_caller, tick_s=process.flush_interval_s
        )
        await stack.enter_async_context(aclosing(judging))
        async for judged in judging:
            unsent.add(judged.outcomes)
            if unsent.by_digest:
                event, last_sent_at = ResultEvent.of(unsent), now()
                unsent = Outcomes(joined=unsent.joined - unsent.by_digest.keys())
                yield event
            elif now() - last_sent_at >= process.heartbeat_interval_s:
                last_sent_at = now()
                yield ResultEvent()


async def _encoded(first: ResultEvent, events: AsyncGenerator[ResultEvent, None]) -> AsyncIterator[bytes]:
    async with aclosing(events):
        yield first.model_dump_json(exclude_defaults=True).encode() + b"\n"
        async for event in events:
            yield event.model_dump_json(exclude_defaults=True).encode() + b"\n"


_BATCH, _SHARD = TypeAdapter(Batch), TypeAdapter(ShardRequest)
_LEASE, _REPORT = TypeAdapter(Lease), TypeAdapter(SleepReport)
_ORDER, _WEIGHTS = TypeAdapter(WeightsOrder), TypeAdapter(WeightsReport)
_JSON = re.compile(r"\s*application/json\s*(;|$)", re.IGNORECASE)


async def _message(request: Request, kind: TypeAdapter[MessageT]) -> MessageT:
    """Read a message; refuse what a page of another origin could send without a CORS preflight: a form, plain text."""
    if not _JSON.match(request.headers.get("content-type", "")):
        raise HTTPException(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE, "this endpoint takes JSON; send Content-Type: application/json"
        )
    try:
        return kind.validate_json(await request.body())
    except ValidationError as error:
        raise InvalidRequest(f"this is not a message of this protocol version: {error.errors()[0]['msg']}") from error
