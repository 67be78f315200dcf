"""A service that requires keys."""

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.fixtures.migrated import NewSQLite
from tests.judge_server.auth.keyed import KeyedService


@pytest.fixture
async def keyed(new_sqlite: NewSQLite, tmp_path: Path) -> AsyncIterator[KeyedService]:
    """A service that requires keys, over a new database."""
    new_sqlite(tmp_path / "rubrics.db")
    service = await KeyedService.start(tmp_path)
    yield service
    await service.close()
