"""Fixtures: a cluster of processes over a real PostgreSQL and a real broker, and a single service."""

from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import AsyncExitStack, ExitStack
from functools import partial
from pathlib import Path

import pytest

from tests.fixtures.migrated import NewSQLite
from tests.fixtures.ports import unused_port
from tests.fixtures.redis_process import RedisProcess
from tests.services.operations.cluster import Cluster, Proxy
from tests.services.operations.in_process import Start, started
from trainer_client import AsyncClient

MakeCluster = Callable[..., Cluster]


@pytest.fixture
def cluster(migrated_postgres_url: str, data_dir: object, monkeypatch: pytest.MonkeyPatch) -> Iterator[MakeCluster]:
    """Create a cluster with a running broker; a dead worker is detected after 1.5 s."""
    with ExitStack() as closing:

        def make(delay_s: float = 0.05) -> Cluster:
            broker = RedisProcess()
            monkeypatch.setenv("ADJUDGE_DATABASE_URL", migrated_postgres_url)
            monkeypatch.setenv("ADJUDGE_QUEUE_URL", broker.url)
            monkeypatch.setenv("ADJUDGE_CHUNK_LEASE_S", "1.5")
            broker.start()
            proxy = Proxy(unused_port())
            made = Cluster(broker, proxy, closing.enter_context(proxy.open()), delay_s)
            closing.callback(made.close)
            return made

        yield make


@pytest.fixture
async def start(data_dir: Path, new_sqlite: NewSQLite) -> AsyncIterator[Start]:
    """Start a service inside this process; return a client for it."""
    new_sqlite(data_dir / "adjudge.db")
    async with AsyncExitStack() as closing:
        yield partial(started, closing)


@pytest.fixture
async def client(start: Start) -> AsyncClient:
    """A client of a service inside this process, whose engine answers by hash."""
    return await start()
