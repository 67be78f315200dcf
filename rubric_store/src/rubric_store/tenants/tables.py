"""The tables of projects as their statements see them; migration 0005 makes them, and a test holds the two together."""

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Date,
    Double,
    ForeignKeyConstraint,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
)

from rubric_store.tables import UTCDateTime, key_column, metadata

projects = Table(
    "projects",
    metadata,
    key_column("project_id"),
    Column("created_at", UTCDateTime, nullable=False),
    Column("weight", Double, nullable=False, server_default="1"),
    Column("requests_per_minute", Integer),
    Column("tokens_per_day", BigInteger),
    Column("tokens_total", BigInteger),
    PrimaryKeyConstraint("project_id", name="pk_projects"),
)
"""One row per project, with its limits; NULL where there is none."""

api_keys = Table(
    "api_keys",
    metadata,
    key_column("project_id"),
    key_column("key_id", 32),
    Column("secret_digest", LargeBinary(32), nullable=False),
    Column("scopes", JSON, nullable=False),
    Column("label", Text, nullable=False),
    Column("created_at", UTCDateTime, nullable=False),
    Column("expires_at", UTCDateTime),
    Column("revoked_at", UTCDateTime),
    Column("last_used_at", UTCDateTime),
    PrimaryKeyConstraint("project_id", "key_id", name="pk_api_keys"),
    UniqueConstraint("key_id", name="uq_api_keys_key_id"),
    ForeignKeyConstraint(["project_id"], ["projects.project_id"], name="fk_api_keys_projects"),
)
"""One row per key: SHA-256 of its secret, never the secret. Rows of revoked keys stay."""

project_usage = Table(
    "project_usage",
    metadata,
    key_column("project_id"),
    Column("day", Date, nullable=False),
    Column("requests", BigInteger, nullable=False),
    Column("tokens", BigInteger, nullable=False),
    PrimaryKeyConstraint("project_id", "day", name="pk_project_usage"),
    ForeignKeyConstraint(["project_id"], ["projects.project_id"], name="fk_project_usage_projects"),
)
"""What a project's requests cost on a day (UTC): prompt tokens that the engine computed, and requests that asked."""

audit = Table(
    "audit",
    metadata,
    key_column("project_id"),
    Column("entry", LargeBinary(16), nullable=False),
    Column("at", UTCDateTime, nullable=False),
    Column("actor", Text, nullable=False),
    Column("action", Text, nullable=False),
    Column("subject", Text, nullable=False),
    Column("before", Text),
    Column("after", Text),
    PrimaryKeyConstraint("project_id", "entry", name="pk_audit"),
)
"""One row per change, added in the transaction of the change and never touched again; `entry` sorts by time."""
