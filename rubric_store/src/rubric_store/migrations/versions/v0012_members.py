"""What each judge of a cascade or panel said, and what it cost."""

import sqlalchemy as sa
from alembic import op

revision = "0012"
down_revision = "0011"
branch_labels = None
depends_on = None

loses = "what each judge of a cascade or panel said and cost; the combined verdicts and the total costs stay"

_TABLES = ("ledger_verdicts", "ledger_rejudgements", "ledger_requests")


def upgrade() -> None:
    """Add the columns; rows of before have none."""
    for table in _TABLES:
        op.add_column(table, sa.Column("members", sa.Text))


def downgrade() -> None:
    """Drop them."""
    for table in _TABLES:
        op.drop_column(table, "members")
