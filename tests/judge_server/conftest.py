"""A service without a process: scripted engine, a rubric store on a SQLite file, HTTP without a socket."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path

import httpx2
import pytest

from judge_server.engines.scripted import ScriptedEngine
from judge_server.web import Service, create_app
from rubric_store import RubricStore, migrations
from tests.judge_server import support
from tests.judge_server.engines import engine, fetched, loaded, scripted, spare, spare_llamacpp

__all__ = ["engine", "fetched", "loaded", "scripted", "spare", "spare_llamacpp"]

Serve = Callable[..., Awaitable[httpx2.AsyncClient]]


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[RubricStore]:
    """An empty rubric store."""
    url = f"sqlite+aiosqlite:///{tmp_path / 'rubrics.db'}"
    await asyncio.to_thread(migrations.upgrade, url)
    opened = RubricStore(url)
    yield opened
    await opened.close()


@pytest.fixture
async def serve(store: RubricStore) -> AsyncIterator[Serve]:
    """Makes a client of a service with this engine; `loaded=False` is one whose judge is still loading."""
    clients: list[httpx2.AsyncClient] = []

    async def make(
        engine: ScriptedEngine | None = None,
        *,
        loaded: bool = True,
        max_body_bytes: int = 2**26,
        queue_calls: int = 1000,
    ) -> httpx2.AsyncClient:
        service = Service(rubrics=store)
        if loaded:
            service.judges["default"] = await support.judge(engine, queue_calls=queue_calls)
        app = create_app(service, max_body_bytes=max_body_bytes)
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
