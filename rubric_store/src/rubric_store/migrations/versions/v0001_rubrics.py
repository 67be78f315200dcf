"""Rubrics and their versions."""

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None

loses = "every rubric and every version"


def upgrade() -> None:
    """Create both tables."""
    key = sa.String(200).with_variant(sa.String(200, collation="C"), "postgresql")
    op.create_table(
        "rubrics",
        sa.Column("project_id", key, nullable=False),
        sa.Column("name", key, nullable=False),
        sa.Column("latest_version", sa.Integer, nullable=False),
        sa.PrimaryKeyConstraint("project_id", "name", name="pk_rubrics"),
    )
    op.create_table(
        "rubric_versions",
        sa.Column("project_id", key, nullable=False),
        sa.Column("name", key, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("digest", sa.String(71), nullable=False),
        sa.Column("criteria", sa.JSON, nullable=False),
        sa.Column("criteria_count", sa.Integer, nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.PrimaryKeyConstraint("project_id", "name", "version", name="pk_rubric_versions"),
        sa.ForeignKeyConstraint(
            ["project_id", "name"], ["rubrics.project_id", "rubrics.name"], name="fk_rubric_versions_rubrics"
        ),
        sa.UniqueConstraint("project_id", "name", "digest", name="uq_rubric_versions_digest"),
    )
    op.create_index("ix_rubric_versions_project_digest", "rubric_versions", ["project_id", "digest"])


def downgrade() -> None:
    """Drop both tables."""
    op.drop_table("rubric_versions")
    op.drop_table("rubrics")
