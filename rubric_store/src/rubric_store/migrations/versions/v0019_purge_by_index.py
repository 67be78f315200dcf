"""Indexes that find who uses a verdict or a text, so that purging need not read the whole ledger; PostgreSQL only.

Building them takes some seconds per million uses. Meanwhile the ledger is spooled.
"""

from alembic import op

revision = "0019"
down_revision = "0018"

loses = "nothing: purging reads the whole ledger again"

_INDEXES = (
    ("ledger_uses", "digest"),
    *(("ledger_responses", column) for column in ("rubric", "prompt", "response", "grounding")),
)


def upgrade() -> None:
    """Create the indexes."""
    if op.get_bind().dialect.name == "postgresql":
        for table, column in _INDEXES:
            op.create_index(f"ix_{table}_{column}", table, [column, "project_id"])


def downgrade() -> None:
    """Drop them."""
    if op.get_bind().dialect.name == "postgresql":
        for table, column in _INDEXES:
            op.drop_index(f"ix_{table}_{column}", table)
