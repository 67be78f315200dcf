"""Build a service from its settings: stores, cache, engines, access.

Plugging adapters into the service: which store, cache and engine the settings name, started and stopped in order.

Where the schema that a process finds stands, in words, and what to do where the process cannot run on it.

Who may reach this process: whether it needs keys, and the gate that looks them up.

Whether keys are needed depends on where a process listens, never on where a request comes from: behind a proxy on the
same host everybody comes from loopback.
"""

import asyncio
import getpass
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from datetime import UTC, datetime

from fastapi import FastAPI
from sqlalchemy.exc import SQLAlchemyError

from adjudge_services.judges import FenceFunction, load_judge, local_judges, wait_for_engine_failure
from adjudge_services.operations import check_queue, run_operations
from adjudge_services.settings import Settings
from judge_server.api import Service, create_app
from judge_server.api.auth import is_loopback
from judge_server.auth import Authenticator, current_identity
from judge_server.auth.identity import ProjectFence
from judge_server.auth.rates import LocalRateLimiter, RedisRateLimiter
from judge_server.cache import redis_url_of
from judge_server.errors import EngineStartError
from judge_server.ledger import Recorder
from judge_server.operations.worker_tokens import WorkerAuthenticator, WorkerTokens
from judge_server.ports import RateLimiter
from judge_server.prompts.fencing import Fence
from judge_server.scoring.judge import Judge
from rubric_store import RubricStore, SQLIdempotencyKeys, SQLLedger, TenantStore, migrations
from rubric_store.migrations import SchemaStatus


def keys_required(settings: Settings) -> bool:
    """Whether every request needs a key: where the settings say so, and wherever others than this host can reach."""
    return settings.keys == "required" or not is_loopback(settings.host)


def build_rate_limiter(settings: Settings) -> RateLimiter:
    """What counts the requests of projects: for all processes where they share a Redis, else for this one."""
    redis = redis_url_of(settings.cache_url)
    return LocalRateLimiter(time.monotonic) if redis is None else RedisRateLimiter(redis)


def build_authenticator(settings: Settings, tenants: TenantStore, rates: RateLimiter) -> Authenticator:
    """The gate in front of the API."""
    worker_tokens = WorkerAuthenticator(WorkerTokens(settings.fencing_secret()), tenants)
    open_metrics = settings.metrics == "open"
    return Authenticator(
        tenants, required=keys_required(settings), open_metrics=open_metrics, rates=rates, worker_tokens=worker_tokens
    )


async def has_usable_key(settings: Settings) -> bool:
    """Whether the store has a key that opens anything; the store must be ready."""
    tenants = TenantStore(settings.store_url)
    try:
        now = datetime.now(UTC)
        return any(key.state_at(now) == "usable" for key in await tenants.keys())
    finally:
        await tenants.close()


def command_line_user() -> str:
    """Who is named in the audit for what a command changes."""
    try:
        return f"command line, {getpass.getuser()}"
    except (KeyError, OSError):  # a user id without a name
        return "command line"


def describe_schema_status(found: SchemaStatus) -> str:
    """Where a database stands and what to do about it, in a sentence."""
    if found.state == "current":
        return f"the database is at revision {found.revision}, which is this version's"
    if found.state == "behind":
        where = f"it is at revision {found.revision}, and should be at" if found.revision else "it is empty, and needs"
        return f"the database schema is not the one this version needs: {where} {found.head}; run: adjudge migrate"
    if found.state == "ahead":
        return (
            f"the database is at revision {found.revision}, which a newer version made; this version, of revision "
            f"{found.head}, works on it"
        )
    needed = f" (it needs revision {found.works_from} or later)" if found.works_from else ""
    return (
        f"the database is at revision {found.revision}, which a newer version made, and this version, of revision "
        f"{found.head}, does not work on it{needed}; install the newer version again, or take the schema back with it: "
        f"adjudge migrate down {found.head}"
    )


log = logging.getLogger("adjudge")


class StartError(Exception):
    """A process that cannot start; the message says why and the way out."""


