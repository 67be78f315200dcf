"""Connections to PostgreSQL that wait for an answer for so long and no longer. Knows no engine and no table.

A server that is stopped or unreachable in the middle of a statement says nothing, and its driver would wait for good.
Here the connection is closed in place of that: what the statement came to is unknown, and a transaction it belonged to
is rolled back by the server, as soon as that notices.
"""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from time import monotonic
from typing import Any, TypeVar

import psycopg
from psycopg import waiting
from psycopg.abc import PQGen
from sqlalchemy import URL

STATEMENT_TIMEOUT_S = 30.0
"""Seconds that a statement of an asynchronous connection may take; migrations and the ledger have other connections."""

BLOCKING_STATEMENT_TIMEOUT_S = 300.0
"""Seconds that a statement of a blocking connection may take: the ledger writes and deletes by the ten thousand."""

_INTERVAL_S = 0.1
_LIBPQ_TIMEOUTS = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}

_statement_timeout_s: ContextVar[float] = ContextVar("rubric_store_patience_s", default=BLOCKING_STATEMENT_TIMEOUT_S)

T = TypeVar("T")


def libpq_timeouts(url: URL) -> dict[str, int]:
    """libpq's time limits for a connection to a URL, in its own units, but for those that the URL gives itself.

    Five seconds to connect; and about 15 until a host is given up that does not even acknowledge what is sent to it.
    """
    return {name: value for name, value in _LIBPQ_TIMEOUTS.items() if name not in url.query}


@contextmanager
def statement_timeout(seconds: float) -> Iterator[None]:
    """In the block, statements of this thread's blocking connections, or of this task's, may take so many seconds."""
    token = _statement_timeout_s.set(seconds)
    try:
        yield
    finally:
        _statement_timeout_s.reset(token)


class TimeoutConnection(psycopg.Connection[Any]):
    """A blocking connection; raises psycopg's `OperationalError` where no answer comes in time."""

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
    """The same for an event loop. Whoever stops waiting, by a deadline of his own, closes the connection too."""

    async def wait(
        self,
        gen: PQGen[T],
        interval: float = _INTERVAL_S,
        timeout: float | None = None,  # noqa: ASYNC109 - it is psycopg's
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
            self.pgconn.finish()  # psycopg would ask the server to cancel, and wait up to ten seconds for its word
            raise


def timeout_error(seconds: float) -> psycopg.OperationalError:
    """What to raise where the server said nothing for so long."""
    return psycopg.OperationalError(f"the database has not answered within {seconds:g} s")
