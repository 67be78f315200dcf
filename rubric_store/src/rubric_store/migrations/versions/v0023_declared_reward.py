"""Rewards under the rubric's own weights, beside those of groups that were rewarded under others."""

from sqlalchemy import Double

from rubric_store.migrations.changes import add_columns, drop_columns
from rubric_store.schema import optional

revision = "0023"
down_revision = "0022"

loses = "rewards under the rubric's own weights, where others were used; recomputing gives them again"


def upgrade() -> None:
    """Add the column; before, rewards were always under the rubric's own weights."""
    add_columns(["ledger_responses"], lambda: optional(Double, "declared_reward"))


def downgrade() -> None:
    """Drop it."""
    drop_columns(["ledger_responses"], "declared_reward")
