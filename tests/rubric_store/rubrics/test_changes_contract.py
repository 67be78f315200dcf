"""The contract of `RubricSource` for changes without a new version: aliases, tags and retirement."""

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from judge_server.ports import RubricSource
from rubric_store import RubricStore
from tests.rubric_store.examples import rubric
from trainer_client.wire import Lineage

PROJECT = "p1"


@pytest.fixture
async def source(store: RubricStore) -> RubricSource:
    """A source with a rubric `a` of three versions, and a rubric `b` of one."""
    for text in ("x", "y", "z"):
        await store.publish(PROJECT, "a", rubric(text))
    await store.publish(PROJECT, "b", rubric("x"))
    return store


async def version_of(source: RubricSource, reference: str) -> int | None:
    found = await source.find(PROJECT, reference)
    return None if found is None else found.version


async def test_an_alias_is_a_reference_and_can_be_moved_back(source: RubricSource) -> None:
    assert await version_of(source, "a@production") is None
    assert await source.move_alias(PROJECT, "a", "production", 2, expected=None) == (True, 2)
    assert await version_of(source, "a@production") == 2
    assert await source.move_alias(PROJECT, "a", "production", 1, expected=2) == (True, 1)
    assert await version_of(source, "a@production") == 1
    assert (await source.aliases(PROJECT, "a")).aliases == {"production": 1}
    assert (await source.aliases(PROJECT, "b")).aliases == {}


@pytest.mark.parametrize("expected", [None, 1, 3])
async def test_an_alias_with_another_version_than_expected_is_not_moved(
    source: RubricSource, expected: int | None
) -> None:
    await source.move_alias(PROJECT, "a", "production", 2, expected=None)
    goal = 3 if expected != 3 else 1
    assert await source.move_alias(PROJECT, "a", "production", goal, expected=expected) == (False, 2)
    assert await source.remove_alias(PROJECT, "a", "production", expected=expected) == (False, 2)
    assert await version_of(source, "a@production") == 2


async def test_a_missing_alias_that_was_expected_is_not_created(source: RubricSource) -> None:
    assert await source.move_alias(PROJECT, "a", "production", 2, expected=1) == (False, None)
    assert await source.remove_alias(PROJECT, "a", "production", expected=1) == (False, None)
    assert await version_of(source, "a@production") is None


async def test_a_move_may_be_repeated(source: RubricSource) -> None:
    for expected in (None, None, 1):
        assert await source.move_alias(PROJECT, "a", "production", 2, expected=expected) == (True, 2)


async def test_only_one_of_concurrent_moves_of_an_alias_succeeds(source: RubricSource) -> None:
    await source.move_alias(PROJECT, "a", "production", 1, expected=None)
    moves = [source.move_alias(PROJECT, "a", "production", 2 + n % 2, expected=1) for n in range(16)]
    outcomes = await asyncio.gather(*moves)
    winner = await version_of(source, "a@production")
    assert {current for _, current in outcomes} == {winner}
    assert [moved for moved, _ in outcomes] == [2 + n % 2 == winner for n in range(16)]


async def test_a_removed_alias_resolves_to_nothing(source: RubricSource) -> None:
    await source.move_alias(PROJECT, "a", "production", 2, expected=None)
    await source.move_alias(PROJECT, "b", "production", 1, expected=None)
    assert await source.remove_alias(PROJECT, "a", "production", expected=2) == (True, 2)
    assert await version_of(source, "a@production") is None
    assert await version_of(source, "b@production") == 1


@pytest.mark.parametrize("alias", ["", "3", "Production", "a/b", "a@b", "é", "x" * 65, "latest"])
async def test_an_alias_that_no_reference_could_contain_is_refused(source: RubricSource, alias: str) -> None:
    with pytest.raises(ValueError, match="alias"):
        await source.move_alias(PROJECT, "a", alias, 1, expected=None)
    assert (await source.aliases(PROJECT, "a")).aliases == {}


