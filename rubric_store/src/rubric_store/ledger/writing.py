"""Write rows to the ledger in one transaction, and salvage the rest when the database refuses some of them.

PostgreSQL uses COPY, SQLite multi-row inserts. Existing rows stay as they are, so writing rows again is harmless. The
first verdict under a digest stands; a later one that differs becomes a re-judgement.

Refused rows are isolated request by request, then row by row: a refused row costs only the rows that depend on it. The
caller decides which errors are about a row.
"""

from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from operator import itemgetter
from typing import Any, TypeVar, cast

from sqlalchemy import Column, Connection, Executable, MetaData, Table, delete, or_, select
from sqlalchemy.schema import CreateTable

from rubric_store.database import insert_into
from rubric_store.ledger import tables
from rubric_store.ledger.rows import TEXTS, LedgerRows, RefusedRows, RequestRow
from rubric_store.ledger.runs import RowKey, add_figures, do_not_rest

_RowT = TypeVar("_RowT", bound=tuple[Any, ...])

_COMPARED_COLUMNS = ("score", "probability", "menu_mass", "step", "grade", "rationale")
"""Columns in which a re-judgement differs. The raw probability is left out: under one digest the probability follows
from it, and rows from before calibration have none."""
_ROWS_A_STATEMENT = 400
_ROWS_COPIED_AT_ONCE = 64
_KEYED_BY_DIGEST = frozenset({tables.texts.name, tables.verdicts.name})
_project_and_digest = itemgetter(0, 1)
_LOCK = 7_233_188_020_411_973_002
"""PostgreSQL advisory lock: writers share it; deleting unreferenced rows holds it exclusively."""


def write(connection: Connection, rows: LedgerRows, rest: Callable[[], None]) -> None:
    """Write rows; the caller commits. `rest` is called between parts of long work, see `SQLLedger`."""
    rows = _drop_duplicate_requests(rows)
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SELECT pg_advisory_xact_lock_shared(%s)", (_LOCK,))
    else:
        rest = do_not_rest  # SQLite has a single writer, which would keep others waiting
    for table, given in (
        (tables.texts, rows.texts),
        (tables.verdicts, rows.verdicts),
        (tables.responses, rows.responses),
        (tables.uses, rows.uses),
    ):
        if given:
            add(connection, table, cast("Sequence[tuple[Any, ...]]", given), rest)
    if rows.requests:
        add_figures(connection, rows, _add_requests(connection, rows.requests), rest)


