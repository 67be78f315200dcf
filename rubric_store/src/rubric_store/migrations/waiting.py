"""How a migration waits for tables that are in use: shortly, and again later, so that nobody waits long behind it.

Knows PostgreSQL's locks; SQLite has one, whose wait is bounded on every connection. Refuses to know what is migrated.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError

log = logging.getLogger("adjudge")

_LOCK_SQLSTATES = {"55P03", "40P01"}
"""SQLSTATE of a lock that was not had in time, and of a deadlock."""


class TablesInUseError(RuntimeError):
    """Tables that a migration needs to itself stayed in use; nothing was changed."""


@dataclass(frozen=True, slots=True)
class LockRetry:
    """How long a migration waits for a lock at a time, how often it tries, and how long it leaves others between.

    Whoever comes after a statement that waits for a table waits behind it. Half a second is below PostgreSQL's
    `deadlock_timeout`, so that of a migration and a process that wait for each other the migration gives up.
    """

    lock_timeout_s: float = 0.5
    attempts: int = 60
    pause_s: float = 2.0

    def set_lock_timeout(self, connection: Connection) -> None:
        """Have the transaction wait for each lock no longer than this."""
        if connection.dialect.name == "postgresql":
            connection.exec_driver_sql(f"SET LOCAL lock_timeout = '{int(self.lock_timeout_s * 1000)}ms'")

    def run_with_retries(self, migrate: Callable[[], None]) -> None:
        """Do a migration, which is one transaction, until it had the tables it needs.

        Raises:
            TablesInUseError: they stayed in use.
        """
        for number in range(1, self.attempts + 1):
            try:
                migrate()
            except OperationalError as error:
                if getattr(error.orig, "sqlstate", None) not in _LOCK_SQLSTATES:
                    raise
                if number == self.attempts:
                    raise TablesInUseError(
                        f"a table stayed in use through {self.attempts} tries; nothing was changed. End the transactions "
                        "that hold it (pg_stat_activity shows since when each runs, by xact_start), and run it again"
                    ) from error
                log.warning("a table is in use; the migration tries again in %g s", self.pause_s)
                time.sleep(self.pause_s)
            else:
                return
