"""Migrate a database to the schema that this package needs, on SQLite and PostgreSQL.

One Alembic tree, shipped inside the package, serves both databases. Every function blocks; from a coroutine, call it
through `asyncio.to_thread`. Each run is one transaction, and concurrent runs against one database wait for each other,
so several hosts may start at once.

Alembic is imported where it is used, since it takes a fifth of a second: a process whose database is up to date starts
without it.
"""

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from sqlalchemy import Connection, column, func, inspect, select, table

from rubric_store.database import blocking_connection
from rubric_store.migrations import schema_status
from rubric_store.migrations.schema_status import (
    LockRetry,
    Revision,
    SchemaState,
    SchemaStatus,
    TablesInUseError,
    revision_number,
    revisions,
    script_config,
)

if TYPE_CHECKING:
    from alembic.config import Config

__all__ = [
    "LockRetry",
    "Revision",
    "SchemaState",
    "SchemaStatus",
    "TablesInUseError",
    "UnknownRevisionError",
    "current",
    "downgrade",
    "head",
    "is_current",
    "read_status",
    "revisions",
    "upgrade",
]

_LOCK = 7_233_188_020_411_973_001  # PostgreSQL advisory lock; any number that all hosts share

_LOCK_RETRY = LockRetry()

_VERSION = table("alembic_version", column("version_num"))
"""Alembic's own table, with one row once a revision has run."""


class UnknownRevisionError(RuntimeError):
    """A newer adjudge-store migrated the database to a revision that this one does not work with."""


def upgrade(url: str, revision: str = "head", *, lock_retry: LockRetry = _LOCK_RETRY) -> None:
    """Upgrade to a revision, by default the newest.

    Does nothing if the database is at that revision or, by default, at a newer one that this package works on.

    Raises:
        DatabaseURLError: the store cannot use this URL.
        UnknownRevisionError: the database is newer than this package.
        TablesInUseError: a table stayed locked by other transactions.
        alembic.util.CommandError: the revision does not exist.
    """

    from alembic import command

    def migrate(connection: Connection, config: "Config") -> None:
        status = _read_status(connection)
        if status.state == "ahead" and revision == "head":
            return
        _check_known(status)
        command.upgrade(config, revision)

    _run(url, migrate, lock_retry)


def downgrade(url: str, revision: str, *, lock_retry: LockRetry = _LOCK_RETRY) -> None:
    """Downgrade to a revision (`base`: before the first). Data of later revisions is lost.

    Raises:
        DatabaseURLError: the store cannot use this URL.
        UnknownRevisionError: the database is newer than this package.
        TablesInUseError: a table stayed locked by other transactions.
        alembic.util.CommandError: the revision does not exist, or the database is older than it.
    """

    from alembic import command

    def migrate(connection: Connection, config: "Config") -> None:
        _check_known(_read_status(connection))
        command.downgrade(config, revision)

    _run(url, migrate, lock_retry)


def read_status(url: str) -> SchemaStatus:
    """Read the schema status of a database: its revision, and whether this package works on it.

    Raises:
        DatabaseURLError: the store cannot use this URL.
    """
    with blocking_connection(url, writes=False) as connection:
        return _read_status(connection)


def is_current(url: str) -> bool:
    """Whether a database is at the newest revision of this package, read without loading Alembic.

    Raises:
        DatabaseURLError: the store cannot use this URL.
    """
    return current(url) == head()


def current(url: str) -> str | None:
    """The revision of a database; None before the first migration."""
    with blocking_connection(url, writes=False) as connection:
        return _revision(connection)


def head() -> str:
    """The newest revision of this package, from the names of their files."""
    names = sorted(file.name for file in (Path(__file__).parent / "versions").glob("v*_*.py"))
    if not names:
        raise RuntimeError(schema_status.NO_MIGRATIONS)
    return names[-1].removeprefix("v").partition("_")[0]


def _run(url: str, migrate: "Callable[[Connection, Config], None]", lock_retry: LockRetry) -> None:
    def run() -> None:
        config = script_config()
        with blocking_connection(url, writes=True) as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
            lock_retry.set_lock_timeout(connection)
            config.attributes["connection"] = connection
            migrate(connection, config)
            _record_compatibility(connection)

    lock_retry.run_with_retries(run)


def _revision(connection: Connection) -> str | None:
    if not inspect(connection).has_table(_VERSION.name):
        return None
    return connection.execute(select(_VERSION.c.version_num)).scalar_one_or_none()


def _read_status(connection: Connection) -> SchemaStatus:
    known = revisions()
    revision = _revision(connection)
    at = revision_number(known, revision)
    if at is None:
        return SchemaStatus(revision, schema_status.read_works_from(connection, revision or ""), known)
    return SchemaStatus(revision, known[at - 1].works_from if at else None, known)


def _record_compatibility(connection: Connection) -> None:
    """Record in the database which code works on it; a record of a newer package's revision stays."""
    status = _read_status(connection)
    if revision_number(status.revisions, status.revision):
        schema_status.write_compatibility(connection, status.revision, status.works_from)


def _check_known(status: SchemaStatus) -> None:
    if revision_number(status.revisions, status.revision) is None:
        raise UnknownRevisionError(
            f"the database is at revision {status.revision}, which this adjudge-store does not have: a newer version "
            "migrated it. Install that version or a newer one, or restore a backup made before the migration."
        )
