"""Engines for the two databases, so that transactions mean the same on both.

Knows how to connect, and what SQLite must be told on every connection. Knows no table.
"""

from pathlib import Path
from typing import Any

from sqlalchemy import URL, Connection, Engine, event, make_url
from sqlalchemy.exc import ArgumentError
from sqlalchemy.ext.asyncio import AsyncEngine, create_async_engine

from rubric_store.patience import AsyncTimeoutConnection, libpq_timeouts

SQLITE = "sqlite+aiosqlite"
POSTGRESQL = "postgresql+psycopg"
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
"""Settings of a session. No transaction of ours waits for anything but the database for even a second."""


class DatabaseURLError(ValueError):
    """A database URL that the store cannot use; the message says what to write instead."""


def read_url(url: str) -> URL:
    """Parse a database URL and check that the store can use it.

    Raises:
        DatabaseURLError: no URL, another database or driver, SQLite in memory, or a SQLite file in a folder
            that does not exist. The message never repeats the URL, since it may hold a password.
    """
    try:
        parsed = make_url(url)
    except ArgumentError:
        raise DatabaseURLError(f"this is no database URL; write {SQLITE}:///path or {POSTGRESQL}://…") from None
    if parsed.drivername == SQLITE:
        _check_sqlite_file(parsed.database)
    elif parsed.drivername != POSTGRESQL:
        raise DatabaseURLError(
            f"the database URL begins with {parsed.drivername}://; write {SQLITE}:///path or {POSTGRESQL}://…"
        )
    return parsed


def open_engine(url: str) -> AsyncEngine:
    """Make an engine for the database at a URL; it connects when first used, and the caller disposes of it.

    Raises:
        DatabaseURLError: the store cannot use this URL.
    """
    parsed = read_url(url)
    server = parsed.drivername == POSTGRESQL
    connect_args = {**libpq_timeouts(parsed), "async_creator_fn": AsyncTimeoutConnection.connect} if server else {}
    engine = create_async_engine(parsed, pool_pre_ping=server, connect_args=connect_args)
    configure_engine(engine.sync_engine)
    return engine


def configure_engine(engine: Engine) -> None:
    """Have SQLite connections keep foreign keys, wait for locks, log ahead and begin as told.

    PostgreSQL is told to end the transactions of a client that vanished.

    No error shows the parameters of its statement: they are rubrics, prompts and responses.
    """
    engine.hide_parameters = True
    if engine.dialect.name == "sqlite" and not event.contains(engine, "connect", _on_sqlite_connect):
        event.listen(engine, "connect", _on_sqlite_connect)
        event.listen(engine, "begin", _on_sqlite_begin)
    if engine.dialect.name == "postgresql" and not event.contains(engine, "connect", _on_postgresql_connect):
        event.listen(engine, "connect", _on_postgresql_connect)


def _check_sqlite_file(path: str | None) -> None:
    if not path or path == ":memory:" or path.startswith("file:"):
        raise DatabaseURLError(
            f"rubrics need a SQLite file, since memory is not shared between connections; write {SQLITE}:///path"
        )
    folder = Path(path).parent
    if not folder.is_dir():
        raise DatabaseURLError(f"the folder of the SQLite file does not exist; create it first: mkdir -p {folder}")


def _on_sqlite_connect(connection: Any, _record: object) -> None:
    connection.isolation_level = None  # sqlite3 would otherwise begin transactions by itself, and late
    cursor = connection.cursor()
    cursor.execute(f"PRAGMA busy_timeout = {_BUSY_TIMEOUT_MS}")
    cursor.execute("PRAGMA journal_mode = WAL")
    cursor.execute("PRAGMA foreign_keys = ON")
    cursor.close()


def _on_postgresql_connect(connection: Any, _record: object) -> None:
    """Have the server find out about a client whose host is gone: until it does, that one's locks hold up all others.

    By itself PostgreSQL asks after two hours of silence, and lets a transaction stay idle for good.
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
