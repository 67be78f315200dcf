"""`LockRetry`: how a migration waits for locked tables: briefly and repeatedly, so that it blocks others only briefly.

It applies to PostgreSQL's locks. SQLite has one lock, whose wait is bounded on every connection.
"""

import logging
import time
from collections.abc import Callable
from dataclasses import dataclass

from sqlalchemy import Connection
from sqlalchemy.exc import OperationalError

log = logging.getLogger("adjudge")

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
