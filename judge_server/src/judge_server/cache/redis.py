"""Verdicts in Redis: one round trip to read many, one to write many, each entry with a time to live.

Where Redis does not answer within a second, nothing is known and nothing is kept, which the log says: verdicts cost
judge calls then, but no request fails.
"""

import json
import logging
from collections.abc import Mapping, Sequence
from dataclasses import astuple

from redis.asyncio import Redis
from redis.exceptions import RedisError

from judge_server.ports import Finding

log = logging.getLogger("adjudge")

_PREFIX = b"adjudge:verdict:1:"
_TIMEOUT_S = 1.0


class RedisCache:
    """Findings as small JSON arrays under `adjudge:verdict:1:<digest>`, shared by every process on that Redis."""

    def __init__(self, url: str, *, ttl_s: int = 7 * 24 * 3600) -> None:
        self._redis = Redis.from_url(url, socket_timeout=_TIMEOUT_S, socket_connect_timeout=_TIMEOUT_S)
        self._ttl_s = ttl_s

    async def get_many(self, digests: Sequence[bytes]) -> Mapping[bytes, Finding]:
        """The findings known for these digests, by one MGET."""
        if not digests:
            return {}
        try:
            values = await self._redis.mget([_PREFIX + digest for digest in digests])
        except (RedisError, OSError) as error:
            log.warning("the verdict cache cannot be read: %s", error)
            return {}
        return {d: Finding(*json.loads(v)) for d, v in zip(digests, values, strict=True) if v is not None}

    async def put_many(self, findings: Mapping[bytes, Finding]) -> None:
        """Store findings by one pipeline; SET NX leaves one that is there."""
        try:
            async with self._redis.pipeline(transaction=False) as pipeline:
                for digest, finding in findings.items():
                    pipeline.set(_PREFIX + digest, json.dumps(astuple(finding)), nx=True, ex=self._ttl_s)
                await pipeline.execute()
        except (RedisError, OSError) as error:
            log.warning("%d verdicts were not cached: %s", len(findings), error)

    async def ready(self) -> bool:
        """Whether Redis answers a ping."""
        try:
            return bool(await self._redis.ping())
        except (RedisError, OSError):
            return False

    async def close(self) -> None:
        """Release the connections; the entries stay."""
        await self._redis.aclose()
