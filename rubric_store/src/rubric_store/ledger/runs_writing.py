"""Keeps the figures of runs up, in the transaction that writes their requests, and drops them with their last request.

Rows are taken in the order of their keys, and tables in one order, so that of several writers none waits for one that
waits for it.
"""

from collections.abc import Collection
from datetime import UTC, datetime
from functools import lru_cache
from typing import Any

from sqlalchemy import Connection, Table, delete, select

from rubric_store.ledger import runs_tables, tables
from rubric_store.ledger.runs_counting import RowKey, count_figures
from trainer_client.wire.ledger_rows import LedgerRows

_ROWS_A_STATEMENT = 200
_MIN_MAX_COLUMNS = {"first_at": "<", "last_at": ">"}
"""Columns that are not added to, and what makes a value that of the two that stays."""


def add_figures(connection: Connection, rows: LedgerRows, requests: Collection[RowKey]) -> None:
    """Add what these of the requests (project, run, request) are to the figures of their runs."""
    added = count_figures(rows, requests)
    for table in runs_tables.TABLES:
        given = [[*key, *values] for key, values in sorted(added[table].items())]
        for start in range(0, len(given), _ROWS_A_STATEMENT):
            _upsert(connection, table, given[start : start + _ROWS_A_STATEMENT])


def delete_empty_runs(connection: Connection, project_id: str) -> None:
    """Drop the figures of runs of which the ledger has no request any more."""
    same = (tables.requests.c.project_id == project_id, tables.requests.c.run == runs_tables.runs.c.run)
    left = select(tables.requests.c.request).where(*same).exists()
    empty = select(runs_tables.runs.c.run).where(runs_tables.runs.c.project_id == project_id, ~left)
    names = list(connection.execute(empty).scalars())
    for table in runs_tables.TABLES:
        for name in names:
            connection.execute(delete(table).where(table.c.project_id == project_id, table.c.run == name))


def _upsert(connection: Connection, table: Table, rows: list[list[Any]]) -> None:
    server = connection.dialect.name == "postgresql"
    values = [value if server or not isinstance(value, datetime) else _as_text(value) for row in rows for value in row]
    connection.exec_driver_sql(_statement(table, len(rows), "%s" if server else "?"), tuple(values))


@lru_cache(maxsize=256)
def _statement(table: Table, rows: int, parameter: str) -> str:
    names = [column.name for column in table.columns]
    row = f"({','.join([parameter] * len(names))})"
    keys = [column.name for column in table.primary_key]
    others = [column.name for column in table.columns if column.name not in keys]
    changes = ", ".join(
        f"{name} = {_merged_value(f'{table.name}.{name}', f'excluded.{name}', name)}" for name in others
    )
    return (
        f"INSERT INTO {table.name} ({','.join(names)}) VALUES {','.join([row] * rows)} "  # noqa: S608 - no user's text
        f"ON CONFLICT ({','.join(keys)}) DO UPDATE SET {changes}"
    )


def _merged_value(before: str, more: str, name: str) -> str:
    if name in _MIN_MAX_COLUMNS:
        return f"CASE WHEN {more} {_MIN_MAX_COLUMNS[name]} {before} THEN {more} ELSE {before} END"
    return f"{before} + {more}"


def _as_text(moment: datetime) -> str:
    """A moment as SQLAlchemy keeps it in SQLite: in UTC, without a zone."""
    return moment.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%S.%f")
