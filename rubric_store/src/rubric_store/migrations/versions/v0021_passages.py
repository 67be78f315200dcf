"""The passages that a verdict was asked on."""

from sqlalchemy import Text

from rubric_store.migrations.changes import add_columns, drop_columns
from rubric_store.schema import optional

revision = "0021"
down_revision = "0020"

loses = "which passages of a long text a verdict was asked on; the verdicts stay"


def upgrade() -> None:
    """Add the column; verdicts of before were asked on whole texts."""
    add_columns(["ledger_uses"], lambda: optional(Text, "passages"))


def downgrade() -> None:
    """Drop it."""
    drop_columns(["ledger_uses"], "passages")
