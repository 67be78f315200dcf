"""Engines, chosen by URL.

`llamacpp://MODEL`, `vllm://MODEL`, `openai+http://HOST:PORT/v1` or `openai+https://…`, and `scripted://hash`, which is
for tests and overhead benchmarks only.
"""

from urllib.parse import urlsplit

from judge_server.engines.llamacpp import LlamaCppEngine
from judge_server.engines.openai import OpenAIEngine
from judge_server.engines.scripted import ScriptedEngine
from judge_server.ports import Engine


def engine_from_url(url: str, *, api_key: str | None = None) -> Engine:
    """The engine an URL names, not started. `api_key` is shown to an endpoint of the OpenAI API, and used by no other.

    Raises:
        ValueError: the scheme or an option is unknown; the message lists those that are known.
    """
    parts = urlsplit(url)
    if parts.scheme == "llamacpp":
        return LlamaCppEngine.from_url(parts)
    if parts.scheme == "vllm":
        from judge_server.engines.vllm import VllmEngine  # an extra: only those who have it may import it

        return VllmEngine.from_url(parts)
    if parts.scheme in ("openai+http", "openai+https"):
        return OpenAIEngine.from_url(parts, api_key=api_key)
    if parts.scheme == "scripted":
        return ScriptedEngine.from_url(parts)
    raise ValueError(
        f"engine scheme {parts.scheme!r} is unknown; use llamacpp://MODEL, vllm://MODEL, openai+http://HOST:PORT/v1, "
        "openai+https://HOST/v1 or scripted://hash"
    )


__all__ = ["LlamaCppEngine", "OpenAIEngine", "ScriptedEngine", "engine_from_url"]
