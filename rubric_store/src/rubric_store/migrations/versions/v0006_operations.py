"""Operations, the chunks they are split into with who works on them, and the results of those that are done."""

from sqlalchemy import JSON, BigInteger, Index, Integer, LargeBinary, String, Text, UniqueConstraint

from rubric_store.migrations.changes import create_table, drop_tables
from rubric_store.schema import UTCDateTime, digest, key, optional, required

revision = "0006"
down_revision = "0005"

loses = "every operation and its results"


def upgrade() -> None:
    """Create the three tables."""
    create_table(
        "operations",
        [key("project_id"), key("operation_id", 64)],
        required(String(32), "kind"),
        required(String(16), "state"),
        required(BigInteger, "revision"),
        digest("submission", nullable=True),
        digest("asked"),
        required(LargeBinary, "request"),
        required(JSON, "progress", "usage"),
        optional(LargeBinary, "summary"),
        optional(Text, "problem"),
        required(Integer, "tries"),
        required(BigInteger, "results"),
        required(Integer, "unfinished"),
        required(UTCDateTime, "created_at"),
        optional(UTCDateTime, "started_at", "ended_at", "expires_at"),
        UniqueConstraint("project_id", "submission", name="uq_operations_submission"),
        Index("ix_operations_created_at", "project_id", "created_at"),
        Index("ix_operations_expires_at", "expires_at"),
    )
    create_table(
        "operation_chunks",
        [key("project_id"), key("operation_id", 64), *required(Integer, "chunk")],
        required(String(16), "state"),
        required(Integer, "inputs"),
        optional(LargeBinary, "body"),
        required(Integer, "attempts"),
        optional(String(64), "owner"),
        optional(UTCDateTime, "lease_until"),
        required(UTCDateTime, "due_at"),
        optional(UTCDateTime, "announced_at"),
        optional(Text, "problem"),
        Index("ix_operation_chunks_state", "state", "chunk"),
        references={"operations": ["project_id", "operation_id"]},
    )
    create_table(
        "operation_results",
        [key("project_id"), key("operation_id", 64), *required(Integer, "chunk", "place")],
        required(BigInteger, "number"),
        required(LargeBinary, "body"),
        UniqueConstraint("project_id", "operation_id", "number", name="uq_operation_results_number"),
        references={"operation_chunks": ["project_id", "operation_id", "chunk"]},
    )


def downgrade() -> None:
    """Drop them, and with them every operation and its results."""
    drop_tables("operation_results", "operation_chunks", "operations")
