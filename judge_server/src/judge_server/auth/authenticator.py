"""Authenticate requests, limit their rate, and count the usage of projects against their budgets.

An unknown key and a key with a wrong secret get the same response. Only a caller with the right secret learns that a
key was revoked or has expired.

Usage is counted in memory and written to the store every few seconds, so the last seconds are lost if the process is
killed. A budget is checked before a request and charged after it, so requests that are running when a budget runs out
are still judged.
"""

import asyncio
import datetime as dt
import logging
import time
from collections import Counter
from collections.abc import Awaitable, Callable, Mapping
from datetime import UTC, date, datetime, timedelta
from math import ceil
from typing import Literal

from judge_server.auth.keys import DUMMY_DIGEST, ApiKeyCache, key_matches, parse_key_id
from judge_server.auth.rates import LocalRateLimiter
from judge_server.errors import BudgetExhausted, Forbidden, NotReady, RateLimited, Unauthorized
from judge_server.observability.logs import describe_error
from judge_server.observability.metrics import AccessMetrics
from judge_server.ports import ANONYMOUS, ApiKeyStore, Identity, RateLimiter
from rubric_store.tenants.rows import ApiKeyRecord, TokenUsage

log = logging.getLogger("adjudge")

STORED_USAGE_TTL_S = 5.0
"""The seconds for which a project's stored usage is cached; other processes add to it meanwhile."""

MAX_TOKENS_PER_REQUEST = 2**40
"""The maximum number of prompt tokens counted for one request, so that the sum of a day cannot overflow a database
integer, whatever number a judge reports."""

WORKER_PREFIX = "adjwork_"
"""The prefix of worker tokens; no API key begins with it."""

_STORE_TIMEOUT_S = 5.0
_LAST_USE_RESOLUTION_S = 60.0
_FLUSH_INTERVAL_S = 2.0
_FLUSHES_PER_LIMITS_READ = 5
_BEARER = "bearer "
_HOW_TO_AUTHENTICATE = "set ADJUDGE_API_KEY, or send the header Authorization: Bearer adj_…"


class UsageMeter:
    """Counts usage by project and day. `clock` returns seconds, `now` the current time in UTC."""

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
        """Count a judged request of a project and the prompt tokens that the engine computed for it.

        The number of tokens is clamped to the range from 0 to `MAX_TOKENS_PER_REQUEST`.
        """
        tokens = min(max(0, tokens), MAX_TOKENS_PER_REQUEST)
        self._metrics.count_request(project_id, tokens)
        self._requests[project_id, self._today()] += 1
        self._tokens[project_id, self._today()] += tokens

    def key_used(self, key_id: str) -> None:
        """Record that a key was used now, with a resolution of a minute."""
        now = self._now()
        last = self._last_noted.get(key_id)
        if last is None or (now - last).total_seconds() >= _LAST_USE_RESOLUTION_S:
            self._used_keys[key_id] = self._last_noted[key_id] = now

    async def check_budget(self, identity: Identity) -> None:
        """Reject a request if a budget of its project is spent.

        Raises:
            BudgetExhausted: a budget is spent; the message says when it renews.
            NotReady: the usage could not be read from the store and is not cached.
        """
        limits, project_id, today = identity.limits, identity.project_id, self._today()
        if limits.tokens_per_day is None and limits.tokens_total is None:
            return
        used = await self.used(project_id)
        if limits.tokens_total is not None and self._is_spent(project_id, "total", limits.tokens_total, used.total):
            raise BudgetExhausted(
                f"project {project_id} has used its total budget of {limits.tokens_total} prompt tokens; the operator "
                f"of this service can raise it: adjudge projects limits {project_id} --tokens-total N"
            )
        if limits.tokens_per_day is not None and self._is_spent(project_id, "day", limits.tokens_per_day, used.on_day):
            midnight = datetime.combine(today + timedelta(days=1), dt.time(), UTC)
            raise BudgetExhausted(
                f"project {project_id} has used its daily budget of {limits.tokens_per_day} prompt tokens; the next "
                f"day begins at {midnight:%Y-%m-%dT%H:%MZ}",
                retry_after_s=int((midnight - self._now()).total_seconds()) + 1,
            )

    async def used(self, project_id: str) -> TokenUsage:
        """The prompt tokens computed for a project today and in total: those in the store and those counted here.

        Raises:
            NotReady: the usage could not be read from the store and is not cached.
        """
        today = self._today()
        stored = await self._used(project_id, today)
        total = sum(tokens for (project, _), tokens in self._tokens.items() if project == project_id)
        return TokenUsage(stored.on_day + self._tokens[project_id, today], stored.total + total)

    async def flush(self) -> None:
        """Write the counts to the store; counts that cannot be written now are kept for the next flush.

        If the store refuses the counts of a day, they are written project by project, so that one stops no other.
        """
        keys, self._used_keys = self._used_keys, {}
        counted = [(*place, requests, self._tokens[place]) for place, requests in self._requests.items()]
        try:
            if keys:
                await self._key_store.record_key_use(keys)
                keys = {}
            for day in {day for _, day, _, _ in counted}:
                used = {project: (requests, tokens) for project, at, requests, tokens in counted if at == day}
                await self._store_usage(day, used)
        except Exception as error:  # noqa: BLE001 - an unexpected error must not end the flushing task
            self._used_keys = keys | self._used_keys
            log.warning("the usage of projects cannot be stored now (%s)", describe_error(error))

    async def _store_usage(self, day: date, used: Mapping[str, tuple[int, int]]) -> None:
        try:
            await self._key_store.add_usage(day, used)
        except ConnectionError:
            raise
        except Exception as error:  # noqa: BLE001 - whatever the database says about a row
            if len(used) > 1:
                for project_id, counts in used.items():
                    await self._store_usage(day, {project_id: counts})
                return
            log.warning("the usage of project %s cannot be stored (%s)", next(iter(used)), describe_error(error))
            return
        for project_id, (requests, tokens) in used.items():
            self._subtract_flushed(project_id, day, requests, tokens)

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
                message = "The project's usage cannot be read now: the store does not answer."
                raise NotReady(message, retry_after_s=2) from error
            log.warning("the usage of projects cannot be read (%s)", describe_error(error))
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


