"""A Redis client for what a request can do without: it gives up soon, and does not fail.

If Redis does not answer in time, a command returns None and logs a warning. Redis is not tried again for another
second, so that requests do not all wait for the timeout. A Redis that is full refuses commands that write and answers
the others, so it stays in use.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisConnectionError
from redis.exceptions import OutOfMemoryError, RedisError
from redis.exceptions import TimeoutError as RedisTimeoutError

from judge_server.observability.logs import describe_error

log = logging.getLogger("adjudge")

T = TypeVar("T")

MAX_CONNECTIONS = 16
"""The connections of one process; further commands wait. Without a limit, one pause of Redis opens as many connections
as there are requests, which stay open, and above a hundred the library's own pool fails."""

_COOLDOWN_S = 1.0
_FULL_LOG_INTERVAL_S = 60.0
_REDIS_ERRORS = (RedisError, OSError, RuntimeError)
"""The errors of a command; TimeoutError is an OSError, and uvloop raises RuntimeError for a connection that Redis has
just closed."""


class ResilientRedis:
    """A Redis client that gives up on a command after `timeout_s`. `clock` returns seconds."""

    def __init__(self, url: str, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._timeout_s = timeout_s
        self.client = Redis.from_url(
            url,
            socket_timeout=None,  # with a timeout of its own, the client makes a task for each command that it sends
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 1),  # for a connection that a restarted server has closed
            retry_on_error=[RuntimeError],
        )
        self._semaphore = asyncio.Semaphore(MAX_CONNECTIONS)
        self._clock = clock
        self._cooldown_until = self._full_until = float("-inf")

    async def execute(self, command: Callable[[], Awaitable[T]], failure_message: str) -> T | None:
        """Run a command; on failure log `failure_message` and return None.

        For a second after a failure, commands return None at once.
        """
        async with self._semaphore:
            if self._clock() < self._cooldown_until:
                return None
            try:
                async with asyncio.timeout(self._timeout_s):
                    return await command()
            except OutOfMemoryError:
                if self._clock() >= self._full_until:
                    self._full_until = self._clock() + _FULL_LOG_INTERVAL_S
                    log.warning(
                        "%s: Redis is full and evicts nothing; raise its maxmemory, or run CONFIG SET "
                        "maxmemory-policy volatile-lru there",
                        failure_message,
                    )
                return None
            except _REDIS_ERRORS as error:
                self._cooldown_until = self._clock() + _COOLDOWN_S
                log.warning("%s: %s", failure_message, _safe_reason(error))
                return None

    async def ready(self) -> bool:
        """Whether Redis answers a ping."""
        try:
            async with asyncio.timeout(self._timeout_s):
                return bool(await self.client.ping())
        except _REDIS_ERRORS:
            return False

    async def close(self) -> None:
        """Close the connections."""
        await self.client.aclose()


def _safe_reason(error: Exception) -> str:
    """Describe an error without the stored values: the error replies of Redis repeat the command."""
    return str(error) if isinstance(error, RedisConnectionError | RedisTimeoutError) else describe_error(error)
