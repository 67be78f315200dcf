"""Verdict caches, chosen by URL: `memory://` or `redis://host:port/db`, each with options of its own."""

from urllib.parse import parse_qsl, urlencode, urlsplit

from judge_server.cache.memory import MemoryCache
from judge_server.cache.redis import RedisCache
from judge_server.engines.options import UrlOptions
from judge_server.ports import VerdictCache

_WEEK_S = 7 * 24 * 3600


def cache_from_url(url: str) -> VerdictCache:
    """The cache an URL names: `memory://?entries=&bytes=&ttl_s=`, or `redis://HOST:PORT/DB?ttl_s=`.

    Raises:
        ValueError: the scheme is unknown, and the message lists those that are; or an option is.
    """
    parts = urlsplit(url)
    options = UrlOptions(parts)
    ttl_s = options.integer("ttl_s", _WEEK_S)
    if parts.scheme == "memory":
        entries, size = options.integer("entries", 100_000), options.integer("bytes", 64 * 2**20)
        options.reject_unknown()
        return MemoryCache(entries, max_bytes=size, ttl_s=ttl_s)
    redis = redis_url_of(url)
    if redis is not None:
        return RedisCache(redis, ttl_s=ttl_s)
    raise ValueError(f"cache {url!r} is unknown; use memory:// or redis://HOST:PORT/DB")


def redis_url_of(url: str) -> str | None:
    """The URL of the Redis that a cache's URL names, without options of the cache; None where it names none."""
    parts = urlsplit(url)
    if parts.scheme not in ("redis", "rediss", "unix"):
        return None
    theirs = urlencode([(name, value) for name, value in parse_qsl(parts.query) if name != "ttl_s"])
    return parts._replace(query=theirs).geturl()


__all__ = ["MemoryCache", "RedisCache", "cache_from_url", "redis_url_of"]
