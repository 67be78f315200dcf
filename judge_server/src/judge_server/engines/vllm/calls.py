"""How a loaded vLLM answers one call: thinking, rationale, then the answer in the form asked for.

Masses are those of the next token before any constraint. vLLM takes raw log-probabilities before it applies
`allowed_token_ids`, but after a grammar, so token choices are constrained by the former. What the judge wrote is
tokenised again as plain text before it is read back, so that it cannot contain control tokens.
"""

import math
from itertools import count
from pathlib import Path
from typing import Any

from vllm import SamplingParams, TokensPrompt
from vllm.exceptions import VLLMError
from vllm.lora.request import LoRARequest
from vllm.sampling_params import RequestOutputKind, StructuredOutputsParams
from vllm.v1.engine.async_llm import AsyncLLM
from vllm.v1.engine.exceptions import EngineGenerateError

from judge_server.engines.vllm.loading import Adapters
from judge_server.engines.vllm.tokenizer import VllmTokenizer
from judge_server.ports import (
    AnswerForm,
    Call,
    CallFailure,
    JsonOutput,
    LabelChoice,
    Reply,
    TextOutput,
    TokenChoice,
)


class VllmAnswerer:
    """Answers calls with one loaded model."""

    def __init__(self, llm: AsyncLLM, tokens: VllmTokenizer, lora: Path | None = None) -> None:
        self.llm = llm
        self.tokens = tokens
        self.context_tokens: int = llm.model_config.max_model_len
        self.dtype = str(llm.model_config.dtype).removeprefix("torch.")
        self.adapters = Adapters(llm, LoRARequest, lora)
        self._ids = count()

    def tokens_needed(self, prefix: list[int], call: Call) -> int:
        """Return how many tokens the call needs: the prompt with its prefix, and the most that can be written."""
        tokens = self.tokens
        needed = len(prefix) + len(tokens.plain(call.question)) + len(tokens.answer)
        if call.think_tokens:
            needed += len(tokens.think) + call.think_tokens + len(tokens.thought)
        if call.reasoning:
            needed += call.reasoning.max_tokens + len(tokens.ask) + len(tokens.plain(call.reasoning.ask))
            needed += len(tokens.answer)
        return needed + self._reserved_tokens(call.answer)

    async def reply(self, prefix: list[int], call: Call, cache_salt: str = "") -> Reply | CallFailure:
        """Return the call's outcome. `prefix` is everything before its question; for `cache_salt`, see `Batch`."""
        needed = self.tokens_needed(prefix, call)
        if needed > self.context_tokens:
            return CallFailure(
                "truncated_input",
                f"the prompt and its answer take {needed} tokens and the judge's context holds {self.context_tokens}; "
                "allow judging.truncate, or raise the engine's ?context=",
            )
        try:
            return await _VllmExchange(self, prefix, call, cache_salt).run()
        except (VLLMError, ValueError) as error:
            return CallFailure("engine", f"vLLM gave no answer: {error or type(error).__name__}")

    async def generate(self, prompt: list[int], params: SamplingParams, cache_salt: str = "") -> Any:
        """Return vLLM's output for a prompt. Cancelling this ends the request in the engine."""
        name = f"call-{next(self._ids)}"
        given = TokensPrompt(prompt_token_ids=prompt)
        if cache_salt:
            given["cache_salt"] = cache_salt
        async for output in self.llm.generate(given, params, name, lora_request=self.adapters.present):
            if output.outputs[0].finish_reason in ("stop", "length"):
                return output
        raise EngineGenerateError("the request ended without an answer")

    def _reserved_tokens(self, form: AnswerForm) -> int:
        if isinstance(form, JsonOutput | TextOutput):
            return form.max_tokens
        if isinstance(form, LabelChoice):
            return len(self.tokens.plain(form.lead)) + form.reserved_tokens
        label = max(len(self.tokens.plain(option.label)) for option in form.options)
        lead = len(self.tokens.control(form.lead)) if form.lead else 0
        return lead + max(1, label + self._reserved_tokens(form.then) if form.then else 0)


