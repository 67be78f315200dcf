"""llama.cpp as an engine: one model in a child process, one slot, calls of a response one after another.

One slot, because llama.cpp's slots do not share a prefix in flight: with one, the prefix of a response is read once
and stays hot for all its criteria (docs/decisions/0004). Prompts go in as token ids: only the chat template's own
text may become control tokens, so no judged text can, whatever the model's vocabulary.
"""

import asyncio
import hashlib
import json
import math
import os
from collections.abc import AsyncIterator
from typing import Any
from urllib.parse import SplitResult

import httpx2

from judge_server.engines.llamacpp_process import LlamaCppProcess
from judge_server.engines.llamacpp_tokens import ChatTokens
from judge_server.engines.options import Options
from judge_server.engines.weights import locate_weights
from judge_server.errors import EngineGone
from judge_server.ports import Batch, Call, CallFailed, EngineIdentity, Reply

TOP_TOKENS = 200
"""How many next-token probabilities are read; a spelling below all of these weighs less than 1/200 of the mass."""

ANSWER_TOKENS = 16
"""Room kept in the context for what the judge says: a verdict, and the number of a step."""

_GONE = (httpx2.HTTPError, RuntimeError)
"""What a request to a child that has died, or through a client that is closed, raises."""

GREEDY = {"temperature": 0.0, "cache_prompt": True, "seed": 0}


class LlamaCppEngine:
    """A GGUF model on this machine. `model` is a catalogue name, an `hf://` reference or a path."""

    def __init__(self, model: str, *, context_tokens: int = 8192, threads: int | None = None) -> None:
        self._model = model
        self._context_tokens = context_tokens
        self._process = LlamaCppProcess(context_tokens=context_tokens, threads=threads or os.cpu_count() or 1)
        self._tokens: ChatTokens | None = None

    @classmethod
    def from_url(cls, url: SplitResult) -> "LlamaCppEngine":
        """`llamacpp://NAME`, `llamacpp:///path/to/file.gguf` or `llamacpp://hf/owner/repo/file.gguf`.

        Options: `?context=8192` (tokens), `?threads=` (all cores unless given).
        """
        options = Options(url)
        model = f"hf:/{url.path}" if url.netloc == "hf" else url.netloc or url.path
        threads = options.integer("threads", os.cpu_count() or 1)
        engine = cls(model, context_tokens=options.integer("context", 8192), threads=threads)
        options.refuse_others()
        return engine

    async def start(self) -> EngineIdentity:
        """Check the model file, load it in a child process and warm it up."""
        weights = await asyncio.to_thread(locate_weights, self._model)
        build = await self._process.start(weights.path)
        self._tokens = await ChatTokens.load(self._process.http)
        await self._predict(self._tokens.warm_up)
        return EngineIdentity(
            model=weights.name,
            weights_digest=weights.sha256,
            engine=f"llama.cpp {build}",
            chat_template_digest=hashlib.sha256(self._tokens.template.encode()).hexdigest(),
            decoding=f"greedy; top {TOP_TOKENS}",
            context_tokens=self._context_tokens,
            concurrent_batches=1,
        )

    async def answer(self, batch: Batch) -> AsyncIterator[tuple[int, Reply | CallFailed]]:
        """Answer in order; the first call pays for the shared part, the others reuse it."""
        for index, call in enumerate(batch.calls):
            try:
                outcome = await self._answer_one(batch, call)
            except (*_GONE, EngineGone) as error:
                outcome = CallFailed("engine", f"llama.cpp gave no answer: {error or type(error).__name__}")
            yield index, outcome

    async def count_tokens(self, batch: Batch) -> int:
        """Tokens of the longest prompt with the chat template, and room for the answer."""
        tokens = self._started_tokens()
        try:
            questions = [len(await tokens.question(call.question)) for call in batch.calls]
            return len(await tokens.prefix(batch)) + max(questions) + ANSWER_TOKENS
        except _GONE as error:
            raise EngineGone(f"llama.cpp gave no answer: {error}") from error

    async def ready(self) -> bool:
        """Whether the child runs and llama.cpp says that it is healthy."""
        return self._tokens is not None and await self._process.healthy()

    async def close(self) -> None:
        """Stop the child; its memory goes with it."""
        await self._process.stop()

    async def _answer_one(self, batch: Batch, call: Call) -> Reply | CallFailed:
        tokens = self._started_tokens()
        prompt = await tokens.prefix(batch) + await tokens.question(call.question)
        if len(prompt) + ANSWER_TOKENS > self._context_tokens:
            return CallFailed(
                "truncated_input",
                f"the prompt takes {len(prompt)} tokens and the judge's context holds {self._context_tokens}; "
                "allow judging.truncate, or raise the engine's ?context=",
            )
        first = await self._predict(prompt, n_probs=TOP_TOKENS)
        mass_of = {t["id"]: math.exp(t["logprob"]) for t in first["completion_probabilities"][0]["top_logprobs"]}
        masses = tuple([sum(mass_of.get(t, 0.0) for t in await tokens.spellings(o)) for o in call.menu])
        computed, reused = first["timings"]["prompt_n"], first["timings"]["cache_n"]
        if call.then is None or not any(masses):
            return Reply(masses, None, computed, reused)
        decided = call.menu[masses.index(max(masses))]
        second = await self._predict(
            prompt + await tokens.plain(decided.label + call.then.lead),
            n_predict=ANSWER_TOKENS // 2,
            grammar="root ::= " + " | ".join(json.dumps(label) for label in call.then.labels),
        )
        # The prompt is what the first prediction read; the second reads only the words put in the judge's mouth.
        return Reply(masses, second["content"], computed + second["timings"]["prompt_n"], reused)

    async def _predict(self, prompt: list[int], **options: Any) -> Any:
        response = await self._process.http.post(
            "/completion", json={"prompt": prompt, "n_predict": 1} | GREEDY | options
        )
        if response.status_code != 200:
            raise EngineGone(f"HTTP {response.status_code}: {response.text[:200]}")
        return response.json()

    def _started_tokens(self) -> ChatTokens:
        if self._tokens is None:
            raise EngineGone("the engine is not started")
        return self._tokens
