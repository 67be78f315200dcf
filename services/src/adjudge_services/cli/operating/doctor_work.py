"""The checks of `adjudge doctor`."""

import sys
from collections.abc import Callable, Coroutine
from datetime import UTC, datetime
from typing import Any
from urllib.parse import urlsplit

from redis.asyncio import Redis
from redis.exceptions import RedisError

from adjudge_services.cli.operating.endpoint import ask_easily
from adjudge_services.judges import build_engine, judge_links
from adjudge_services.settings import Settings
from adjudge_services.store import operation_store, prepare_store
from adjudge_services.wiring import check_queue, has_usable_key, keys_required
from judge_server.cache import cache_from_url
from judge_server.errors import EngineStartError
from judge_server.operations.queues import QUEUE
from judge_server.ports import JudgeResult
from judge_server.remote.executor import JudgeClient, JudgeUnavailable, identity_digest
from rubric_store import RubricStore

REDIS_TIMEOUT_S = 3.0
"""Timeout for asking the queue's server."""

MAX_CHUNK_WAIT_S = 900
"""Seconds that a chunk may wait before doctor warns; the same as in the alert."""


class CheckWarning(str):
    """A warning: what works but should be changed, and how."""

    __slots__ = ()


async def queue(settings: Settings) -> str:
    """Check that the broker answers, and that it neither evicts messages nor refuses them when its memory is full."""
    check_queue(settings)
    if settings.queue_url == "memory://":
        return "memory://: the service runs operations itself"
    address = urlsplit(settings.queue_url)
    where = f"{address.hostname}:{address.port or 6379}{address.path}"
    connection = Redis.from_url(
        settings.queue_url, socket_connect_timeout=REDIS_TIMEOUT_S, socket_timeout=REDIS_TIMEOUT_S
    )
    try:
        memory = await connection.info("memory")
        waiting = int(await connection.llen(QUEUE))
    except RedisError as error:
        raise RuntimeError(f"{where} cannot be used: {error}. Check ADJUDGE_QUEUE_URL, or start the server") from error
    finally:
        await connection.aclose()
    policy = memory.get("maxmemory_policy", "noeviction")
    remedy = "Run CONFIG SET maxmemory-policy volatile-lru there, or use a separate server for the queue"
    if policy.startswith("allkeys"):
        return CheckWarning(
            f"{where} may evict any key when its memory is full ({policy}); if it evicts queued chunks, operations are "
            f"delayed. {remedy}"
        )
    cache = urlsplit(settings.cache_url)
    is_shared = (cache.hostname, cache.port or 6379) == (address.hostname, address.port or 6379)
    if policy == "noeviction" and memory.get("maxmemory") and is_shared:
        return CheckWarning(
            f"{where} holds the verdict cache too and evicts nothing (noeviction); once verdicts fill its memory, no "
            f"chunk can be queued. {remedy}"
        )
    return f"{where}, {waiting} queued"


async def operations(settings: Settings) -> str:
    """Check that operations can be read and progress, and that the model that writes rubrics, if set, answers."""
    await prepare_store(settings)
    store = operation_store(settings)
    now = datetime.now(UTC)
    try:
        counts = await store.counts(now)
    except ConnectionError as error:
        raise RuntimeError(f"the store cannot be read: {error}. Check ADJUDGE_DATABASE_URL") from error
    finally:
        await store.close()
    writer = await _writer(settings)
    waited = 0 if counts.oldest_due_at is None else int((now - counts.oldest_due_at).total_seconds())
    waiting = sum(number for (_, state), number in counts.chunks.items() if state == "queued")
    if waited > MAX_CHUNK_WAIT_S:
        return CheckWarning(
            f"{waiting} chunks are waiting, the oldest for {waited // 60} minutes; start more workers, or see "
            f"docs/runbooks/operations-stuck.md if none are finished; {writer}"
        )
    return f"{waiting} chunks are waiting; {writer}"


async def _writer(settings: Settings) -> str:
    if settings.writer_url is None:
        return "no model writes rubrics (ADJUDGE_WRITER_URL is not set)"
    engine = build_engine(settings, settings.writer_url)
    try:
        return f"{(await engine.start()).model} writes rubrics"
    except EngineStartError as error:
        raise RuntimeError(f"the model that writes rubrics: {error}. Check ADJUDGE_WRITER_URL") from error
    finally:
        await engine.close()


