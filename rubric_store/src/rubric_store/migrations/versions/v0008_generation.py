"""What code works on a schema, told to code that does not know its revision."""

from sqlalchemy import String

from rubric_store.migrations.changes import create_table, drop_tables
from rubric_store.schema import required

revision = "0008"
down_revision = "0007"

works_from = "0008"
"""Code before it starts on its own head only; from here on it asks the database."""

loses = "nothing; but code that does not know the schema can no longer tell that it works on it"


def upgrade() -> None:
    """Create the table; whoever runs migrations keeps its row."""
    create_table("schema_generation", required(String(32), "revision"), required(String(32), "works_from"))


def downgrade() -> None:
    """Drop it."""
    drop_tables("schema_generation")
