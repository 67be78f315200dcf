"""What validity judges found of the criteria of a version: a row for each pass, kept for good."""

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"
branch_labels = None
depends_on = None

loses = "what judges found of the validity of criteria; versions stay"


def upgrade() -> None:
    """Create the table."""
    key = sa.String(200).with_variant(sa.String(200, collation="C"), "postgresql")
    op.create_table(
        "rubric_validations",
        sa.Column("project_id", key, nullable=False),
        sa.Column("name", key, nullable=False),
        sa.Column("version", sa.Integer, nullable=False),
        sa.Column("pass_number", sa.Integer, nullable=False),
        sa.Column("judge", sa.String(71), nullable=False),
        sa.Column("model", sa.Text, nullable=False),
        sa.Column("template_digest", sa.String(71), nullable=False),
        sa.Column("created_at", sa.DateTime(timezone=True), nullable=False),
        sa.Column("items", sa.JSON, nullable=False),
        sa.PrimaryKeyConstraint("project_id", "name", "version", "pass_number", name="pk_rubric_validations"),
        sa.ForeignKeyConstraint(
            ["project_id", "name", "version"],
            ["rubric_versions.project_id", "rubric_versions.name", "rubric_versions.version"],
            name="fk_rubric_validations_rubric_versions",
        ),
    )


def downgrade() -> None:
    """Drop it, and with it every verdict; versions stay."""
    op.drop_table("rubric_validations")
