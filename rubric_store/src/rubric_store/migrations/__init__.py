"""Bring a database to the schema this package needs: one Alembic tree, shipped inside it, for both databases.

Every function here blocks; from a coroutine, call it through `asyncio.to_thread`. Each run is one
transaction, and runs against one database wait for each other, so that several hosts may start at once.
Refuses to know when to migrate: whoever deploys decides.
"""

from collections.abc import Callable

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from sqlalchemy import Connection, func, select

from rubric_store.database import blocking_connection
from rubric_store.migrations import schema_status
from rubric_store.migrations.schema_status import (
    Revision,
    SchemaState,
    SchemaStatus,
    revision_number,
    revisions,
    script_config,
)
from rubric_store.migrations.waiting import LockRetry, TablesInUseError

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
    "read_status",
    "revisions",
    "upgrade",
]

_LOCK = 7_233_188_020_411_973_001  # PostgreSQL advisory lock, any number as long as all hosts use the same

_LOCK_RETRY = LockRetry()


class UnknownRevisionError(RuntimeError):
    """The database was migrated by a newer adjudge-store than this one, which it does not work with."""


def upgrade(url: str, revision: str = "head", *, lock_retry: LockRetry = _LOCK_RETRY) -> None:
    """Migrate to a revision, the newest unless given; nothing happens where it is that already.

    Nor does anything where a newer package migrated it in a way that this one works with, and no revision is given.

    Raises:
        DatabaseURLError: the store cannot use this URL.
        UnknownRevisionError: the database is newer than this package.
        TablesInUseError: others would not let go of a table.
        alembic.util.CommandError: there is no such revision.
    """

    def migrate(connection: Connection, config: Config) -> None:
        found = _read_status(connection)
        if found.state == "ahead" and revision == "head":
            return
        _check_known(found)
        command.upgrade(config, revision)

    _run(url, migrate, lock_retry)


def downgrade(url: str, revision: str, *, lock_retry: LockRetry = _LOCK_RETRY) -> None:
    """Migrate back to a revision (`base`: before the first); what later revisions held is lost.

    Raises:
        DatabaseURLError: the store cannot use this URL.
        UnknownRevisionError: the database is newer than this package.
        TablesInUseError: others would not let go of a table.
        alembic.util.CommandError: there is no such revision, or the database is older than it.
    """

    def migrate(connection: Connection, config: Config) -> None:
        _check_known(_read_status(connection))
        command.downgrade(config, revision)

    _run(url, migrate, lock_retry)


def read_status(url: str) -> SchemaStatus:
    """Where a database stands, and whether this package works on it as it is.

    Raises:
        DatabaseURLError: the store cannot use this URL.
    """
    with blocking_connection(url, writes=False) as connection:
        return _read_status(connection)


def current(url: str) -> str | None:
    """The revision a database is at; None before the first migration."""
    with blocking_connection(url, writes=False) as connection:
        return _revision(connection)


def head() -> str:
    """The newest revision this package knows."""
    return revisions()[-1].revision


def _run(url: str, migrate: Callable[[Connection, Config], None], lock_retry: LockRetry) -> None:
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
    return MigrationContext.configure(connection).get_current_revision()


def _read_status(connection: Connection) -> SchemaStatus:
    known = revisions()
    revision = _revision(connection)
    at = revision_number(known, revision)
    if at is None:
        return SchemaStatus(revision, schema_status.read_works_from(connection, revision or ""), known)
    return SchemaStatus(revision, known[at - 1].works_from if at else None, known)


def _record_compatibility(connection: Connection) -> None:
    """Say in the database what code works on it; what a newer package said of its own revision stays."""
    found = _read_status(connection)
    if revision_number(found.revisions, found.revision):
        schema_status.write_compatibility(connection, found.revision, found.works_from)


def _check_known(found: SchemaStatus) -> None:
    if revision_number(found.revisions, found.revision) is None:
        raise UnknownRevisionError(
            f"the database is at revision {found.revision}, which this adjudge-store does not know: a newer one "
            "migrated it. Install that version (or newer), or restore a backup made before the migration."
        )