class _VllmExchange:
    """One call being answered: its prompt so far, and its cost."""

    def __init__(self, answerer: VllmAnswerer, prefix: list[int], call: Call, cache_salt: str) -> None:
        self._answerer = answerer
        self._cache_salt = cache_salt
        self._tokens = answerer.tokens
        self._call = call
        self._prompt = [*prefix, *self._tokens.plain(call.question)]
        self._computed = self._written = 0
        self._reused: int | None = None

    async def run(self) -> Reply:
        reasons = None
        if self._call.think_tokens:
            await self._think(self._call.think_tokens)
        else:
            self._prompt += self._tokens.answer
        if self._call.reasoning:
            reasons = await self._write(self._call.reasoning.max_tokens)
            self._prompt += self._tokens.ask + self._tokens.plain(self._call.reasoning.ask) + self._tokens.answer
        masses, chosen, text, cut = await self._answer(self._call.answer)
        return Reply(masses, chosen, text, cut, reasons, self._computed, self._reused or 0, self._written)

    async def _answer(self, form: AnswerForm) -> tuple[tuple[float, ...] | None, str | None, str | None, bool]:
        if isinstance(form, JsonOutput):
            output = await self._generate(form.max_tokens, structured=StructuredOutputsParams(json=form.schema))
            return None, None, output.text, output.finish_reason == "length"
        if isinstance(form, TextOutput):
            output = await self._generate(form.max_tokens)
            return None, None, output.text.strip(), output.finish_reason == "length"
        if isinstance(form, LabelChoice):
            return None, *await self._choose(form), False
        masses = await self._masses(form)
        if form.then is None or not any(masses):
            return masses, None, None, False
        self._prompt += self._tokens.plain(form.options[masses.index(max(masses))].label)
        return masses, *await self._choose(form.then), False

    async def _think(self, max_tokens: int) -> None:
        self._prompt += self._tokens.think
        output = await self._generate(max_tokens, stop=self._tokens.thought_end)
        self._prompt += self._tokens.plain(output.text.strip())[:max_tokens] + self._tokens.thought

    async def _write(self, max_tokens: int) -> str:
        output = await self._generate(max_tokens)
        self._prompt += self._tokens.plain(output.text)[:max_tokens]
        return str(output.text)

    async def _masses(self, token_choice: TokenChoice) -> tuple[float, ...]:
        ids = [self._tokens.spellings(option) for option in token_choice.options]
        all_ids = sorted({i for spellings in ids for i in spellings})
        if not all_ids:
            return (0.0,) * len(ids)
        if token_choice.lead:
            self._prompt += self._tokens.control(token_choice.lead)
        output = await self._run(
            SamplingParams(
                max_tokens=1,
                temperature=0.0,
                allowed_token_ids=all_ids,
                logprob_token_ids=all_ids,
                detokenize=False,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )
        )
        mass = {i: math.exp(output.logprobs[0][i].logprob) for i in all_ids}
        return tuple([min(1.0, sum(mass[i] for i in spellings)) for spellings in ids])

    async def _choose(self, choice: LabelChoice) -> tuple[str | None, str | None]:
        """Return the label picked, or the text written instead."""
        self._prompt += self._tokens.plain(choice.lead)
        output = await self._generate(
            choice.reserved_tokens, structured=StructuredOutputsParams(choice=list(choice.labels))
        )
        return (output.text, None) if output.text in choice.labels else (None, output.text)

    async def _generate(
        self, max_tokens: int, *, stop: str | None = None, structured: StructuredOutputsParams | None = None
    ) -> Any:
        sample = self._call.sample
        return await self._run(
            SamplingParams(
                max_tokens=max_tokens,
                temperature=sample.temperature if sample else 0.0,
                seed=sample.seed if sample else None,
                stop=stop,
                skip_special_tokens=stop is None,  # what ends the thinking may be a special token
                structured_outputs=structured,
                output_kind=RequestOutputKind.FINAL_ONLY,
            )
        )

    async def _run(self, params: SamplingParams) -> Any:
        """Run one request. Only the first one counts as reuse: later ones reread what was appended."""
        output = await self._answerer.generate(self._prompt, params, self._cache_salt)
        cached = output.num_cached_tokens or 0
        self._computed += len(self._prompt) - cached
        self._reused = cached if self._reused is None else self._reused
        self._written += len(output.outputs[0].token_ids)
        return output.outputs[0]
