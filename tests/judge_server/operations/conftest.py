"""The harness for operations in chunks, for each queue and database."""

import uuid
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import redis

from judge_server.operations import queues
from tests.fixtures.migrated import NewSQLite
from tests.judge_server.operations.harness import OperationsHarness


@pytest.fixture(
    params=[
        "memory-sqlite",
        pytest.param("memory-postgresql", marks=pytest.mark.postgres),
        pytest.param("celery-postgresql", marks=[pytest.mark.postgres, pytest.mark.redis]),
        pytest.param("celery-sqlite", marks=pytest.mark.redis),
    ]
)
async def harness(
    request: pytest.FixtureRequest, tmp_path: Path, new_sqlite: NewSQLite, monkeypatch: pytest.MonkeyPatch
) -> AsyncIterator[OperationsHarness]:
    """A running harness over an empty database."""
    queue, database = request.param.split("-")
    if database == "postgresql":
        url = str(request.getfixturevalue("migrated_postgres_url"))
    else:
        url = new_sqlite(tmp_path / "operations.db")
    broker: str | None = None
    if queue == "celery":
        broker = request.getfixturevalue("redis_url")
        monkeypatch.setattr(queues, "QUEUE", f"adjudge-test-{uuid.uuid4().hex}")
    made = OperationsHarness(url, broker)
    await made.start()
    yield made
    await made.stop()
    if broker is not None:
        with redis.Redis.from_url(broker) as connection:
            connection.delete(queues.QUEUE, f"_kombu.binding.{queues.QUEUE}")
