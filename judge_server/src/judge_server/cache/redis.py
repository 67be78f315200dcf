"""Verdicts in Redis: one round trip to read many, one to write many, each entry with a time to live.

Where Redis does not answer within a second, nothing is known and nothing is kept, which the log says: verdicts cost
judge calls then, but no request fails. It is left alone for a second after that, so that not every request waits.
"""

import json
import time
import zlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import astuple, fields, replace
from typing import Any

from judge_server.cache.patient_redis import ResilientRedis
from judge_server.ports import JudgeResult

_PREFIX = b"adjudge:verdict:1:"
_TIMEOUT_S = 1.0
_COMPRESSED_FROM = 512
_COMPRESSED = b"z"
"""The first byte of a compressed value; JSON begins with a bracket."""
_FIELDS = len(fields(JudgeResult))


class RedisCache:
    """Findings as small JSON arrays under `adjudge:verdict:1:<digest>`, shared by every process on that Redis.

    The raw probability is left out where it equals the probability, as in values of before calibration, so that
    processes of before and after share them. Values of 512 bytes or more, which have long rationales, are compressed.
    `clock` gives seconds.
    """

    def __init__(self, url: str, *, ttl_s: int = 7 * 24 * 3600, clock: Callable[[], float] = time.monotonic) -> None:
        self._redis = ResilientRedis(url, _TIMEOUT_S, clock)
        self._ttl_s = ttl_s

    async def get_many(self, digests: Sequence[bytes]) -> Mapping[bytes, JudgeResult]:
        """The findings known for these digests, by one MGET."""
        if not digests:
            return {}
        keys = [_PREFIX + digest for digest in digests]
        values = await self._redis.execute(lambda: self._redis.client.mget(keys), "the verdict cache cannot be read")
        if values is None:
            return {}
        return {d: _decoded(v) for d, v in zip(digests, values, strict=True) if isinstance(v, bytes)}

    async def put_many(self, results: Mapping[bytes, JudgeResult]) -> None:
        """Store findings by one pipeline; SET NX leaves one that is there."""

        async def put() -> list[Any]:
            async with self._redis.client.pipeline(transaction=False) as pipeline:
                for digest, result in results.items():
                    pipeline.set(_PREFIX + digest, _encoded(result), nx=True, ex=self._ttl_s)
                return await pipeline.execute()

        if results:
            await self._redis.execute(put, f"{len(results)} verdicts were not cached")

    async def ready(self) -> bool:
        """Whether Redis answers a ping."""
        return await self._redis.ready()

    async def close(self) -> None:
        """Release the connections; the entries stay."""
        await self._redis.close()


def _encoded(result: JudgeResult) -> bytes:
    values = astuple(result)
    if result.raw_probability == result.probability:
        values = values[:-1]
    value = json.dumps(values, ensure_ascii=False).encode("utf-8", "surrogatepass")
    return value if len(value) < _COMPRESSED_FROM else _COMPRESSED + zlib.compress(value)


def _decoded(value: bytes) -> JudgeResult:
    if value.startswith(_COMPRESSED):
        value = zlib.decompress(value[1:])
    values = json.loads(value.decode("utf-8", "surrogatepass"))
    result = JudgeResult(*values)
    return result if len(values) == _FIELDS else replace(result, raw_probability=result.probability)
