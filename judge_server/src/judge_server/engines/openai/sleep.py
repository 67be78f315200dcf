"""Sleep of servers: vLLM's routes for it, and SGLang's release and resume of memory.

Source: vLLM, `vllm/entrypoints/serve/sleep/api_router.py` and `docs/features/sleep_mode.md`; SGLang,
`sglang/srt/entrypoints/http_server.py`. vLLM has the routes in development mode only. SGLang keeps a server's weights
only with `--enable-weights-cpu-backup`, and its engine fails if memory is released below a request.
"""

from http import HTTPStatus
from typing import Any

from judge_server.engines.openai.http import EndpointError, HttpAnswer, OpenAIHttp
from judge_server.errors import CannotSleep, EngineUnavailable

_VLLM_HINT = "start vLLM with VLLM_SERVER_DEV_MODE=1 and --enable-sleep-mode"
_SGLANG_FLAGS = ("enable_memory_saver", "enable_weights_cpu_backup")
_SGLANG_HINT = "start SGLang with --enable-memory-saver and --enable-weights-cpu-backup"


class VllmMemory:
    """The memory of a vLLM server, which at `level` 1 keeps its weights in main memory, and at 2 reads them again."""

    def __init__(self, http: OpenAIHttp, level: int) -> None:
        self._http = http
        self._level = level

    async def release(self) -> None:
        """Put the server to sleep. Raises `CannotSleep` or `EngineUnavailable`."""
        if await self.is_released():
            return
        answer = await _post(self._http, f"/sleep?level={self._level}")
        if not answer.ok and not await self.is_released():
            raise CannotSleep(f"the server refuses to sleep (HTTP {answer.status}); {_VLLM_HINT}")
        if not await self.is_released():
            raise EngineUnavailable("the server does not fall asleep")

    async def resume(self) -> None:
        """Wake the server, and have it read its weights if it has discarded them. Raises `EngineUnavailable`."""
        if not await self.is_released():
            return
        if self._level == 1:
            await _done(self._http, "/wake_up")
        else:
            await _done(self._http, "/wake_up?tags=weights")
            await _done(self._http, "/collective_rpc", {"method": "reload_weights"})
            await _done(self._http, "/wake_up?tags=kv_cache")
        if await self.is_released():
            raise EngineUnavailable("the server does not wake")

    async def is_released(self) -> bool:
        """Whether the server sleeps, as it says. Raises `CannotSleep` if it has no such route."""
        answer = await _get(self._http, "/is_sleeping")
        if answer.status >= HTTPStatus.INTERNAL_SERVER_ERROR:
            raise EngineUnavailable(f"the server answered HTTP {answer.status} to /is_sleeping")
        said = answer.json()
        if not answer.ok or not isinstance(said, dict) or not isinstance(said.get("is_sleeping"), bool):
            raise CannotSleep(f"the server has no routes to sleep (HTTP {answer.status}); {_VLLM_HINT}")
        return bool(said["is_sleeping"])


class SglangMemory:
    """The memory of an SGLang server, which does not say whether it is released."""

    def __init__(self, http: OpenAIHttp) -> None:
        self._http = http
        self._released = False

    async def release(self) -> None:
        """Release weights and cache. Raises `CannotSleep` or `EngineUnavailable`."""
        if self._released:
            return
        answer = await _get(self._http, "/server_info")
        if not answer.ok:
            answer = await _get(self._http, "/get_server_info")
        settings = answer.json()
        if not isinstance(settings, dict) or not all(settings.get(flag) is True for flag in _SGLANG_FLAGS):
            raise CannotSleep(f"the server does not keep its weights while its memory is released; {_SGLANG_HINT}")
        await _done(self._http, "/release_memory_occupation")
        self._released = True

    async def resume(self) -> None:
        """Take weights and cache again, once. Raises `EngineUnavailable`."""
        if self._released:
            await _done(self._http, "/resume_memory_occupation")
            self._released = False


async def wake_at_start(http: OpenAIHttp, level: int) -> None:
    """Wake a vLLM server that a judge which is gone has left asleep. Raises `EngineUnavailable` if it does not wake."""
    memory = VllmMemory(http, level)
    try:
        await memory.resume()
    except CannotSleep:  # another server, or one that cannot sleep
        return


async def _get(http: OpenAIHttp, path: str) -> HttpAnswer:
    try:
        return await http.get(http.root_url + path)
    except EndpointError as error:
        raise EngineUnavailable(error.failure.detail) from error


async def _post(http: OpenAIHttp, path: str, body: dict[str, Any] | None = None) -> HttpAnswer:
    try:
        return await http.post(http.root_url + path, body or {})
    except EndpointError as error:
        raise EngineUnavailable(error.failure.detail) from error


async def _done(http: OpenAIHttp, path: str, body: dict[str, Any] | None = None) -> None:
    answer = await _post(http, path, body)
    if not answer.ok:
        raise EngineUnavailable(f"the server answered HTTP {answer.status} to {path.partition('?')[0]}")
