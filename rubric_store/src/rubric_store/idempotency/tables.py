"""The table of keys as its statements see it; migration 0009 makes it, and a test holds the two together."""

from sqlalchemy import Column, Index, Integer, LargeBinary, PrimaryKeyConstraint, Table, Text

from rubric_store.tables import UTCDateTime, key_column, metadata

idempotency_keys = Table(
    "idempotency_keys",
    metadata,
    key_column("project_id"),
    Column("key_digest", LargeBinary(32), nullable=False),
    Column("asked", LargeBinary(32), nullable=False),
    Column("first_at", UTCDateTime, nullable=False),
    Column("held_until", UTCDateTime, nullable=False),
    Column("expires_at", UTCDateTime, nullable=False),
    Column("status", Integer),
    Column("location", Text),
    Column("body", LargeBinary),
    PrimaryKeyConstraint("project_id", "key_digest", name="pk_idempotency_keys"),
    Index("ix_idempotency_keys_expires_at", "expires_at"),
)
"""One row per key, by its SHA-256. `asked` is the digest of the request it came with first; without a `status` that
has not been answered yet, and is being done until `held_until`. Bodies are compressed."""
