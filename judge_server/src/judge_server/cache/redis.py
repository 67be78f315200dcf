"""Verdicts in Redis: one round trip to read many, one to write many, each entry with a time to live.

Where Redis does not answer within a second, nothing is known and nothing is kept, which the log says: verdicts cost
judge calls then, but no request fails. It is left alone for a second after that, so that not every request waits.
"""

import asyncio
import json
import logging
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import ConnectionError as RedisAway
from redis.exceptions import RedisError
from redis.exceptions import TimeoutError as RedisSlow

from judge_server.ports import Finding
from judge_server.telemetry.redaction import reason

log = logging.getLogger("adjudge")

CONNECTIONS = 16
"""Of a process at most; who finds none free waits for its turn. Without a bound, one pause of Redis opens as many as
there are requests, which stay, and above a hundred the library's own pool fails."""

_PREFIX = b"adjudge:verdict:1:"
_TIMEOUT_S = 1.0
_LEFT_ALONE_S = 1.0
_COMPRESSED_FROM = 512
_AWAY = (RedisError, OSError, RuntimeError)
"""What reading and writing may raise: uvloop has a RuntimeError for a connection that Redis has just dropped."""
_COMPRESSED = b"z"
"""The first byte of a compressed value; JSON begins with a bracket."""


def redis_client(url: str, timeout_s: float) -> Redis:
    """A client that answers or raises within twice `timeout_s`."""
    return Redis.from_url(
        url,
        socket_timeout=timeout_s,
        socket_connect_timeout=timeout_s,
        retry=Retry(NoBackoff(), 1),  # a connection that a restarted server has dropped
        retry_on_error=[RuntimeError],
    )


class RedisCache:
    """Findings as small JSON arrays under `adjudge:verdict:1:<digest>`, shared by every process on that Redis.

    Values of 512 bytes or more, which have long rationales, are compressed. `clock` gives seconds.
    """

    def __init__(self, url: str, *, ttl_s: int = 7 * 24 * 3600, clock: Callable[[], float] = time.monotonic) -> None:
        self._redis = redis_client(url, _TIMEOUT_S)
        self._turns = asyncio.Semaphore(CONNECTIONS)
        self._ttl_s = ttl_s
        self._clock = clock
        self._alone_until = float("-inf")

    async def get_many(self, digests: Sequence[bytes]) -> Mapping[bytes, Finding]:
        """The findings known for these digests, by one MGET."""
        if not digests:
            return {}
        async with self._turns:
            if self._is_left_alone():
                return {}
            try:
                values = await self._redis.mget([_PREFIX + digest for digest in digests])
            except _AWAY as error:
                self._leave_alone()
                log.warning("the verdict cache cannot be read: %s", _why(error))
                return {}
        return {d: _decoded(v) for d, v in zip(digests, values, strict=True) if isinstance(v, bytes)}

    async def put_many(self, findings: Mapping[bytes, Finding]) -> None:
        """Store findings by one pipeline; SET NX leaves one that is there."""
        if not findings:
            return
        async with self._turns:
            if self._is_left_alone():
                return
            try:
                async with self._redis.pipeline(transaction=False) as pipeline:
                    for digest, finding in findings.items():
                        pipeline.set(_PREFIX + digest, _encoded(finding), nx=True, ex=self._ttl_s)
                    await pipeline.execute()
            except _AWAY as error:
                self._leave_alone()
                log.warning("%d verdicts were not cached: %s", len(findings), _why(error))

    async def ready(self) -> bool:
        """Whether Redis answers a ping."""
        try:
            return bool(await self._redis.ping())
        except _AWAY:
            return False

    async def close(self) -> None:
        """Release the connections; the entries stay."""
        await self._redis.aclose()

    def _is_left_alone(self) -> bool:
        return self._clock() < self._alone_until

    def _leave_alone(self) -> None:
        self._alone_until = self._clock() + _LEFT_ALONE_S


def _why(error: Exception) -> str:
    """What went wrong, without what was being stored: an answer of Redis to a command repeats the command."""
    return str(error) if isinstance(error, RedisAway | RedisSlow) else reason(error)


def _encoded(finding: Finding) -> bytes:
    value = json.dumps(astuple(finding), ensure_ascii=False).encode("utf-8", "surrogatepass")
    return value if len(value) < _COMPRESSED_FROM else _COMPRESSED + zlib.compress(value)


def _decoded(value: bytes) -> Finding:
    if value.startswith(_COMPRESSED):
        value = zlib.decompress(value[1:])
    return Finding(*json.loads(value.decode("utf-8", "surrogatepass")))
