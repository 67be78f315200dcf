"""Connections to SQLite and PostgreSQL, with the same transactions and timeouts on both.

A PostgreSQL server that is stopped or unreachable in the middle of a statement sends nothing, and its driver would wait
forever. These connections close after a timeout instead. The outcome of the statement is then unknown; the server rolls
its transaction back as soon as it notices.

A database that cannot be reached raises `ConnectionError`, whatever the driver and SQLAlchemy call the error.
`blocking_connection` is for work outside an event loop: migrations, and reading a whole database.
"""

import asyncio
import json
import os
import sqlite3
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from time import monotonic, sleep
from typing import Any, TypeVar, cast

import psycopg
from psycopg import waiting
from psycopg.abc import PQGen
from sqlalchemy import (
    URL,
    ColumnElement,
    Connection,
    Engine,
    Table,
    create_engine,
    event,
    make_url,
)
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.exc import ArgumentError, DBAPIError, InterfaceError, OperationalError, SQLAlchemyError
from sqlalchemy.exc import TimeoutError as PoolTimeout
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine, create_async_engine

STATEMENT_TIMEOUT_S = 30.0
"""Seconds that a statement may take on an asynchronous connection. Migrations and the ledger use blocking ones.
Without it, a database server that hangs would block its caller indefinitely."""

BLOCKING_STATEMENT_TIMEOUT_S = 300.0
"""Seconds that a statement may take on a blocking connection: the ledger writes and deletes 10,000s of rows at once."""

_INTERVAL_S = 0.1
_LIBPQ_TIMEOUTS = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}

_statement_timeout_s: ContextVar[float] = ContextVar(
    "rubric_store_statement_timeout_s", default=BLOCKING_STATEMENT_TIMEOUT_S
)

T = TypeVar("T")


def libpq_timeouts(url: URL) -> dict[str, int]:
    """Return libpq's timeouts for a URL, in libpq's units, without those that the URL sets itself.

    Connecting may take 5 seconds; a host that acknowledges nothing is given up after about 15.
    """
    return {name: value for name, value in _LIBPQ_TIMEOUTS.items() if name not in url.query}


@contextmanager
def statement_timeout(seconds: float) -> Iterator[float]:
    """Limit how long a statement may take in the block, for the connections of this thread or task.

    A block around it may have a lower limit, which then holds here too. Yields the limit.
    """
    limit_s = min(seconds, _statement_timeout_s.get())
    token = _statement_timeout_s.set(limit_s)
    try:
        yield limit_s
    finally:
        _statement_timeout_s.reset(token)


class TimeoutConnection(psycopg.Connection[Any]):
    """A blocking connection that raises psycopg's `OperationalError` if the server does not answer in time."""

    def wait(self, gen: PQGen[T], interval: float = _INTERVAL_S, timeout: float | None = None) -> T:
        """Drive one exchange with the server."""
        limit_s = _statement_timeout_s.get() if timeout is None else timeout
        deadline = monotonic() + limit_s
        try:
            return super().wait(gen, interval, limit_s)
        except psycopg.OperationalError as error:
            if monotonic() < deadline or timeout is not None:
                raise
            self.pgconn.finish()
            raise timeout_error(limit_s) from error


class AsyncTimeoutConnection(psycopg.AsyncConnection[Any]):
    """The same for an event loop. Cancelling a statement closes the connection too."""

    async def wait(
        self,
        gen: PQGen[T],
        interval: float = _INTERVAL_S,
        timeout: float | None = None,  # noqa: ASYNC109 - psycopg's parameter
    ) -> T:
        """Drive one exchange with the server."""
        limit_s = min(STATEMENT_TIMEOUT_S, _statement_timeout_s.get())
        try:
            async with asyncio.timeout(limit_s):
                return await waiting.wait_async(gen, self.pgconn.socket, interval=interval, timeout=timeout)
        except TimeoutError as error:
            self.pgconn.finish()
            raise timeout_error(limit_s) from error
        except asyncio.CancelledError:
            self.pgconn.finish()  # psycopg would ask the server to cancel and wait up to ten seconds for it
            raise


def timeout_error(seconds: float) -> psycopg.OperationalError:
    """The error for a server that did not answer in time."""
    return psycopg.OperationalError(f"the database did not answer within {seconds:g} s")


