"""Engines, chosen by URL: `llamacpp://MODEL` or, for tests and overhead benchmarks only, `scripted://hash`."""

from urllib.parse import urlsplit

from judge_server.engines.llamacpp import LlamaCppEngine
from judge_server.engines.scripted import ScriptedEngine
from judge_server.ports import Engine


def engine_from_url(url: str) -> Engine:
    """The engine an URL names, not started.

    Raises:
        ValueError: the scheme or an option is unknown; the message lists those that are known.
    """
    parts = urlsplit(url)
    if parts.scheme == "llamacpp":
        return LlamaCppEngine.from_url(parts)
    if parts.scheme == "scripted":
        return ScriptedEngine.from_url(parts)
    raise ValueError(f"engine {url!r} is unknown; use llamacpp://MODEL or scripted://hash")


__all__ = ["LlamaCppEngine", "ScriptedEngine", "engine_from_url"]
