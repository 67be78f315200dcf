"""The tables of projects, keys, ended sessions and usage.

Migrations 0005 and 0020 create them; a test compares the two.
"""

from sqlalchemy import JSON, BigInteger, Date, Double, Index, Integer, Text, UniqueConstraint

from rubric_store.schema import UTCDateTime, declare, digest, key, optional, required

projects = declare(
    "projects",
    [key("project_id")],
    required(UTCDateTime, "created_at"),
    required(Double, "weight", default="1"),
    optional(Integer, "requests_per_minute"),
    optional(BigInteger, "tokens_per_day", "tokens_total"),
)
"""One row per project, with its limits; NULL for no limit."""

api_keys = declare(
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
"""One row per key, with the SHA-256 of its secret. Rows of revoked keys stay."""

ended_sessions = declare(
    "ended_sessions",
    [key("project_id"), key("session_id", 32)],
    required(UTCDateTime, "expires_at"),
    Index("ix_ended_sessions_expires_at", "expires_at"),
)
"""One row per session of the console that ended before it expired, until it expires."""

project_usage = declare(
    "project_usage",
    [key("project_id"), *required(Date, "day")],
    required(BigInteger, "requests", "tokens"),
    references={"projects": ["project_id"]},
)
"""A project's usage on a day (UTC): requests, and prompt tokens that the engine computed."""
