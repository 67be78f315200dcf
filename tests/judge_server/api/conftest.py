"""Services that record what they judge, or require keys."""

from collections.abc import AsyncIterator
from pathlib import Path

import httpx2
import pytest

from judge_server.engines.scripted import ScriptedEngine
from rubric_store import RubricStore
from tests.judge_server import support
from tests.judge_server.api.recording import recording
from tests.judge_server.auth.keyed import KeyedService
from tests.judge_server.ledger.judged import some_fail


@pytest.fixture
async def recorded(store: RubricStore, tmp_path: Path) -> AsyncIterator[httpx2.AsyncClient]:
    """A client of a service with a ledger, whose engine fails sometimes."""
    async with recording(store, tmp_path, default=await support.judge(ScriptedEngine(some_fail))) as http:
        yield http


@pytest.fixture
async def keyed(tmp_path: Path, store: RubricStore) -> AsyncIterator[KeyedService]:
    """A service that requires keys, over the same new database as `store`."""
    service = await KeyedService.start(tmp_path, ScriptedEngine(some_fail))
    yield service
    await service.close()
