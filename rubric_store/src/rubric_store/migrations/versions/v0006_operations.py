"""Operations, the chunks they are split into with who works on them, and the results of those that are done."""

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"
branch_labels = None
depends_on = None

loses = "every operation and its results"


def _key(name: str, length: int = 200) -> sa.Column[str]:
    kind = sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")
    return sa.Column(name, kind, nullable=False)


def upgrade() -> None:
    """Create the three tables."""
    moment = sa.DateTime(timezone=True)
    op.create_table(
        "operations",
        _key("project_id"),
        _key("operation_id", 64),
        sa.Column("kind", sa.String(32), nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("revision", sa.BigInteger, nullable=False),
        sa.Column("submission", sa.LargeBinary(32)),
        sa.Column("asked", sa.LargeBinary(32), nullable=False),
        sa.Column("request", sa.LargeBinary, nullable=False),
        sa.Column("progress", sa.JSON, nullable=False),
        sa.Column("usage", sa.JSON, nullable=False),
        sa.Column("summary", sa.LargeBinary),
        sa.Column("problem", sa.Text),
        sa.Column("tries", sa.Integer, nullable=False),
        sa.Column("results", sa.BigInteger, nullable=False),
        sa.Column("unfinished", sa.Integer, nullable=False),
        sa.Column("created_at", moment, nullable=False),
        sa.Column("started_at", moment),
        sa.Column("ended_at", moment),
        sa.Column("expires_at", moment),
        sa.PrimaryKeyConstraint("project_id", "operation_id", name="pk_operations"),
        sa.UniqueConstraint("project_id", "submission", name="uq_operations_submission"),
    )
    op.create_index("ix_operations_created_at", "operations", ["project_id", "created_at"])
    op.create_index("ix_operations_expires_at", "operations", ["expires_at"])
    op.create_table(
        "operation_chunks",
        _key("project_id"),
        _key("operation_id", 64),
        sa.Column("chunk", sa.Integer, nullable=False),
        sa.Column("state", sa.String(16), nullable=False),
        sa.Column("inputs", sa.Integer, nullable=False),
        sa.Column("body", sa.LargeBinary),
        sa.Column("attempts", sa.Integer, nullable=False),
        sa.Column("owner", sa.String(64)),
        sa.Column("lease_until", moment),
        sa.Column("due_at", moment, nullable=False),
        sa.Column("announced_at", moment),
        sa.Column("problem", sa.Text),
        sa.PrimaryKeyConstraint("project_id", "operation_id", "chunk", name="pk_operation_chunks"),
        sa.ForeignKeyConstraint(
            ["project_id", "operation_id"],
            ["operations.project_id", "operations.operation_id"],
            name="fk_operation_chunks_operations",
        ),
    )
    op.create_index("ix_operation_chunks_state", "operation_chunks", ["state", "chunk"])
    op.create_table(
        "operation_results",
        _key("project_id"),
        _key("operation_id", 64),
        sa.Column("chunk", sa.Integer, nullable=False),
        sa.Column("place", sa.Integer, nullable=False),
        sa.Column("number", sa.BigInteger, nullable=False),
        sa.Column("body", sa.LargeBinary, nullable=False),
        sa.PrimaryKeyConstraint("project_id", "operation_id", "chunk", "place", name="pk_operation_results"),
        sa.UniqueConstraint("project_id", "operation_id", "number", name="uq_operation_results_number"),
        sa.ForeignKeyConstraint(
            ["project_id", "operation_id", "chunk"],
            ["operation_chunks.project_id", "operation_chunks.operation_id", "operation_chunks.chunk"],
            name="fk_operation_results_operation_chunks",
        ),
    )


def downgrade() -> None:
    """Drop them, and with them every operation and its results."""
    for table in ("operation_results", "operation_chunks", "operations"):
        op.drop_table(table)
