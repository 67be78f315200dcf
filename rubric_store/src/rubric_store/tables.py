"""The tables, as the queries see them; the migrations make them, and a test holds the two together.

Criteria are kept as JSON text on both databases and never searched inside: PostgreSQL's JSONB would reorder
keys and refuse characters that a rubric may hold. Names sort by code point everywhere, so that pages agree.
"""

from datetime import UTC, datetime

from sqlalchemy import (
    JSON,
    Column,
    DateTime,
    Dialect,
    ForeignKeyConstraint,
    Index,
    Integer,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    TypeDecorator,
    UniqueConstraint,
)

metadata = MetaData()


class UTCDateTime(TypeDecorator[datetime]):
    """A moment in UTC: aware in Python on both databases, though SQLite keeps no zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Turn an aware moment into UTC; refuse a naive one with `ValueError`."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a moment without a zone cannot be stored; use datetime.now(UTC)")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Read a moment back as UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def _key() -> String:
    return String(200).with_variant(String(200, collation="C"), "postgresql")


rubrics = Table(
    "rubrics",
    metadata,
    Column("project_id", _key(), nullable=False),
    Column("name", _key(), nullable=False),
    Column("latest_version", Integer, nullable=False),
    PrimaryKeyConstraint("project_id", "name", name="pk_rubrics"),
)
"""One row per name. Its lock orders the publishers of that name."""

rubric_versions = Table(
    "rubric_versions",
    metadata,
    Column("project_id", _key(), nullable=False),
    Column("name", _key(), nullable=False),
    Column("version", Integer, nullable=False),
    Column("digest", String(71), nullable=False),
    Column("criteria", JSON, nullable=False),
    Column("criteria_count", Integer, nullable=False),
    Column("created_at", UTCDateTime, nullable=False),
    PrimaryKeyConstraint("project_id", "name", "version", name="pk_rubric_versions"),
    ForeignKeyConstraint(
        ["project_id", "name"], ["rubrics.project_id", "rubrics.name"], name="fk_rubric_versions_rubrics"
    ),
    UniqueConstraint("project_id", "name", "digest", name="uq_rubric_versions_digest"),
    Index("ix_rubric_versions_project_digest", "project_id", "digest"),
)
"""One row per version, added and never changed. `criteria_count` spares lists from reading the criteria."""
