"""The tables of projects, keys, ended sessions and usage.

Migrations 0005 and 0020 create them; a test compares the two.
"""

from sqlalchemy import (
    JSON,
    BigInteger,
    Column,
    Date,
    Double,
    ForeignKeyConstraint,
    Index,
    Integer,
    LargeBinary,
    PrimaryKeyConstraint,
    Table,
    Text,
    UniqueConstraint,
)

from rubric_store.database import UTCDateTime, key_column, metadata

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
"""One row per project, with its limits; NULL for no limit."""

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
"""One row per key, with the SHA-256 of its secret. Rows of revoked keys stay."""

ended_sessions = Table(
    "ended_sessions",
    metadata,
    key_column("project_id"),
    key_column("session_id", 32),
    Column("expires_at", UTCDateTime, nullable=False),
    PrimaryKeyConstraint("project_id", "session_id", name="pk_ended_sessions"),
    Index("ix_ended_sessions_expires_at", "expires_at"),
)
"""One row per session of the console that ended before it expired, until it expires."""

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
"""A project's usage on a day (UTC): requests, and prompt tokens that the engine computed."""
