"""The number of uncertain verdicts of each step and criterion of a run."""

import sqlalchemy as sa
from alembic import op

revision = "0014"
down_revision = "0013"
branch_labels = None
depends_on = None

loses = "how many verdicts of a run were uncertain; the verdicts themselves stay"

_TABLES = ("ledger_run_steps", "ledger_run_criteria")


def upgrade() -> None:
    """Add the counts; runs of before have no uncertain verdicts."""
    for table in _TABLES:
        op.add_column(table, sa.Column("uncertain", sa.BigInteger, nullable=False, server_default="0"))


def downgrade() -> None:
    """Drop them."""
    for table in _TABLES:
        op.drop_column(table, "uncertain")
