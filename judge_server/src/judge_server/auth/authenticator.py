"""Authenticate a request: from the `Authorization` header to the identity that it acts for.

The gate: from the header `Authorization` to whom a request is for, and whether there is room for it.

A key that is unknown and one whose secret is wrong are answered alike. That a key was revoked or has expired is said
only to who has its secret.

What projects use, counted here and brought into the store every few seconds; and whether a budget is spent.

Counts of the last seconds are lost where the process is killed. A budget is checked before a request and counted after
it, so what is on its way when a budget ends is still judged.
"""

import asyncio
import datetime as dt
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from datetime import UTC, date, datetime, timedelta
from math import ceil
from typing import Literal

from judge_server.auth.identity import ANONYMOUS, Identity
from judge_server.auth.keys import DUMMY_DIGEST, ApiKeyCache, key_matches, parse_key_id
from judge_server.auth.rates import LocalRateLimiter
from judge_server.errors import BudgetExhausted, Forbidden, NotReady, RateLimited, Unauthorized
from judge_server.observability.logs import describe_error
from judge_server.observability.metrics import AccessMetrics
from judge_server.ports import ApiKeyStore, RateLimiter
from trainer_client.wire.tenants import TokenUsage

log = logging.getLogger("adjudge")

STORED_USAGE_TTL_S = 5.0
"""How long what the store said of a project's use is believed; other processes use it up meanwhile."""

MAX_TOKENS_PER_REQUEST = 2**40
"""The most prompt tokens that one request is counted with: no sum of a day comes near what a database's integer holds,
whatever a judge says that it computed."""

_STORE_TIMEOUT_S = 5.0
_LAST_USE_RESOLUTION_S = 60.0


class UsageMeter:
    """Counts by project and day. `clock` gives seconds, `now` the moment (UTC)."""

    def __init__(
        self, key_store: ApiKeyStore, clock: Callable[[], float], now: Callable[[], datetime], metrics: AccessMetrics
    ) -> None:
        self._key_store = key_store
        self._metrics = metrics
        self._clock = clock
        self._now = now
        self._requests: Counter[tuple[str, date]] = Counter()
        self._tokens: Counter[tuple[str, date]] = Counter()
        self._stored: dict[tuple[str, date], tuple[float, TokenUsage]] = {}
        self._used_keys: dict[str, datetime] = {}
        self._last_noted: dict[str, datetime] = {}

    def count(self, project_id: str, tokens: int) -> None:
        """A request of a project was judged, and the engine computed so many prompt tokens for it.

        A number below 0 counts as 0, and one above `MAX_TOKENS_PER_REQUEST` as that.
        """
        tokens = min(max(0, tokens), MAX_TOKENS_PER_REQUEST)
        self._metrics.count_request(project_id, tokens)
        self._requests[project_id, self._today()] += 1
        self._tokens[project_id, self._today()] += tokens

    def key_used(self, key_id: str) -> None:
        """A key was used now; kept to the minute."""
        now = self._now()
        if (kept := self._last_noted.get(key_id)) is None or (now - kept).total_seconds() >= _LAST_USE_RESOLUTION_S:
            self._used_keys[key_id] = self._last_noted[key_id] = now

    async def check_budget(self, identity: Identity) -> None:
        """Refuse where a budget of the project is spent.

        Raises:
            BudgetExhausted: it is; says when it begins anew.
            NotReady: the store was never able to tell.
        """
        limits, project_id, today = identity.limits, identity.project_id, self._today()
        if limits.tokens_per_day is None and limits.tokens_total is None:
            return
        used = await self.used(project_id)
        if limits.tokens_total is not None and self._is_spent(project_id, "total", limits.tokens_total, used.total):
            raise BudgetExhausted(
                f"project {project_id} has used the {limits.tokens_total} prompt tokens it may use in all; whoever "
                f"keeps this service can give it more: adjudge projects limits {project_id} --tokens-total N"
            )
        if limits.tokens_per_day is not None and self._is_spent(project_id, "day", limits.tokens_per_day, used.on_day):
            midnight = datetime.combine(today + timedelta(days=1), dt.time(), UTC)
            raise BudgetExhausted(
                f"project {project_id} has used the {limits.tokens_per_day} prompt tokens it may use a day; the next "
                f"day begins at {midnight:%Y-%m-%dT%H:%MZ}",
                retry_after_s=int((midnight - self._now()).total_seconds()) + 1,
            )

    async def used(self, project_id: str) -> TokenUsage:
        """The prompt tokens computed for a project today and ever, as far as this process knows.

        Raises:
            NotReady: the store was never able to tell.
        """
        today = self._today()
        stored = await self._used(project_id, today)
        total = sum(tokens for (project, _), tokens in self._tokens.items() if project == project_id)
        return TokenUsage(stored.on_day + self._tokens[project_id, today], stored.total + total)

    async def flush(self) -> None:
        """Bring what was counted into the store; what cannot be brought there now waits for the next time."""
        keys, self._used_keys = self._used_keys, {}
        counted = [(*place, requests, self._tokens[place]) for place, requests in self._requests.items()]
        try:
            if keys:
                await self._key_store.record_key_use(keys)
                keys = {}
            for day in {day for _, day, _, _ in counted}:
                used = {project: (requests, tokens) for project, at, requests, tokens in counted if at == day}
                await self._key_store.add_usage(day, used)
                for project_id, (requests, tokens) in used.items():
                    self._subtract_flushed(project_id, day, requests, tokens)
        except Exception as error:  # noqa: BLE001 - whatever it is, it must not end what brings the next counts
            self._used_keys = keys | self._used_keys
            log.warning("what projects used cannot be kept now (%s)", describe_error(error))

    def _subtract_flushed(self, project_id: str, day: date, requests: int, tokens: int) -> None:
        place = (project_id, day)
        self._requests[place] -= requests
        self._tokens[place] -= tokens
        if not self._requests[place]:
            del self._requests[place], self._tokens[place]
        if place in self._stored:
            at, stored = self._stored[place]
            self._stored[place] = (at, TokenUsage(stored.on_day + tokens, stored.total + tokens))

    async def _used(self, project_id: str, today: date) -> TokenUsage:
        at, stored = self._stored.get((project_id, today), (float("-inf"), None))
        if stored is not None and self._clock() - at < STORED_USAGE_TTL_S:
            return stored
        try:
            async with asyncio.timeout(_STORE_TIMEOUT_S):
                read = await self._key_store.used_tokens(project_id, today)
        except Exception as error:
            if stored is None:
                message = "What the project has used cannot be read now: the store does not answer."
                raise NotReady(message, retry_after_s=2) from error
            log.warning("what projects used cannot be read (%s)", describe_error(error))
            return stored
        self._stored = {place: kept for place, kept in self._stored.items() if place[1] == today}
        self._stored[project_id, today] = (self._clock(), read)
        return read

    def _is_spent(self, project_id: str, budget: Literal["day", "total"], limit: int, used: int) -> bool:
        self._metrics.set_tokens_left(project_id, budget, limit - used)
        if used >= limit:
            self._metrics.count_refusal(project_id, "budget")
        return used >= limit

    def _today(self) -> date:
        return self._now().astimezone(UTC).date()


WORKER_TOKEN_PREFIX = "adjwork_"  # noqa: S105 - a prefix, and no secret
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
