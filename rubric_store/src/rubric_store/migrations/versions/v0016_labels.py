"""Labels: whether a response meets a criterion, as people say who read the verdict."""

import sqlalchemy as sa
from alembic import op

revision = "0016"
down_revision = "0015"
branch_labels = None
depends_on = None

loses = "the labels that people gave verdicts"


def upgrade() -> None:
    """Create the table."""

    def key(length: int) -> sa.types.TypeEngine[str]:
        return sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")

    op.create_table(
        "ledger_labels",
        sa.Column("project_id", key(200), nullable=False),
        sa.Column("run", key(256), nullable=False),
        sa.Column("request", sa.LargeBinary(16), nullable=False),
        sa.Column("place", sa.Integer, nullable=False),
        sa.Column("slot", sa.Integer, nullable=False),
        sa.Column("labeller", key(200), nullable=False),
        sa.Column("criterion", sa.Text, nullable=False),
        sa.Column("met", sa.Boolean, nullable=False),
        sa.Column("at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "run", "request", "place", "slot", "labeller", name="pk_ledger_labels"),
    )


def downgrade() -> None:
    """Drop it."""
    op.drop_table("ledger_labels")
