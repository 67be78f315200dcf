"""Servers of the OpenAI API that sleep: vLLM's and SGLang's protocols, as their sources have them."""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest
from fastapi import FastAPI
from fastapi.responses import JSONResponse

from judge_server.engines import engine_from_url
from judge_server.engines.openai.engine import OpenAIEngine
from judge_server.engines.vllm.loading import VllmSettings, release_memory, take_memory
from judge_server.errors import CannotSleep, EngineUnavailable
from judge_server.scheduling.executor import LocalExecutor
from judge_server.scheduling.metrics import JudgeMetrics
from judge_server.scheduling.sleep import Lease
from tests.fixtures.served_app import served
from tests.judge_server.engines.servers.vllm_server import VllmServer, app_of, masses, vllm_server


@asynccontextmanager
async def started(url: str, options: str = "sleep=1") -> AsyncIterator[OpenAIEngine]:
    """A started engine of the server at this base URL."""
    engine = engine_from_url(f"openai+{url}?{options}")
    assert isinstance(engine, OpenAIEngine)
    await engine.start()
    try:
        yield engine
    finally:
        await engine.close()


@pytest.mark.parametrize(
    ("level", "moves"),
    [
        (1, ["sleep 1", "wake weights kv_cache"]),
        (2, ["sleep 2", "wake weights", "reload_weights", "wake kv_cache"]),
    ],
)
async def test_a_vllm_server_sleeps_and_answers_as_before(level: int, moves: list[str]) -> None:
    with vllm_server() as server:
        async with started(server.url, f"sleep={level}") as engine:
            before = await masses(engine)
            for _ in range(2):
                await engine.sleep()
            assert server.released == {"weights", "kv_cache"}
            for _ in range(2):
                await engine.wake()
            assert (await masses(engine), server.moves) == (before, moves)


async def test_a_vllm_server_that_a_dead_judge_left_asleep_is_woken_at_the_start() -> None:
    with vllm_server() as server:
        server.released = {"weights", "kv_cache"}
        async with started(server.url) as engine:
            assert not server.released
            assert await engine.ready()


async def test_a_server_with_other_weights_after_waking_is_not_asked() -> None:
    with vllm_server(fault="reads nothing") as server:
        async with started(server.url, "sleep=2") as engine:
            await engine.sleep()
            for _ in range(2):
                with pytest.raises(EngineUnavailable, match="another way than before it slept"):
                    await engine.wake()
            server.lost = False  # it was restarted
            await engine.wake()


async def test_a_server_without_memory_is_woken_when_there_is_some() -> None:
    with vllm_server() as server:
        async with started(server.url) as engine:
            await engine.sleep()
            server.fault = "out of memory"
            with pytest.raises(EngineUnavailable, match="HTTP 500 to /wake_up"):
                await engine.wake()
            server.fault = ""
            await engine.wake()
            assert await masses(engine)


async def test_servers_that_cannot_sleep_are_refused_with_what_to_do_and_stay_awake() -> None:
    with vllm_server() as server, vllm_server(sleeps=False) as plain, vllm_server(fault="no sleep mode") as without:
        for url, options, says in (
            (server.url, "", r"add \?sleep=1"),
            (plain.url, "sleep=1", "VLLM_SERVER_DEV_MODE=1"),
            (without.url, "sleep=1", "--enable-sleep-mode"),
        ):
            async with started(url, options) as engine:
                with pytest.raises(CannotSleep, match=says):
                    await engine.sleep()
                assert await masses(engine)
    for wrong in ("sleep=0", "sleep=3", "sleep=yes"):
        with pytest.raises(ValueError, match="sleep="):
            engine_from_url(f"openai+http://127.0.0.1:1/v1?{wrong}")


async def test_a_server_that_goes_away_while_it_sleeps_does_not_wake() -> None:
    with vllm_server() as server:
        async with started(server.url) as engine:
            await engine.sleep()
            server.root, address = "", engine
    with pytest.raises(EngineUnavailable, match="no answer from"):
        await address.wake()
    await address.close()


