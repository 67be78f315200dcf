"""Bring a database to the schema this package needs: one Alembic tree, shipped inside it, for both databases.

Every function here blocks; from a coroutine, call it through `asyncio.to_thread`. Each run is one
transaction, and runs against one database wait for each other, so that several hosts may start at once.
Refuses to know when to migrate: whoever deploys decides.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, create_engine, func, select

from rubric_store.database import SQLITE, WRITES, prepare, read_url

_LOCK = 7_233_188_020_411_973_001  # PostgreSQL advisory lock, any number as long as all hosts use the same


class UnknownRevisionError(RuntimeError):
    """The database was migrated by a newer adjudge-store than this one."""


def upgrade(url: str, revision: str = "head") -> None:
    """Migrate to a revision, the newest unless given; nothing happens where it is that already.

    Raises:
        DatabaseURLError: the store cannot use this URL.
        UnknownRevisionError: the database is newer than this package.
        alembic.util.CommandError: there is no such revision.
    """
    _run(url, lambda config: command.upgrade(config, revision))


def downgrade(url: str, revision: str) -> None:
    """Migrate back to a revision (`base`: before the first); what later revisions held is lost.

    Raises:
        DatabaseURLError: the store cannot use this URL.
        UnknownRevisionError: the database is newer than this package.
        alembic.util.CommandError: there is no such revision, or the database is older than it.
    """
    _run(url, lambda config: command.downgrade(config, revision))


def current(url: str) -> str | None:
    """The revision a database is at; None before the first migration."""
    with _connection(url, writes=False) as connection:
        return _revision(connection)


def head() -> str:
    """The newest revision this package knows."""
    newest = ScriptDirectory.from_config(_config()).get_current_head()
    if newest is None:
        raise RuntimeError("the migrations are missing from this installation; reinstall adjudge-store")
    return newest


def is_current(url: str) -> bool:
    """Whether a database is at the newest revision this package knows."""
    return current(url) == head()


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", "rubric_store:migrations")
    return config


def _run(url: str, migrate: Callable[[Config], None]) -> None:
    config = _config()
    with _connection(url, writes=True) as connection:
        if connection.dialect.name == "postgresql":
            connection.execute(select(func.pg_advisory_xact_lock(_LOCK)))
        _check_known(_revision(connection))
        config.attributes["connection"] = connection
        migrate(config)


@contextmanager
def _connection(url: str, *, writes: bool) -> Iterator[Connection]:
    parsed = read_url(url)
    if parsed.drivername == SQLITE:
        parsed = parsed.set(drivername="sqlite")
    engine = create_engine(parsed, execution_options={WRITES: writes})
    prepare(engine)
    try:
        with engine.begin() as connection:
            yield connection
    finally:
        engine.dispose()


def _revision(connection: Connection) -> str | None:
    return MigrationContext.configure(connection).get_current_revision()


def _check_known(revision: str | None) -> None:
    known = {script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()}
    if revision is not None and revision not in known:
        raise UnknownRevisionError(
            f"the database is at revision {revision}, which this adjudge-store does not know: a newer one "
            "migrated it. Install that version (or newer), or restore a backup made before the migration."
        )
