"""Fixtures of an in-process service: a scripted engine, a rubric store in SQLite, and HTTP without sockets."""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
from fastapi import FastAPI
from pebble import ProcessPool

from judge_server.api.app import create_app
from judge_server.api.service import Service
from judge_server.engines.scripted import ScriptedEngine
from judge_server.scheduling import worker_pool
from rubric_store import RubricStore, SQLLedger
from tests.fixtures.migrated import NewSQLite
from tests.judge_server import support
from tests.judge_server.engines.fixtures import (
    engine,
    fetched,
    identity,
    least_tokens,
    loaded,
    openai_over_llamacpp,
    scripted,
    spare,
    spare_llamacpp,
    spare_openai,
)
from tests.judge_server.engines.openai.fixtures import llamacpp_server

__all__ = [
    "engine",
    "fetched",
    "identity",
    "least_tokens",
    "llamacpp_server",
    "loaded",
    "openai_over_llamacpp",
    "scripted",
    "spare",
    "spare_llamacpp",
    "spare_openai",
]

Serve = Callable[..., Awaitable[httpx2.AsyncClient]]


@pytest.fixture(autouse=True)
def _no_worker_pool_outlives_its_test(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Stop the worker pools of judges that a test left open; Python would wait for their processes at exit."""
    pools: list[ProcessPool] = []

    class NotedPool(ProcessPool):
        def __init__(self, **options: Any) -> None:
            super().__init__(**options)
            pools.append(self)

    monkeypatch.setattr(worker_pool, "ProcessPool", NotedPool)
    yield
    for pool in pools:
        pool.stop()  # type: ignore[no-untyped-call]
        pool.join()  # type: ignore[no-untyped-call]


@pytest.fixture
async def ledger(tmp_path: Path, new_sqlite: NewSQLite) -> AsyncIterator[SQLLedger]:
    """A ledger on SQLite, empty."""
    opened = SQLLedger(new_sqlite(tmp_path / "ledger.db"))
    yield opened
    await opened.close()


@pytest.fixture
async def store(tmp_path: Path, new_sqlite: NewSQLite) -> AsyncIterator[RubricStore]:
    """An empty rubric store."""
    opened = RubricStore(new_sqlite(tmp_path / "rubrics.db"))
    yield opened
    await opened.close()


@pytest.fixture(scope="session")
def with_one_document() -> Callable[[FastAPI], None]:
    """Share one OpenAPI document between applications, since making it takes half a second."""
    made: list[dict[str, Any]] = []

    def share(app: FastAPI) -> None:
        make = app.openapi

        def openapi() -> dict[str, Any]:
            if not made:
                made.append(make())
            return made[0]

        app.openapi = openapi  # type: ignore[method-assign]

    return share


@pytest.fixture
async def serve(store: RubricStore, with_one_document: Callable[[FastAPI], None]) -> AsyncIterator[Serve]:
    """Make a client of a service with this engine; with `loaded=False` its judge is still loading.

    Other options go to the judge.
    """
    clients: list[httpx2.AsyncClient] = []

    async def make(
        engine: ScriptedEngine | None = None,
        *,
        loaded: bool = True,
        max_body_bytes: int = 2**26,
        queue_calls: int = 1000,
        **options: Any,
    ) -> httpx2.AsyncClient:
        service = Service(rubrics=store)
        if loaded:
            service.judges["default"] = await support.judge(engine, queue_calls=queue_calls, **options)
            service.checker = service.judges["default"].checker
        app = create_app(service, max_body_bytes=max_body_bytes)
        with_one_document(app)
        transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
        clients.append(httpx2.AsyncClient(transport=transport, base_url="http://adjudge.test"))
        return clients[-1]

    yield make
    for client in clients:
        await client.aclose()


@pytest.fixture
async def http(serve: Serve) -> httpx2.AsyncClient:
    """A client of a service whose engine answers by hash."""
    return await serve()
