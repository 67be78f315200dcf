"""Build a service from its settings: stores, cache, engines, access.

Whether requests need keys depends on the address that the process listens on, never on where a request comes from:
behind a proxy on the same host every request comes from loopback.

Operations get their store, their handlers, and the queue that the settings name.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import AsyncExitStack, asynccontextmanager
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

import httpx2
from fastapi import FastAPI
from pydantic import JsonValue

from adjudge_services.judges import (
    CalibrationError,
    CalibrationLoader,
    build_engine,
    load_judge,
    local_judges,
    stored_measurements,
    wait_for_engine_failure,
)
from adjudge_services.settings import Settings
from adjudge_services.store import StartError, command_line_user, open_store, operation_store
from judge_server.api.app import create_app
from judge_server.api.http.middleware import is_loopback
from judge_server.api.service import Service
from judge_server.auth import Authenticator
from judge_server.auth.keys import key_digest, parse_key_id
from judge_server.auth.rates import LocalRateLimiter, RedisRateLimiter
from judge_server.errors import EngineStartError
from judge_server.ledger import Recorder, RecorderLimits, RecorderTimes
from judge_server.ledger.monitoring.gold import GoldSampler
from judge_server.ledger.monitoring.metrics import MonitorMetrics
from judge_server.ledger.prediction import PredictionMetrics
from judge_server.observability.metrics import OperationMetrics
from judge_server.observability.tracing import TracingTransport
from judge_server.operations.handlers.base import OperationHandler
from judge_server.operations.handlers.generate import GenerateHandler, ValidateHandler, WriterFactory, WriterProvider
from judge_server.operations.handlers.judging import ClientFactory, DiscriminateHandler, EvaluateHandler, ScoreHandler
from judge_server.operations.handlers.reverify import ReverifyHandler
from judge_server.operations.queues import CeleryQueue, celery_app
from judge_server.operations.runner import dispatch_with, work_on
from judge_server.operations.service import POLL_INTERVAL_S, Dispatcher, Operations
from judge_server.operations.worker_tokens import WorkerAuthenticator, WorkerTokens
from judge_server.ports import RateLimiter, current_identity
from judge_server.scheduling.time_sharing import rest_if_due, run_in_thread
from judge_server.scoring.cache import redis_url_of
from judge_server.scoring.combined import AnyJudge, CombinedJudge
from judge_server.scoring.judge import Judge
from judge_server.scoring.rubrics import PROJECT_ID
from rubric_store import RubricStore, RubricTexts, SQLIdempotencyKeys, SQLLedger, SQLOperations, TenantStore
from rubric_store.lint import lint
from rubric_store.tenants.rows import DEFAULT_PROJECT
from trainer_client import AsyncClient
from trainer_client.client.connection import transport_options
from trainer_client.wire import Criterion
from trainer_client.wire.operations import OperationKind
from trainer_client.wire.tenants import SCOPES, ApiKey

_REDIS = ("redis://", "rediss://")
_NO_LIMITS = httpx2.Limits(max_connections=None, max_keepalive_connections=100)


@dataclass(frozen=True, slots=True)
class Intervals:
    """Intervals of a service: those of its recorder, and the seconds between two reads of a followed operation."""

    recorder: RecorderTimes = RecorderTimes()  # noqa: RUF009 - a frozen value
    poll_interval_s: float = POLL_INTERVAL_S


@asynccontextmanager
async def run_operations(
    settings: Settings, stores: "Stores", app: FastAPI, metrics: OperationMetrics, poll_interval_s: float
) -> AsyncIterator[Operations]:
    """Run the operations of a process that serves the API, for the duration of the block."""
    transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
    make_client = client_factory("http://adjudge.local", settings, transport=transport)
    async with AsyncExitStack() as closing:
        store = operation_store(settings)
        closing.push_async_callback(store.close)
        metrics.watch(store.counts)
        writers = writer_source(settings)
        closing.push_async_callback(writers.close)
        handlers = build_handlers(make_client, stores.rubrics, store, stores.ledger, writers.writer)
        if settings.queue_url.startswith(_REDIS):
            dispatcher = Dispatcher(store, CeleryQueue(celery_app(settings.queue_url)))
            running = dispatch_with(dispatcher, store, handlers, poll_interval_s=poll_interval_s)
        else:
            lease_s = settings.chunk_lease_s
            running = work_on(store, handlers, lease_s=lease_s, metrics=metrics, poll_interval_s=poll_interval_s)
        yield await closing.enter_async_context(running)


def check_queue(settings: Settings) -> None:
    """Raise `ValueError` if the queue URL is invalid."""
    if settings.queue_url != "memory://" and not settings.queue_url.startswith(_REDIS):
        raise ValueError("ADJUDGE_QUEUE_URL is invalid; set it to memory:// or redis://HOST:PORT/DB")


def writer_source(settings: Settings) -> WriterProvider:
    """The model that writes rubrics, if the settings name one; the caller closes it."""
    url = settings.writer_url
    return WriterProvider(None if url is None else lambda: build_engine(settings, url))


def build_handlers(
    client_factory: ClientFactory, rubrics: RubricStore, store: SQLOperations, ledger: SQLLedger, writer: WriterFactory
) -> Mapping[OperationKind, OperationHandler]:
    """The handlers of operations, by kind."""
    return {
        "score": ScoreHandler(client_factory, rubrics),
        "reverify": ReverifyHandler(client_factory, rubrics, store, ledger),
        "evaluate_judge": EvaluateHandler(client_factory, rubrics, store),
        "discriminate_rubrics": DiscriminateHandler(client_factory, rubrics, store),
        "generate_rubrics": GenerateHandler(writer, rubrics, lint_findings),
        "validate_rubrics": ValidateHandler(writer, rubrics, rubrics),
    }


def lint_findings(criteria: Sequence[Criterion]) -> list[dict[str, JsonValue]]:
    """The lint findings about a rubric, as JSON."""
    return [asdict(finding) for finding in lint(criteria)]


def client_factory(
    url: str, settings: Settings, *, transport: httpx2.AsyncBaseTransport | None = None, retries: int = 0
) -> ClientFactory:
    """A factory of clients of the service at `url`, which authenticate as a given project with a worker token."""
    worker_tokens, transport_kwargs = WorkerTokens(settings.signing_key()), transport_options(httpx2.URL(url))

    def make_client(project_id: str) -> AsyncClient:
        headers = {"Authorization": f"Bearer {worker_tokens.sign(project_id)}"}
        traced_transport = TracingTransport(
            transport or httpx2.AsyncHTTPTransport(limits=_NO_LIMITS, **transport_kwargs)
        )
        return AsyncClient(
            url, api_key="", headers=headers, retries=retries, retry_budget_s=10.0, transport=traced_transport
        )

    return make_client


def keys_required(settings: Settings) -> bool:
    """Whether every request needs a key: if the settings say so, or the process listens off loopback."""
    return settings.keys == "required" or not is_loopback(settings.host)


def build_rate_limiter(settings: Settings, clock: Callable[[], float] = time.monotonic) -> RateLimiter:
    """The rate limiter of projects: shared by all processes through Redis, or local to this one."""
    redis = redis_url_of(settings.cache_url)
    return LocalRateLimiter(clock) if redis is None else RedisRateLimiter(redis, clock)


async def has_usable_key(settings: Settings) -> bool:
    """Whether the store has a usable key; raises what `prepare_store` raises."""
    async with open_store(TenantStore, settings) as tenants:
        now = datetime.now(UTC)
        return any(key.state_at(now) == "usable" for key in await tenants.keys())


async def register_bootstrap_key(settings: Settings, text: str) -> tuple[ApiKey, bool]:
    """Store the first key, with every scope, for the default project; return it, and whether it is new.

    A key that is stored already stays as it is, so that a deployment may do this at every start.

    Raises:
        ValueError: the text does not have the form of a key, or another key has its id.
        StartError: the store cannot be used.
    """
    key_id = parse_key_id(text)
    if key_id is None:
        raise ValueError(
            "it does not have the form of a key: adj_, 16 characters of a-z and 2-7, an underscore, and 43 characters "
            "of A-Z, a-z, 0-9, '-' and '_'; docs/how-to/give-a-team-a-key.md has a command that generates one"
        )
    async with open_store(partial(TenantStore, actor=command_line_user), settings) as tenants:
        return await tenants.ensure_key(
            DEFAULT_PROJECT, key_id, key_digest(text), scopes=sorted(SCOPES), label="bootstrap"
        )


log = logging.getLogger("adjudge")


def build_app(
    settings: Settings,
    judges_of: Callable[[Settings], dict[str, AnyJudge]] = local_judges,
    *,
    wait_for_judge: bool = False,
    on_judge_failure: Callable[[str], None] | None = None,
    with_operations: bool = True,
    intervals: Intervals = Intervals(),
    clock: Callable[[], float] = time.monotonic,
) -> FastAPI:
    """Build the application of `adjudge serve` (judges in this process) or `adjudge api` (judges in other processes).

    The store must be ready: see `prepare_store`. Judges load in the background, so that `/healthz` answers at once and
    `/readyz` reports when they are ready.

    Args:
        settings: the settings.
        judges_of: builds the judges by name, the default one first.
        wait_for_judge: load the judges before the application starts; startup raises `StartError` if that fails.
        on_judge_failure: called with the reason if a judge cannot be loaded or dies later.
        with_operations: work on operations. A command must not: its judge may be another than that of the service which
            accepted them.
        intervals: intervals of its background work.
        clock: returns seconds, for cached keys and rates.
    """
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    check_queue(settings)
    stores, rates = Stores.of(settings), build_rate_limiter(settings, clock)
    gold = GoldSampler(stores.rubrics)
    authenticator = Authenticator(
        stores.tenants,
        required=keys_required(settings),
        open_metrics=settings.metrics == "open",
        clock=clock,
        rates=rates,
        worker_tokens=WorkerAuthenticator(WorkerTokens(settings.signing_key()), stores.tenants),
    )
    service = build_service(settings, stores, authenticator, gold)
    judges = judges_of(settings)
    calibrations = CalibrationLoader.of(settings, judges)
    starter = JudgeStarter(service, judges, wait=wait_for_judge, on_failure=on_judge_failure)
    for judge in starter.engines.values():
        judge.metrics.meter = authenticator.usage.count

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        try:
            await calibrations.load()
        except CalibrationError as error:
            raise StartError(str(error)) from error
        async with AsyncExitStack() as closing:
            for opened in (*stores, rates):
                closing.push_async_callback(opened.close)
            recording = running_recorder(settings, stores.ledger, intervals.recorder)
            service.recorder = await closing.enter_async_context(recording)
            await closing.enter_async_context(_in_background(authenticator.run()))
            await closing.enter_async_context(starter.running())
            await closing.enter_async_context(_in_background(calibrations.run(), gold.run()))
            closing.push_async_callback(gold.drain)
            if with_operations:
                metrics = service.operation_metrics
                running = run_operations(settings, stores, app, metrics, intervals.poll_interval_s)
                service.operations = await closing.enter_async_context(running)
            yield

    max_body_bytes, body_timeout_s = settings.max_body_bytes, settings.client_timeout_s
    return create_app(service, max_body_bytes=max_body_bytes, body_timeout_s=body_timeout_s, lifespan=lifespan)


class Stores(NamedTuple):
    """The stores of a process that serves the API, on the database of its settings."""

    rubrics: RubricStore
    tenants: TenantStore
    ledger: SQLLedger
    idempotency_keys: SQLIdempotencyKeys

    @classmethod
    def of(cls, settings: Settings) -> "Stores":
        """Make the stores; they connect when they are used."""
        url = settings.store_url

        def actor() -> str:
            return current_identity().actor

        return cls(
            RubricStore(url, actor=actor, run_large=run_in_thread),
            TenantStore(url, actor=actor),
            SQLLedger(url, rest=rest_if_due),
            SQLIdempotencyKeys(url),
        )


def build_service(settings: Settings, stores: Stores, authenticator: Authenticator, gold: GoldSampler) -> Service:
    """The parts behind the routes, still without judges, recorder and operations."""
    return Service(
        rubrics=stores.rubrics,
        rubric_texts=RubricTexts(),
        ledger=stores.ledger,
        labels=stores.ledger,
        authenticator=authenticator,
        audit=stores.tenants,
        keys=stores.tenants,
        projects=stores.tenants,
        idempotency_keys=stores.idempotency_keys,
        gold=gold,
        monitor_thresholds=settings.monitors,
        monitor_metrics=MonitorMetrics(stores.ledger, settings.monitors, PROJECT_ID),
        prediction_metrics=PredictionMetrics(stores.ledger.step_requests),
        tracker_url=settings.tracker_url,
        judge_measurements=partial(stored_measurements, settings.store_url),
        session_secret=settings.signing_key(),
    )


class JudgeStarter:
    """Loads the judges of a service in the background, and says when one cannot be loaded or dies.

    With `wait`, they are loaded before the service starts.
    """

    def __init__(
        self,
        service: Service,
        judges: Mapping[str, AnyJudge],
        *,
        wait: bool,
        on_failure: Callable[[str], None] | None,
    ) -> None:
        self.engines = {name: judge for name, judge in judges.items() if isinstance(judge, Judge)}
        self._service = service
        self._combined = {name: judge for name, judge in judges.items() if isinstance(judge, CombinedJudge)}
        self._wait = wait
        self._on_failure = on_failure or (lambda _: None)
        service.names = tuple(judges)
        service.checker = next(iter(self.engines.values())).checker
        service.executors = tuple([judge.executor for judge in self.engines.values()])

    @asynccontextmanager
    async def running(self) -> AsyncIterator[None]:
        """Load the judges, and close them at the end of the block.

        Raises:
            StartError: with `wait`, a judge cannot be loaded.
        """
        starting = {name: asyncio.create_task(self._start(name, judge)) for name, judge in self.engines.items()}
        loading = [*starting.values()]
        for name, judge in self._combined.items():
            loading.append(asyncio.create_task(self._add(name, judge, [starting[member] for member in judge.names])))
        watching = asyncio.create_task(self._watch())
        try:
            if self._wait:
                await asyncio.gather(*loading)
                if len(self._service.judges) < len(loading):
                    raise StartError(self._service.problem)
            yield
        finally:
            for task in (*loading, watching):
                task.cancel()
            await asyncio.gather(*loading, watching, return_exceptions=True)
            await asyncio.gather(*(judge.close() for judge in self.engines.values()))

    async def _start(self, name: str, judge: Judge) -> None:
        try:
            await (judge.start() if self._wait else load_judge(judge, self._set_problem))
        except EngineStartError as error:
            self._set_problem(str(error))
            self._on_failure(str(error))
        else:
            self._service.judges[name] = judge

    async def _add(self, name: str, judge: CombinedJudge, members: Sequence[asyncio.Task[None]]) -> None:
        await asyncio.wait(members)
        if all(member in self._service.judges for member in judge.names):
            self._service.judges[name] = judge

    async def _watch(self) -> None:
        self._on_failure(await wait_for_engine_failure(self.engines.values()))

    def _set_problem(self, why: str) -> None:
        self._service.problem = why


@asynccontextmanager
async def _in_background(*works: Coroutine[Any, Any, None]) -> AsyncIterator[None]:
    """Run tasks for the duration of the block."""
    tasks = [asyncio.create_task(work) for work in works]
    try:
        yield
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


@asynccontextmanager
async def running_recorder(
    settings: Settings,
    ledger: SQLLedger,
    times: RecorderTimes = RecorderTimes(),  # noqa: B008 - a frozen value
) -> AsyncIterator[Recorder | None]:
    """Run the recorder of the ledger for the duration of the block; None if the ledger is off."""
    if settings.ledger == "off":
        yield None
        return
    recorder = Recorder(
        ledger,
        settings.ledger_spool,
        keep_texts=settings.ledger == "all",
        limits=RecorderLimits(spool_bytes=settings.ledger_spool_bytes),
        times=times,
    )
    try:
        yield recorder
    finally:
        await asyncio.to_thread(recorder.close)
