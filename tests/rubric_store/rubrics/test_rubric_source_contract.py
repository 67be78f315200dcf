"""The contract of `RubricSource` for judging, on every database."""

from datetime import UTC, datetime, timedelta

import pytest

from judge_server.ports import RubricSource
from rubric_store import CursorError
from tests.rubric_store.examples import rubric
from trainer_client.wire import Criterion, RubricContent

PROJECT = "p1"


async def test_a_first_publication_is_version_one(source: RubricSource) -> None:
    content = rubric("States the root.")
    version, added = await source.publish(PROJECT, "math/roots", content)
    assert (version.name, version.version, added) == ("math/roots", 1, True)
    assert version.digest == content.digest
    assert version.criteria == content.criteria


async def test_a_version_is_dated_in_utc(source: RubricSource) -> None:
    await source.publish(PROJECT, "a", rubric("x"))
    version = await source.find(PROJECT, "a")
    assert version is not None
    assert version.created_at.utcoffset() == timedelta(0)
    assert abs(datetime.now(UTC) - version.created_at) < timedelta(minutes=1)


async def test_other_content_is_the_next_version(source: RubricSource) -> None:
    numbers = [(await source.publish(PROJECT, "a", rubric(text)))[0].version for text in ("x", "y", "z")]
    assert numbers == [1, 2, 3]


async def test_publishing_the_same_content_again_returns_the_existing_version(source: RubricSource) -> None:
    first, _ = await source.publish(PROJECT, "a", rubric("x"))
    await source.publish(PROJECT, "a", rubric("y"))
    again, added = await source.publish(PROJECT, "a", rubric("x"))
    assert (again, added) == (first, False)
    newest = await source.find(PROJECT, "a")
    assert newest is not None
    assert newest.version == 2


async def test_the_same_content_may_have_two_names(source: RubricSource) -> None:
    await source.publish(PROJECT, "a", rubric("x"))
    version, added = await source.publish(PROJECT, "b", rubric("x"))
    assert (version.name, version.version, added) == ("b", 1, True)


async def test_a_rubric_is_found_as_it_was_published(source: RubricSource) -> None:
    content = RubricContent(
        criteria=(
            Criterion(id="z", description="Nul \x00, quote ', emoji 🧮, \u2028.", weight=-2.5, tags=("b", "a")),
            Criterion(id="a", description="%_\\", kind="factual", weight=1e-9),
        )
    )
    published, _ = await source.publish(PROJECT, "a", content)
    found = await source.find(PROJECT, "a@1")
    assert found == published
    assert found is not None
    assert RubricContent(criteria=found.criteria).digest == content.digest


@pytest.mark.parametrize(("reference", "version"), [("a", 2), ("a@1", 1), ("a@2", 2)])
async def test_a_name_resolves_to_its_newest_version_and_a_pin_to_that_one(
    source: RubricSource, reference: str, version: int
) -> None:
    await source.publish(PROJECT, "a", rubric("x"))
    await source.publish(PROJECT, "a", rubric("y"))
    found = await source.find(PROJECT, reference)
    assert found is not None
    assert found.version == version


async def test_a_digest_resolves_to_the_oldest_version_that_has_it(source: RubricSource) -> None:
    await source.publish(PROJECT, "b", rubric("y"))
    oldest, _ = await source.publish(PROJECT, "b", rubric("x"))
    await source.publish(PROJECT, "a", rubric("x"))
    assert await source.find(PROJECT, rubric("x").digest) == oldest


@pytest.mark.parametrize(
    "reference",
    ["b", "a@2", "a@999999999", "sha256:" + "0" * 64, "", "A", "a@0", "a@production", "no name", "a\x00"],
)
async def test_an_unknown_or_unreadable_reference_resolves_to_nothing(source: RubricSource, reference: str) -> None:
    await source.publish(PROJECT, "a", rubric("x"))
    assert await source.find(PROJECT, reference) is None


async def test_projects_are_separate(source: RubricSource) -> None:
    await source.publish(PROJECT, "a", rubric("x"))
    assert await source.find("p2", "a") is None
    assert await source.find("p2", rubric("x").digest) is None
    assert await source.closest("p2", "a") is None
    assert (await source.list("p2", prefix="", tag=None, text="", after=None, limit=10)).rubrics == ()
    version, added = await source.publish("p2", "a", rubric("y"))
    assert (version.version, added) == (1, True)


@pytest.mark.parametrize("name", ["", "A", "a b", "/a", "a//b", "a" * 201, "a\n", "a@1"])
async def test_a_name_that_no_reference_could_contain_is_refused(source: RubricSource, name: str) -> None:
    with pytest.raises(ValueError, match="cannot name a rubric; use lower-case"):
        await source.publish(PROJECT, name, rubric("x"))
    assert (await source.list(PROJECT, prefix="", tag=None, text="", after=None, limit=10)).rubrics == ()


