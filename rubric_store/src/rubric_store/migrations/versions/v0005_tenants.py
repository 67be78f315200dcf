"""Projects with their limits, API keys, what projects used by day, and who changed what. `default` is there at once."""

from datetime import UTC, datetime

from alembic import op
from sqlalchemy import JSON, BigInteger, Date, Double, Integer, Text, UniqueConstraint

from rubric_store.migrations.changes import create_table, drop_tables
from rubric_store.schema import UTCDateTime, digest, key, optional, required

revision = "0005"
down_revision = "0004"

loses = "projects, API keys, what projects used, and the audit: whoever reaches the service may use it then"


def upgrade() -> None:
    """Create the four tables."""
    projects = create_table(
        "projects",
        [key("project_id")],
        required(UTCDateTime, "created_at"),
        required(Double, "weight", default="1"),
        optional(Integer, "requests_per_minute"),
        optional(BigInteger, "tokens_per_day", "tokens_total"),
    )
    create_table(
        "api_keys",
        [key("project_id"), key("key_id", 32)],
        digest("secret_digest"),
        required(JSON, "scopes"),
        required(Text, "label"),
        required(UTCDateTime, "created_at"),
        optional(UTCDateTime, "expires_at", "revoked_at", "last_used_at"),
        UniqueConstraint("key_id", name="uq_api_keys_key_id"),
        references={"projects": ["project_id"]},
    )
    create_table(
        "project_usage",
        [key("project_id"), *required(Date, "day")],
        required(BigInteger, "requests", "tokens"),
        references={"projects": ["project_id"]},
    )
    create_table(
        "audit",
        [key("project_id"), digest("entry", 16)],
        required(UTCDateTime, "at"),
        required(Text, "actor", "action", "subject"),
        optional(Text, "before", "after"),
    )
    op.bulk_insert(projects, [{"project_id": "default", "created_at": datetime.now(UTC)}])


def downgrade() -> None:
    """Drop them: everybody who can reach the service may use it then, as before."""
    drop_tables("audit", "project_usage", "api_keys", "projects")
