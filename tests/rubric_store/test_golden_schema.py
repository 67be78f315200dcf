"""The migrated schema is recorded for both databases, so that every change is noticed."""

from sqlalchemy import make_url

from tests.rubric_store.regenerate_golden import COMMAND, GOLDEN, migrated_schema


def test_the_migrated_schema_matches_the_golden_one(database_url: str) -> None:
    dialect = make_url(database_url).get_backend_name()
    golden = GOLDEN / {"sqlite": "sqlite.sql", "postgresql": "postgresql.txt"}[dialect]
    assert migrated_schema(database_url) == golden.read_text(), (
        f"the {dialect} schema changed; if that is meant, run `{COMMAND}` and commit {golden.name}"
    )
