"""Sessions of the console that were ended by signing out."""

from sqlalchemy import Index

from rubric_store.migrations.changes import create_table, drop_tables
from rubric_store.schema import UTCDateTime, key, required

revision = "0020"
down_revision = "0019"

loses = "which sessions of the console have ended: a copy of such a session's cookie works again until it expires"


def upgrade() -> None:
    """Create the table."""
    create_table(
        "ended_sessions",
        [key("project_id"), key("session_id", 32)],
        required(UTCDateTime, "expires_at"),
        Index("ix_ended_sessions_expires_at", "expires_at"),
    )


def downgrade() -> None:
    """Drop it."""
    drop_tables("ended_sessions")
