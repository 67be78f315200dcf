"""API keys: how one is made, and how a presented one is looked up."""

import asyncio
import base64
import hashlib
import hmac
import logging
import re
import secrets
from collections import OrderedDict
from collections.abc import Callable
from typing import NamedTuple

from judge_server.auth.rates import TokenBucket
from judge_server.errors import NotReady, RateLimited
from judge_server.observability.logs import describe_error
from judge_server.ports import ApiKeyStore
from rubric_store.tenants.rows import ApiKeyRecord

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
    """A cache of up to `max_keys` keys in a store, and as many ids that are none. `clock` returns seconds."""

    def __init__(self, key_store: ApiKeyStore, clock: Callable[[], float], max_keys: int = 10_000) -> None:
        self._key_store = key_store
        self._clock = clock
        self._max_keys = max_keys
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
        while len(table) > self._max_keys:
            table.popitem(last=False)
        return record
