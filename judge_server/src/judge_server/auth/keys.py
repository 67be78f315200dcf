"""API keys: their form, and a cache of those in the store.

What an API key looks like: `adj_<id>_<secret>`, an id of 80 bits that is no secret and a secret of 256 bits.

The service keeps SHA-256 of the whole text. The secret is random and long, so nobody can try texts until one fits, and
a slow hash, which is for passwords, would only make every request slower.

Keys as the store has them, looked up once in a few seconds, so that neither good nor wrong keys cost it much.

A key that the store does not have is remembered too. Ids never seen before share a bucket: whoever tries many waits,
and keys that are in use do not. While the store is away, a key seen lately opens what it opened.
"""

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
from trainer_client.wire.tenants import ApiKeyRecord

_ID_BYTES = 10
_SECRET_BYTES = 32
_KEY = re.compile(r"adj_([a-z2-7]{16})_([A-Za-z0-9_-]{43})")

DUMMY_DIGEST = bytes(32)
"""Compared with where there is no such key, so that it takes as long; no text has this digest."""


class NewKey(NamedTuple):
    """A key that was just made: its text is shown once, its id and digest are kept."""

    text: str
    id: str
    digest: bytes


def make_key() -> NewKey:
    """A new random key."""
    key_id = base64.b32encode(secrets.token_bytes(_ID_BYTES)).decode().lower()
    text = f"adj_{key_id}_{secrets.token_urlsafe(_SECRET_BYTES)}"
    return NewKey(text, key_id, key_digest(text))


def parse_key_id(text: str) -> str | None:
    """The id in a key; None where the text is no key."""
    match = _KEY.fullmatch(text)
    return match[1] if match else None


def key_digest(text: str) -> bytes:
    """What is kept of a key, 32 bytes."""
    return hashlib.sha256(text.encode()).digest()


def key_matches(text: str, digest: bytes) -> bool:
    """Whether a text is the key with this digest; takes as long wherever they differ."""
    return hmac.compare_digest(key_digest(text), digest)


log = logging.getLogger("adjudge")

CACHE_TTL_S = 5.0
"""How long a looked-up key is taken for what it was: a revoked one may open something for so long."""

STALE_TTL_S = 600.0
"""How long a key goes on without the store."""

_STORE_TIMEOUT_S = 5.0
_MAX_KEYS = 10_000
_NEW_IDS_AT_ONCE = 100
_NEW_IDS_PER_SECOND = 20.0


class _CachedKey(NamedTuple):
    known: ApiKeyRecord | None
    at: float


class ApiKeyCache:
    """The keys of a store. `clock` gives seconds."""

    def __init__(self, key_store: ApiKeyStore, clock: Callable[[], float]) -> None:
        self._key_store = key_store
        self._clock = clock
        self._keys: OrderedDict[str, _CachedKey] = OrderedDict()
        self._unknown: OrderedDict[str, _CachedKey] = OrderedDict()
        self._loading: dict[str, asyncio.Future[ApiKeyRecord | None]] = {}
        self._new_ids = TokenBucket(_NEW_IDS_AT_ONCE, _NEW_IDS_PER_SECOND, clock)

    async def find(self, key_id: str) -> ApiKeyRecord | None:
        """A key by its id; None where there is none.

        Raises:
            RateLimited: too many ids that nobody had used before.
            NotReady: the store cannot be read, and the key was not seen lately.
        """
        cached = self._keys.get(key_id) or self._unknown.get(key_id)
        if cached is not None and self._clock() - cached.at < CACHE_TTL_S:
            return cached.known
        loading = self._loading.get(key_id)
        if loading is None:
            if key_id not in self._keys and (wait := self._new_ids.take()):
                raise RateLimited(
                    "too many different keys are being tried; come back later", retry_after_s=int(wait) + 1
                )
            loading = self._loading[key_id] = asyncio.ensure_future(self._load(key_id))
            loading.add_done_callback(lambda _: self._loading.pop(key_id, None))
        return await asyncio.shield(loading)

    async def _load(self, key_id: str) -> ApiKeyRecord | None:
        try:
            async with asyncio.timeout(_STORE_TIMEOUT_S):
                known = await self._key_store.find_key(key_id)
        except Exception as error:
            cached = self._keys.get(key_id)
            if cached is not None and self._clock() - cached.at < STALE_TTL_S:
                log.warning("keys cannot be read (%s); one that was seen lately goes on", describe_error(error))
                return cached.known
            raise NotReady("Keys cannot be checked now: the store does not answer.", retry_after_s=2) from error
        self._keys.pop(key_id, None)
        self._unknown.pop(key_id, None)
        table = self._unknown if known is None else self._keys
        table[key_id] = _CachedKey(known, self._clock())
        while len(table) > _MAX_KEYS:
            table.popitem(last=False)
        return known
