"""llama.cpp as an engine: one model in a child process, one slot, calls of a response one after another.

One slot, because llama.cpp's slots do not share a prefix in flight: with one, the prefix of a response is read once
and stays hot for all its criteria (docs/decisions/0004). Prompts go in as token ids: only the chat template's own
text may become control tokens, so no judged text can, whatever the model's vocabulary. A child that dies is started
again; until it is up, calls fail.
"""

import asyncio
import hashlib
import logging
import os
from collections.abc import AsyncIterator
from urllib.parse import SplitResult

import httpx2

from judge_server.engines.llamacpp_call import TOP_TOKENS, LlamaCppExchange, reserved_tokens
from judge_server.engines.llamacpp_completion import complete, sampling
from judge_server.engines.llamacpp_process import LlamaCppProcess
from judge_server.engines.llamacpp_tokens import LlamaCppTokenizer
from judge_server.engines.options import UrlOptions
from judge_server.engines.weights import Weights, locate_weights
from judge_server.errors import EngineStartError, EngineUnavailable
from judge_server.ports import Batch, Call, CallFailure, Capabilities, EngineIdentity, Reply

log = logging.getLogger("adjudge")

_GONE = (httpx2.HTTPError, RuntimeError)
"""What a request to a child that has died, or through a client that is closed, raises."""

_PAUSE_S, _MAX_RESTART_PAUSE_S = 1.0, 60.0
_STEADY_S = 60.0
"""A child that lived this long died of something new: it is started again after the shortest pause."""


class LlamaCppEngine:
    """A GGUF model on this machine. `model` is a catalogue name, an `hf://` reference or a path."""

    fatal_error = ""
    concurrent_calls = None

    def __init__(self, model: str, *, context_tokens: int = 8192, threads: int | None = None) -> None:
        self._model = model
        self._context_tokens = context_tokens
        self._process = LlamaCppProcess(context_tokens=context_tokens, threads=threads or os.cpu_count() or 1)
        self._tokens: LlamaCppTokenizer | None = None
        self._down = "the engine is not started"
        self._upkeep: asyncio.Task[None] | None = None

    @classmethod
    def from_url(cls, url: SplitResult) -> "LlamaCppEngine":
        """`llamacpp://NAME`, `llamacpp:///path/to/file.gguf` or `llamacpp://hf/owner/repo/file.gguf`.

        Options: `?context=8192` (tokens; a model that was trained for fewer takes fewer), `?threads=` (all cores
        unless given).
        """
        options = UrlOptions(url)
        model = f"hf:/{url.path}" if url.netloc == "hf" else url.netloc or url.path
        threads = options.integer("threads", os.cpu_count() or 1)
        engine = cls(model, context_tokens=options.integer("context", 8192), threads=threads)
        options.reject_unknown()
        return engine

    async def start(self) -> EngineIdentity:
        """Check the model file, load it in a child process and warm it up."""
        weights = await asyncio.to_thread(locate_weights, self._model)
        build, tokens = await self._load(weights)
        self._upkeep = asyncio.create_task(self._keep_up(weights))
        return EngineIdentity(
            model=weights.name,
            weights_digest=weights.sha256,
            engine=f"llama.cpp {build}",
            chat_template_digest=hashlib.sha256(tokens.template.encode()).hexdigest(),
            decoding=f"greedy, or sampled from the whole distribution; top {TOP_TOKENS}",
            context_tokens=self._context_tokens,
            concurrent_batches=1,
            capabilities=Capabilities(
                logprobs=True,
                token_menus=True,
                json_schema=True,
                prompt_logprobs=False,
                prefix_in_flight=False,
                seeds=True,
            ),
        )

    async def answer(self, batch: Batch) -> AsyncIterator[tuple[int, Reply | CallFailure]]:
        """Answer in order; the first call pays for the shared part, the others reuse it."""
        for index, call in enumerate(batch.calls):
            try:
                outcome = await self._answer_one(batch, call)
            except (*_GONE, EngineUnavailable) as error:
                outcome = CallFailure("engine", f"llama.cpp gave no answer: {error or type(error).__name__}")
            yield index, outcome

    async def count_tokens(self, batch: Batch) -> int:
        """Tokens of the longest prompt with the chat template, and room for all that comes after it."""
        tokens = self._loaded_tokens()
        try:
            questions = [len(await tokens.question(c.question)) + await reserved_tokens(tokens, c) for c in batch.calls]
            return len(await tokens.prefix(batch)) + max(questions)
        except _GONE as error:
            raise EngineUnavailable(f"llama.cpp gave no answer: {error}") from error

    async def ready(self) -> bool:
        """Whether the child runs and llama.cpp says that it is healthy."""
        return self._tokens is not None and await self._process.healthy()

    async def close(self) -> None:
        """Stop the child; its memory goes with it."""
        self._tokens, self._down = None, "the engine is closed"
        if self._upkeep is not None:
            self._upkeep.cancel()
            await asyncio.gather(self._upkeep, return_exceptions=True)
        await self._process.stop()

    async def _answer_one(self, batch: Batch, call: Call) -> Reply | CallFailure:
        tokens = self._loaded_tokens()
        prompt = await tokens.prefix(batch) + await tokens.question(call.question)
        after = await reserved_tokens(tokens, call)
        if len(prompt) + after > self._context_tokens:
            return CallFailure(
                "truncated_input",
                f"the prompt takes {len(prompt)} tokens, its answer up to {after}, and the judge's context holds "
                f"{self._context_tokens}; allow judging.truncate, or raise the engine's ?context=",
            )
        return await LlamaCppExchange(self._process.http, tokens, prompt, call).reply()

    async def _load(self, weights: Weights) -> tuple[str, LlamaCppTokenizer]:
        """Start the child and warm it up; calls are answered from then on."""
        build = await self._process.start(weights.path)
        http = self._process.http
        try:
            tokens = await LlamaCppTokenizer.load(http)
            held = (await http.get("/props")).json()["default_generation_settings"]["n_ctx"]
            await complete(http, tokens.warm_up, 1, **sampling(None))
        except (*_GONE, EngineUnavailable) as error:
            await self._process.stop()
            raise EngineStartError(f"llama.cpp loaded {weights.path} and then gave no answer: {error}") from error
        self._context_tokens = min(self._context_tokens, held)
        self._tokens = tokens
        return build, tokens

    async def _keep_up(self, weights: Weights) -> None:
        """Start the child again whenever it has died, after a pause that grows while it keeps dying."""
        loop, pause = asyncio.get_running_loop(), 0.0
        while True:
            began = loop.time()
            await self._process.wait()
            if loop.time() - began > _STEADY_S:
                pause = 0.0
            self._tokens, self._down = None, "its process died and is being started again"
            log.warning("the llama.cpp process died; starting it again")
            while self._tokens is None:
                await self._process.stop()
                pause = min(max(2 * pause, _PAUSE_S), _MAX_RESTART_PAUSE_S)
                await asyncio.sleep(pause)
                try:
                    await self._load_again(weights)
                except (EngineStartError, OSError) as error:
                    self._down = f"its process died and cannot be started again: {error}"
                    log.warning("llama.cpp cannot be started again: %s", error)

    async def _load_again(self, weights: Weights) -> None:
        if (await asyncio.to_thread(locate_weights, self._model)).sha256 != weights.sha256:
            raise EngineStartError(f"{weights.path} is another file now; restart the service to judge with it")
        await self._load(weights)

    def _loaded_tokens(self) -> LlamaCppTokenizer:
        if self._tokens is None:
            raise EngineUnavailable(self._down)
        return self._tokens
