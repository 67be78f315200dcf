"""A page costs the same anywhere in a list, measured in blocks that PostgreSQL reads."""

import asyncio
from typing import Any

import pytest
from sqlalchemy import Select, create_engine, text
from sqlalchemy.dialects import postgresql

from rubric_store import migrations
from rubric_store.rubrics import queries
from tests.rubric_store.schema_dump import sync_url

RUBRICS, LIMIT = 8_000, 50
FILL = f"""
INSERT INTO rubrics SELECT 'p1', 'r' || lpad(n::text, 6, '0'), 1, 1 FROM generate_series(1, {RUBRICS}) n;
INSERT INTO rubric_versions (project_id, name, version, digest, criteria, criteria_count, created_at)
    SELECT 'p1', name, 1, md5(name), '[]', 1, now() FROM rubrics;
INSERT INTO rubric_tags SELECT 'p1', 't' || n % 4, 'r' || lpad(n::text, 6, '0') FROM generate_series(1, {RUBRICS}) n;
INSERT INTO rubric_words SELECT 'p1', name, array_to_tsvector(ARRAY['common', 'w' || right(name, 3)]) FROM rubrics;
"""


@pytest.fixture
def filled_url(postgres_url: str) -> str:
    """The URL of a PostgreSQL store of 8,000 rubrics."""
    migrations.upgrade(postgres_url)
    engine = create_engine(sync_url(postgres_url), isolation_level="AUTOCOMMIT")
    with engine.connect() as connection:
        for statement in FILL.split(";"):
            if statement.strip():
                connection.execute(text(statement))
        connection.execute(text("VACUUM ANALYZE"))
    engine.dispose()
    return postgres_url


def blocks(url: str, statement: Select[Any]) -> int:
    """The number of 8 KiB blocks that a statement reads."""
    dialect = postgresql.dialect()  # type: ignore[no-untyped-call]
    sql = str(statement.compile(dialect=dialect, compile_kwargs={"literal_binds": True}))
    engine = create_engine(sync_url(url))
    with engine.connect() as connection:
        [(explained,)] = connection.exec_driver_sql(f"EXPLAIN (ANALYZE, BUFFERS, FORMAT JSON) {sql}").all()
    engine.dispose()
    plan = explained[0]["Plan"]
    assert plan["Actual Rows"] == LIMIT
    return int(plan["Shared Hit Blocks"]) + int(plan["Shared Read Blocks"])


NARROWED: dict[str, dict[str, Any]] = {
    "all": {},
    "a tag": {"tag": "t1"},
    "a word": {"words": ["common"]},
    "a tag and a word": {"tag": "t1", "words": ["com"]},
    "a prefix": {"prefix": "r0"},
}


@pytest.mark.postgres
async def test_a_page_in_the_middle_or_at_the_end_costs_about_as_much_as_the_first(filled_url: str) -> None:
    for what, narrowed in NARROWED.items():

        def cost(after: str | None, narrowed: dict[str, Any] = narrowed) -> int:
            return blocks(filled_url, queries.page("p1", "postgresql", after=after, limit=LIMIT, **narrowed))

        first, middle, late = [await asyncio.to_thread(cost, after) for after in (None, "r004000", "r007700")]
        assert max(middle, late) <= 2 * first, what
        assert first <= 20 * LIMIT, what
