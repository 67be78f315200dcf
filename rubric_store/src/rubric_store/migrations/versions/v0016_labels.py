"""Labels: whether a response meets a criterion, as people say who read the verdict."""

from sqlalchemy import Boolean, Integer, Text

from rubric_store.migrations.changes import create_table, drop_tables
from rubric_store.schema import UTCDateTime, digest, key, required

revision = "0016"
down_revision = "0015"

loses = "the labels that people gave verdicts"


def upgrade() -> None:
    """Create the table."""
    create_table(
        "ledger_labels",
        [
            *(key("project_id"), key("run", 256), digest("request", 16)),
            *required(Integer, "place", "slot"),
            key("labeller"),
        ],
        required(Text, "criterion"),
        required(Boolean, "met"),
        required(UTCDateTime, "at"),
    )


def downgrade() -> None:
    """Drop it."""
    drop_tables("ledger_labels")
