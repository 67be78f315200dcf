"""The raw probability of a verdict, before calibration, beside the calibrated one."""

from sqlalchemy import Double

from rubric_store.migrations.changes import add_columns, drop_columns
from rubric_store.schema import optional

revision = "0010"
down_revision = "0009"

loses = "the raw probability of each verdict; a calibrated one is taken for the raw one after that"


def upgrade() -> None:
    """Add the columns; rows of before have none, and their probability is the raw one."""
    add_columns(["ledger_verdicts", "ledger_rejudgements"], lambda: optional(Double, "raw_probability"))


def downgrade() -> None:
    """Drop them."""
    drop_columns(["ledger_verdicts", "ledger_rejudgements"], "raw_probability")
