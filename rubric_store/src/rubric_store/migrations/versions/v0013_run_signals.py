"""The signals of runs by step, which monitors read, kept from now on; steps judged before have none."""

from sqlalchemy import BigInteger, Double

from rubric_store.migrations.changes import create_table, drop_tables
from rubric_store.schema import key, required

revision = "0013"
down_revision = "0012"

loses = "the signals of runs that monitors read; the ledger and the figures of runs stay"


def upgrade() -> None:
    """Create the table."""
    create_table(
        "ledger_run_signals",
        [
            *(key("project_id"), key("run", 256)),
            *required(BigInteger, "step"),
            *(key("signal", None), key("name", None)),
        ],
        required(BigInteger, "pairs"),
        required(Double, "x", "y", "xx", "yy", "xy"),
        required(BigInteger, "within"),
        required(Double, "within_xx", "within_yy", "within_xy"),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    """Drop it."""
    drop_tables("ledger_run_signals")
