"""Projects with their limits, API keys, what projects used by day, and who changed what. `default` is there at once."""

from datetime import UTC, datetime

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"
branch_labels = None
depends_on = None

loses = "projects, API keys, what projects used, and the audit: whoever reaches the service may use it then"


def _key(name: str, length: int = 200) -> sa.Column[str]:
    kind = sa.String(length).with_variant(sa.String(length, collation="C"), "postgresql")
    return sa.Column(name, kind, nullable=False)


def upgrade() -> None:
    """Create the four tables."""
    moment = sa.DateTime(timezone=True)
    projects = op.create_table(
        "projects",
        _key("project_id"),
        sa.Column("created_at", moment, nullable=False),
        sa.Column("weight", sa.Double, nullable=False, server_default="1"),
        sa.Column("requests_per_minute", sa.Integer),
        sa.Column("tokens_per_day", sa.BigInteger),
        sa.Column("tokens_total", sa.BigInteger),
        sa.PrimaryKeyConstraint("project_id", name="pk_projects"),
    )
    op.create_table(
        "api_keys",
        _key("project_id"),
        _key("key_id", 32),
        sa.Column("secret_digest", sa.LargeBinary(32), nullable=False),
        sa.Column("scopes", sa.JSON, nullable=False),
        sa.Column("label", sa.Text, nullable=False),
        sa.Column("created_at", moment, nullable=False),
        sa.Column("expires_at", moment),
        sa.Column("revoked_at", moment),
        sa.Column("last_used_at", moment),
        sa.PrimaryKeyConstraint("project_id", "key_id", name="pk_api_keys"),
        sa.UniqueConstraint("key_id", name="uq_api_keys_key_id"),
        sa.ForeignKeyConstraint(["project_id"], ["projects.project_id"], name="fk_api_keys_projects"),
    )
    op.create_table(
        "project_usage",
        _key("project_id"),
        sa.Column("day", sa.Date, nullable=False),
        sa.Column("requests", sa.BigInteger, nullable=False),
        sa.Column("tokens", sa.BigInteger, nullable=False),
        sa.PrimaryKeyConstraint("project_id", "day", name="pk_project_usage"),
        sa.ForeignKeyConstraint(["project_id"], ["projects.project_id"], name="fk_project_usage_projects"),
    )
    op.create_table(
        "audit",
        _key("project_id"),
        sa.Column("entry", sa.LargeBinary(16), nullable=False),
        sa.Column("at", moment, nullable=False),
        sa.Column("actor", sa.Text, nullable=False),
        sa.Column("action", sa.Text, nullable=False),
        sa.Column("subject", sa.Text, nullable=False),
        sa.Column("before", sa.Text),
        sa.Column("after", sa.Text),
        sa.PrimaryKeyConstraint("project_id", "entry", name="pk_audit"),
    )
    op.bulk_insert(projects, [{"project_id": "default", "created_at": datetime.now(UTC)}])


def downgrade() -> None:
    """Drop them: everybody who can reach the service may use it then, as before."""
    for table in ("audit", "project_usage", "api_keys", "projects"):
        op.drop_table(table)