def build_app(
    settings: Settings,
    judges_of: Callable[[Settings, FenceFunction], dict[str, Judge]] = local_judges,
    *,
    wait_for_judge: bool = False,
    on_judge_failure: Callable[[str], None] | None = None,
) -> FastAPI:
    """The application `adjudge serve` runs, with judges of its own, or `adjudge api`, with judges in other processes.

    The store must be ready: see `prepare_store`. The judge loads in the background, so that `/healthz` answers at once
    and `/readyz` says when it is done. `on_judge_failure` is told why, where it cannot be loaded, or dies later.
    `wait_for_judge` loads it before the application starts, and raises `StartError` where that fails.
    """
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    check_queue(settings)
    store = RubricStore(settings.store_url, actor=lambda: current_identity().actor)
    tenants = TenantStore(settings.store_url)
    rates = build_rate_limiter(settings)
    authenticator = build_authenticator(settings, tenants, rates)
    ledger = SQLLedger(settings.store_url)
    keys = SQLIdempotencyKeys(settings.store_url)
    service = Service(rubrics=store, ledger=ledger, authenticator=authenticator, audit=tenants, idempotency_keys=keys)
    judges = judges_of(settings, build_fence(settings))
    service.names = tuple(judges)
    service.checker = next(iter(judges.values())).checker
    service.executors = tuple([judge.executor for judge in judges.values()])
    for judge in judges.values():
        judge.metrics.meter = authenticator.usage.count

    def set_problem(why: str) -> None:
        service.problem = why

    async def start_judge(name: str, judge: Judge) -> None:
        try:
            await (judge.start() if wait_for_judge else load_judge(judge, set_problem))
        except EngineStartError as error:
            service.problem = str(error)
            if on_judge_failure is not None:
                on_judge_failure(service.problem)
            return
        service.judges[name] = judge

    async def watch_judges() -> None:
        why = await wait_for_engine_failure(judges.values())
        if on_judge_failure is not None:
            on_judge_failure(why)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.recorder = start_recorder(settings, ledger)
        loading = [asyncio.create_task(start_judge(name, judge)) for name, judge in judges.items()]
        watching = asyncio.create_task(watch_judges())
        counting = asyncio.create_task(authenticator.run())
        try:
            if wait_for_judge:
                await asyncio.gather(*loading)
                if len(service.judges) < len(judges):
                    raise StartError(service.problem)
            async with run_operations(settings, store, app, service.operation_metrics) as service.operations:
                yield
        finally:
            for one in (*loading, watching):
                one.cancel()
            await asyncio.gather(*loading, watching, return_exceptions=True)
            await asyncio.gather(*(judge.close() for judge in judges.values()))
            counting.cancel()
            await asyncio.gather(counting, return_exceptions=True)
            await rates.close()
            await tenants.close()
            await keys.close()
            if service.recorder is not None:
                await asyncio.to_thread(service.recorder.close)
            await ledger.close()
            await store.close()

    return create_app(
        service,
        max_body_bytes=settings.max_body_bytes,
        body_timeout_s=settings.client_timeout_s,
        lifespan=lifespan,
    )


def build_fence(settings: Settings) -> Callable[[str], str]:
    """What fences judged text: for each project by itself, unless projects share their verdicts."""
    secret = settings.fencing_secret()
    return Fence(secret) if settings.share_verdicts else ProjectFence(secret)


def start_recorder(settings: Settings, ledger: SQLLedger) -> Recorder | None:
    """What records judged requests in the ledger, running; None where nothing is to be recorded."""
    if settings.ledger == "off":
        return None
    return Recorder(
        ledger,
        settings.ledger_spool,
        max_spool_bytes=settings.ledger_spool_bytes,
        keep_texts=settings.ledger == "all",
    )


async def prepare_store(settings: Settings) -> None:
    """Bring a SQLite file up to date; insist that a PostgreSQL schema is, or is a newer one that this version works on.

    Raises:
        StartError: the schema does not do for this version, or the database cannot be reached.
    """
    url = settings.store_url
    try:
        if url.startswith("sqlite"):
            settings.data_dir.mkdir(parents=True, exist_ok=True)
        found = await asyncio.to_thread(migrations.read_status, url)
        if found.state == "behind" and url.startswith("sqlite"):
            await asyncio.to_thread(migrations.upgrade, url)
            return
    except (OSError, SQLAlchemyError) as error:
        reason = str(getattr(error, "orig", None) or error).splitlines()[0]
        raise StartError(f"the rubric store cannot be opened: {reason}. Check ADJUDGE_DATABASE_URL") from error
    if found.state == "ahead":
        log.warning("%s", describe_schema_status(found))
    elif not found.usable:
        raise StartError(describe_schema_status(found))
