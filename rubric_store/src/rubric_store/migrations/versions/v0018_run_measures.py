"""What trainers report of runs by step, such as the share of refined responses; kept from now on."""

from sqlalchemy import BigInteger, Double

from rubric_store.migrations.changes import create_table, drop_tables
from rubric_store.schema import key, required

revision = "0018"
down_revision = "0016"

loses = "what trainers reported of runs, such as the share of refined responses"


def upgrade() -> None:
    """Create the table."""
    create_table(
        "ledger_run_measures",
        [key("project_id"), key("run", 256), *required(BigInteger, "step"), key("name", 100)],
        required(Double, "value"),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    """Drop it."""
    drop_tables("ledger_run_measures")
