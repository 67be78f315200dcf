"""Databases for the store's tests: the same test runs on each."""

import asyncio
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from rubric_store import RubricStore, SQLOperations, migrations
from tests.rubric_store.operation_rows import NOW


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
def database_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """The URL of a new, empty database of each kind."""
    if request.param == "postgresql":
        url: str = request.getfixturevalue("postgres_url")
        return url
    return f"sqlite+aiosqlite:///{tmp_path / 'rubrics.db'}"


@pytest.fixture
async def migrated_url(database_url: str) -> str:
    """The URL of a new database with the newest schema."""
    await asyncio.to_thread(migrations.upgrade, database_url)
    return database_url


@pytest.fixture
async def store(migrated_url: str) -> AsyncIterator[RubricStore]:
    """An empty store."""
    opened = RubricStore(migrated_url)
    yield opened
    await opened.close()


@pytest.fixture
async def kept(migrated_url: str) -> AsyncIterator[SQLOperations]:
    """No operations yet, in a store whose clock stands still."""
    opened = SQLOperations(migrated_url, keep_days=30, clock=lambda: NOW)
    yield opened
    await opened.close()
