"""What each `Idempotency-Key` stands for."""

from sqlalchemy import Index, Integer, LargeBinary, Text

from rubric_store.migrations.changes import create_table, drop_tables
from rubric_store.schema import UTCDateTime, digest, key, optional, required

revision = "0009"
down_revision = "0008"

loses = "what each Idempotency-Key stands for; a request that is sent again under one is done again"


def upgrade() -> None:
    """Create the table."""
    create_table(
        "idempotency_keys",
        [key("project_id"), digest("key_digest")],
        digest("asked"),
        required(UTCDateTime, "first_at", "held_until", "expires_at"),
        optional(Integer, "status"),
        optional(Text, "location"),
        optional(LargeBinary, "body"),
        Index("ix_idempotency_keys_expires_at", "expires_at"),
    )


def downgrade() -> None:
    """Drop it."""
    drop_tables("idempotency_keys")
