"""Sessions of the console that were ended by signing out."""

from functools import partial
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0020"
down_revision = "0019"
branch_labels = None
depends_on = None

loses = "which sessions of the console have ended: a copy of such a session's cookie works again until it expires"


def _key(name: str, length: int) -> sa.Column[Any]:
    kind = partial(sa.String, length)
    return sa.Column(name, kind().with_variant(kind(collation="C"), "postgresql"), nullable=False)


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "ended_sessions",
        _key("project_id", 200),
        _key("session_id", 32),
        sa.Column("expires_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "session_id", name="pk_ended_sessions"),
    )
    op.create_index("ix_ended_sessions_expires_at", "ended_sessions", ["expires_at"])


def downgrade() -> None:
    """Drop it."""
    op.drop_table("ended_sessions")
