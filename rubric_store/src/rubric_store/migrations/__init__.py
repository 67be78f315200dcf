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

from rubric_store.blocking import connected
from rubric_store.migrations import generation
from rubric_store.migrations.scripts import Step, place, script_config, steps
from rubric_store.migrations.states import Standing, State
from rubric_store.migrations.waiting import LockPatience, TablesInUseError

__all__ = [
    "LockPatience",
    "Standing",
    "State",
    "Step",
    "TablesInUseError",
    "UnknownRevisionError",
    "current",
    "downgrade",
    "head",
    "standing",
    "steps",
    "upgrade",
]

_LOCK = 7_233_188_020_411_973_001  # PostgreSQL advisory lock, any number as long as all hosts use the same

_PATIENCE = LockPatience()


class UnknownRevisionError(RuntimeError):
    """The database was migrated by a newer adjudge-store than this one, which it does not work with."""


def upgrade(url: str, revision: str = "head", *, patience: LockPatience = _PATIENCE) -> None:
    """Migrate to a revision, the newest unless given; nothing happens where it is that already.

    Nor does anything where a newer package migrated it in a way that this one works with, and no revision is given.

    Raises:
        DatabaseURLError: the store cannot use this URL.
        UnknownRevisionError: the database is newer than this package.
        TablesInUseError: others would not let go of a table.
        alembic.util.CommandError: there is no such revision.
    """

    def migrate(connection: Connection, config: Config) -> None:
        found = _standing(connection)
        if found.state == "ahead" and revision == "head":
            return
        _check_known(found)
        command.upgrade(config, revision)

    _run(url, migrate, patience)


def downgrade(url: str, revision: str, *, patience: LockPatience = _PATIENCE) -> None:
    """Migrate back to a revision (`base`: before the first); what later revisions held is lost.

    Raises:
        DatabaseURLError: the store cannot use this URL.
        UnknownRevisionError: the database is newer than this package.
        TablesInUseError: others would not let go of a table.
        alembic.util.CommandError: there is no such revision, or the database is older than it.
    """

    def migrate(connection: Connection, config: Config) -> None:
        _check_known(_standing(connection))
        command.downgrade(config, revision)

    _run(url, migrate, patience)


def standing(url: str) -> Standing:
    """Where a database stands, and whether this package works on it as it is.

    Raises:
        DatabaseURLError: the store cannot use this URL.
    """
    with connected(url, writes=False) as connection:
        return _standing(connection)


def current(url: str) -> str | None:
    """The revision a database is at; None before the first migration."""
    with connected(url, writes=False) as connection:
        return _revision(connection)


def head() -> str:
    """The newest revision this package knows."""
    return steps()[-1].revision


def _run(url: str, migrate: Callable[[Connection, Config], None], patience: LockPatience) -> None:
    def run() -> None:
        config = script_config()
        with connected(url, writes=True) as connection:
            if connection.dialect.name == "postgresql":
                connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
            patience.bound(connection)
            config.attributes["connection"] = connection
            migrate(connection, config)
            _note(connection)

    patience.keep_trying(run)


def _revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _standing(connection: Connection) -> Standing:
    known = steps()
    revision = _revision(connection)
    at = place(known, revision)
    if at is None:
        return Standing(revision, generation.noted(connection, revision or ""), known)
    return Standing(revision, known[at - 1].works_from if at else None, known)


def _note(connection: Connection) -> None:
    """Say in the database what code works on it; what a newer package said of its own revision stays."""
    found = _standing(connection)
    if place(found.steps, found.revision):
        generation.note(connection, found.revision, found.works_from)


def _check_known(found: Standing) -> None:
    if place(found.steps, found.revision) is None:
        raise UnknownRevisionError(
            f"the database is at revision {found.revision}, which this adjudge-store does not know: a newer one "
            "migrated it. Install that version (or newer), or restore a backup made before the migration."
        )
