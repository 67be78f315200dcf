"""The changes that revisions are made of: create and drop tables, add and drop columns."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from alembic import op
from sqlalchemy import Column, Table

from rubric_store.schema import Part, table_items


def create_table(
    name: str,
    keys: Sequence[Column[Any]],
    *parts: Part,
    references: Mapping[str, Sequence[str]] | None = None,
    **options: Any,
) -> Table:
    """Create a table with its indexes; see `rubric_store.schema.declare`."""
    return op.create_table(name, *table_items(name, keys, parts, references or {}), **options)


def drop_tables(*names: str) -> None:
    """Drop tables, in this order."""
    for name in names:
        op.drop_table(name)


def add_columns(tables: Sequence[str], columns: Callable[[], Sequence[Column[Any]]]) -> None:
    """Add the same columns to tables."""
    for name in tables:
        for column in columns():
            op.add_column(name, column)


def drop_columns(tables: Sequence[str], *columns: str) -> None:
    """Drop columns that tables have in common."""
    for name in tables:
        for column in columns:
            op.drop_column(name, column)
