"""The gate: from the header `Authorization` to whom a request is for, and whether there is room for it.

A key that is unknown and one whose secret is wrong are answered alike. That a key was revoked or has expired is said
only to who has its secret.
"""

import asyncio
import logging
import time
from collections.abc import Awaitable, Callable
from datetime import UTC, datetime
from math import ceil

from judge_server.access.buckets import LocalRateLimiter
from judge_server.access.identity import ANONYMOUS, Identity
from judge_server.access.keys import DUMMY_DIGEST, key_matches, parse_key_id
from judge_server.access.known import ApiKeyCache
from judge_server.access.metrics import AccessMetrics
from judge_server.access.usage import UsageMeter
from judge_server.errors import Forbidden, RateLimited, Unauthorized
from judge_server.ports import ApiKeyStore, RateLimiter
from judge_server.telemetry.redaction import describe_error

log = logging.getLogger("adjudge")

WORKER_TOKEN_PREFIX = "adjwork_"
"""What every pass of a worker begins with, and no key."""

_FLUSH_INTERVAL_S = 2.0
_FLUSHES_PER_LIMITS_READ = 5
_BEARER = "bearer "
_HOW_TO_AUTHENTICATE = "send the header Authorization: Bearer adj_…, or give the client api_key"


def _utc_now() -> datetime:
    return datetime.now(UTC)


class Authenticator:
    """Lets requests in.

    Args:
        ring: the keys.
        required: every request needs a key; else those without one are for the project `default` and may do anything.
        open_metrics: metrics need no key anyway.
        clock: gives seconds.
        now: gives the moment (UTC).
        rates: what counts requests; by this process alone unless given. The gate does not close it.
        passes: whom something other than a key is for, where it is one of our workers' passes.
    """

    def __init__(
        self,
        key_store: ApiKeyStore,
        *,
        required: bool,
        open_metrics: bool = False,
        clock: Callable[[], float] = time.monotonic,
        now: Callable[[], datetime] = _utc_now,
        rates: RateLimiter | None = None,
        worker_tokens: Callable[[str], Awaitable[Identity | None]] | None = None,
    ) -> None:
        self._key_store = key_store
        self._worker_tokens = worker_tokens
        self.required = required
        self.open_metrics = open_metrics
        self.metrics = AccessMetrics()
        self.usage = UsageMeter(key_store, clock, now, self.metrics)
        self._keys = ApiKeyCache(key_store, clock)
        self._rates = rates or LocalRateLimiter(clock)
        self._now = now

    async def identify(self, authorization: str | None) -> Identity:
        """Whom a request is for, by its header.

        Raises:
            Unauthorized: there is no key where one is needed, or one that opens nothing.
            RateLimited, NotReady: it cannot be looked up now.
        """
        try:
            return await self._identity((authorization or "").strip())
        except Unauthorized:
            self.metrics.count_refusal("", "no key")
            raise

    async def _identity(self, given: str) -> Identity:
        text = given[len(_BEARER) :].strip() if given.lower().startswith(_BEARER) else None
        if text is not None and text.startswith(WORKER_TOKEN_PREFIX):
            return await self._identify_worker(text)
        if text is None or not text.startswith("adj_"):
            if self.required:
                raise Unauthorized(f"This needs an API key: {_HOW_TO_AUTHENTICATE}.")
            return ANONYMOUS
        key_id = parse_key_id(text)
        known = None if key_id is None else await self._keys.find(key_id)
        if not key_matches(text, DUMMY_DIGEST if known is None else known.digest) or known is None:
            raise Unauthorized(f"This is no key of this service; check that it is whole: {_HOW_TO_AUTHENTICATE}.")
        state = known.key.state_at(self._now())
        if state != "usable":
            raise Unauthorized(f"This key is {state}; ask whoever keeps this service for another.")
        self.usage.key_used(known.key.id)
        return Identity.of(known.key, known.limits)

    async def _identify_worker(self, text: str) -> Identity:
        identity = None if self._worker_tokens is None else await self._worker_tokens(text)
        if identity is None:
            raise Unauthorized(
                "This is no pass of a worker of this deployment, or it has run out. All its processes need the same "
                "ADJUDGE_FENCE_SECRET, and clocks that agree within some minutes."
            )
        return identity

    async def admit(self, identity: Identity) -> None:
        """Count a request; raises `RateLimited` where its project has had too many."""
        per_minute = identity.limits.requests_per_minute
        wait = 0 if per_minute is None else ceil(await self._rates.wait_for(identity.project_id, per_minute))
        if wait:
            self.metrics.count_refusal(identity.project_id, "rate")
            raise RateLimited(
                f"project {identity.project_id} may send {per_minute} requests a minute; come back in {wait} s",
                retry_after_s=wait,
            )

    async def run(self) -> None:
        """Keep what is used and show the limits there are, until cancelled; then keep it once more."""
        try:
            while True:
                await self._show_limits()
                for _ in range(_FLUSHES_PER_LIMITS_READ):
                    await asyncio.sleep(_FLUSH_INTERVAL_S)
                    await self.usage.flush()
        finally:
            await self.usage.flush()

    async def _show_limits(self) -> None:
        try:
            self.metrics.set_limits(await self._key_store.projects())
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not end what keeps the counts
            log.warning("the limits of projects cannot be read (%s)", describe_error(error))


def require_scope(identity: Identity, scope: str) -> None:
    """Raise `Forbidden`, naming the scope, where an identity does not open it."""
    if scope not in identity.permissions:
        raise Forbidden(
            f"This key does not have the scope {scope!r}; make one that has: adjudge keys create --scope {scope}"
        )
