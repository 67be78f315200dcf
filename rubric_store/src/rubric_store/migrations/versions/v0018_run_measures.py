"""What trainers report of runs by step, such as the share of refined responses; kept from now on."""

from functools import partial
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0016"
branch_labels = None
depends_on = None

loses = "what trainers reported of runs, such as the share of refined responses"


def _key(name: str, length: int) -> sa.Column[Any]:
    kind = partial(sa.String, length)
    return sa.Column(name, kind().with_variant(kind(collation="C"), "postgresql"), nullable=False)


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "ledger_run_measures",
        _key("project_id", 200),
        _key("run", 256),
        sa.Column("step", sa.BigInteger, nullable=False),
        _key("name", 100),
        sa.Column("value", sa.Double, nullable=False),
        sa.PrimaryKeyConstraint("project_id", "run", "step", "name", name="pk_ledger_run_measures"),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    """Drop it."""
    op.drop_table("ledger_run_measures")
