"""Migrations of tables with rows: a newer version serves older rows, and downgrades keep them."""

import asyncio
import json
from datetime import UTC, datetime
from typing import Any

import pytest
from sqlalchemy import create_engine, text

from rubric_store import RubricStore, SQLLedger, migrations
from rubric_store.ledger.rows import LedgerRows, UseFilter
from tests.rubric_store import ledger_rows as made
from tests.rubric_store.examples import rubric
from tests.rubric_store.schema_dump import sync_url

ROWS = {("p1", "a"): ["Names Canberra.", "Names Sydney."], ("p1", "b/c"): ["Nul \x00, ' and 🧮."], ("p2", "a"): ["X."]}


def write(url: str, rows: dict[tuple[str, str], list[str]]) -> None:
    """Store rubrics as the first revision did, one version per list of descriptions."""
    engine = create_engine(sync_url(url))
    with engine.begin() as connection:
        for (project, name), descriptions in rows.items():
            connection.execute(
                text("INSERT INTO rubrics (project_id, name, latest_version) VALUES (:p, :n, :v)"),
                {"p": project, "n": name, "v": len(descriptions)},
            )
            for version, description in enumerate(descriptions, start=1):
                content = rubric(description)
                connection.execute(
                    text(
                        "INSERT INTO rubric_versions (project_id, name, version, digest, criteria, criteria_count,"
                        " created_at) VALUES (:p, :n, :v, :d, :c, 1, :at)"
                    ),
                    {
                        "p": project,
                        "n": name,
                        "v": version,
                        "d": content.digest,
                        "c": json.dumps([criterion.model_dump(mode="json") for criterion in content.criteria]),
                        "at": "2025-01-01 00:00:00"
                        if engine.dialect.name == "sqlite"
                        else datetime(2025, 1, 1, tzinfo=UTC),
                    },
                )
    engine.dispose()


def dumped(url: str) -> list[list[Any]]:
    """All rows of the first revision's two tables, in its columns."""
    engine = create_engine(sync_url(url))
    with engine.connect() as connection:
        names = connection.execute(text("SELECT project_id, name, latest_version FROM rubrics ORDER BY 1, 2")).all()
        versions = connection.execute(
            text(
                "SELECT project_id, name, version, digest, CAST(criteria AS TEXT), criteria_count, created_at"
                " FROM rubric_versions ORDER BY 1, 2, 3"
            )
        ).all()
    engine.dispose()
    return [list(names), list(versions)]


@pytest.fixture
async def old_url(database_url: str) -> str:
    """A database at the first revision, with rows."""
    await asyncio.to_thread(migrations.upgrade, database_url, "0001")
    await asyncio.to_thread(write, database_url, ROWS)
    return database_url


async def test_rows_of_the_first_revision_are_served_by_the_newest(old_url: str) -> None:
    await asyncio.to_thread(migrations.upgrade, old_url)
    store = RubricStore(old_url)
    versions = [await store.find("p1", reference) for reference in ("a@1", "a", "b/c")]
    assert [(v.version, v.parent, v.criteria) for v in versions if v] == [
        (1, None, rubric("Names Canberra.").criteria),
        (2, 1, rubric("Names Sydney.").criteria),
        (1, None, rubric("Nul \x00, ' and 🧮.").criteria),
    ]
    assert all(v and (v.metadata, v.lineage, v.retirement) == ({}, None, None) for v in versions)
    assert versions[0] is not None
    assert versions[0].created_at == datetime(2025, 1, 1, tzinfo=UTC)
    found = {t: [s.name for s in (await store.list("p1", text=t)).rubrics] for t in ("sydney", "canberra", "nul", "x")}
    assert found == {"sydney": ["a"], "canberra": [], "nul": ["b/c"], "x": []}
    again, added = await store.publish("p1", "a", rubric("Names Canberra."))
    assert (again.version, added) == (1, False)
    newer, _ = await store.publish("p1", "a", rubric("Names Perth."))
    assert (newer.version, newer.parent) == (3, 2)
    await store.close()


async def test_a_downgrade_keeps_the_versions_and_the_store_works_after_another_upgrade(old_url: str) -> None:
    before = await asyncio.to_thread(dumped, old_url)
    await asyncio.to_thread(migrations.upgrade, old_url)
    store = RubricStore(old_url)
    await store.move_alias("p1", "a", "production", 1, expected=None)
    await store.replace_tags("p1", "a", ["math"])
    await store.retire("p1", "a", 2, "Wrong.")
    await store.close()
    await asyncio.to_thread(migrations.downgrade, old_url, "0001")
    assert await asyncio.to_thread(dumped, old_url) == before
    await asyncio.to_thread(migrations.upgrade, old_url)
    store = RubricStore(old_url)
    found = await store.find("p1", "a")
    assert found is not None
    assert (found.version, found.retirement) == (2, None)
    assert await store.find("p1", "a@production") is None
    await store.close()


async def test_more_rubrics_than_one_batch_are_all_migrated(database_url: str) -> None:
    each = 400  # of each project; a batch has 500
    await asyncio.to_thread(migrations.upgrade, database_url, "0001")
    names = [f"r{n:03d}" for n in range(each)]
    rows = {(project, name): ["Same words."] for project in ("p1", "p2") for name in names}
    await asyncio.to_thread(write, database_url, rows)
    await asyncio.to_thread(migrations.upgrade, database_url)
    store = RubricStore(database_url)
    for project in ("p1", "p2"):
        page = await store.list(project, text="same", limit=500)
        assert [summary.name for summary in page.rubrics] == names
    await store.close()


async def test_a_ledger_is_read_and_continued_at_0025_and_after_the_copy_of_its_verdicts_and_texts(
    database_url: str,
) -> None:
    """0026 orders the same rows in another way, so either code works on both."""
    parts = [made.request(number, [[f"v{number}", "shared"]]) for number in (1, 2, 3)]
    ledger = SQLLedger(database_url)
    moves = (migrations.upgrade, "0025"), (migrations.upgrade, "head"), (migrations.downgrade, "0025")
    for (move, revision), rows in zip(moves, parts, strict=True):
        await asyncio.to_thread(move, database_url, revision)
        await asyncio.to_thread(ledger.write, rows)
    await asyncio.to_thread(migrations.upgrade, database_url)
    await asyncio.to_thread(ledger.write, LedgerRows.concat(parts))  # rows that are there already
    page = await ledger.uses(UseFilter(made.PROJECT, "run"))
    assert [verdict for use in page for _, verdict in use.votes] == [
        row for number in (1, 2, 3) for row in (made.verdict(f"v{number}", number), made.verdict("shared"))
    ]
    stored = {row.digest for rows in parts for row in rows.texts}
    assert (await ledger.texts(made.PROJECT, list(stored))).keys() == stored
    await ledger.close()
