"""Plugging adapters into the service: which store, cache and engine the settings name, started and stopped in order."""

import asyncio
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager

from fastapi import FastAPI
from sqlalchemy.exc import SQLAlchemyError

from adjudge_services.settings import Settings
from judge_server.cache import cache_from_url
from judge_server.engines import engine_from_url
from judge_server.errors import EngineStartError
from judge_server.judging.judge import Judge
from judge_server.ports import Engine
from judge_server.prompts.fencing import Fence
from judge_server.prompts.library import TemplateLibrary
from judge_server.recording import Recorder
from judge_server.web import Service, create_app
from rubric_store import RubricStore, SQLLedger, migrations


class StartError(Exception):
    """A process that cannot start; the message says why and the way out."""


def build_app(
    settings: Settings, *, wait_for_judge: bool = False, on_judge_failure: Callable[[str], None] | None = None
) -> FastAPI:
    """The application `adjudge serve` runs: api and judge in one process.

    The store must be ready: see `prepare_store`. The judge loads in the background, so that `/healthz` answers at once
    and `/readyz` says when it is done. `on_judge_failure` is told why, where it cannot be loaded. `wait_for_judge`
    loads it before the application starts, and raises `StartError` where that fails.
    """
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    store = RubricStore(settings.store_url)
    ledger = SQLLedger(settings.store_url)
    service = Service(rubrics=store, ledger=ledger)
    cache = cache_from_url(settings.cache_url)
    judge = Judge(
        engine_of(settings),
        cache,
        Fence(settings.fencing_secret()),
        rules=settings.queue_rules,
        templates=TemplateLibrary(settings.templates_dir),
    )

    async def start_judge() -> None:
        try:
            await judge.start()
        except EngineStartError as error:
            service.problem = str(error)
            if on_judge_failure is not None:
                on_judge_failure(service.problem)
            return
        service.judge = judge

    @asynccontextmanager
    async def lifespan(app: FastAPI) -> AsyncIterator[None]:
        service.recorder = start_recorder(settings, ledger)
        loading = asyncio.create_task(start_judge())
        try:
            if wait_for_judge:
                await loading
                if service.judge is None:
                    raise StartError(service.problem)
            yield
        finally:
            loading.cancel()
            await asyncio.gather(loading, return_exceptions=True)
            await judge.close()
            if service.recorder is not None:
                await asyncio.to_thread(service.recorder.close)
            await ledger.close()
            await store.close()

    return create_app(service, max_body_bytes=settings.max_body_bytes, lifespan=lifespan)


def engine_of(settings: Settings) -> Engine:
    """The engine that the settings name, not started. Raises `ValueError` where there is no such engine."""
    key = settings.engine_api_key
    return engine_from_url(settings.engine_url, api_key=key.get_secret_value() if key else None)


def start_recorder(settings: Settings, ledger: SQLLedger) -> Recorder | None:
    """What records judged requests in the ledger, running; None where nothing is to be recorded."""
    if settings.ledger == "off":
        return None
    return Recorder(
        ledger,
        settings.data_dir / "ledger-spool",
        max_spool_bytes=settings.ledger_spool_bytes,
        keep_texts=settings.ledger == "all",
    )


async def prepare_store(settings: Settings) -> None:
    """Bring a SQLite file up to date; insist that a PostgreSQL schema is.

    Raises:
        StartError: the PostgreSQL schema is behind, or the database cannot be reached.
    """
    url = settings.store_url
    try:
        if url.startswith("sqlite"):
            settings.data_dir.mkdir(parents=True, exist_ok=True)
            await asyncio.to_thread(migrations.upgrade, url)
        elif not await asyncio.to_thread(migrations.is_current, url):
            raise StartError("the database schema is not the one this version needs; run: adjudge migrate")
    except (OSError, SQLAlchemyError) as error:
        reason = str(getattr(error, "orig", None) or error).splitlines()[0]
        raise StartError(f"the rubric store cannot be opened: {reason}. Check ADJUDGE_DATABASE_URL") from error
