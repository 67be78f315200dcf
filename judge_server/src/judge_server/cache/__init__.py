"""Verdict caches, chosen by URL: `memory://` or `redis://host:port/db`."""

from urllib.parse import urlsplit

from judge_server.cache.memory import MemoryCache
from judge_server.cache.redis import RedisCache
from judge_server.ports import VerdictCache


def cache_from_url(url: str) -> VerdictCache:
    """The cache an URL names.

    Raises:
        ValueError: the scheme is unknown; the message lists those that are.
    """
    scheme = urlsplit(url).scheme
    if scheme == "memory":
        return MemoryCache()
    if scheme in ("redis", "rediss", "unix"):
        return RedisCache(url)
    raise ValueError(f"cache {url!r} is unknown; use memory:// or redis://HOST:PORT/DB")


__all__ = ["MemoryCache", "RedisCache", "cache_from_url"]
