"""The service that a command starts in its own process."""

from datetime import UTC, datetime

import pytest

from adjudge_services.cli.judge_choice import open_client
from adjudge_services.settings import Settings
from judge_server.scoring.rubrics import PROJECT_ID
from rubric_store import SQLOperations
from rubric_store.operations.rows import NewChunk, NewOperation
from trainer_client.errors import NotReady


@pytest.mark.usefixtures("migrated")
async def test_operations_in_the_database_are_left_to_the_service_whose_judge_they_are_for() -> None:
    settings = Settings(engine_url="scripted://yes")
    store = SQLOperations(settings.store_url)
    await store.create(NewOperation("op-1", PROJECT_ID, "score", {}, [NewChunk(1, {})], datetime.now(UTC)))
    async with open_client(None, settings) as client:
        with pytest.raises(NotReady, match="has no operations"):
            await client.operation("op-1")
    assert len(await store.take_due(10, lost_after_s=600)) == 1
    await store.close()
