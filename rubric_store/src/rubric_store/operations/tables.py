"""The tables of operations as their statements see them. Migration 0006 creates them; a test compares the two.

Users' texts are stored compressed, as bytes, since PostgreSQL's text type rejects NUL. Progress and usage are JSON.
"""

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    UniqueConstraint,
)

from rubric_store.rubrics.tables import UTCDateTime, key_column, metadata

operations = Table(
    "operations",
    metadata,
    key_column("project_id"),
    key_column("operation_id", 64),
    Column("kind", String(32), nullable=False),
    Column("state", String(16), nullable=False),
    Column("revision", BigInteger, nullable=False),
    Column("submission", LargeBinary(32)),
    Column("asked", LargeBinary(32), nullable=False),
    Column("request", LargeBinary, nullable=False),
    Column("progress", JSON, nullable=False),
    Column("usage", JSON, nullable=False),
    Column("summary", LargeBinary),
    Column("problem", Text),
    Column("tries", Integer, nullable=False),
    Column("results", BigInteger, nullable=False),
    Column("unfinished", Integer, nullable=False),
    Column("created_at", UTCDateTime, nullable=False),
    Column("started_at", UTCDateTime),
    Column("ended_at", UTCDateTime),
    Column("expires_at", UTCDateTime),
    PrimaryKeyConstraint("project_id", "operation_id", name="pk_operations"),
    UniqueConstraint("project_id", "submission", name="uq_operations_submission"),
    Index("ix_operations_created_at", "project_id", "created_at"),
    Index("ix_operations_expires_at", "expires_at"),
)
"""One row per operation; changes to an operation take the lock of its row. `submission` is the digest of the
idempotency key, `asked` that of the whole request. `unfinished` counts chunks that are neither done nor failed,
`results` the results so far."""

chunks = Table(
    "operation_chunks",
    metadata,
    key_column("project_id"),
    key_column("operation_id", 64),
    Column("chunk", Integer, nullable=False),
    Column("state", String(16), nullable=False),
    Column("inputs", Integer, nullable=False),
    Column("body", LargeBinary),
    Column("attempts", Integer, nullable=False),
    Column("owner", String(64)),
    Column("lease_until", UTCDateTime),
    Column("due_at", UTCDateTime, nullable=False),
    Column("announced_at", UTCDateTime),
    Column("problem", Text),
    PrimaryKeyConstraint("project_id", "operation_id", "chunk", name="pk_operation_chunks"),
    ForeignKeyConstraint(
        ["project_id", "operation_id"],
        ["operations.project_id", "operations.operation_id"],
        name="fk_operation_chunks_operations",
    ),
    Index("ix_operation_chunks_state", "state", "chunk"),
)
"""One row per chunk: `queued`, `running` under a lease, `done` or `failed`. The final chunk, which has no body, is
`waiting` until all others have ended, and finishes the operation. Other bodies are deleted when their chunk is done."""

results = Table(
    "operation_results",
    metadata,
    key_column("project_id"),
    key_column("operation_id", 64),
    Column("chunk", Integer, nullable=False),
    Column("place", Integer, nullable=False),
    Column("number", BigInteger, nullable=False),
    Column("body", LargeBinary, nullable=False),
    PrimaryKeyConstraint("project_id", "operation_id", "chunk", "place", name="pk_operation_results"),
    UniqueConstraint("project_id", "operation_id", "number", name="uq_operation_results_number"),
    ForeignKeyConstraint(
        ["project_id", "operation_id", "chunk"],
        ["operation_chunks.project_id", "operation_chunks.operation_id", "operation_chunks.chunk"],
        name="fk_operation_results_operation_chunks",
    ),
)
"""One row per result; `number` counts an operation's results in the order of their creation, from 0."""
