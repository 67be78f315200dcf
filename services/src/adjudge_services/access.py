"""Who may reach this process: whether it needs keys, and the gate that looks them up.

Whether keys are needed depends on where a process listens, never on where a request comes from: behind a proxy on the
same host everybody comes from loopback.
"""

import getpass
import time
from datetime import UTC, datetime

from adjudge_services.settings import Settings
from judge_server.access import Authenticator
from judge_server.access.buckets import LocalRateLimiter
from judge_server.access.redis_rates import RedisRateLimiter
from judge_server.cache import redis_url_of
from judge_server.operations.passes import WorkerAuthenticator, WorkerTokens
from judge_server.ports import RateLimiter
from judge_server.web.hosts import is_loopback
from rubric_store import TenantStore


def keys_required(settings: Settings) -> bool:
    """Whether every request needs a key: where the settings say so, and wherever others than this host can reach."""
    return settings.keys == "required" or not is_loopback(settings.host)


def build_rate_limiter(settings: Settings) -> RateLimiter:
    """What counts the requests of projects: for all processes where they share a Redis, else for this one."""
    redis = redis_url_of(settings.cache_url)
    return LocalRateLimiter(time.monotonic) if redis is None else RedisRateLimiter(redis)


def build_authenticator(settings: Settings, tenants: TenantStore, rates: RateLimiter) -> Authenticator:
    """The gate in front of the API."""
    worker_tokens = WorkerAuthenticator(WorkerTokens(settings.fencing_secret()), tenants)
    open_metrics = settings.metrics == "open"
    return Authenticator(
        tenants, required=keys_required(settings), open_metrics=open_metrics, rates=rates, worker_tokens=worker_tokens
    )


async def has_usable_key(settings: Settings) -> bool:
    """Whether the store has a key that opens anything; the store must be ready."""
    tenants = TenantStore(settings.store_url)
    try:
        now = datetime.now(UTC)
        return any(key.state_at(now) == "usable" for key in await tenants.keys())
    finally:
        await tenants.close()


def command_line_user() -> str:
    """Who is named in the audit for what a command changes."""
    try:
        return f"command line, {getpass.getuser()}"
    except (KeyError, OSError):  # a user id without a name
        return "command line"