@dataclass
class SglangServer:
    """SGLang's server in front of the answers of vLLM's, with its routes for memory.

    Attributes:
        settings: its server arguments.
        released: whether its memory is released.
        crashed: whether its scheduler has failed, as when memory is resumed that is not released.
    """

    settings: dict[str, bool] = field(
        default_factory=lambda: {"enable_memory_saver": True, "enable_weights_cpu_backup": True}
    )
    released: bool = False
    crashed: bool = False
    url: str = ""


@contextmanager
def sglang_server(**settings: bool) -> Iterator[SglangServer]:
    """Serve SGLang's routes for memory."""
    server, app = SglangServer(), FastAPI(openapi_url=None)
    server.settings |= settings

    @app.get("/server_info")
    async def info() -> dict[str, Any]:
        return {**server.settings, "model_path": "judge"}

    @app.get("/v1/models")
    async def models() -> dict[str, Any]:
        return {"object": "list", "data": [{"id": "judge", "object": "model", "owned_by": "sglang"}]}

    @app.post("/release_memory_occupation")
    async def release(body: dict[str, Any]) -> None:
        server.crashed, server.released = server.crashed or server.released, True

    @app.post("/resume_memory_occupation")
    async def resume(body: dict[str, Any]) -> Any:
        if not server.released:
            server.crashed = True
            return JSONResponse({"error": {"message": "KeyError"}}, 400)
        server.released = False
        return None

    app.mount("/", app_of(VllmServer(sleeps=False, has_batch_route=False)))
    with served(app) as port:
        server.url = f"http://127.0.0.1:{port}/v1"
        yield server


async def test_an_sglang_server_releases_its_memory_and_resumes_it_once() -> None:
    with sglang_server() as server:
        async with started(server.url) as engine:
            before = await masses(engine)
            for _ in range(2):
                await engine.sleep()
            assert server.released
            for _ in range(2):
                await engine.wake()
            assert (await masses(engine), server.released, server.crashed) == (before, False, False)


async def test_an_sglang_server_that_would_lose_its_weights_stays_awake() -> None:
    with sglang_server(enable_weights_cpu_backup=False) as server:
        async with started(server.url) as engine:
            with pytest.raises(CannotSleep, match="--enable-weights-cpu-backup"):
                await engine.sleep()
            assert not server.released


async def test_the_scheduler_puts_a_server_to_sleep_between_calls() -> None:
    with vllm_server() as server:
        executor = LocalExecutor(engine_from_url(f"openai+{server.url}?sleep=1"))
        await executor.start(JudgeMetrics(asyncio.get_running_loop().time))
        assert (await executor.hold(Lease("a", "asleep", 60))).state == "asleep"
        assert server.released
        assert (await executor.hold(Lease("a", "awake", 60))).state == "awake"
        await executor.close()


class Llm:
    """vLLM's `AsyncLLM`, as far as it sleeps: its methods and arguments in `vllm/v1/engine/async_llm.py`."""

    def __init__(self) -> None:
        self.moves: list[Any] = []
        self.asleep: set[str] = set()

    async def is_sleeping(self) -> bool:
        """Whether any memory is released."""
        return bool(self.asleep)

    async def sleep(self, level: int = 1, mode: str = "abort") -> None:
        """Release the memory."""
        self.moves.append(level)
        self.asleep = {"weights", "kv_cache"}

    async def wake_up(self, tags: list[str] | None = None) -> None:
        """Take the memory."""
        self.moves.append(tags)
        self.asleep -= set(tags or self.asleep)

    async def collective_rpc(self, method: str) -> None:
        """Call a method of the workers."""
        self.moves.append(method)


async def test_vllm_in_this_process_sleeps_at_both_levels() -> None:
    for level, moves in ((1, [1, None]), (2, [2, ["weights"], "reload_weights", ["kv_cache"]])):
        llm = Llm()
        for _ in range(2):
            await release_memory(llm, level)
        for _ in range(2):
            await take_memory(llm, level)
        assert (llm.moves, llm.asleep) == (moves, set())


def test_sleep_is_an_argument_of_vllm_and_no_part_of_the_fingerprint() -> None:
    settings = VllmSettings(sleep=1)
    assert settings.engine_arguments() == {"enable_sleep_mode": True}
    assert settings.influence == ""
    assert VllmSettings().engine_arguments() == {}
