"""Code on a newer schema: which schemas it may run on, and that every migration declares this."""

from pathlib import Path

import pytest
from alembic.util import CommandError

from rubric_store import migrations
from tests.rubric_store.migrations.migration_effects import undeclared
from tests.rubric_store.newer import FROM_EVERY_TABLE, NEXT, TO_EVERY_TABLE, release, running, set_revision
from tests.rubric_store.schema_dump import dump_schema

FIRST_THAT_SAYS = "0008"


def _altered(how: str) -> str:
    return (
        f'b = op.batch_alter_table("rubric_versions")\n    with b as batch: batch.alter_column("retired_reason", {how})'
    )


BORNE = {
    "a table": 'op.create_table("t", sa.Column("id", sa.Integer, primary_key=True))',
    "a column that may be empty": 'op.add_column("rubrics", sa.Column("note", sa.Text))',
    "a column with a default": (
        'op.add_column("rubrics", sa.Column("n", sa.Integer, nullable=False, server_default="0"))'
    ),
    "an index": 'op.create_index("ix_note", "rubrics", ["latest_version"])',
    "rows of a new table": 't = op.create_table("rows", sa.Column("id", sa.Integer)); op.bulk_insert(t, [{"id": 1}])',
    "a table for a while": 'op.execute("CREATE TEMPORARY TABLE brief (id INTEGER)"); op.execute("DROP TABLE brief")',
    "a table is made anew": (
        'op.rename_table("rubric_words", "words"); op.execute("CREATE TABLE rubric_words AS SELECT * FROM words"); '
        'op.drop_table("words")'
    ),
    "an index of a new table that refuses": (
        'op.create_table("one", sa.Column("id", sa.Integer)); op.create_index("ix_one", "one", ["id"], unique=True)'
    ),
}
NOT_BORNE = {
    "another type": _altered("type_=sa.String(5)"),
    "never empty": _altered("nullable=False, existing_type=sa.String(5)"),
    "another name": _altered('new_column_name="reason"'),
    "a column goes": 'op.drop_column("rubric_versions", "lineage")',
    "a column that refuses": "op.execute(\"ALTER TABLE rubric_tags ADD COLUMN t TEXT CHECK (t > 'a')\")",
    "a column that must be given": 'op.execute("ALTER TABLE rubric_aliases ADD COLUMN t TEXT NOT NULL")',
    "an index that refuses": 'op.create_index("ix_one", "rubrics", ["latest_version"], unique=True)',
    "a table goes": 'op.drop_table("rubric_words")',
    "a table is renamed": 'op.rename_table("rubric_tags", "tags")',
    "rows are changed": 'op.execute("UPDATE rubrics SET current_version = 0")',
    "rows are deleted": 'op.get_bind().exec_driver_sql("DELETE FROM rubric_aliases")',
}


def test_every_breaking_migration_declares_the_code_that_works_on_it(database_url: str) -> None:
    assert undeclared(database_url, FIRST_THAT_SAYS) == {}


def test_changes_that_older_code_tolerates_need_no_declaration(database_url: str, tmp_path: Path) -> None:
    assert found_of(BORNE, database_url, tmp_path) == {}


def test_changes_that_may_break_older_code_are_found(database_url: str, tmp_path: Path) -> None:
    assert found_of(NOT_BORNE, database_url, tmp_path).keys() == NOT_BORNE.keys()


def found_of(cases: dict[str, str], database_url: str, folder: Path) -> dict[str, list[str]]:
    """The cases, each applied as a revision after the one before, that need a declaration."""
    names = {f"next{number}": name for number, name in enumerate(cases, start=1)}
    with running(release(folder / "next", *cases.values())):
        found = undeclared(database_url, migrations.revisions()[-1 - len(cases)].revision)
    return {names[revision]: statements for revision, statements in found.items()}


def test_every_revision_says_what_a_downgrade_loses_and_needs_code_no_newer_than_itself() -> None:
    steps = migrations.revisions()
    revisions = [step.revision for step in steps]
    needed = [revisions.index(step.works_from) for step in steps]
    assert needed == sorted(needed)
    assert all(place <= number for number, place in enumerate(needed))
    assert all(step.loses for step in steps)


def test_code_works_on_a_newer_schema_that_only_adds_and_leaves_it_unchanged(database_url: str, tmp_path: Path) -> None:
    migrations.upgrade(database_url)
    ours = dump_schema(database_url)
    newer = release(tmp_path / "next", TO_EVERY_TABLE, downgrade=FROM_EVERY_TABLE)
    with running(newer):
        assert migrations.read_status(database_url).state == "behind"
        assert migrations.read_status(database_url).supports_rolling_upgrade
        migrations.upgrade(database_url)
        assert migrations.read_status(database_url).state == "current"
    theirs = dump_schema(database_url)
    found = migrations.read_status(database_url)
    assert (found.state, found.usable, found.revision, found.pending) == ("ahead", True, NEXT, ())
    migrations.upgrade(database_url)
    assert dump_schema(database_url) == theirs != ours
    with pytest.raises(migrations.UnknownRevisionError):
        migrations.downgrade(database_url, "base")
    with pytest.raises(LookupError, match="a newer version created"):
        found.downgrade_path("base")
    with running(newer):
        migrations.downgrade(database_url, migrations.read_status(database_url).revisions[-2].revision)
    assert migrations.read_status(database_url).state == "current"
    assert dump_schema(database_url) == ours


def test_code_does_not_run_on_a_newer_schema_that_requires_newer_code(database_url: str, tmp_path: Path) -> None:
    migrations.upgrade(database_url)
    contracting = release(tmp_path / "next", "pass", 'op.drop_table("rubric_words")', works_from=NEXT)
    with running(contracting):
        assert not migrations.read_status(database_url).supports_rolling_upgrade
        migrations.upgrade(database_url, NEXT)
    assert migrations.read_status(database_url).usable
    with running(contracting):
        migrations.upgrade(database_url)
    found = migrations.read_status(database_url)
    assert (found.state, found.usable, found.works_from) == ("too new", False, NEXT)
    with pytest.raises(migrations.UnknownRevisionError, match="revision next2"):
        migrations.upgrade(database_url)


def test_the_declared_works_from_of_a_migration_is_trusted(database_url: str, tmp_path: Path) -> None:
    migrations.upgrade(database_url)
    with running(release(tmp_path / "next", 'op.drop_table("rubric_words")', works_from=migrations.head())):
        migrations.upgrade(database_url)
    assert migrations.read_status(database_url).state == "ahead"


def test_a_declaration_for_another_revision_than_the_databases_is_ignored(database_url: str) -> None:
    migrations.upgrade(database_url)
    set_revision(database_url, "next9")
    assert migrations.read_status(database_url).state == "too new"


def test_code_does_not_run_on_an_older_schema_and_lists_pending_migrations(database_url: str) -> None:
    assert migrations.read_status(database_url).state == "behind"
    migrations.upgrade(database_url, "0006")
    found = migrations.read_status(database_url)
    assert (found.state, found.usable, found.revision) == ("behind", False, "0006")
    assert [step.revision for step in found.pending][:2] == ["0007", "0008"]
    assert not found.supports_rolling_upgrade
    assert [step.revision for step in found.downgrade_path("0004")] == ["0006", "0005"]
    for where in ("0006", "0007", "nowhere"):
        with pytest.raises(LookupError):
            found.downgrade_path(where)
    with pytest.raises(CommandError):
        migrations.upgrade(database_url, "nowhere")
