"""The number of uncertain verdicts of each step and criterion of a run."""

from sqlalchemy import BigInteger

from rubric_store.migrations.changes import add_columns, drop_columns
from rubric_store.schema import required

revision = "0014"
down_revision = "0013"

loses = "how many verdicts of a run were uncertain; the verdicts themselves stay"


def upgrade() -> None:
    """Add the counts; runs of before have no uncertain verdicts."""
    add_columns(["ledger_run_steps", "ledger_run_criteria"], lambda: required(BigInteger, "uncertain", default="0"))


def downgrade() -> None:
    """Drop them."""
    drop_columns(["ledger_run_steps", "ledger_run_criteria"], "uncertain")
