"""Databases for the store's tests: each test runs on every kind."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from judge_server.ports import RubricSource
from rubric_store import RubricStore, SQLLedger
from tests.fixtures.migrated import NewSQLite
from tests.rubric_store.operation_rows import FixedClockOperations


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def database(request: pytest.FixtureRequest) -> str:
    """Each kind of database."""
    return str(request.param)


@pytest.fixture
def database_url(database: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a new, empty database of each kind."""
    if database == "postgresql":
        return str(request.getfixturevalue("postgres_url"))
    return f"sqlite+aiosqlite:///{tmp_path / 'rubrics.db'}"


@pytest.fixture
def migrated_url(database: str, request: pytest.FixtureRequest, tmp_path: Path, new_sqlite: NewSQLite) -> str:
    """The URL of a new database of each kind with the newest schema."""
    if database == "postgresql":
        return str(request.getfixturevalue("migrated_postgres_url"))
    return new_sqlite(tmp_path / "rubrics.db")


@pytest.fixture
async def store(migrated_url: str) -> AsyncIterator[RubricStore]:
    """An empty store."""
    opened = RubricStore(migrated_url)
    yield opened
    await opened.close()


@pytest.fixture
def source(store: RubricStore) -> RubricSource:
    """An empty store, as the server sees it."""
    return store


@pytest.fixture
async def ledger(migrated_url: str) -> AsyncIterator[SQLLedger]:
    """An empty ledger."""
    opened = SQLLedger(migrated_url)
    yield opened
    await opened.close()


@pytest.fixture
async def kept(migrated_url: str) -> AsyncIterator[FixedClockOperations]:
    """An empty store of operations whose clock stands still."""
    opened = FixedClockOperations(migrated_url)
    yield opened
    await opened.close()
