"""How each request turned its verdicts into rewards, beside the request; NULL in older requests."""

from sqlalchemy import Text

from rubric_store.migrations.changes import add_columns, drop_columns
from rubric_store.schema import optional

revision = "0015"
down_revision = "0014"

loses = "the reward options and policies of recorded requests; their verdicts and rewards stay"


def upgrade() -> None:
    """Add the column."""
    add_columns(["ledger_requests"], lambda: optional(Text, "reward_rules"))


def downgrade() -> None:
    """Drop it."""
    drop_columns(["ledger_requests"], "reward_rules")
