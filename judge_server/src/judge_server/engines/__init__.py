"""Engines, created from their URLs.

`llamacpp://MODEL`, `vllm://MODEL`, `openai+http://HOST:PORT/v1` or `openai+https://…`, `systemone+http://HOST:PORT` or
`systemone+https://…` for decision models, and `scripted://hash`, which is for tests and overhead benchmarks only.
Several URLs separated by spaces form one pool. An engine's module is imported when a URL names it, since most of them
load large libraries.
"""

import re
from functools import partial
from urllib.parse import urlsplit

from judge_server.ports import Engine

_BETWEEN_URLS = re.compile(r"(?<!\s)\s++(?=[a-z+]++://)")  # a path may hold spaces


def engine_from_url(url: str, *, api_key: str | None = None) -> Engine:
    """Create the engine that a URL names, without starting it; several URLs separated by spaces give a pool.

    `api_key` is sent to endpoints over HTTP, and ignored by other engines.

    Raises:
        ValueError: a scheme or an option is unknown, or two URLs name the same endpoint; the message says what to
            write.
    """
    urls = _BETWEEN_URLS.split(url.strip())
    if len(urls) == 1:
        return _engine(urls[0], api_key)
    engines = {_without_options(one): partial(_engine, one, api_key) for one in urls}
    if len(engines) < len(urls):
        raise ValueError("two of the engine URLs name the same endpoint; name each endpoint of a pool once")
    from judge_server.engines.pool import EnginePool

    return EnginePool(engines)


def _without_options(url: str) -> str:
    """Return the name of an engine for display, without options and credentials."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path.rstrip('/')}"


def _engine(url: str, api_key: str | None) -> Engine:
    parts = urlsplit(url)
    if parts.scheme == "llamacpp":
        from judge_server.engines.llamacpp.engine import LlamaCppEngine

        return LlamaCppEngine.from_url(parts)
    if parts.scheme == "vllm":
        from judge_server.engines.vllm.engine import VllmEngine

        return VllmEngine.from_url(parts)
    if parts.scheme in ("openai+http", "openai+https"):
        from judge_server.engines.openai.engine import OpenAIEngine

        return OpenAIEngine.from_url(parts, api_key=api_key)
    if parts.scheme in ("systemone+http", "systemone+https"):
        from judge_server.engines.systemone.engine import SystemOneEngine

        return SystemOneEngine.from_url(parts, api_key=api_key)
    if parts.scheme == "scripted":
        from judge_server.engines.scripted import ScriptedEngine

        return ScriptedEngine.from_url(parts)
    raise ValueError(
        f"engine scheme {parts.scheme!r} is unknown; use llamacpp://MODEL, vllm://MODEL, openai+http://HOST:PORT/v1, "
        "openai+https://HOST/v1, systemone+http://HOST:PORT, systemone+https://HOST or scripted://hash"
    )
