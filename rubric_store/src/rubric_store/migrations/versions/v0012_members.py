"""What each judge of a cascade or panel said, and what it cost."""

from sqlalchemy import Text

from rubric_store.migrations.changes import add_columns, drop_columns
from rubric_store.schema import optional

revision = "0012"
down_revision = "0011"

loses = "what each judge of a cascade or panel said and cost; the combined verdicts and the total costs stay"


def upgrade() -> None:
    """Add the columns; rows of before have none."""
    add_columns(["ledger_verdicts", "ledger_rejudgements", "ledger_requests"], lambda: optional(Text, "members"))


def downgrade() -> None:
    """Drop them."""
    drop_columns(["ledger_verdicts", "ledger_rejudgements", "ledger_requests"], "members")
