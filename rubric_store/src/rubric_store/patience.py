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

from psycopg import AsyncConnection, Connection, OperationalError, waiting
from psycopg.abc import PQGen
from sqlalchemy import URL

ANSWERS_S = 30.0
"""Seconds that a statement of an asynchronous connection may take; migrations and the ledger have other connections."""

LONG_ANSWERS_S = 300.0
"""Seconds that a statement of a blocking connection may take: the ledger writes and deletes by the ten thousand."""

_INTERVAL_S = 0.1
_CONNECTING = {
    "connect_timeout": 5,
    "keepalives_idle": 10,
    "keepalives_interval": 5,
    "keepalives_count": 3,
    "tcp_user_timeout": 15_000,
}

_patience_s: ContextVar[float] = ContextVar("rubric_store_patience_s", default=LONG_ANSWERS_S)

T = TypeVar("T")


def connecting(url: URL) -> dict[str, int]:
    """libpq's time limits for a connection to a URL, in its own units, but for those that the URL gives itself.

    Five seconds to connect; and about 15 until a host is given up that does not even acknowledge what is sent to it.
    """
    return {name: value for name, value in _CONNECTING.items() if name not in url.query}


@contextmanager
def answered_within(seconds: float) -> Iterator[None]:
    """In the block, statements of this thread's blocking connections, or of this task's, may take so many seconds."""
    token = _patience_s.set(seconds)
    try:
        yield
    finally:
        _patience_s.reset(token)


class Impatient(Connection[Any]):
    """A blocking connection; raises psycopg's `OperationalError` where no answer comes in time."""

    def wait(self, gen: PQGen[T], interval: float = _INTERVAL_S, timeout: float | None = None) -> T:
        """Drive one exchange with the server."""
        most = _patience_s.get() if timeout is None else timeout
        until = monotonic() + most
        try:
            return super().wait(gen, interval, most)
        except OperationalError as error:
            if monotonic() < until or timeout is not None:
                raise
            self.pgconn.finish()
            raise unanswered(most) from error


class AsyncImpatient(AsyncConnection[Any]):
    """The same for an event loop. Whoever stops waiting, by a deadline of his own, closes the connection too."""

    async def wait(
        self,
        gen: PQGen[T],
        interval: float = _INTERVAL_S,
        timeout: float | None = None,  # noqa: ASYNC109 - it is psycopg's
    ) -> T:
        """Drive one exchange with the server."""
        most = min(ANSWERS_S, _patience_s.get())
        try:
            async with asyncio.timeout(most):
                return await waiting.wait_async(gen, self.pgconn.socket, interval=interval, timeout=timeout)
        except TimeoutError as error:
            self.pgconn.finish()
            raise unanswered(most) from error
        except asyncio.CancelledError:
            self.pgconn.finish()  # psycopg would ask the server to cancel, and wait up to ten seconds for its word
            raise


def unanswered(seconds: float) -> OperationalError:
    """What to raise where the server said nothing for so long."""
    return OperationalError(f"the database has not answered within {seconds:g} s")
