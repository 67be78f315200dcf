"""The schema status of a database: its revision, and whether this version's code works on it.

From revision 0008 on every migration records in the database the oldest code that works on it, so that code which does
not have the database's revision can tell whether it may run.

`LockRetry` lets a migration wait for locked tables repeatedly but briefly, so that it does not block others for long.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from importlib import import_module
from typing import TYPE_CHECKING, Literal, NamedTuple

from sqlalchemy import Connection, MetaData, String, delete, insert, inspect, select
from sqlalchemy.exc import OperationalError

from rubric_store.schema import declare, metadata, required

if TYPE_CHECKING:
    from alembic.config import Config

log = logging.getLogger("adjudge")

NO_MIGRATIONS = "the migrations are missing from this installation; reinstall adjudge-store"

_LOCK_SQLSTATES = {"55P03", "40P01"}
"""SQLSTATEs of a lock timeout and of a deadlock."""


class TablesInUseError(RuntimeError):
    """Tables that a migration must lock stayed in use; nothing was changed."""


@dataclass(frozen=True, slots=True)
class LockRetry:
    """How long a migration waits for a lock, how often it tries, and how long it pauses in between.

    While a statement waits for a table lock, later statements queue behind it. Half a second is below PostgreSQL's
    `deadlock_timeout`, so in a deadlock between a migration and a process the migration gives up.
    """

    lock_timeout_s: float = 0.5
    attempts: int = 60
    pause_s: float = 2.0

    def set_lock_timeout(self, connection: Connection) -> None:
        """Limit how long the transaction waits for each lock."""
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{int(self.lock_timeout_s * 1000)}ms'")

    def run_with_retries(self, migrate: Callable[[], None]) -> None:
        """Run a migration, one transaction, and retry it while tables that it needs are locked.

        Raises:
            TablesInUseError: the tables stayed in use through all attempts.
        """
        for number in range(1, self.attempts + 1):
            try:
                migrate()
            except OperationalError as error:
                if getattr(error.orig, "sqlstate", None) not in _LOCK_SQLSTATES:
                    raise
                if number == self.attempts:
                    raise TablesInUseError(
                        f"a table stayed in use through {self.attempts} attempts; nothing was changed. End the "
                        "transactions that hold it (see xact_start in pg_stat_activity), and run the migration again"
                    ) from error
                log.warning("a table is in use; retrying the migration in %g s", self.pause_s)
                time.sleep(self.pause_s)
            else:
                return


class Revision(NamedTuple):
    """A revision.

    Attributes:
        summary: what the revision does, in one line.
        works_from: the oldest head whose code works on a database at this revision. A revision that declares none
            only adds, so all code that worked before it still works.
        loses: what downgrading from it loses, as the end of a sentence.
    """

    revision: str
    summary: str
    works_from: str
    loses: str


def script_config() -> "Config":
    """The Alembic configuration that finds the revisions."""
    from alembic.config import Config

    config = Config()
    config.set_main_option("script_location", "rubric_store:migrations")
    return config


def revisions() -> tuple[Revision, ...]:
    """Every revision, oldest first."""
    from alembic.script import ScriptDirectory

    found: list[Revision] = []
    for script in reversed(list(ScriptDirectory.from_config(script_config()).walk_revisions())):
        before = found[-1].works_from if found else script.revision
        works_from = getattr(script.module, "works_from", before)
        summary = (script.doc or "").split("\n")[0]
        found.append(Revision(script.revision, summary, works_from, script.module.loses))
    if not found:
        raise RuntimeError(NO_MIGRATIONS)
    return tuple(found)


def revision_number(known_revisions: tuple[Revision, ...], revision: str | None) -> int | None:
    """The number of a revision, from 1; 0 for None, and None for an unknown revision."""
    if revision is None:
        return 0
    return next((number for number, step in enumerate(known_revisions, start=1) if step.revision == revision), None)


SchemaState = Literal["current", "behind", "ahead", "too new"]


@dataclass(frozen=True, slots=True)
class SchemaStatus:
    """The schema of a database, compared with this code.

    Attributes:
        revision: the database's revision; None before its first migration.
        works_from: the oldest head whose code works on the database; None if unknown.
        revisions: all revisions of this code, oldest first.
    """

    revision: str | None
    works_from: str | None
    revisions: tuple[Revision, ...]

    @property
    def head(self) -> str:
        """The revision that this code was written for."""
        return self.revisions[-1].revision

    @property
    def state(self) -> SchemaState:
        """`ahead`: a newer schema that this code works on. `too new`: one that it does not work on, or may not."""
        number = revision_number(self.revisions, self.revision)
        if number is not None:
            return "current" if number == len(self.revisions) else "behind"
        return "ahead" if revision_number(self.revisions, self.works_from or "") is not None else "too new"

    @property
    def usable(self) -> bool:
        """Whether this code may run on the database as it is."""
        return self.state in ("current", "ahead")

    @property
    def pending(self) -> tuple[Revision, ...]:
        """The revisions that a migration would apply, in order."""
        number = revision_number(self.revisions, self.revision)
        return () if number is None else self.revisions[number:]

    @property
    def supports_rolling_upgrade(self) -> bool:
        """Whether processes whose head is the database's revision keep working after the pending revisions."""
        if self.revision is None or not self.pending:
            return True
        needed = revision_number(self.revisions, self.revisions[-1].works_from) or 0
        return needed <= (revision_number(self.revisions, self.revision) or 0)

    def downgrade_path(self, to: str) -> tuple[Revision, ...]:
        """The revisions that a downgrade to a revision undoes, newest first.

        Raises:
            LookupError: the database is not after that revision, or this code does not have one of the two.
        """
        target = 0 if to == "base" else revision_number(self.revisions, to)
        number = revision_number(self.revisions, self.revision)
        if number is None:
            raise LookupError(
                f"the database is at {self.revision}, which a newer version created; downgrade with that version"
            )
        if target is None:
            known = ", ".join(["base", *(step.revision for step in self.revisions)])
            raise LookupError(f"there is no revision {to!r}; use one of {known}")
        if target >= number:
            raise LookupError(f"the database is at {self.revision or 'base'}, which is not after {to}")
        return self.revisions[target:number][::-1]


schema_generation = declare("schema_generation", required(String(32), "revision"), required(String(32), "works_from"))
"""One row: the database's revision, and the oldest head whose code works on it."""


_TABLE_MODULES = (
    "calibrations",
    "idempotency",
    "ledger.tables",
    "operations.database",
    "repository",
    "rubrics.tables",
    "tenants.tables",
)


def all_tables() -> MetaData:
    """The tables of every feature, each of which is in a module of the feature."""
    for name in _TABLE_MODULES:
        import_module(f"rubric_store.{name}")
    return metadata


def write_compatibility(connection: Connection, revision: str | None, works_from: str | None) -> None:
    """Record the revision; does nothing if the schema is too old to have the table."""
    if _table_exists(connection):
        connection.execute(delete(schema_generation))
        connection.execute(insert(schema_generation).values(revision=revision, works_from=works_from))


def read_works_from(connection: Connection, revision: str) -> str | None:
    """The oldest head whose code works on a database at this revision; None if that is not recorded."""
    if not _table_exists(connection):
        return None
    found = select(schema_generation.c.works_from).where(schema_generation.c.revision == revision)
    return connection.execute(found).scalar_one_or_none()


def _table_exists(connection: Connection) -> bool:
    return inspect(connection).has_table(schema_generation.name)
