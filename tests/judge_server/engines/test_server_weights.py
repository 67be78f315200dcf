"""Weights of vLLM: its server's routes for adapters and its `AsyncLLM`, as their sources have them; policy servers."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import pytest

from judge_server.engines import engine_from_url
from judge_server.engines.openai.engine import OpenAIEngine
from judge_server.engines.vllm.engine import VllmEngine
from judge_server.engines.vllm.loading import Adapters, VllmSettings
from judge_server.errors import CannotLoad, EngineStartError, EngineUnavailable
from judge_server.models.adapters import read_adapter
from judge_server.ports import Adapter, EngineIdentity
from tests.judge_server.engines.servers.vllm_server import VllmServer, masses, vllm_server


def adapter(folder: Path, content: str) -> Adapter:
    """An adapter as PEFT writes it."""
    folder.mkdir(exist_ok=True)
    (folder / "adapter_config.json").write_text(json.dumps({"r": 8}))
    (folder / "adapter_model.safetensors").write_text(content)
    return read_adapter(folder, folder.name)


@asynccontextmanager
async def started(server: VllmServer, options: str = "") -> AsyncIterator[tuple[OpenAIEngine, EngineIdentity]]:
    """A started engine of a server, and its identity."""
    engine = engine_from_url(f"openai+{server.url}?{options}")
    assert isinstance(engine, OpenAIEngine)
    try:
        yield engine, await engine.start()
    finally:
        await engine.close()


async def test_a_vllm_server_is_asked_for_the_adapter_and_for_its_own_weights_again(tmp_path: Path) -> None:
    one, two = adapter(tmp_path / "one", "one"), adapter(tmp_path / "two", "two")
    moved = adapter(tmp_path / "moved", "one")
    with vllm_server(loads=True) as server:
        async with started(server) as (engine, base):
            plain = await masses(engine)
            first = await engine.load(one, "step-1")
            answers = [await masses(engine)]
            second = await engine.load(two, "step-2")
            answers.append(await masses(engine))
            assert await engine.load(moved, "step-1 again") == first
            assert await masses(engine) == answers[0]
            assert await engine.load(None, "base") == base
            assert await masses(engine) == plain
            assert await engine.ready()
        assert len({first.weights_digest, second.weights_digest, base.weights_digest}) == 3
        assert first.model == f"{base.model}+{one.id}"
        assert len({plain, *answers}) == 3
        assert first.context_tokens == base.context_tokens
        assert server.moves == [f"load {one.path}", f"load {two.path}", f"load {moved.path}"]


async def test_a_server_that_loads_no_adapter_keeps_its_weights_and_the_error_says_how_to_start_it(
    tmp_path: Path,
) -> None:
    one, gone = adapter(tmp_path / "one", "one"), adapter(tmp_path / "gone", "gone")
    (gone.path / "adapter_config.json").unlink()
    with vllm_server(loads=False) as without, vllm_server(loads=True) as server:
        for asked, wanted, says in ((without, one, "VLLM_ALLOW_RUNTIME_LORA_UPDATING=1"), (server, gone, "No adapter")):
            async with started(asked) as (engine, _):
                plain = await masses(engine)
                with pytest.raises(CannotLoad, match=says):
                    await engine.load(wanted, "v")
                assert await masses(engine) == plain
        async with started(server, "sleep=2") as (engine, _):
            with pytest.raises(CannotLoad, match="sleep=1"):
                await engine.load(one, "v")


async def test_an_adapter_that_is_written_to_while_a_server_loads_it_is_dropped_again(tmp_path: Path) -> None:
    with vllm_server(loads=True, fault="written to") as server:
        async with started(server) as (engine, _):
            plain = await masses(engine)
            with pytest.raises(CannotLoad, match="write each one to a new path"):
                await engine.load(adapter(tmp_path / "one", "one"), "v")
            assert (server.adapters, await masses(engine)) == ({}, plain)


async def test_the_version_of_a_policy_server_is_what_the_trainer_declares(tmp_path: Path) -> None:
    with vllm_server() as server:
        async with started(server, "policy=true") as (engine, base):
            first = await engine.load(None, "step-1")
            assert first.weights_digest == "declared by the caller: step-1" != base.weights_digest
            assert (await engine.load(None, "step-2")).weights_digest != first.weights_digest
            with pytest.raises(CannotLoad, match="a trainer changes"):
                await engine.load(adapter(tmp_path / "one", "one"), "v")
            server.fault = "overloaded"
            with pytest.raises(EngineUnavailable):
                await engine.load(None, "step-3")


class LoRARequest(NamedTuple):
    """vLLM's request for an adapter, `vllm/lora/request.py`."""

    lora_name: str
    lora_int_id: int
    lora_path: str


class Llm:
    """vLLM's `AsyncLLM`, as far as it has adapters: its methods in `vllm/v1/engine/async_llm.py`."""

    def __init__(self) -> None:
        self.moves: list[Any] = []
        self.refuses = False

    async def add_lora(self, lora_request: Any) -> bool:
        """Load an adapter."""
        if self.refuses:
            raise RuntimeError("LoRA rank 64 is greater than max_lora_rank 16.")
        self.moves.append(("add", lora_request))
        return True

    async def remove_lora(self, lora_id: int) -> bool:
        """Drop an adapter."""
        self.moves.append(("remove", lora_id))
        return True


async def test_vllm_uses_an_adapter_once_it_is_loaded_and_drops_the_one_before(tmp_path: Path) -> None:
    llm = Llm()
    one, two = adapter(tmp_path / "one", "one"), adapter(tmp_path / "two", "two")
    adapters = Adapters(llm, LoRARequest, tmp_path / "start")
    assert adapters.present == ("start", 1, str(tmp_path / "start"))
    first = await adapters.add(one)
    assert adapters.present.lora_name == "start"
    await adapters.use(first)
    llm.refuses = True
    with pytest.raises(CannotLoad, match="max_lora_rank 16"):
        await adapters.add(two)
    assert adapters.present == (one.id, 2, str(one.path))
    llm.refuses = False
    second = await adapters.add(two)
    await adapters.use(second)
    await adapters.use(None)
    assert adapters.present is None
    assert second.lora_int_id not in (1, first.lora_int_id)
    moves = [("add", first), ("remove", 1), ("add", second), ("remove", 2), ("remove", second.lora_int_id)]
    assert llm.moves == moves


def test_vllm_is_started_for_adapters_of_a_rank() -> None:
    given = VllmSettings.of(urlsplit("vllm://owner/model?max_lora_rank=20"))
    assert given.engine_arguments() == {"enable_lora": True, "max_lora_rank": 32}
    assert given.influence == ""
    with pytest.raises(EngineStartError, match="max_lora_rank"):
        VllmSettings(max_lora_rank=1000).engine_arguments()
    with pytest.raises(ValueError, match="sleep=1"):
        VllmSettings.of(urlsplit("vllm://owner/model?max_lora_rank=20&sleep=2"))


async def test_vllm_that_is_not_running_loads_nothing(tmp_path: Path) -> None:
    with pytest.raises(CannotLoad, match="not running"):
        await VllmEngine("owner/model").load(adapter(tmp_path / "one", "one"), "v")
