"""Plain loops over each engine: the same prompts as Adjudge's, one token with its probabilities per call.

`ask` runs no code of Adjudge. The prompts are prepared before it, so that their cost does not count for the bare side.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, Protocol

import httpx2

from benchmarks.bare_engine.workload import Prompts
from judge_server.engines.llamacpp.engine import LlamaCppTokenizer as LlamaCppTokens
from judge_server.engines.vllm.tokenizer import VllmTokenizer as VllmTokens
from judge_server.ports import Batch

TOP_TOKENS = 20

Tokenise = Callable[[Batch], Awaitable[Prompts]]


class BareEngine(Protocol):
    """An engine without Adjudge; `prepare` converts the calls about a response to the model's token ids."""

    prepare: Tokenise

    async def ask(self, batches: Sequence[Batch], prompts: Sequence[Prompts]) -> None:
        """Send all calls and wait for all answers."""


def llamacpp_prompts(tokens: LlamaCppTokens) -> Tokenise:
    """Tokenise with a running llama.cpp server."""

    async def prompts(batch: Batch) -> Prompts:
        return Prompts(await tokens.prefix(batch), [await tokens.question(call.question) for call in batch.calls])

    return prompts


def vllm_prompts(tokens: VllmTokens) -> Tokenise:
    """Tokenise with the tokenizer of a model in Hugging Face's format."""

    async def prompts(batch: Batch) -> Prompts:
        questions = [tokens.plain(call.question) + tokens.answer for call in batch.calls]
        return Prompts(tokens.prefix(batch.system, batch.shared), questions)

    return prompts


class BareLlamaCpp:
    """llama.cpp with one slot, which gets one call after another."""

    def __init__(self, http: httpx2.AsyncClient, tokens: LlamaCppTokens) -> None:
        self._http = http
        self.prepare: Tokenise = llamacpp_prompts(tokens)

    async def ask(self, batches: Sequence[Batch], prompts: Sequence[Prompts]) -> None:
        """Send the calls one after another."""
        for prompt in [whole for response in prompts for whole in response.whole]:
            body = {"prompt": prompt, "n_predict": 1, "n_probs": TOP_TOKENS, "temperature": 0}
            (await self._http.post("/completion", json=body)).raise_for_status()


class BareVllm:
    """vLLM's `LLM`, which gets all calls of a turn at once, in order."""

    def __init__(self, llm: Any, tokens: VllmTokens) -> None:
        self._llm = llm
        self.prepare: Tokenise = vllm_prompts(tokens)

    async def ask(self, batches: Sequence[Batch], prompts: Sequence[Prompts]) -> None:
        """Send all calls at once."""
        from vllm import SamplingParams, TokensPrompt

        sampling = SamplingParams(max_tokens=1, temperature=0.0, logprobs=TOP_TOKENS, detokenize=False)
        whole = [TokensPrompt(prompt_token_ids=ids) for response in prompts for ids in response.whole]
        self._llm.generate(whole, sampling, use_tqdm=False)


class BareEndpoint:
    """A chat API, `in_flight` calls at a time, in order."""

    def __init__(self, http: httpx2.AsyncClient, model: str, in_flight: int, prepare: Tokenise) -> None:
        self._http = http
        self._model = model
        self._in_flight = in_flight
        self.prepare: Tokenise = prepare

    async def ask(self, batches: Sequence[Batch], prompts: Sequence[Prompts]) -> None:
        """Send the calls with as many in flight as Adjudge has."""
        slots = asyncio.Semaphore(self._in_flight)

        async def one(system: str, user: str) -> None:
            messages = [{"role": "system", "content": system}, {"role": "user", "content": user}]
            body = {"model": self._model, "messages": messages, "max_tokens": 1, "temperature": 0}
            async with slots:
                answer = await self._http.post(
                    "/v1/chat/completions", json=body | {"logprobs": True, "top_logprobs": TOP_TOKENS}
                )
            answer.raise_for_status()

        await asyncio.gather(*(one(b.system, b.shared + c.question) for b in batches for c in b.calls))
