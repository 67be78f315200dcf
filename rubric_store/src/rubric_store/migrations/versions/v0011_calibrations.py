"""Calibrations of judges in immutable versions, and the aliases that point at them."""

from sqlalchemy import JSON, Integer, String, UniqueConstraint

from rubric_store.migrations.changes import create_table, drop_tables
from rubric_store.schema import UTCDateTime, key, required

revision = "0011"
down_revision = "0010"

loses = "the calibrations that were fitted here, and their aliases; those that ship with the package stay"


def upgrade() -> None:
    """Create the tables."""
    create_table(
        "judge_calibrations",
        [key("name"), *required(Integer, "version")],
        required(String(71), "digest"),
        required(JSON, "content"),
        required(UTCDateTime, "created_at"),
        UniqueConstraint("name", "digest", name="uq_judge_calibrations_digest"),
    )
    create_table(
        "judge_calibration_aliases",
        [key("name"), key("alias")],
        required(Integer, "version"),
        references={"judge_calibrations": ["name", "version"]},
    )


def downgrade() -> None:
    """Drop them."""
    drop_tables("judge_calibration_aliases", "judge_calibrations")
