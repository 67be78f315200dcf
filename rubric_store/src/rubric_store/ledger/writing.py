"""Write rows to the ledger in one transaction, and what remains when the database refuses some of them.

Writes rows into the ledger in one transaction: PostgreSQL by COPY, SQLite by many inserts of one statement.

Rows that are there already stay as they are, so that writing them again does no harm. Of verdicts the first under a
digest stands, and a later one that differs becomes a re-judgement.

What is left to write of rows that the database refuses: request by request, then row by row.

A refused row must cost no other row but those that mean nothing without it. Knows no reason for a refusal: whoever
calls says which errors are about a row.
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import lru_cache
from itertools import chain
from typing import Any, TypeVar, cast

from sqlalchemy import Column, Connection, Executable, MetaData, Table, delete, or_, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.schema import CreateTable

from rubric_store.ledger import tables
from rubric_store.ledger.runs import RowKey, add_figures
from trainer_client.wire.ledger_rows import LedgerRows, RefusedRows, RequestRow

_RowT = TypeVar("_RowT", bound=tuple[Any, ...])

_COMPARED_COLUMNS = ("score", "probability", "menu_mass", "step", "grade", "rationale")
"""What makes a verdict another one. The raw probability does not count: under one digest the other follows from it, and
rows of before calibration have none."""
_ROWS_A_STATEMENT = 400
_LOCK = 7_233_188_020_411_973_002
"""PostgreSQL advisory lock: shared by those who write, held alone by who sweeps what nothing refers to."""


def write(connection: Connection, rows: LedgerRows) -> None:
    """Write rows; the caller commits."""
    rows = _drop_duplicate_requests(rows)
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SELECT pg_advisory_xact_lock_shared(%s)", (_LOCK,))
    for table, given in (
        (tables.texts, rows.texts),
        (tables.verdicts, rows.verdicts),
        (tables.responses, rows.responses),
        (tables.uses, rows.uses),
    ):
        if given:
            add(connection, table, cast("Sequence[tuple[Any, ...]]", given))
    if rows.requests:
        add_figures(connection, rows, _add_requests(connection, rows.requests))


def lock_out_writers(connection: Connection) -> None:
    """Wait until nobody writes, and let nobody begin until the transaction ends; SQLite's lock does so already."""
    if connection.dialect.name == "postgresql":
        connection.exec_driver_sql("SELECT pg_advisory_xact_lock(%s)", (_LOCK,))


def _add_requests(connection: Connection, rows: Sequence[RequestRow]) -> set[RowKey]:
    """Add requests; the keys of those that were not there."""
    make = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    keys = list(tables.requests.primary_key)
    added = make(tables.requests).on_conflict_do_nothing().returning(*keys)
    return {tuple(row) for row in connection.execute(added, [row._asdict() for row in sorted(rows, key=_key_of)])}


def _drop_duplicate_requests(rows: LedgerRows) -> LedgerRows:
    """The rows without those of a request that is among them already: one that was sent again under its key."""
    if len({_key_of(row) for row in rows.requests}) == len(rows.requests):
        return rows
    return rows._replace(
        requests=_first_by_key(rows.requests, 3),
        responses=_first_by_key(rows.responses, 4),
        uses=_first_by_key(rows.uses, 6),
    )


def _first_by_key(rows: Sequence[_RowT], key: int) -> list[_RowT]:
    """The first row of each key, which is what a row begins with."""
    found: dict[RowKey, _RowT] = {}
    for row in rows:
        found.setdefault(row[:key], row)
    return [*found.values()]


def _key_of(row: RequestRow) -> RowKey:
    return row[:3]


def add(connection: Connection, table: Table, rows: Sequence[tuple[Any, ...]]) -> None:
    """Add rows of one table, but not of requests; the caller commits."""
    staging = _STAGING_TABLES[table.name]
    server = connection.dialect.name == "postgresql"
    if server:
        connection.execute(CreateTable(staging, if_not_exists=True))
        _copy(connection, staging, rows)
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


def _copy(connection: Connection, table: Table, rows: Iterable[tuple[Any, ...]]) -> None:
    cursor: Any = connection.connection.cursor()
    with cursor, cursor.copy(f"COPY {table.name} FROM STDIN") as copy:
        for row in rows:
            copy.write_row(row)


def _insert(connection: Connection, table: Table, rows: Sequence[tuple[Any, ...]]) -> int:
    """Insert into SQLite what is not there; how many were not.

    Some hundred rows a statement: between statements SQLite's driver lets other threads run, and waits for them.
    """
    cursor = connection.connection.cursor()
    added = 0
    for start in range(0, len(rows), _ROWS_A_STATEMENT):
        batch = rows[start : start + _ROWS_A_STATEMENT]
        cursor.execute(_insert_statement(table, len(batch)), [*chain.from_iterable(batch)])
        added += cursor.rowcount
    return added


@lru_cache(maxsize=256)
def _insert_statement(table: Table, rows: int) -> str:
    names = [column.name for column in table.columns]
    row = f"({','.join('?' * len(names))})"
    return (
        f"INSERT INTO {table.name} ({','.join(names)}) VALUES {','.join([row] * rows)} "  # noqa: S608 - no user's text
        "ON CONFLICT DO NOTHING"
    )


def _insert_missing(connection: Connection, table: Table, rows: Any) -> Executable:
    """Insert what is not there, in the order of the key: of several writers none waits for one that waits for it."""
    columns = [column.name for column in table.columns]
    ordered = rows.order_by(
        *(rows.selected_columns[key.name] for key in table.primary_key), *_tie_break_columns(rows, table)
    )
    make = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    return make(table).from_select(columns, ordered).on_conflict_do_nothing()


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

    Rows of no request come last, together.
    """
    requests, responses, uses = _by_key(rows.requests, 3), _by_key(rows.responses, 3), _by_key(rows.uses, 3)
    texts, verdicts = _by_key(rows.texts, 2), _by_key(rows.verdicts, 2)
    unreferenced = {*texts}, {*verdicts}
    for key in dict.fromkeys((*requests, *responses, *uses)):
        digests = {d for each in responses[key] for d in (each.rubric, each.prompt, each.response, each.grounding)}
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
    """Rows by their first columns."""
    found: dict[RowKey, list[_RowT]] = defaultdict(list)
    for row in rows:
        found[row[:length]].append(row)
    return found


def write_row_by_row(
    connection: Connection, rows: LedgerRows, reason: Callable[[Exception], str]
) -> RefusedRows | None:
    """Write the rows of a request but for those that are refused, which are returned; the caller commits.

    `reason` says why a row is refused, and raises the error where that is not about the row. The request itself and its
    figures come last: where they are refused, the error is raised, and nothing is to be committed.
    """
    reasons: set[str] = set()

    def write_accepted(table: Table, given: Sequence[_RowT]) -> tuple[list[_RowT], list[_RowT]]:
        """Add what is taken, halving what is not; the rows that were taken, and those that were not."""
        if not given:
            return [], []
        try:
            with connection.begin_nested():
                add(connection, table, given)
        except Exception as error:  # noqa: BLE001 - `reason` raises what is not about a row
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
    write(connection, LedgerRows(texts, verdicts, rows.requests, responses, uses))
    no_uses += [use for use in rows.uses if use[:4] in refused_responses]
    refused = LedgerRows(no_texts, no_verdicts, [], no_responses, no_uses)
    return RefusedRows(refused, "; ".join(sorted(reasons)[:3])) if reasons else None
