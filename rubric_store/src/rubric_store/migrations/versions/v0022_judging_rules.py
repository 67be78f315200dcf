"""How each request was judged, and what else its judge was shown, so that its responses can be judged again."""

from alembic import op
from sqlalchemy import Text

from rubric_store.migrations.changes import add_columns, drop_columns
from rubric_store.schema import digest, optional

revision = "0022"
down_revision = "0021"

loses = "how requests were judged, and the reference answers and ground truths that their judge saw"

_TEXTS = ("reference_answer", "ground_truth")


def upgrade() -> None:
    """Add the columns, which requests of before leave empty, and the indexes by which purging finds texts."""
    add_columns(["ledger_requests"], lambda: optional(Text, "judging_rules"))
    add_columns(["ledger_responses"], lambda: [digest(name, nullable=True) for name in _TEXTS])
    if op.get_bind().dialect.name == "postgresql":
        for name in _TEXTS:
            op.create_index(f"ix_ledger_responses_{name}", "ledger_responses", [name, "project_id"])


def downgrade() -> None:
    """Drop them; PostgreSQL drops the indexes with their columns."""
    drop_columns(["ledger_responses"], *_TEXTS)
    drop_columns(["ledger_requests"], "judging_rules")
