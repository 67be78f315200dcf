"""Regenerate the golden schemas: `python -m tests.rubric_store.regenerate_golden`, from the root folder."""

import tempfile
from pathlib import Path

from rubric_store import migrations
from tests.fixtures.postgres import running_postgres, scratch_database
from tests.rubric_store.schema_dump import dump_schema

GOLDEN = Path(__file__).parent / "golden"
COMMAND = "python -m tests.rubric_store.regenerate_golden"


def migrated_schema(url: str) -> str:
    """The schema of an empty database after all migrations."""
    migrations.upgrade(url)
    return dump_schema(url)


def main() -> None:
    """Migrate a new database of each kind, and write its schema."""
    with tempfile.TemporaryDirectory() as folder:
        schema = migrated_schema(f"sqlite+aiosqlite:///{folder}/rubrics.db")
        (GOLDEN / "sqlite.sql").write_text(schema)
    with running_postgres() as server, scratch_database(server) as database:
        schema = migrated_schema(database.render_as_string(hide_password=False))
        (GOLDEN / "postgresql.txt").write_text(schema)


if __name__ == "__main__":
    main()