def _utc_now() -> datetime:
    return datetime.now(UTC)


class Authenticator:
    """Authenticates requests and enforces the limits of projects.

    Args:
        key_store: the store of API keys.
        required: every request needs a key. If false, requests without one act for the project `default` and may do
            anything.
        open_metrics: `/metrics` needs no key.
        clock: returns seconds.
        now: returns the current time in UTC.
        rates: the rate limiter, by default one for this process. The authenticator does not close it.
        worker_tokens: returns the identity for a worker token, or None if the token is invalid.
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
        """Identify the caller by the `Authorization` header.

        Raises:
            Unauthorized: the key is invalid, or missing and required.
            RateLimited, NotReady: the key cannot be looked up now.
        """
        try:
            return await self._identity((authorization or "").strip())
        except Unauthorized:
            self.metrics.count_refusal("", "no key")
            raise

    async def _identity(self, authorization: str) -> Identity:
        has_token = authorization.lower().startswith(_BEARER)
        token = authorization[len(_BEARER) :].strip() if has_token else None
        if token is not None and token.startswith(WORKER_PREFIX):
            return await self._identify_worker(token)
        if token is None or not token.startswith("adj_"):
            if self.required:
                raise Unauthorized(f"This request needs an API key: {_HOW_TO_AUTHENTICATE}.")
            return ANONYMOUS
        key_id = parse_key_id(token)
        record = None if key_id is None else await self._keys.find(key_id)
        if not key_matches(token, DUMMY_DIGEST if record is None else record.digest) or record is None:
            raise Unauthorized(f"The API key is unknown; check that it is complete: {_HOW_TO_AUTHENTICATE}.")
        return self._identity_of(record)

    async def identify_session(self, key_id: str) -> Identity:
        """Identify the caller of a session by the id of the key that began it, whose secret was checked then.

        Raises:
            Unauthorized: the key does not exist any more, was revoked or has expired.
            RateLimited, NotReady: the key cannot be looked up now.
        """
        record = await self._keys.find(key_id)
        if record is None:
            raise Unauthorized("The key of this session does not exist any more; sign in with another one.")
        return self._identity_of(record)

    async def end_session(self, key_id: str, session_id: str, expires_at: datetime) -> None:
        """End a session of a key for good, in all processes.

        Raises:
            RateLimited, NotReady: the key cannot be looked up now.
            ConnectionError: the store cannot be written now.
        """
        record = await self._keys.find(key_id)
        if record is not None:
            await self._key_store.end_session(record.key.project_id, session_id, expires_at)

    async def has_ended(self, key_id: str, session_id: str) -> bool:
        """Whether a session of a key was ended, as the store says now; the answer is not cached.

        Raises:
            RateLimited, NotReady: the key cannot be looked up now.
            ConnectionError: the store cannot be read now.
        """
        record = await self._keys.find(key_id)
        return record is None or await self._key_store.has_ended(record.key.project_id, session_id)

    def _identity_of(self, record: ApiKeyRecord) -> Identity:
        state = record.key.state_at(self._now())
        if state != "usable":
            raise Unauthorized(f"This key is {state}; ask the operator of this service for a new one.")
        self.usage.key_used(record.key.id)
        return Identity.of(record.key, record.limits)

    async def _identify_worker(self, token: str) -> Identity:
        identity = None if self._worker_tokens is None else await self._worker_tokens(token)
        if identity is None:
            raise Unauthorized(
                "The worker token is invalid or has expired. All processes of a deployment need the same "
                "ADJUDGE_SIGNING_SECRET, and clocks that agree within a few minutes."
            )
        return identity

    async def admit(self, identity: Identity) -> None:
        """Count a request; raises `RateLimited` if its project exceeds its rate."""
        per_minute = identity.limits.requests_per_minute
        wait = 0 if per_minute is None else ceil(await self._rates.wait_for(identity.project_id, per_minute))
        if wait:
            self.metrics.count_refusal(identity.project_id, "rate")
            raise RateLimited(
                f"project {identity.project_id} may send {per_minute} requests a minute; try again in {wait} s",
                retry_after_s=wait,
            )

    async def run(self) -> None:
        """Store usage and update the metrics of limits regularly until cancelled; then store usage once more."""
        try:
            while True:
                await self._update_limit_metrics()
                for _ in range(_FLUSHES_PER_LIMITS_READ):
                    await asyncio.sleep(_FLUSH_INTERVAL_S)
                    await self.usage.flush()
        finally:
            await self.usage.flush()

    async def _update_limit_metrics(self) -> None:
        try:
            self.metrics.set_limits(await self._key_store.projects())
        except Exception as error:  # noqa: BLE001 - an unexpected error must not end the flushing task
            log.warning("the limits of projects cannot be read (%s)", describe_error(error))


def require_scope(identity: Identity, scope: str) -> None:
    """Raise `Forbidden`, naming the scope, if an identity lacks it."""
    if scope not in identity.permissions:
        raise Forbidden(
            f"This key does not have the scope {scope!r}; create one that has it: adjudge keys create --scope {scope}"
        )
