"""What each `Idempotency-Key` stands for."""

import sqlalchemy as sa
from alembic import op

revision = "0009"
down_revision = "0008"
branch_labels = None
depends_on = None

loses = "what each Idempotency-Key stands for; a request that is sent again under one is done again"


def upgrade() -> None:
    """Create the table."""
    moment = sa.DateTime(timezone=True)
    project = sa.String(200).with_variant(sa.String(200, collation="C"), "postgresql")
    op.create_table(
        "idempotency_keys",
        sa.Column("project_id", project, nullable=False),
        sa.Column("key_digest", sa.LargeBinary(32), nullable=False),
        sa.Column("asked", sa.LargeBinary(32), nullable=False),
        sa.Column("first_at", moment, nullable=False),
        sa.Column("held_until", moment, nullable=False),
        sa.Column("expires_at", moment, nullable=False),
        sa.Column("status", sa.Integer),
        sa.Column("location", sa.Text),
        sa.Column("body", sa.LargeBinary),
        sa.PrimaryKeyConstraint("project_id", "key_digest", name="pk_idempotency_keys"),
    )
    op.create_index("ix_idempotency_keys_expires_at", "idempotency_keys", ["expires_at"])


def downgrade() -> None:
    """Drop it."""
    op.drop_table("idempotency_keys")