async def test_missing_rubrics_and_versions_cannot_be_changed(source: RubricSource) -> None:
    for version, name in ((4, "a"), (1, "c")):
        with pytest.raises(LookupError):
            await source.move_alias(PROJECT, name, "production", version, expected=None)
        with pytest.raises(LookupError):
            await source.retire(PROJECT, name, version, "Wrong.")
        with pytest.raises(LookupError):
            await source.restore(PROJECT, name, version)
    with pytest.raises(LookupError):
        await source.replace_tags(PROJECT, "c", ["x"])
    with pytest.raises(LookupError):
        await source.retire("p2", "a", 1, "Wrong.")


async def test_latest_resolves_like_the_bare_name(source: RubricSource) -> None:
    await source.retire(PROJECT, "a", 3, "Wrong.")
    assert await version_of(source, "a@latest") == await version_of(source, "a") == 2


async def test_a_retired_version_stays_readable_with_reason_and_time(source: RubricSource) -> None:
    retired = await source.retire(PROJECT, "a", 2, "Rewards guessing.")
    assert retired == await source.find(PROJECT, "a@2")
    assert retired.retirement is not None
    assert retired.retirement.reason == "Rewards guessing."
    assert abs(datetime.now(UTC) - retired.retirement.at) < timedelta(minutes=1)
    again = await source.retire(PROJECT, "a", 2, "Rewards lies.")
    assert again.retirement is not None
    assert (again.retirement.at, again.retirement.reason) == (retired.retirement.at, "Rewards lies.")


async def test_a_bare_name_resolves_to_its_newest_version_in_use(source: RubricSource) -> None:
    seen = []
    for change, version in (("retire", 3), ("retire", 1), ("retire", 2), ("restore", 1), ("restore", 2)):
        if change == "retire":
            await source.retire(PROJECT, "a", version, "Wrong.")
        else:
            assert (await source.restore(PROJECT, "a", version)).retirement is None
        seen.append(await version_of(source, "a"))
    assert seen == [2, 2, 3, 1, 2]


async def test_a_name_resolves_to_a_new_version_whatever_is_retired(source: RubricSource) -> None:
    for version in (1, 2, 3):
        await source.retire(PROJECT, "a", version, "Wrong.")
    new, _ = await source.publish(PROJECT, "a", rubric("new"))
    assert (new.version, await version_of(source, "a")) == (4, 4)
    again, added = await source.publish(PROJECT, "a", rubric("x"))
    assert (again.version, added, again.retirement is None) == (1, False, False)


async def test_a_digest_resolves_to_the_oldest_version_in_use(source: RubricSource) -> None:
    await source.retire(PROJECT, "a", 1, "Wrong.")
    found = await source.find(PROJECT, rubric("x").digest)
    assert found is not None
    assert found.reference == "b@1"
    await source.retire(PROJECT, "b", 1, "Wrong.")
    found = await source.find(PROJECT, rubric("x").digest)
    assert found is not None
    assert found.reference == "a@1"


async def test_an_alias_is_not_moved_to_a_retired_version_but_may_stay_on_one(source: RubricSource) -> None:
    await source.retire(PROJECT, "a", 2, "Rewards guessing.")
    with pytest.raises(ValueError, match=r"a@2 is retired \(Rewards guessing\.\); restore it first"):
        await source.move_alias(PROJECT, "a", "production", 2, expected=None)
    await source.move_alias(PROJECT, "a", "production", 3, expected=None)
    await source.retire(PROJECT, "a", 3, "Wrong.")
    assert await version_of(source, "a@production") == 3


