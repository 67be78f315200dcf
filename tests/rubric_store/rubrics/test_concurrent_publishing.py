"""Many concurrent publishers of one name: no version is lost, and no number is used twice."""

import asyncio
import os
import signal

import pytest
from sqlalchemy import Engine, event

from rubric_store import RubricStore
from tests.rubric_store.examples import rubric
from tests.services.preforked import start

PUBLISHERS = 24


async def test_concurrent_publishers_get_consecutive_versions(store: RubricStore) -> None:
    contents = [rubric(f"Criterion {i}.") for i in range(PUBLISHERS)]
    outcomes = await asyncio.gather(*(store.publish("p1", "a", content) for content in contents))
    assert all(added for _, added in outcomes)
    assert sorted(version.version for version, _ in outcomes) == list(range(1, PUBLISHERS + 1))
    assert [version.digest for version, _ in outcomes] == [content.digest for content in contents]
    found = [await store.find("p1", version.reference) for version, _ in outcomes]
    assert found == [version for version, _ in outcomes]
    assert all(version.parent == (version.version - 1 or None) for version, _ in outcomes)


async def test_concurrent_publishers_of_new_and_known_contents_leave_no_gap(store: RubricStore) -> None:
    contents = [rubric(f"Criterion {i // 2}.") for i in range(PUBLISHERS)]
    outcomes = await asyncio.gather(
        *(store.publish("p1", "a", content, tags=[f"t{i % 8}"]) for i, content in enumerate(contents))
    )
    assert sorted(version.version for version, added in outcomes if added) == list(range(1, PUBLISHERS // 2 + 1))
    by_digest = {version.digest: version for version, added in outcomes if added}
    assert all(by_digest[version.digest] == version for version, _ in outcomes)
    history = await store.history("p1", "a", limit=500)
    assert history is not None
    assert (len(history.versions), len(history.tags)) == (PUBLISHERS // 2, 8)


async def test_concurrent_publishers_of_one_content_add_one_version(store: RubricStore) -> None:
    outcomes = await asyncio.gather(*(store.publish("p1", "a", rubric("x")) for _ in range(PUBLISHERS)))
    assert sum(added for _, added in outcomes) == 1
    assert all(version == outcomes[0][0] for version, _ in outcomes)


async def test_publishers_on_two_hosts_take_turns(migrated_url: str) -> None:
    hosts = [RubricStore(migrated_url), RubricStore(migrated_url)]
    publications = [hosts[i % 2].publish("p1", "a", rubric(f"Criterion {i}.")) for i in range(16)]
    outcomes = await asyncio.gather(*publications)
    assert sorted(version.version for version, _ in outcomes) == list(range(1, 17))
    assert [v.version for v, _ in outcomes if v.parent is None] == [1]
    for host in hosts:
        await host.close()


async def test_a_failed_publication_leaves_no_trace(store: RubricStore) -> None:
    def fail(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        if statement.startswith("UPDATE rubrics"):
            raise RuntimeError("cut short")

    await store.publish("p1", "a", rubric("x"))
    event.listen(Engine, "before_cursor_execute", fail)
    try:
        for name in ("a", "b"):
            with pytest.raises(RuntimeError, match="cut short"):
                await store.publish("p1", name, rubric("y"))
    finally:
        event.remove(Engine, "before_cursor_execute", fail)
    assert [s.name for s in (await store.list("p1")).rubrics] == ["a"]
    version, added = await store.publish("p1", "a", rubric("y"))
    assert (version.version, added) == (2, True)


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


@pytest.mark.faults
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