def lock_out_writers(connection: Connection) -> None:
    """Wait for all writers and block new ones until the transaction ends; SQLite's lock does so already."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))


def _add_requests(connection: Connection, rows: Sequence[RequestRow]) -> set[RowKey]:
    """Insert requests; return the keys of those that were new."""
    keys = list(tables.requests.primary_key)
    added = insert_into(tables.requests, connection).on_conflict_do_nothing().returning(*keys)
    return {tuple(row) for row in connection.execute(added, [row._asdict() for row in sorted(rows, key=_key_of)])}


def _drop_duplicate_requests(rows: LedgerRows) -> LedgerRows:
    """Drop the rows of repeated requests, which were sent again under the same key."""
    if len({_key_of(row) for row in rows.requests}) == len(rows.requests):
        return rows
    return rows._replace(
        requests=_first_by_key(rows.requests, 3),
        responses=_first_by_key(rows.responses, 4),
        uses=_first_by_key(rows.uses, 6),
        signals=_first_by_key(rows.signals, 5),
    )


def _first_by_key(rows: Sequence[_RowT], key: int) -> list[_RowT]:
    """The first row of each key; the key is the first `key` columns."""
    first: dict[RowKey, _RowT] = {}
    for row in rows:
        first.setdefault(row[:key], row)
    return [*first.values()]


def _key_of(row: RequestRow) -> RowKey:
    return row[:3]


def add(
    connection: Connection, table: Table, rows: Sequence[tuple[Any, ...]], rest: Callable[[], None] = do_not_rest
) -> None:
    """Insert rows of one table other than requests; the caller commits."""
    staging = _STAGING_TABLES[table.name]
    server = connection.dialect.name == "postgresql"
    if server:
        connection.execute(CreateTable(staging, if_not_exists=True))
        _copy(connection, staging, rows, rest)
        added = connection.execute(_insert_missing(connection, table, select(staging))).rowcount
    else:
        added = _insert(connection, table, rows)
    if table is tables.verdicts and added < len(rows):
        if not server:
            connection.execute(CreateTable(staging, if_not_exists=True))
            connection.execute(delete(staging))
            _insert(connection, staging, rows)
        same = (staging.c.project_id == table.c.project_id) & (staging.c.digest == table.c.digest)
        differs = or_(*(staging.c[name].is_distinct_from(table.c[name]) for name in _COMPARED_COLUMNS))
        later = select(staging).join(table, same).where(differs)
        connection.execute(_insert_missing(connection, tables.rejudgements, later))


def _copy(connection: Connection, table: Table, rows: Sequence[tuple[Any, ...]], rest: Callable[[], None]) -> None:
    cursor: Any = connection.connection.cursor()
    with cursor, cursor.copy(f"COPY {table.name} FROM STDIN") as copy:
        for start in range(0, len(rows), _ROWS_COPIED_AT_ONCE):
            rest()
            for row in rows[start : start + _ROWS_COPIED_AT_ONCE]:
                copy.write_row(row)


def _insert(connection: Connection, table: Table, rows: Sequence[tuple[Any, ...]]) -> int:
    """Insert the missing rows into SQLite; return how many.

    Statements insert hundreds of rows, because between statements SQLite's driver lets other threads run and waits.
    Digests come in random order; rows with one in their key are inserted in its order, which finds each page once.
    Most of the cost is passing values, so a value that all rows of a statement share is passed once.
    """
    if table.name in _KEYED_BY_DIGEST:
        rows = sorted(rows, key=_project_and_digest)
    cursor = connection.connection.cursor()
    added = 0
    for start in range(0, len(rows), _ROWS_A_STATEMENT):
        part = rows[start : start + _ROWS_A_STATEMENT]
        columns = list(zip(*part, strict=True))
        shared = tuple([column[0] == column[-1] and column.count(column[0]) == len(column) for column in columns])
        own = [column[1:] for column, same in zip(columns, shared, strict=True) if not same]
        values = [*part[0], *chain.from_iterable(zip(*own, strict=True))]
        cursor.execute(_insert_statement(table, len(part), shared), values)
        added += cursor.rowcount
    return added


@lru_cache(maxsize=256)
def _insert_statement(table: Table, rows: int, shared: tuple[bool, ...]) -> str:
    """Return a statement whose parameters are the first row, and of each other row the columns that are not shared."""
    names = [column.name for column in table.columns]
    first = ",".join("?" for _ in shared)
    other = ",".join(f"?{place}" if same else "?" for place, same in enumerate(shared, start=1))
    values = "),(".join([first, *[other] * (rows - 1)])
    return (
        f"INSERT INTO {table.name} ({','.join(names)}) VALUES ({values}) "  # noqa: S608 - no user's text
        "ON CONFLICT DO NOTHING"
    )


def _insert_missing(connection: Connection, table: Table, rows: Any) -> Executable:
    """Insert the missing rows in key order, so that concurrent writers cannot deadlock."""
    columns = [column.name for column in table.columns]
    ordered = rows.order_by(
        *(rows.selected_columns[key.name] for key in table.primary_key), *_tie_break_columns(rows, table)
    )
    return insert_into(table, connection).from_select(columns, ordered).on_conflict_do_nothing()


def _tie_break_columns(rows: Any, table: Table) -> list[Any]:
    return [rows.selected_columns.request] if table is tables.verdicts else []


def _staging_table(table: Table) -> Table:
    columns = [Column(column.name, column.type) for column in table.columns]
    return Table(
        f"staged_{table.name}", MetaData(), *columns, prefixes=["TEMPORARY"], postgresql_on_commit="DELETE ROWS"
    )


_STAGING_TABLES = {
    table.name: _staging_table(table) for table in (tables.texts, tables.verdicts, tables.responses, tables.uses)
}


def split_by_request(rows: LedgerRows) -> Iterator[LedgerRows]:
    """The rows of each request (project, run, request), with the verdicts and texts that it refers to.

    Rows that belong to no request come last, together.
    """
    requests, responses, uses = _by_key(rows.requests, 3), _by_key(rows.responses, 3), _by_key(rows.uses, 3)
    signals = _by_key(rows.signals, 3)
    texts, verdicts = _by_key(rows.texts, 2), _by_key(rows.verdicts, 2)
    unreferenced = {*texts}, {*verdicts}
    for key in dict.fromkeys((*requests, *responses, *uses)):
        digests = {getattr(each, name) for each in responses[key] for name in TEXTS}
        text_keys = [(key[0], digest) for digest in digests if (key[0], digest) in texts]
        verdict_keys = [
            (key[0], digest) for digest in {use.digest for use in uses[key]} if (key[0], digest) in verdicts
        ]
        unreferenced[0].difference_update(text_keys)
        unreferenced[1].difference_update(verdict_keys)
        yield LedgerRows(
            [row for one in text_keys for row in texts[one]],
            [row for one in verdict_keys for row in verdicts[one]],
            requests[key],
            responses[key],
            uses[key],
            signals[key],
        )
    if any(unreferenced):
        yield LedgerRows(
            [row for one in unreferenced[0] for row in texts[one]],
            [row for one in unreferenced[1] for row in verdicts[one]],
            [],
            [],
            [],
        )


def _by_key(rows: Sequence[_RowT], length: int) -> dict[RowKey, list[_RowT]]:
    """Group rows by their first `length` columns."""
    groups: dict[RowKey, list[_RowT]] = defaultdict(list)
    for row in rows:
        groups[row[:length]].append(row)
    return groups


def write_row_by_row(
    connection: Connection, rows: LedgerRows, reason: Callable[[Exception], str]
) -> RefusedRows | None:
    """Write the rows of a request except those that the database refuses, which are returned; the caller commits.

    `reason` returns why a row is refused, and re-raises an error that is not about the row. The request itself and its
    figures are written last; if they are refused, the error is raised, and the caller must not commit.
    """
    reasons: set[str] = set()

    def write_accepted(table: Table, given: Sequence[_RowT]) -> tuple[list[_RowT], list[_RowT]]:
        """Insert rows, bisecting on errors; return the accepted rows and the refused ones."""
        if not given:
            return [], []
        try:
            with connection.begin_nested():
                add(connection, table, given)
        except Exception as error:  # noqa: BLE001 - `reason` re-raises errors that are not about a row
            message = reason(error)
        else:
            return [*given], []
        if len(given) == 1:
            reasons.add(message)
            return [], [*given]
        middle = len(given) // 2
        first, second = write_accepted(table, given[:middle]), write_accepted(table, given[middle:])
        return first[0] + second[0], first[1] + second[1]

    texts, no_texts = write_accepted(tables.texts, rows.texts)
    verdicts, no_verdicts = write_accepted(tables.verdicts, rows.verdicts)
    responses, no_responses = write_accepted(tables.responses, rows.responses)
    refused_responses = {response[:4] for response in no_responses}
    uses, no_uses = write_accepted(tables.uses, [use for use in rows.uses if use[:4] not in refused_responses])
    write(connection, LedgerRows(texts, verdicts, rows.requests, responses, uses, rows.signals), do_not_rest)
    no_uses += [use for use in rows.uses if use[:4] in refused_responses]
    refused = LedgerRows(no_texts, no_verdicts, [], no_responses, no_uses)
    return RefusedRows(refused, "; ".join(sorted(reasons)[:3])) if reasons else None
