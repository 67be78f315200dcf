"""Calibrations of judges in immutable versions, and the aliases that point at them."""

import sqlalchemy as sa
from alembic import op

revision = "0011"
down_revision = "0010"
branch_labels = None
depends_on = None

loses = "the calibrations that were fitted here, and their aliases; those that ship with the package stay"


def upgrade() -> None:
    """Create the tables."""
    key = sa.String(200).with_variant(sa.String(200, collation="C"), "postgresql")
    op.create_table(
        "judge_calibrations",
        sa.Column("name", key, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("digest", sa.String(71), nullable=False),
        sa.Column("content", sa.JSON, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("name", "version", name="pk_judge_calibrations"),
        sa.UniqueConstraint("name", "digest", name="uq_judge_calibrations_digest"),
    )
    op.create_table(
        "judge_calibration_aliases",
        sa.Column("name", key, nullable=False),
        sa.Column("alias", key, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("name", "alias", name="pk_judge_calibration_aliases"),
        sa.ForeignKeyConstraint(
            ["name", "version"],
            ["judge_calibrations.name", "judge_calibrations.version"],
            name="fk_judge_calibration_aliases_judge_calibrations",
        ),
    )


def downgrade() -> None:
    """Drop them."""
    op.drop_table("judge_calibration_aliases")
    op.drop_table("judge_calibrations")
