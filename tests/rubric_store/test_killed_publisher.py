"""A publisher killed within its transaction leaves nothing half-written and no lock."""

import asyncio
import os
import signal

import pytest

from rubric_store import RubricStore
from tests.rubric_store.examples import rubric
from tests.services.preforked import start

pytestmark = pytest.mark.faults

PUBLISHER = """
import asyncio, sys, time
from rubric_store import RubricStore
from sqlalchemy import Engine, event
from tests.rubric_store.examples import rubric

url, name, beginning = sys.argv[1:]

@event.listens_for(Engine, "before_cursor_execute")
def stop(connection, cursor, statement, *more):
    if statement.startswith(beginning):
        print("in the middle", file=sys.stderr, flush=True)
        time.sleep(600)

asyncio.run(RubricStore(url).publish("p1", name, rubric("Never seen."), tags=["never"]))
"""


@pytest.mark.parametrize("statement", ["INSERT INTO rubric_versions", "UPDATE rubrics", "INSERT INTO rubric_words"])
@pytest.mark.parametrize("name", ["old", "new"])
async def test_a_killed_publisher_leaves_nothing_half_written(migrated_url: str, name: str, statement: str) -> None:
    store = RubricStore(migrated_url)
    await store.publish("p1", "old", rubric("Kept."), tags=["kept"])
    before = await store.list("p1")
    publisher = start([migrated_url, name, statement], os.environ, first=PUBLISHER)
    assert publisher.stderr is not None
    with publisher.stderr:
        assert await asyncio.to_thread(publisher.stderr.readline) == "in the middle\n"
        publisher.kill()
        assert publisher.wait(30) == -signal.SIGKILL
    assert await store.list("p1") == before
    assert await store.find("p1", rubric("Never seen.").digest) is None
    assert (await store.list("p1", text="never")).rubrics == ()
    assert (await store.list("p1", tag="never")).rubrics == ()
    version, added = await store.publish("p1", name, rubric("After."))
    assert (version.version, added) == (2 if name == "old" else 1, True)
    await store.close()
