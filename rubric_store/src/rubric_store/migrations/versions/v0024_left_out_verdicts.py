"""The number of verdicts of each step of a run that rubric dropout left out."""

from sqlalchemy import BigInteger

from rubric_store.migrations.changes import add_columns, drop_columns
from rubric_store.schema import required

revision = "0024"
down_revision = "0023"

loses = "how many verdicts of a run rubric dropout left out; which ones these were stays"


def upgrade() -> None:
    """Add the counts; those of runs of before are 0."""
    add_columns(["ledger_run_steps"], lambda: required(BigInteger, "left_out", default="0"))


def downgrade() -> None:
    """Drop the counts."""
    drop_columns(["ledger_run_steps"], "left_out")
