"""Plugging adapters into the service: which store, cache and engine the settings name, started and stopped in order."""

import asyncio
import logging
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fastapi import FastAPI
from sqlalchemy.exc import SQLAlchemyError

from adjudge_services.access import gate_of, rates_of
from adjudge_services.judges import Fencing, death, load, own_judges
from adjudge_services.operations import check_queue, serving_operations
from adjudge_services.schema import said
from adjudge_services.settings import Settings
from judge_server.access import acting
from judge_server.access.fencing import FenceByProject
from judge_server.errors import EngineStartError
from judge_server.judging.judge import Judge
from judge_server.prompts.fencing import Fence
from judge_server.recording import Recorder
from judge_server.web import Service, create_app
from rubric_store import RubricStore, SQLIdempotencyKeys, SQLLedger, TenantStore, migrations

log = logging.getLogger("adjudge")


class StartError(Exception):
    """A process that cannot start; the message says why and the way out."""


def build_app(
    settings: Settings,
    judges_of: Callable[[Settings, Fencing], dict[str, Judge]] = own_judges,
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
    store = RubricStore(settings.store_url, actor=lambda: acting().actor)
    tenants = TenantStore(settings.store_url)
    rates = rates_of(settings)
    gate = gate_of(settings, tenants, rates)
    ledger = SQLLedger(settings.store_url)
    keys = SQLIdempotencyKeys(settings.store_url)
    service = Service(rubrics=store, ledger=ledger, gate=gate, audit=tenants, keys=keys)
    judges = judges_of(settings, fence_of(settings))
    service.names = tuple(judges)
    service.checker = next(iter(judges.values())).checker
    service.desks = tuple([judge.desk for judge in judges.values()])
    for judge in judges.values():
        judge.metrics.meter = gate.usage.count

    def waiting(why: str) -> None:
        service.problem = why

    async def start_judge(name: str, judge: Judge) -> None:
        try:
            await (judge.start() if wait_for_judge else load(judge, waiting))
        except EngineStartError as error:
            service.problem = str(error)
            if on_judge_failure is not None:
                on_judge_failure(service.problem)
            return
        service.judges[name] = judge

    async def watch_judges() -> None:
        why = await death(judges.values())
        if on_judge_failure is not None:
            on_judge_failure(why)

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.recorder = start_recorder(settings, ledger)
        loading = [asyncio.create_task(start_judge(name, judge)) for name, judge in judges.items()]
        watching = asyncio.create_task(watch_judges())
        counting = asyncio.create_task(gate.run())
        try:
            if wait_for_judge:
                await asyncio.gather(*loading)
                if len(service.judges) < len(judges):
                    raise StartError(service.problem)
            async with serving_operations(settings, store, app, service.operation_metrics) as service.operations:
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
        patience_s=settings.client_patience_s,
        lifespan=lifespan,
    )


def fence_of(settings: Settings) -> Callable[[str], str]:
    """What fences judged text: for each project by itself, unless projects share their verdicts."""
    secret = settings.fencing_secret()
    return Fence(secret) if settings.share_verdicts else FenceByProject(secret)


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
        found = await asyncio.to_thread(migrations.standing, url)
        if found.state == "behind" and url.startswith("sqlite"):
            await asyncio.to_thread(migrations.upgrade, url)
            return
    except (OSError, SQLAlchemyError) as error:
        reason = str(getattr(error, "orig", None) or error).splitlines()[0]
        raise StartError(f"the rubric store cannot be opened: {reason}. Check ADJUDGE_DATABASE_URL") from error
    if found.state == "ahead":
        log.warning("%s", said(found))
    elif not found.usable:
        raise StartError(said(found))
