"""API keys: what a key may do and how often, how one is made, and how a presented one is looked up."""

import asyncio
import base64
import hashlib
import hmac
import logging
import re
import secrets
import time
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import NamedTuple

from judge_server.errors import NotReady, RateLimited
from judge_server.observability.logs import describe_error
from judge_server.ports import ApiKeyStore
from rubric_store.tenants.rows import DEFAULT_PROJECT, ApiKeyRecord
from trainer_client.wire.tenants import ApiKey, Limits

RATE_REDIS_TIMEOUT_S = 0.2
"""Timeout for Redis to count a request of a project that has a rate limit. After it, each process counts by itself. If
it is higher, a Redis that hangs slows every such request."""

_PREFIX = "adjudge:rate:1:"
_MINUTE_US = 60_000_000

_COUNT = """
local seconds, micros = unpack(redis.call('TIME'))
local now, each, most = seconds * 1000000 + micros, tonumber(ARGV[1]), tonumber(ARGV[2])
local full = tonumber(redis.call('GET', KEYS[1]) or now)
local ahead = math.max(full, now) + each - now
if ahead > most then return math.ceil(ahead - most) end
redis.call('SET', KEYS[1], string.format('%.0f', now + ahead), 'PX', math.ceil(ahead / 1000))
return 0
"""
"""Stores the time, in microseconds, at which a project's bucket is full again. Each request moves it forward by its
share of a minute; a request that would move it beyond a minute from now exceeds the rate."""


class TokenBucket:
    """A bucket of up to `size` tokens, refilled at `per_second` and full at first. `clock` returns seconds."""

    def __init__(self, size: float, per_second: float, clock: Callable[[], float]) -> None:
        self.size, self.per_second = size, per_second
        self._clock = clock
        self._level = size
        self._refilled_at = clock()

    def take(self) -> float:
        """Take a token and return 0; if there is none, return the seconds until there is one."""
        now = self._clock()
        self._level = min(self.size, self._level + (now - self._refilled_at) * self.per_second)
        self._refilled_at = now
        if self._level >= 1.0:
            self._level -= 1.0
            return 0.0
        return (1.0 - self._level) / self.per_second


class LocalRateLimiter:
    """Counts the requests of projects in this process, with a bucket of a minute's requests for each."""

    def __init__(self, clock: Callable[[], float], max_projects: int = 10_000) -> None:
        self._clock = clock
        self._max_projects = max_projects
        self._buckets: OrderedDict[str, TokenBucket] = OrderedDict()

    async def wait_for(self, project_id: str, per_minute: int) -> float:
        """Count a request and return 0, or return the seconds until it is within the rate."""
        bucket = self._buckets.get(project_id)
        if bucket is None or bucket.size != per_minute:
            bucket = self._buckets[project_id] = TokenBucket(per_minute, per_minute / 60.0, self._clock)
        self._buckets.move_to_end(project_id)
        while len(self._buckets) > self._max_projects:
            self._buckets.popitem(last=False)
        return bucket.take()

    async def close(self) -> None:
        """Do nothing: there is nothing to release."""


class RedisRateLimiter:
    """Counts the requests of projects over all processes on one Redis.

    After `timeout_s` seconds without an answer, this process counts alone.
    """

    def __init__(
        self, url: str, clock: Callable[[], float] = time.monotonic, *, timeout_s: float = RATE_REDIS_TIMEOUT_S
    ) -> None:
        from judge_server.resilient_redis import ResilientRedis  # slow to import, and needed by this limiter only

        self._redis = ResilientRedis(url, timeout_s, clock)
        self._count = self._redis.client.register_script(_COUNT)
        self._local = LocalRateLimiter(clock)

    async def wait_for(self, project_id: str, per_minute: int) -> float:
        """Count a request and return 0, or return the seconds until it is within the rate."""
        key, each = _PREFIX + project_id, f"{_MINUTE_US / per_minute:.3f}"
        wait_us = await self._redis.execute(
            lambda: self._count(keys=[key], args=[each, _MINUTE_US]), "rates are counted by this process alone"
        )
        return await self._local.wait_for(project_id, per_minute) if wait_us is None else float(wait_us) / 1e6

    async def close(self) -> None:
        """Close the connections; the counts stay for a minute."""
        await self._redis.close()


SCOPE_PERMISSIONS: Mapping[str, frozenset[str]] = {
    "read": frozenset({"read"}),
    "score": frozenset({"read", "score"}),
    "rubrics:write": frozenset({"read", "rubrics:write"}),
    "labels:write": frozenset({"read", "labels:write"}),
    "projects:write": frozenset({"read", "projects:write"}),
    "judges:write": frozenset({"read", "judges:write"}),
    "metrics": frozenset({"metrics"}),
    "admin": frozenset({"read", "score", "rubrics:write", "labels:write", "admin"}),
}
"""The permissions of each scope of a key. Only `metrics`, `projects:write` and `judges:write` concern all projects."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The caller of a request.

    Attributes:
        project_id: the project whose rubrics, runs and verdicts it can access.
        actor: the name in the audit log for changes it makes.
        permissions: what it may do.
        limits: the limits of its project.
    """

    project_id: str
    actor: str
    permissions: frozenset[str]
    limits: Limits = field(default=Limits())

    @classmethod
    def of(cls, key: ApiKey, limits: Limits) -> "Identity":
        """The identity of a key's holder."""
        permissions = frozenset().union(*(SCOPE_PERMISSIONS.get(scope, frozenset()) for scope in key.scopes))
        return cls(key.project_id, f"key {key.id}", permissions, limits)


