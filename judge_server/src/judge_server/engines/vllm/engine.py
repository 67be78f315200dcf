"""vLLM as an engine in this process: all calls of a response at once, with the prefix computed once by vLLM's cache.

vLLM runs the model in child processes, which its `AsyncLLM` talks to. It is imported only when an engine starts, so
that this module can be imported without vLLM.
"""

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import aclosing, contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING
from urllib.parse import SplitResult

from judge_server.engines.common import FIXED_QUESTION, RunningCalls, require_same_answer
from judge_server.engines.vllm.loading import (
    ModelFolder,
    VllmSettings,
    digest,
    load,
    locate,
    lora_rank,
    release_memory,
    take_memory,
)
from judge_server.engines.vllm.tokenizer import VllmTokenizer
from judge_server.errors import CannotLoad, CannotSleep, EngineStartError, EngineUnavailable
from judge_server.models.adapters import require_unchanged
from judge_server.models.convert import question_of
from judge_server.ports import (
    Adapter,
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
"""A first call, which makes vLLM load the code that constrains answers."""

SHUTDOWN_S = 15.0
"""How long vLLM's processes may take to end before they are killed."""

_DEAD = "vLLM's processes have died (see its log for the reason); restart this process to load the model again"


class VllmEngine:
    """A model in Hugging Face's format, on this machine's GPUs, or on its CPU if vLLM is built for that.

    `model` is a folder, or an `OWNER/REPOSITORY` on the Hugging Face hub.
    """

    concurrent_calls = None
    pool = None

    def __init__(self, model: str, settings: VllmSettings | None = None) -> None:
        self._model = model
        self._settings = settings or VllmSettings()
        self._answerer: VllmAnswerer | None = None
        self._identity: EngineIdentity | None = None
        self._folder: ModelFolder | None = None
        self._told: Reply | CallFailure | None = None
        self._running_calls = RunningCalls()

    @classmethod
    def from_url(cls, url: SplitResult) -> "VllmEngine":
        """Create from `vllm:///path/to/folder` or `vllm://OWNER/REPOSITORY`.

        Options: `?context=` (tokens; default: the model's own), `?gpu_memory=` (share of the device's memory),
        `?dtype=`, `?eager=1` (starts sooner, runs slower), `?tensor_parallel=` (GPUs), `?concurrency=64` (batches),
        `?revision=`, `?quantization=`, `?kv_cache_dtype=`, `?max_num_seqs=`, `?data_parallel=` (copies of the model),
        `?lora=/a/folder`, `?max_lora_rank=` if adapters are to be loaded later, `?sleep=1` or `2` for a model that may
        sleep, and any other engine argument of vLLM as `?arg.NAME=VALUE`.
        """
        return cls(url.netloc + url.path, VllmSettings.of(url))

    @property
    def fatal_error(self) -> str:
        """Why the engine can never answer again: vLLM does not restart its processes. Empty while they run."""
        return _DEAD if self._answerer is not None and self._answerer.llm.errored else ""

    async def start(self) -> EngineIdentity:
        """Find the model, load it and warm it up. This takes half a minute or more, depending on the model's size."""
        model = await asyncio.to_thread(locate, self._model, self._settings.revision)
        tokens = await asyncio.to_thread(VllmTokenizer.load, model.path)
        asks = await asyncio.to_thread(question_of, model.path)
        if self._settings.lora is not None:
            if asks:
                raise EngineStartError(f"{model.name} is a probe, fitted without an adapter; leave out ?lora=")
            lora_rank(self._settings.lora)  # raise before anything is loaded
        hashing = asyncio.create_task(asyncio.to_thread(digest, model.path, self._settings.lora))
        llm, version = await asyncio.to_thread(load, model, self._settings)
        from judge_server.engines.vllm.calls import VllmAnswerer

        self._answerer = answerer = VllmAnswerer(llm, tokens, self._settings.lora)
        warm = await answerer.reply(tokens.prefix("", ""), WARM_UP)
        if isinstance(warm, CallFailure):
            await self.close()
            raise EngineStartError(f"vLLM loaded {model.name}, but its first call failed: {warm.detail}")
        self._folder = model
        self._identity = EngineIdentity(
            model=model.name,
            weights_digest=await hashing,
            engine=f"vllm {version}",
            chat_template_digest=tokens.template_digest,
            decoding="; ".join(filter(None, ("greedy", answerer.dtype, "raw logprobs", self._settings.influence))),
            context_tokens=answerer.context_tokens,
            concurrent_batches=self._settings.concurrency,
            capabilities=Capabilities(
                logprobs=True, token_menus=True, json_schema=True, prompt_logprobs=True, prefix_in_flight=True
            ),
            asks=asks,
        )
        return self._identity

    async def answer(self, batch: Batch) -> AsyncIterator[tuple[int, Reply | CallFailure]]:
        """Submit every call at once, in order, and yield each as it is done."""
        answerer = self._answerer
        if answerer is None:
            for index in range(len(batch.calls)):
                yield index, CallFailure("engine", "the engine is not running")
            return
        prefix = await asyncio.to_thread(answerer.tokens.prefix, batch.system, batch.shared)
        calls = {index: answerer.reply(prefix, call, batch.cache_salt) for index, call in enumerate(batch.calls)}
        async with aclosing(self._running_calls.answers(calls)) as answers:
            async for answer in answers:
                yield answer

    async def count_tokens(self, batch: Batch) -> int:
        """Count the tokens of the longest prompt with the chat template, and of the most that may follow it."""
        answerer = self._answerer
        if answerer is None:
            raise EngineUnavailable("the engine is not running")
        prefix = await asyncio.to_thread(answerer.tokens.prefix, batch.system, batch.shared)
        return max(answerer.tokens_needed(prefix, call) for call in batch.calls)

    async def ready(self) -> bool:
        """Whether the model is loaded and vLLM's processes are alive."""
        return self._answerer is not None and not self._answerer.llm.errored

    async def sleep(self) -> None:
        """Have vLLM release the device's memory, after it has answered a fixed question."""
        answerer, level = self._answerer, self._settings.sleep
        if answerer is None or level is None:
            raise CannotSleep("vLLM was started without sleep mode; add ?sleep=1 to the engine URL")
        self._told = self._told or await self._tell(answerer)
        with _moving():
            await release_memory(answerer.llm, level)

    async def wake(self) -> None:
        """Have vLLM take the memory again, and answer the question as before. Raises `EngineUnavailable`."""
        answerer, level = self._answerer, self._settings.sleep
        if answerer is None or level is None or self._told is None:
            return
        with _moving():
            await take_memory(answerer.llm, level)
        require_same_answer(self._told, await self._tell(answerer))
        self._told = None

    async def load(self, adapter: Adapter | None, version: str) -> EngineIdentity:
        """Have vLLM load an adapter, and drop the one before.

        Raises:
            CannotLoad: the engine was not started for adapters, or vLLM does not load this one.
        """
        answerer, identity, folder = self._answerer, self._identity, self._folder
        if answerer is None or identity is None or folder is None:
            raise CannotLoad("the engine is not running")
        if self._settings.lora is None and self._settings.max_lora_rank is None:
            raise CannotLoad("vLLM was started without adapters; add ?max_lora_rank= to the engine URL")
        if identity.asks and adapter is not None:
            raise CannotLoad(f"{folder.name} is a probe, which was fitted without an adapter")
        base = await asyncio.to_thread(digest, folder.path)
        if adapter is None:
            await answerer.adapters.use(None)
            self._identity = replace(identity, model=folder.name, weights_digest=base)
            return self._identity
        try:
            await asyncio.to_thread(lora_rank, adapter.path)
        except EngineStartError as error:
            raise CannotLoad(str(error)) from error
        found = await answerer.adapters.add(adapter)
        await asyncio.to_thread(require_unchanged, adapter)
        await answerer.adapters.use(found)
        self._identity = replace(
            identity, model=f"{folder.name}+{adapter.id}", weights_digest=f"{base}, adapter {adapter.sha256}"
        )
        return self._identity

    async def _tell(self, answerer: "VllmAnswerer") -> Reply | CallFailure:
        prefix = answerer.tokens.prefix(FIXED_QUESTION.system, FIXED_QUESTION.shared)
        return await answerer.reply(prefix, FIXED_QUESTION.calls[0])

    async def close(self) -> None:
        """End vLLM's processes; calls in flight fail."""
        answerer, self._answerer = self._answerer, None
        if answerer is None:
            return
        await self._running_calls.cancel_all()
        llm = answerer.llm
        if llm.output_handler is not None:
            llm.output_handler.cancel()  # it would mistake the shutdown for a crash
        await asyncio.to_thread(llm.shutdown, SHUTDOWN_S)
        llm.shutdown = _no_op  # vLLM repeats it when collected, and fails at interpreter exit


@contextmanager
def _moving() -> Iterator[None]:
    """Raise `EngineUnavailable` for what vLLM raises while it sleeps or wakes, any error of its workers."""
    try:
        yield
    except Exception as error:
        raise EngineUnavailable(f"vLLM failed: {error or type(error).__name__}") from error


def _no_op(timeout: float | None = None) -> None:
    """Do nothing: everything is shut down already."""