SQLITE = "sqlite+aiosqlite"
POSTGRESQL = "postgresql+psycopg"
_POSTGRESQL_WITHOUT_DRIVER = ("postgresql", "postgres")
WRITES = "rubric_store_writes"
"""Execution option: this transaction will write, so SQLite takes its write lock when it begins."""

_BUSY_TIMEOUT_MS = 30_000
SESSION_SETTINGS = {
    "idle_in_transaction_session_timeout": "60s",
    "tcp_keepalives_idle": "20",
    "tcp_keepalives_interval": "5",
    "tcp_keepalives_count": "4",
    "tcp_user_timeout": "30s",
}
"""Session settings. Our transactions wait for nothing but the database, so an idle one belongs to a lost client."""


_READ_ONLY = "25006"


class DatabaseURLError(ValueError):
    """A database URL that the store cannot use; the message says what to write instead."""


def read_url(url: str) -> URL:
    """Parse a database URL and check that the store can use it.

    Raises:
        DatabaseURLError: not a URL, another database or driver, SQLite in memory, or a SQLite file in a folder that
            does not exist. The message never repeats the URL, which may hold a password.
    """
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise DatabaseURLError(f"this is not a database URL; write {SQLITE}:///path or {POSTGRESQL}://…") from None
    if parsed.drivername in _POSTGRESQL_WITHOUT_DRIVER:
        parsed = parsed.set(drivername=POSTGRESQL)
    if parsed.drivername == SQLITE:
        _check_sqlite_file(parsed.database)
    elif parsed.drivername != POSTGRESQL:
        raise DatabaseURLError(
            f"the database URL begins with {parsed.drivername}://; write {SQLITE}:///path or {POSTGRESQL}://…"
        )
    return parsed


def unwritable_files(database: URL) -> list[Path]:
    """The files of a SQLite database that this process cannot write, or cannot create; none for PostgreSQL.

    They are the database, its write-ahead log `-wal` and the shared memory `-shm`. SQLite opens and reads a database
    that has one it cannot write, and fails only when something is to be written.
    """
    if database.get_backend_name() != "sqlite":
        return []
    files = [Path(f"{database.database}{suffix}") for suffix in ("", "-wal", "-shm")]
    return [file for file in files if not _can_write(file)]


def _can_write(file: Path) -> bool:
    return (file.is_file() and os.access(file, os.W_OK)) if file.exists() else os.access(file.parent, os.W_OK)


class SerializedList(list[Any]):
    """A list with its JSON, which the engines of `open_engine` store as it is.

    JSON is otherwise made while a statement is executed, in one step, during which no other thread runs.
    """

    def __init__(self, items: Iterable[Any]) -> None:
        super().__init__(items)
        self.text = f"[{', '.join([json.dumps(item) for item in self])}]"


def column_json(value: Any) -> str:
    """Write a value of a JSON column."""
    return value.text if isinstance(value, SerializedList) else json.dumps(value)


def open_engine(url: str) -> AsyncEngine:
    """Create an engine for a URL. It connects on first use; the caller disposes of it.

    Raises:
        DatabaseURLError: the store cannot use this URL.
    """
    parsed = read_url(url)
    server = parsed.drivername == POSTGRESQL
    connect_args = {**libpq_timeouts(parsed), "async_creator_fn": AsyncTimeoutConnection.connect} if server else {}
    engine = create_async_engine(parsed, pool_pre_ping=server, connect_args=connect_args, json_serializer=column_json)
    configure_engine(engine.sync_engine)
    return engine


def configure_engine(engine: Engine) -> None:
    """Configure the connections of an engine.

    SQLite: foreign keys, a write-ahead log, waiting for locks, explicit transactions. PostgreSQL: end the transactions
    of clients that are gone. Errors never show statement parameters, which are rubrics, prompts and responses.
    """
    engine.hide_parameters = True
    if engine.dialect.name == "sqlite" and not event.contains(engine, "connect", _on_sqlite_connect):
        event.listen(engine, "connect", _on_sqlite_connect)
        event.listen(engine, "begin", _on_sqlite_begin)
        event.listen(engine, "invalidate", _on_sqlite_invalidate)
    if engine.dialect.name == "postgresql" and not event.contains(engine, "connect", _on_postgresql_connect):
        event.listen(engine, "connect", _on_postgresql_connect)


