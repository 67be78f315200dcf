"""vLLM as an engine, in this process: all calls of a response at once, their prefix computed once by vLLM's own cache.

vLLM runs the model in child processes and is talked to through its `AsyncLLM`. It is imported when an engine starts,
so that who has no vLLM can still import this module.
"""

import asyncio
from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import TYPE_CHECKING
from urllib.parse import SplitResult

from judge_server.engines.common import RunningCalls
from judge_server.engines.vllm.loading import VllmOptions, VllmSettings, digest, load, locate
from judge_server.engines.vllm.tokens import VllmTokenizer
from judge_server.errors import EngineStartError, EngineUnavailable
from judge_server.ports import (
    Batch,
    Call,
    CallFailure,
    Capabilities,
    EngineIdentity,
    LabelChoice,
    Option,
    Reply,
    TokenChoice,
)

if TYPE_CHECKING:
    from judge_server.engines.vllm.calls import VllmAnswerer

WARM_UP = Call("?", TokenChoice((Option("Yes", ("Yes",)), Option("No", ("No",))), then=LabelChoice(("0", "1"), " ")))
"""A first call that makes vLLM load what constrains answers."""

SHUTDOWN_S = 15.0
"""How long vLLM's processes may take to end before they are killed."""

_DEAD = "vLLM's processes have died, and its log says why; this process has to be started anew to load the model again"


class VllmEngine:
    """A model in Hugging Face's format, on this machine's GPUs, or on its CPU where vLLM is built for it.

    `model` is a folder, or the `OWNER/REPOSITORY` of the Hugging Face hub.
    """

    concurrent_calls = None

    def __init__(self, model: str, settings: VllmSettings | None = None) -> None:
        self._model = model
        self._settings = settings or VllmSettings()
        self._answerer: VllmAnswerer | None = None
        self._running_calls = RunningCalls()

    @classmethod
    def from_url(cls, url: SplitResult) -> "VllmEngine":
        """`vllm:///path/to/folder` or `vllm://OWNER/REPOSITORY`.

        Options: `?context=` (tokens; the model's own unless given), `?gpu_memory=` (share of the device's memory),
        `?dtype=`, `?eager=1` (starts sooner, runs slower), `?tensor_parallel=` (GPUs), `?concurrency=64` (batches).
        """
        return cls(url.netloc + url.path, VllmOptions(url).settings())

    @property
    def fatal_error(self) -> str:
        """vLLM starts none of its processes again."""
        return _DEAD if self._answerer is not None and self._answerer.llm.errored else ""

    async def start(self) -> EngineIdentity:
        """Find the model, load it and warm it up; takes from half a minute to many, by the model's size."""
        model = await asyncio.to_thread(locate, self._model)
        tokens = await asyncio.to_thread(VllmTokenizer.load, model.path)
        hashing = asyncio.create_task(asyncio.to_thread(digest, model.path))
        llm, version = await asyncio.to_thread(load, model, self._settings)
        from judge_server.engines.vllm.calls import VllmAnswerer

        self._answerer = answerer = VllmAnswerer(llm, tokens)
        warm = await answerer.reply(tokens.prefix("", ""), WARM_UP)
        if isinstance(warm, CallFailure):
            await self.close()
            raise EngineStartError(f"vLLM loaded {model.name}, and its first call failed: {warm.detail}")
        return EngineIdentity(
            model=model.name,
            weights_digest=await hashing,
            engine=f"vllm {version}",
            chat_template_digest=tokens.template_digest,
            decoding=f"greedy; {answerer.dtype}; raw logprobs",
            context_tokens=answerer.context_tokens,
            concurrent_batches=self._settings.concurrency,
            capabilities=Capabilities(
                logprobs=True, token_menus=True, json_schema=True, prompt_logprobs=True, prefix_in_flight=True
            ),
        )

    async def answer(self, batch: Batch) -> AsyncIterator[tuple[int, Reply | CallFailure]]:
        """Submit every call at once, in order, and yield each as it is done."""
        answerer = self._answerer
        if answerer is None:
            for index in range(len(batch.calls)):
                yield index, CallFailure("engine", "the engine is not running")
            return
        prefix = await asyncio.to_thread(answerer.tokens.prefix, batch.system, batch.shared)
        calls = {index: answerer.reply(prefix, call) for index, call in enumerate(batch.calls)}
        async with aclosing(self._running_calls.answers(calls)) as answers:
            async for answer in answers:
                yield answer

    async def count_tokens(self, batch: Batch) -> int:
        """Tokens of the longest prompt with the chat template, and of the most that can be written after it."""
        answerer = self._answerer
        if answerer is None:
            raise EngineUnavailable("the engine is not running")
        prefix = await asyncio.to_thread(answerer.tokens.prefix, batch.system, batch.shared)
        return max(answerer.tokens_needed(prefix, call) for call in batch.calls)

    async def ready(self) -> bool:
        """Whether the model is loaded and vLLM's processes are alive."""
        return self._answerer is not None and not self._answerer.llm.errored

    async def close(self) -> None:
        """End vLLM's processes; calls in flight fail."""
        answerer, self._answerer = self._answerer, None
        if answerer is None:
            return
        await self._running_calls.cancel_all()
        llm = answerer.llm
        if llm.output_handler is not None:
            llm.output_handler.cancel()  # it would take the end of the processes for their death
        await asyncio.to_thread(llm.shutdown, SHUTDOWN_S)
        llm.shutdown = _no_op  # vLLM does it again when it is collected, and fails if the interpreter is ending


def _no_op(timeout: float | None = None) -> None:
    """What there is left to shut down."""