async def keys(settings: Settings) -> str:
    """Check that a usable key exists if keys are required."""
    if not keys_required(settings):
        return f"not required on {settings.host}"
    await prepare_store(settings)
    if not await has_usable_key(settings):
        raise RuntimeError(
            f"on {settings.host} every request needs a key, and there is no usable one; create one with: "
            "adjudge keys create --scope score"
        )
    return f"required on {settings.host}, and a usable one exists"


async def judges(settings: Settings) -> str:
    """Check that all judges in ADJUDGE_JUDGES answer, speak this protocol version, and are identical under one name."""
    found, problems = [], []
    for name, links in judge_links(settings).items():
        seen: dict[str, str] = {}
        for link in links:
            try:
                model, digest = await _judge_process(link)
                seen.setdefault(digest, link.url)
                found.append(f"{name} at {link.url}: {model}")
            except (EngineStartError, JudgeUnavailable) as error:
                problems.append(str(error))
            finally:
                await link.close()
        if len(seen) > 1:
            problems.append(
                f"the judge processes of {name!r} differ in model, weights or server: {', '.join(seen.values())}. Only "
                "those identical to the first that answers are used; start all of them with the same model"
            )
    if problems:
        raise RuntimeError("; ".join(problems))
    return "; ".join(found)


async def _judge_process(link: JudgeClient) -> tuple[str, str]:
    handshake = await link.handshake()
    if handshake.identity is None or not handshake.ready:
        raise JudgeUnavailable(
            f"the judge at {link.url} is not ready yet; wait until its model is loaded, or see its log"
        )
    return handshake.identity.model, identity_digest(handshake.identity)


Check = Callable[[Settings], Coroutine[Any, Any, str]]


STYLES = {"ok": "green", "warning": "yellow", "wrong": "bold red", "not checked": "dim"}


async def _python(settings: Settings) -> str:
    return sys.version.split()[0]


async def _store(settings: Settings) -> str:
    await prepare_store(settings)
    store = RubricStore(settings.store_url)
    try:
        if not await store.ready():
            raise RuntimeError("the store cannot be read; check ADJUDGE_DATABASE_URL")
    finally:
        await store.close()
    return settings.store_url.partition("@")[2] or settings.store_url


async def _cache(settings: Settings) -> str:
    cache = cache_from_url(settings.cache_url)
    try:
        if not await cache.ready():
            raise RuntimeError("the cache cannot be reached; check ADJUDGE_CACHE_URL")
    finally:
        await cache.close()
    return settings.cache_url.rpartition("@")[2]


async def _secret(settings: Settings) -> str:
    length = len(settings.fencing_secret())
    if length < 16:
        raise RuntimeError("ADJUDGE_FENCE_SECRET is shorter than 16 bytes; set a longer one")
    return f"{length} bytes"


async def _judge(settings: Settings) -> str:
    """Load the engine and ask it an easy question."""
    engine = build_engine(settings)
    try:
        identity = await engine.start()
        verdict = await ask_easily(engine, min_choice_mass=settings.min_choice_mass)
        if not isinstance(verdict, JudgeResult):
            raise RuntimeError(f"the model gave no verdict: {verdict.detail}")
        if verdict.probability is None:
            return f"{identity.model}: answers {'yes' if verdict.score else 'no'}, without probabilities"
        mass = "unknown" if verdict.choice_mass is None else f"{verdict.choice_mass:.2f}"
        return f"{identity.model}: P(yes) {verdict.probability:.2f}, choice mass {mass}"
    finally:
        await engine.close()


COMMON_CHECKS: dict[str, Check] = {
    "python": _python,
    "rubric store": _store,
    "verdict cache": _cache,
    "fence secret": _secret,
    "keys": keys,
    "queue": queue,
    "operations": operations,
}
PREREQUISITES = {"keys": {"rubric store"}, "operations": {"rubric store"}}
LOCAL_CHECKS: dict[str, Check] = {"judge": _judge}
REMOTE_CHECKS: dict[str, Check] = {"judges": judges}