async def test_tags_are_added_by_publishing_and_replaced_as_a_whole(source: RubricSource) -> None:
    await source.publish(PROJECT, "a", rubric("new"), tags=["math", "algebra"])
    await source.publish(PROJECT, "a", rubric("x"), tags=["reviewed", "math"])
    history = await source.history(PROJECT, "a", after=None, limit=10)
    assert history is not None
    assert history.tags == ("algebra", "math", "reviewed")
    assert (await source.replace_tags(PROJECT, "a", ["z", "b", "z"])).tags == ("b", "z")
    page = await source.list(PROJECT, prefix="", tag=None, text="", after=None, limit=10)
    assert [(s.name, s.tags) for s in page.rubrics] == [("a", ("b", "z")), ("b", ())]
    assert (await source.replace_tags(PROJECT, "a", [])).tags == ()


@pytest.mark.parametrize("tag", ["", "Math", "a b", "x" * 65, "\x00"])
async def test_an_invalid_tag_is_refused(source: RubricSource, tag: str) -> None:
    with pytest.raises(ValueError, match="tags"):
        await source.replace_tags(PROJECT, "a", [tag])
    with pytest.raises(ValueError, match="tags"):
        await source.publish(PROJECT, "a", rubric("new"), tags=[tag])
    assert await version_of(source, "a") == 3


async def test_more_tags_than_a_rubric_may_have_are_refused_and_nothing_is_published(source: RubricSource) -> None:
    await source.replace_tags(PROJECT, "a", [f"t{n}" for n in range(60)])
    with pytest.raises(ValueError, match="at most 64"):
        await source.publish(PROJECT, "a", rubric("new"), tags=[f"u{n}" for n in range(5)])
    assert await version_of(source, "a") == 3
    history = await source.history(PROJECT, "a", after=None, limit=1)
    assert history is not None
    assert len(history.tags) == 60


async def test_a_history_lists_every_version_newest_first(source: RubricSource) -> None:
    lineage = Lineage(author="team-math", parameters={"seed": 3})
    await source.publish(PROJECT, "a", rubric("v"), metadata={"by": "Ada"}, lineage=lineage, parent=2)
    await source.move_alias(PROJECT, "a", "production", 2, expected=None)
    await source.move_alias(PROJECT, "a", "canary", 2, expected=None)
    await source.retire(PROJECT, "a", 3, "Wrong.")
    history = await source.history(PROJECT, "a", after=None, limit=10)
    assert history is not None
    assert [(v.version, v.parent, v.aliases) for v in history.versions] == [
        (4, 2, ()),
        (3, 2, ()),
        (2, 1, ("canary", "production")),
        (1, None, ()),
    ]
    assert (history.versions[0].metadata, history.versions[0].lineage) == ({"by": "Ada"}, lineage)
    assert history.versions[1].retirement is not None
    assert history.next_cursor is None


async def test_pages_of_a_history_contain_every_version_once(source: RubricSource) -> None:
    seen: list[int] = []
    cursor = None
    for _ in range(2):
        page = await source.history(PROJECT, "a", after=cursor, limit=2)
        assert page is not None
        seen += [v.version for v in page.versions]
        cursor = page.next_cursor
    assert (seen, cursor) == ([3, 2, 1], None)


@pytest.mark.parametrize("cursor", ["", "a", "MA", "MQ", "LTE", "é"])
async def test_a_cursor_that_no_history_returned_is_refused(source: RubricSource, cursor: str) -> None:
    with pytest.raises(ValueError, match="next_cursor"):
        await source.history(PROJECT, "a", after=cursor, limit=2)


async def test_a_missing_rubric_has_no_history(source: RubricSource) -> None:
    assert await source.history(PROJECT, "c", after=None, limit=2) is None
    assert await source.history("p2", "a", after=None, limit=2) is None


@pytest.mark.parametrize(
    ("asked", "suggested"), [("a@producton", "a@production"), ("A@Production", "a@production"), ("a@x", "a")]
)
async def test_an_unknown_alias_is_answered_with_the_closest_one(
    source: RubricSource, asked: str, suggested: str
) -> None:
    await source.move_alias(PROJECT, "a", "production", 1, expected=None)
    assert await source.closest(PROJECT, asked) == suggested
