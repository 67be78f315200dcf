"""Which URLs the store accepts, how it refuses others, and how its connections behave."""

import asyncio
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import event, text
from sqlalchemy.exc import DBAPIError

from rubric_store import DatabaseURLError, RubricStore, SQLLedger, migrations, open_engine
from rubric_store.database import SESSION_SETTINGS, WRITES
from tests.fixtures.migrated import NewSQLite
from tests.rubric_store.examples import rubric
from tests.rubric_store.ledger_rows import request
from trainer_client.wire import RubricContent


@pytest.mark.parametrize(
    ("url", "way_out"),
    [
        ("", "write sqlite"),
        ("rubrics.db", "write sqlite"),
        ("sqlite:///rubrics.db", "write sqlite\\+aiosqlite:///path"),
        ("postgresql+asyncpg://u:hush@db/x", "or postgresql\\+psycopg://"),
        ("mysql://u:hush@db/x", "or postgresql\\+psycopg://"),
        ("sqlite+aiosqlite://", "must use a file"),
        ("sqlite+aiosqlite:///:memory:", "must use a file"),
        ("sqlite+aiosqlite:////no/such/folder/rubrics.db", "mkdir -p /no/such/folder"),
    ],
)
def test_an_unusable_url_is_refused_with_advice(url: str, way_out: str) -> None:
    with pytest.raises(DatabaseURLError, match=way_out) as caught:
        RubricStore(url)
    assert "hush" not in str(caught.value)


async def test_sqlite_connections_use_write_ahead_logging_and_foreign_keys(tmp_path: Path) -> None:
    engine = open_engine(f"sqlite+aiosqlite:///{tmp_path / 'x.db'}")
    async with engine.connect() as connection:
        pragmas = ("journal_mode", "foreign_keys", "busy_timeout")
        values = [(await connection.execute(text(f"PRAGMA {name}"))).scalar_one() for name in pragmas]
    await engine.dispose()
    assert values == ["wal", 1, 30_000]


async def test_a_cancelled_transaction_releases_its_lock(tmp_path: Path) -> None:
    engine = open_engine(f"sqlite+aiosqlite:///{tmp_path / 'x.db'}").execution_options(**{WRITES: True})

    @event.listens_for(engine.sync_engine, "connect")
    def wait_briefly(connection: Any, _: object) -> None:
        connection.cursor().execute("PRAGMA busy_timeout = 2000")

    long = "WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 1000000) SELECT count(*) FROM n"
    reading = asyncio.Event()

    async def transaction() -> None:
        async with engine.begin() as connection:
            await connection.execute(text("CREATE TABLE written (it integer)"))
            asyncio.get_running_loop().call_later(0.05, reading.set)
            await connection.execute(text(long))

    try:
        for _ in range(3):
            task = asyncio.create_task(transaction())
            await reading.wait()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
            reading.clear()
        async with engine.begin() as connection:
            await connection.execute(text("CREATE TABLE written (it integer)"))
    finally:
        await engine.dispose()


@pytest.mark.postgres
async def test_locks_of_a_client_that_vanished_in_a_transaction_are_released(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(SESSION_SETTINGS, "idle_in_transaction_session_timeout", "500ms")
    engine = open_engine(postgres_url)
    async with engine.begin() as setting_up:
        await setting_up.execute(text("CREATE TABLE held (it integer)"))
    vanished = await engine.connect()
    await vanished.execute(text("LOCK TABLE held"))
    async with engine.begin() as waiting:
        await waiting.execute(text("LOCK TABLE held"))
    with pytest.raises(DBAPIError):
        await vanished.execute(text("SELECT 1"))
    await vanished.close()
    await engine.dispose()


@pytest.mark.postgres
async def test_idle_transactions_time_out_also_those_of_the_ledger(postgres_url: str) -> None:
    engine, ledger = open_engine(postgres_url), SQLLedger(postgres_url)
    async with engine.connect() as connection:
        idle = (await connection.execute(text("SHOW idle_in_transaction_session_timeout"))).scalar_one()
    with ledger._engine.connect() as blocking:
        idle_in_ledger = blocking.execute(text("SHOW idle_in_transaction_session_timeout")).scalar_one()
    assert (idle, idle_in_ledger) == ("1min", "1min")
    await ledger.close()
    await engine.dispose()


async def test_an_engine_passed_to_a_store_stays_open(migrated_url: str) -> None:
    engine = open_engine(migrated_url)
    first = RubricStore(engine)
    await first.publish("p1", "a", rubric("x"))
    pool = engine.pool
    await first.close()
    assert engine.pool is pool
    assert await RubricStore(engine).find("p1", "a@1") is not None
    await engine.dispose()


async def test_a_database_without_tables_is_not_ready(database_url: str) -> None:
    store = RubricStore(database_url)
    assert not await store.ready()
    migrations.upgrade(database_url)
    assert await store.ready()
    await store.close()


async def test_an_unreachable_database_is_not_ready() -> None:
    store = RubricStore("postgresql+psycopg://nobody@127.0.0.1:9/none")
    assert not await store.ready()
    await store.close()


CONTENT = RubricContent.model_validate({"criteria": [{"id": "a", "description": "Is right."}]})


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """A folder that `mount` can make read-only, because it is mounted onto itself."""
    folder = tmp_path / "database"
    folder.mkdir()
    if subprocess.run(["mount", "--bind", folder, folder], capture_output=True, check=False).returncode:
        pytest.skip("mounting a folder needs Linux and root")
    yield folder
    subprocess.run(["umount", "--lazy", folder], capture_output=True, check=True)


def remount(folder: Path, how: str) -> None:
    """Make a mounted folder read-only (`ro`) or writable (`rw`)."""
    subprocess.run(["mount", "-o", f"remount,bind,{how}", folder], capture_output=True, check=True)


async def test_a_read_only_file_refuses_changes_until_it_is_writable(folder: Path, new_sqlite: NewSQLite) -> None:
    url = new_sqlite(folder / "rubrics.db")
    remount(folder, "ro")
    store, ledger = RubricStore(url), SQLLedger(url)
    rows = request(1, [["a"]])
    assert not await store.ready()
    with pytest.raises(ConnectionError):
        await store.publish("p", "team/a", CONTENT)
    with pytest.raises(ConnectionError):
        ledger.write(rows)
    with pytest.raises(ConnectionError):
        ledger.salvage(rows)
    remount(folder, "rw")
    assert await store.ready()
    _, created = await store.publish("p", "team/a", CONTENT)
    assert created
    ledger.write(rows)
    await store.close()
    await ledger.close()
