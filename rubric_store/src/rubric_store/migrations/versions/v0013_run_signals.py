"""The signals of runs by step, which monitors read, kept from now on; steps judged before have none."""

from functools import partial
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0013"
down_revision = "0012"
branch_labels = None
depends_on = None

loses = "the signals of runs that monitors read; the ledger and the figures of runs stay"


def _key(name: str, length: int | None = None) -> sa.Column[Any]:
    kind = sa.Text if length is None else partial(sa.String, length)
    return sa.Column(name, kind().with_variant(kind(collation="C"), "postgresql"), nullable=False)


def upgrade() -> None:
    """Create the table."""
    op.create_table(
        "ledger_run_signals",
        _key("project_id", 200),
        _key("run", 256),
        sa.Column("step", sa.BigInteger, nullable=False),
        _key("signal"),
        _key("name"),
        sa.Column("pairs", sa.BigInteger, nullable=False),
        *[sa.Column(name, sa.Double, nullable=False) for name in ("x", "y", "xx", "yy", "xy")],
        sa.Column("within", sa.BigInteger, nullable=False),
        *[sa.Column(name, sa.Double, nullable=False) for name in ("within_xx", "within_yy", "within_xy")],
        sa.PrimaryKeyConstraint("project_id", "run", "step", "signal", "name", name="pk_ledger_run_signals"),
        sqlite_with_rowid=False,
    )


def downgrade() -> None:
    """Drop it."""
    op.drop_table("ledger_run_signals")
