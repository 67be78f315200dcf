"""What validity judges found of the criteria of a version: a row for each pass, kept for good."""

from sqlalchemy import JSON, Integer, String, Text

from rubric_store.migrations.changes import create_table, drop_tables
from rubric_store.schema import UTCDateTime, key, required

revision = "0004"
down_revision = "0003"

loses = "what judges found of the validity of criteria; versions stay"


def upgrade() -> None:
    """Create the table."""
    create_table(
        "rubric_validations",
        [key("project_id"), key("name"), *required(Integer, "version", "pass_number")],
        required(String(71), "judge"),
        required(Text, "model"),
        required(String(71), "template_digest"),
        required(UTCDateTime, "created_at"),
        required(JSON, "items"),
        references={"rubric_versions": ["project_id", "name", "version"]},
    )


def downgrade() -> None:
    """Drop it, and with it every verdict; versions stay."""
    drop_tables("rubric_validations")