@pytest.mark.parametrize(
    ("asked", "suggested"),
    [
        ("math/quadratcs", "math/quadratics"),
        ("Math/Quadratics", "math/quadratics"),
        ("math quadratics@1", "math/quadratics@1"),
        ("math/quadratics@7", "math/quadratics@2"),
        ("math/quadratic@7", "math/quadratics@2"),
        ("math/quadratics@newest", "math/quadratics"),
        ("xath/quadratics", "math/quadratics"),
        ("math/quadratcs\x00", "math/quadratics"),
    ],
)
async def test_a_near_miss_is_answered_with_the_closest_reference(
    source: RubricSource, asked: str, suggested: str
) -> None:
    for text in ("x", "y"):
        await source.publish(PROJECT, "math/quadratics", rubric(text))
    await source.publish(PROJECT, "law/leases", rubric("z"))
    assert await source.closest(PROJECT, asked) == suggested
    assert await source.find(PROJECT, suggested) is not None


@pytest.mark.parametrize("asked", ["history", "sha256:" + "0" * 64, "", "q" * 100_000])
async def test_nothing_is_suggested_where_nothing_is_close(source: RubricSource, asked: str) -> None:
    await source.publish(PROJECT, "math/quadratics", rubric("x"))
    assert await source.closest(PROJECT, asked) is None


async def test_a_list_shows_the_newest_version_of_each_name_in_order(source: RubricSource) -> None:
    for name in ("b", "a-b", "a/b", "a", "a.b", "a_b", "a0"):
        await source.publish(PROJECT, name, rubric("x"))
    newest, _ = await source.publish(PROJECT, "b", rubric("x", "y"))
    page = await source.list(PROJECT, prefix="", tag=None, text="", after=None, limit=10)
    assert [s.name for s in page.rubrics] == ["a", "a-b", "a.b", "a/b", "a0", "a_b", "b"]
    last = page.rubrics[-1]
    assert (last.latest_version, last.digest, last.criteria_count) == (2, newest.digest, 2)
    assert last.created_at == newest.created_at
    assert page.next_cursor is None


async def test_pages_contain_every_rubric_once(source: RubricSource) -> None:
    names = [f"r{i}" for i in range(7)]
    for name in names:
        await source.publish(PROJECT, name, rubric("x"))
    listed, sizes, cursor = [], [], None
    while True:
        page = await source.list(PROJECT, prefix="r", tag=None, text="", after=cursor, limit=3)
        listed += [s.name for s in page.rubrics]
        sizes.append(len(page.rubrics))
        if (cursor := page.next_cursor) is None:
            break
    assert (listed, sizes) == (names, [3, 3, 1])


async def test_a_full_last_page_has_no_next(source: RubricSource) -> None:
    for name in ("a", "b"):
        await source.publish(PROJECT, name, rubric("x"))
    assert (await source.list(PROJECT, prefix="", tag=None, text="", after=None, limit=2)).next_cursor is None


@pytest.mark.parametrize(
    ("prefix", "names"),
    [
        ("math/", ["math/a", "math/b_c"]),
        ("math/b_", ["math/b_c"]),
        ("m_th", []),
        ("%", []),
        ("Math", []),
        ("\\", []),
        ("math\x00", []),
        ("math/a", ["math/a"]),
    ],
)
async def test_a_prefix_is_taken_literally(source: RubricSource, prefix: str, names: list[str]) -> None:
    for name in ("law", "math", "math/a", "math/b_c", "maths"):
        await source.publish(PROJECT, name, rubric("x"))
    page = await source.list(PROJECT, prefix=prefix, tag=None, text="", after=None, limit=10)
    assert [s.name for s in page.rubrics] == names


@pytest.mark.parametrize("limit", [0, 501, -1])
async def test_a_page_size_out_of_range_is_refused(source: RubricSource, limit: int) -> None:
    with pytest.raises(ValueError, match="1 to 500"):
        await source.list(PROJECT, prefix="", tag=None, text="", after=None, limit=limit)


@pytest.mark.parametrize("cursor", ["", "math", "é", "AAAA", "===="])
async def test_a_cursor_that_no_page_returned_is_refused(source: RubricSource, cursor: str) -> None:
    with pytest.raises(CursorError, match="next_cursor"):
        await source.list(PROJECT, prefix="", tag=None, text="", after=cursor, limit=10)


async def test_a_migrated_store_is_ready(source: RubricSource) -> None:
    assert await source.ready()
