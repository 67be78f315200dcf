"""Rubrics and their versions."""

from sqlalchemy import JSON, ForeignKeyConstraint, Index, Integer, String, UniqueConstraint

from rubric_store.migrations.changes import create_table, drop_tables
from rubric_store.schema import UTCDateTime, key, required

revision = "0001"
down_revision = None

loses = "every rubric and every version"


def upgrade() -> None:
    """Create both tables."""
    create_table("rubrics", [key("project_id"), key("name")], required(Integer, "latest_version"))
    create_table(
        "rubric_versions",
        [key("project_id"), key("name"), *required(Integer, "version")],
        required(String(71), "digest"),
        required(JSON, "criteria"),
        required(Integer, "criteria_count"),
        required(UTCDateTime, "created_at"),
        ForeignKeyConstraint(
            ["project_id", "name"], ["rubrics.project_id", "rubrics.name"], name="fk_rubric_versions_rubrics"
        ),
        UniqueConstraint("project_id", "name", "digest", name="uq_rubric_versions_digest"),
        Index("ix_rubric_versions_project_digest", "project_id", "digest"),
    )


def downgrade() -> None:
    """Drop both tables."""
    drop_tables("rubric_versions", "rubrics")
