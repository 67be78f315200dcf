"""The contract of every engine, applied to a pool of two."""

from collections.abc import AsyncIterator
from functools import partial

import pytest
import pytest_asyncio

from judge_server.engines.pool import EnginePool
from judge_server.engines.scripted import ScriptedEngine
from tests.judge_server.engines import test_contract as contract
from tests.judge_server.engines.fixtures import CONTEXT_TOKENS, started

pytestmark = pytest.mark.asyncio(loop_scope="session")

globals().update(
    {name: test for name, test in vars(contract).items() if name.startswith("test_") and "before_start" not in name}
)


@pytest_asyncio.fixture(loop_scope="session")
async def engine() -> AsyncIterator[EnginePool]:
    """A started pool of two scripted engines."""
    made = await started(
        EnginePool({name: partial(ScriptedEngine, context_tokens=CONTEXT_TOKENS) for name in ("one", "other")})
    )
    yield made
    await made.close()


@pytest.fixture
def spare(engine: EnginePool) -> EnginePool:
    """A pool that the test may break."""
    return engine
