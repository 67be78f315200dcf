"""The raw probability of a verdict, before calibration, beside the calibrated one."""

import sqlalchemy as sa
from alembic import op

revision = "0010"
down_revision = "0009"
branch_labels = None
depends_on = None

loses = "the raw probability of each verdict; a calibrated one is taken for the raw one after that"

_TABLES = ("ledger_verdicts", "ledger_rejudgements")


def upgrade() -> None:
    """Add the columns; rows of before have none, and their probability is the raw one."""
    for table in _TABLES:
        op.add_column(table, sa.Column("raw_probability", sa.Double))


def downgrade() -> None:
    """Drop them."""
    for table in _TABLES:
        op.drop_column(table, "raw_probability")
