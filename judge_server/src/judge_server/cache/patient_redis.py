"""A Redis that is asked with patience: few at a time, for a moment, and not again for a while where it did not answer.

Knows nothing of what is asked. Who asks does without where there is no answer: no request fails over Redis.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from typing import TypeVar

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisAway
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisSlow

from judge_server.telemetry.redaction import describe_error

log = logging.getLogger("adjudge")

MAX_CONNECTIONS = 16
"""Of a process at most; who finds none free waits for its turn. Without a bound, one pause of Redis opens as many as
there are requests, which stay, and above a hundred the library's own pool fails."""

_COOLDOWN_S = 1.0
_REDIS_ERRORS = (RedisError, OSError, RuntimeError)
"""What asking may raise: uvloop has a RuntimeError for a connection that Redis has just dropped."""

T = TypeVar("T")


class ResilientRedis:
    """The Redis at a URL, which answers within twice `timeout_s` or not at all. `clock` gives seconds."""

    def __init__(self, url: str, timeout_s: float, clock: Callable[[], float] = time.monotonic) -> None:
        self.client = Redis.from_url(
            url,
            socket_timeout=timeout_s,
            socket_connect_timeout=timeout_s,
            retry=Retry(NoBackoff(), 1),  # a connection that a restarted server has dropped
            retry_on_error=[RuntimeError],
        )
        self._semaphore = asyncio.Semaphore(MAX_CONNECTIONS)
        self._clock = clock
        self._cooldown_until = float("-inf")

    async def execute(self, what: Callable[[], Awaitable[T]], failure_message: str) -> T | None:
        """What it answers; None where it does not, which the log says in the words of `otherwise`.

        It is left alone for a second then, so that not every request waits.
        """
        async with self._semaphore:
            if self._clock() < self._cooldown_until:
                return None
            try:
                return await what()
            except _REDIS_ERRORS as error:
                self._cooldown_until = self._clock() + _COOLDOWN_S
                log.warning("%s: %s", failure_message, _safe_reason(error))
                return None

    async def ready(self) -> bool:
        """Whether it answers a ping."""
        try:
            return bool(await self.client.ping())
        except _REDIS_ERRORS:
            return False

    async def close(self) -> None:
        """Release the connections; what is kept there stays."""
        await self.client.aclose()


def _safe_reason(error: Exception) -> str:
    """What went wrong, without what was being stored: an answer of Redis to a command repeats the command."""
    return str(error) if isinstance(error, RedisAway | RedisSlow) else describe_error(error)