def _check_sqlite_file(path: str | None) -> None:
    if not path or path == ":memory:" or path.startswith("file:"):
        raise DatabaseURLError(
            f"SQLite must use a file, because memory is not shared between connections; write {SQLITE}:///path"
        )
    folder = Path(path).parent
    if not folder.is_dir():
        raise DatabaseURLError(f"the folder of the SQLite file does not exist; create it first: mkdir -p {folder}")


def _on_sqlite_connect(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # otherwise sqlite3 begins transactions itself, and too late
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT_MS}")
    _use_wal(cursor)
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def _use_wal(cursor: Any) -> None:
    """Switch to a write-ahead log. SQLite refuses at once, without waiting, while another connection does the same."""
    give_up_at = monotonic() + _BUSY_TIMEOUT_MS / 1000
    while True:
        try:
            cursor.execute("PRAGMA journal_mode = WAL")
        except sqlite3.OperationalError as error:
            if "locked" not in str(error) or monotonic() >= give_up_at:
                raise
            sleep(0.01)
        else:
            return


def _on_postgresql_connect(connection: Any, _record: object) -> None:
    """Have the server detect a client whose host is gone, since until then the client's locks block all others.

    By default PostgreSQL probes after two hours of silence and never ends an idle transaction.
    """
    cursor = connection.cursor()
    cursor.execute(
        "SELECT " + ", ".join(f"set_config('{name}', '{value}', false)" for name, value in SESSION_SETTINGS.items())
    )
    cursor.close()
    connection.commit()


def _on_sqlite_begin(connection: Connection) -> None:
    writes = connection.get_execution_options().get(WRITES, False)
    connection.exec_driver_sql("BEGIN IMMEDIATE" if writes else "BEGIN")


def _on_sqlite_invalidate(connection: Any, _record: object, _error: object) -> None:
    """Roll back before a connection is closed whose task was cancelled.

    SQLite keeps a connection that is closed with an open statement, together with its lock on the database.
    """
    with suppress(sqlite3.Error, SQLAlchemyError, ValueError):
        connection.rollback()


@contextmanager
def translate_connection_errors() -> Iterator[None]:
    """Raise `ConnectionError` with a one-line reason if the database cannot be reached, or written, in the block."""
    try:
        yield
    except (OperationalError, InterfaceError, PoolTimeout, OSError) as error:
        raise ConnectionError(describe_error(error)) from error
    except DBAPIError as error:
        if error.connection_invalidated or is_read_only(error.orig):
            raise ConnectionError(describe_error(error)) from error
        raise


def is_read_only(error: BaseException | None) -> bool:
    """Whether PostgreSQL refused to write because the transaction is read-only, as on a standby."""
    return getattr(error, "sqlstate", None) == _READ_ONLY


def describe_error(error: Exception) -> str:
    """The cause of a database's error, in one line."""
    cause = getattr(error, "orig", None) or error
    return f"{type(cause).__name__}: {(str(cause).strip() or 'no reason given').splitlines()[0]}"


@contextmanager
def blocking_connection(url: str, *, writes: bool) -> Iterator[Connection]:
    """Open a connection in one transaction, committed at the end of the block.

    Raises:
        DatabaseURLError: the store cannot use this URL.
    """
    parsed = read_url(url)
    file = parsed.drivername == SQLITE
    engine = create_engine(
        parsed.set(drivername="sqlite") if file else parsed,
        execution_options={WRITES: writes},
        connect_args={} if file else libpq_timeouts(parsed),
    )
    configure_engine(engine)
    try:
        with engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()


def insert_into(table: Table, connection: Connection | AsyncConnection) -> sqlite.Insert:
    """An INSERT that may have an ON CONFLICT clause, which SQLAlchemy has alike, but apart, for each database."""
    if connection.dialect.name == "postgresql":
        return cast(sqlite.Insert, postgresql.insert(table))
    return sqlite.insert(table)


def _replace(_before: ColumnElement[Any], after: ColumnElement[Any]) -> ColumnElement[Any]:
    return after


def upsert(
    table: Table,
    connection: Connection | AsyncConnection,
    merge: Callable[[ColumnElement[Any], ColumnElement[Any]], ColumnElement[Any]] = _replace,
) -> sqlite.Insert:
    """An INSERT of rows by their primary key; columns of a row that exists become `merge(before, after)` of both."""
    added = insert_into(table, connection)
    values = {column.name: merge(column, added.excluded[column.name]) for column in table.c if not column.primary_key}
    return added.on_conflict_do_update(index_elements=list(table.primary_key), set_=values)
