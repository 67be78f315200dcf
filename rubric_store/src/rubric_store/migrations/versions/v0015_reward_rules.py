"""How each request turned its verdicts into rewards, beside the request; NULL in older requests."""

import sqlalchemy as sa
from alembic import op

revision = "0015"
down_revision = "0014"
branch_labels = None
depends_on = None

loses = "the reward options and policies of recorded requests; their verdicts and rewards stay"


def upgrade() -> None:
    """Add the column."""
    op.add_column("ledger_requests", sa.Column("reward_rules", sa.Text))


def downgrade() -> None:
    """Drop it."""
    op.drop_column("ledger_requests", "reward_rules")