ANONYMOUS = Identity(DEFAULT_PROJECT, "without a key", frozenset().union(*SCOPE_PERMISSIONS.values()))
"""The identity of callers without a key, on a service that requires none."""

_CURRENT_IDENTITY: ContextVar[Identity] = ContextVar("adjudge_identity", default=ANONYMOUS)


def current_identity() -> Identity:
    """The identity that this task works for."""
    return _CURRENT_IDENTITY.get()


@contextmanager
def identity_context(identity: Identity) -> Iterator[None]:
    """Set the current identity in the block and in tasks that start there."""
    token = _CURRENT_IDENTITY.set(identity)
    try:
        yield
    finally:
        _CURRENT_IDENTITY.reset(token)


def project_salt() -> str:
    """The `cache_salt` of the current identity's project, so that projects share no verdict; empty for the default."""
    project_id = current_identity().project_id
    return "" if project_id == DEFAULT_PROJECT else project_id


_ID_BYTES = 10
_SECRET_BYTES = 32
_KEY = re.compile(r"adj_([a-z2-7]{16})_([A-Za-z0-9_-]{43})")

log = logging.getLogger("adjudge")

DUMMY_DIGEST = bytes(32)
"""The digest to compare with if a key does not exist, so that the check takes the same time; no text has it."""

CACHE_TTL_S = 5.0
"""The seconds for which a key is cached; a revoked key may keep working for this long. A lower value queries the store
more often."""

STALE_TTL_S = 600.0
"""The seconds for which a cached key keeps working while the store cannot be reached. A lower value stops training
when the database stops; a higher one keeps revoked keys valid."""

_STORE_TIMEOUT_S = 5.0
_MAX_KEYS = 10_000
_NEW_IDS_AT_ONCE = 100
_NEW_IDS_PER_SECOND = 20.0


class NewKey(NamedTuple):
    """A newly created key. Its text is shown once; its id and digest are stored."""

    text: str
    id: str
    digest: bytes


def make_key() -> NewKey:
    """Create a random key."""
    key_id = base64.b32encode(secrets.token_bytes(_ID_BYTES)).decode().lower()
    text = f"adj_{key_id}_{secrets.token_urlsafe(_SECRET_BYTES)}"
    return NewKey(text, key_id, key_digest(text))


def parse_key_id(text: str) -> str | None:
    """The id in a key; None if the text does not have the form of a key."""
    match = _KEY.fullmatch(text)
    return match[1] if match else None


def key_digest(text: str) -> bytes:
    """The digest under which a key is stored, 32 bytes."""
    return hashlib.sha256(text.encode()).digest()


def key_matches(text: str, digest: bytes) -> bool:
    """Whether a text is the key with this digest, compared in constant time."""
    return hmac.compare_digest(key_digest(text), digest)


class _CachedKey(NamedTuple):
    record: ApiKeyRecord | None
    at: float


class ApiKeyCache:
    """A cache of the keys in a store. `clock` returns seconds."""

    def __init__(self, key_store: ApiKeyStore, clock: Callable[[], float]) -> None:
        self._key_store = key_store
        self._clock = clock
        self._keys: OrderedDict[str, _CachedKey] = OrderedDict()
        self._unknown: OrderedDict[str, _CachedKey] = OrderedDict()
        self._loading: dict[str, asyncio.Future[ApiKeyRecord | None]] = {}
        self._new_ids = TokenBucket(_NEW_IDS_AT_ONCE, _NEW_IDS_PER_SECOND, clock)

    async def find(self, key_id: str) -> ApiKeyRecord | None:
        """Find a key by its id; return None if it does not exist.

        Raises:
            RateLimited: too many ids that were never seen before.
            NotReady: the store cannot be read, and the key was not seen recently.
        """
        cached = self._keys.get(key_id) or self._unknown.get(key_id)
        if cached is not None and self._clock() - cached.at < CACHE_TTL_S:
            return cached.record
        loading = self._loading.get(key_id)
        if loading is None:
            if key_id not in self._keys and (wait := self._new_ids.take()):
                raise RateLimited(
                    "too many different keys are being tried; try again later", retry_after_s=int(wait) + 1
                )
            loading = self._loading[key_id] = asyncio.ensure_future(self._load(key_id))
            loading.add_done_callback(lambda _: self._loading.pop(key_id, None))
        return await asyncio.shield(loading)

    async def _load(self, key_id: str) -> ApiKeyRecord | None:
        try:
            async with asyncio.timeout(_STORE_TIMEOUT_S):
                record = await self._key_store.find_key(key_id)
        except Exception as error:
            cached = self._keys.get(key_id)
            if cached is not None and self._clock() - cached.at < STALE_TTL_S:
                log.warning("API keys cannot be read (%s); a recently seen key keeps working", describe_error(error))
                return cached.record
            raise NotReady("Keys cannot be checked now: the store does not answer.", retry_after_s=2) from error
        self._keys.pop(key_id, None)
        self._unknown.pop(key_id, None)
        table = self._unknown if record is None else self._keys
        table[key_id] = _CachedKey(record, self._clock())
        while len(table) > _MAX_KEYS:
            table.popitem(last=False)
        return record
