"""Migrations upgrade and downgrade both databases, also when several hosts run them at once."""

import re
from concurrent.futures import ThreadPoolExecutor

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import create_engine, inspect, make_url

from rubric_store import migrations
from rubric_store.migrations.schema_status import all_tables
from tests.rubric_store.newer import set_revision
from tests.rubric_store.regenerate_golden import COMMAND, GOLDEN, migrated_schema
from tests.rubric_store.schema_dump import sync_url


def tables(url: str) -> set[str]:
    engine = create_engine(sync_url(url))
    try:
        return {name for name in inspect(engine).get_table_names() if not is_partition(name)}
    finally:
        engine.dispose()


def is_partition(name: str) -> bool:
    return re.fullmatch(r"ledger_uses_\d+", name) is not None


def test_an_upgrade_ends_at_the_head(database_url: str) -> None:
    assert migrations.current(database_url) is None
    assert migrations.read_status(database_url).state != "current"
    assert not migrations.is_current(database_url)
    migrations.upgrade(database_url)
    assert migrations.current(database_url) == migrations.head()
    assert migrations.read_status(database_url).state == "current"
    assert migrations.is_current(database_url)


def test_an_upgrade_of_a_current_database_changes_nothing(database_url: str) -> None:
    migrations.upgrade(database_url)
    before = tables(database_url)
    migrations.upgrade(database_url)
    assert tables(database_url) == before


def test_a_downgrade_to_base_drops_every_table(database_url: str) -> None:
    migrations.upgrade(database_url)
    migrations.downgrade(database_url, "base")
    assert migrations.current(database_url) is None
    assert tables(database_url) == {"alembic_version"}
    migrations.upgrade(database_url)
    assert migrations.read_status(database_url).state == "current"


TEXTS = ("rubric", "prompt", "response", "grounding", "reference_answer", "ground_truth")
USED = ("ledger_uses_digest", *(f"ledger_responses_{name}" for name in TEXTS))
ELSEWHERE = {"ix_rubric_words_words", *(f"ix_{name}" for name in USED)}
"""Indexes that only PostgreSQL has."""


def is_ours(name: str | None, kind: str, _parents: object) -> bool:
    return kind != "table" or not is_partition(name or "")


def test_every_table_belongs_to_projects(database_url: str) -> None:
    migrations.upgrade(database_url)
    ours = tables(database_url) - {"alembic_version"}
    known = all_tables().tables
    assert ours == set(known)
    of_the_deployment = {"schema_generation", "judge_calibrations", "judge_calibration_aliases"}  # judges are shared
    apart = ours - of_the_deployment
    assert all("project_id" in known[name].primary_key.columns for name in apart)


def test_the_migrated_schema_matches_the_queries(database_url: str) -> None:
    migrations.upgrade(database_url)
    engine = create_engine(sync_url(database_url))
    elsewhere = ELSEWHERE if engine.dialect.name == "sqlite" else set()
    with engine.connect() as connection:
        context = MigrationContext.configure(connection, opts={"include_name": is_ours})
        differences = compare_metadata(context, all_tables())
    engine.dispose()
    # Alembic also reports the indexes of the other database.
    ours = [change for change in differences if not (change[0] == "add_index" and change[1].name in elsewhere)]
    assert ours == []


def test_hosts_that_upgrade_at_once_wait_for_each_other(database_url: str) -> None:
    with ThreadPoolExecutor(4) as hosts:
        list(hosts.map(migrations.upgrade, [database_url] * 4))
    assert migrations.read_status(database_url).state == "current"


def test_a_failed_upgrade_changes_nothing(database_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    from alembic import op

    def fail(*_: object) -> None:
        raise RuntimeError("power cut")

    with monkeypatch.context() as broken:
        broken.setattr(op, "add_column", fail)
        with pytest.raises(RuntimeError, match="power cut"):
            migrations.upgrade(database_url)
    assert tables(database_url) == set()
    migrations.upgrade(database_url)
    assert migrations.read_status(database_url).state == "current"


def test_a_database_from_a_newer_version_is_refused(database_url: str) -> None:
    migrations.upgrade(database_url)
    set_revision(database_url, "9999")
    with pytest.raises(migrations.UnknownRevisionError, match=r"revision 9999.*Install that version"):
        migrations.upgrade(database_url)
    assert migrations.read_status(database_url).state != "current"


def test_the_migrated_schema_matches_the_golden_one(database_url: str) -> None:
    dialect = make_url(database_url).get_backend_name()
    golden = GOLDEN / {"sqlite": "sqlite.sql", "postgresql": "postgresql.txt"}[dialect]
    assert migrated_schema(database_url) == golden.read_text(), (
        f"the {dialect} schema changed; if that is meant, run `{COMMAND}` and commit {golden.name}"
    )
