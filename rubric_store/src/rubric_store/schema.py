"""Declare tables alike in the stores, which query them, and in the migrations, which create them.

Columns behave alike on SQLite and PostgreSQL: names are compared byte by byte, and times are in UTC.
"""

from collections.abc import Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

from sqlalchemy import (
    Column,
    DateTime,
    Dialect,
    ForeignKeyConstraint,
    LargeBinary,
    MetaData,
    PrimaryKeyConstraint,
    String,
    Table,
    Text,
    TypeDecorator,
)
from sqlalchemy.schema import SchemaItem

metadata = MetaData()
"""The tables that are imported so far; `rubric_store.migrations.schema_status.all_tables` has all."""

Part = SchemaItem | Sequence[SchemaItem]
"""A column, constraint or index of a table, or several."""


class UTCDateTime(TypeDecorator[datetime]):
    """A UTC timestamp, timezone-aware in Python on both databases although SQLite stores no zone."""

    impl = DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Convert an aware datetime to UTC; raises `ValueError` for a naive one."""
        if value is None:
            return None
        if value.tzinfo is None:
            raise ValueError("a datetime without a time zone cannot be stored; use datetime.now(UTC)")
        return value.astimezone(UTC)

    def process_result_value(self, value: datetime | None, dialect: Dialect) -> datetime | None:
        """Read a datetime as UTC."""
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


def key(name: str, length: int | None = 200) -> Column[str]:
    """A NOT NULL column for names, compared byte by byte; of any length if that is None."""
    kind: Any = Text if length is None else String
    options = {} if length is None else {"length": length}
    return Column(name, kind(**options).with_variant(kind(**options, collation="C"), "postgresql"), nullable=False)


def digest(name: str, length: int = 32, *, nullable: bool = False) -> Column[bytes]:
    """A column for a digest of so many bytes."""
    return Column(name, LargeBinary(length), nullable=nullable)


def required(kind: Any, *names: str, default: str | None = None) -> list[Column[Any]]:
    """NOT NULL columns of one type."""
    return [Column(name, kind, nullable=False, server_default=default) for name in names]


def optional(kind: Any, *names: str) -> list[Column[Any]]:
    """Columns of one type that may be NULL."""
    return [Column(name, kind) for name in names]


def table_items(
    name: str, keys: Sequence[Column[Any]], parts: Sequence[Part], references: Mapping[str, Sequence[str]]
) -> list[SchemaItem]:
    """The columns and constraints of a table; see `declare`."""
    given = [item for part in parts for item in ([part] if isinstance(part, SchemaItem) else part)]
    primary = PrimaryKeyConstraint(*[column.name for column in keys], name=f"pk_{name}")
    foreign = [
        ForeignKeyConstraint(columns, [f"{other}.{column}" for column in columns], name=f"fk_{name}_{other}")
        for other, columns in references.items()
    ]
    return [*keys, *given, primary, *foreign]


def declare(
    name: str,
    keys: Sequence[Column[Any]],
    *parts: Part,
    references: Mapping[str, Sequence[str]] | None = None,
    **options: Any,
) -> Table:
    """Declare a table for statements.

    Args:
        name: the name of the table.
        keys: the columns of the primary key, which come first.
        parts: the other columns, constraints and indexes.
        references: the foreign keys: by referenced table, the columns, which have the same names in both.
        options: of SQLAlchemy's `Table`.
    """
    return Table(name, metadata, *table_items(name, keys, parts, references or {}), **options)
