"""One call answered by a running llama.cpp server: thoughts, reasons, then the answer, each read after the last."""

from typing import Any

import httpx2

from judge_server.engines.llamacpp_completion import LlamaCppCompletion, complete, in_schema, one_of, sampling
from judge_server.engines.llamacpp_tokens import LlamaCppTokenizer
from judge_server.ports import AnswerForm, Call, JsonOutput, LabelChoice, Reply, TextOutput, TokenChoice

TOP_TOKENS = 200
"""How many next-token probabilities are read; a spelling below all of these weighs less than 1/200 of the mass."""


async def reserved_tokens(tokens: LlamaCppTokenizer, call: Call) -> int:
    """Tokens that may come after the prompt: all that the model may write, and all that is put between."""
    after = _longest(call.answer)
    if call.think_tokens:
        after += len(tokens.pieces.thinking) + call.think_tokens + len(tokens.pieces.thought)
    if call.reasoning is not None:
        after += call.reasoning.max_tokens + len(await tokens.second_turn(call.reasoning.ask))
    return after


class LlamaCppExchange:
    """Answers one call. What the model writes is read back as plain text, so nothing in it is a control token."""

    def __init__(self, http: httpx2.AsyncClient, tokens: LlamaCppTokenizer, prompt: list[int], call: Call) -> None:
        self._http = http
        self._tokens = tokens
        self._prompt = prompt
        self._call = call
        self._completions: list[LlamaCppCompletion] = []

    async def reply(self) -> Reply:
        """Ask the model all it takes; raises `EngineUnavailable`, or what httpx2 raises, where it does not answer."""
        if self._call.think_tokens:
            await self._think(self._call.think_tokens)
        reasoning = None
        if self._call.reasoning is not None:
            reasoning = await self._write(self._call.reasoning.max_tokens)
            self._prompt += await self._tokens.second_turn(self._call.reasoning.ask)
        masses, chosen, text, cut = None, None, None, False
        match self._call.answer:
            case TokenChoice(options, then):
                first = (await self._complete(1, n_probs=TOP_TOKENS, **sampling(None))).first
                masses = tuple([sum(first.get(t, 0.0) for t in await self._tokens.spellings(o)) for o in options])
                if then is not None and any(masses):
                    chosen = await self._choose(options[masses.index(max(masses))].label + then.lead, then)
            case LabelChoice(_, lead) as choice:
                chosen = await self._choose(lead, choice)
            case JsonOutput(schema, max_tokens):
                written = await self._complete(max_tokens, **in_schema(schema), **sampling(self._call.sample))
                text, cut = written.text, written.truncated
            case TextOutput(max_tokens):
                said = await self._complete(max_tokens, **sampling(self._call.sample))
                text, cut = said.text.strip(), said.truncated
        # The prompt is what the first completion read; later ones read only the words put after it.
        return Reply(
            masses,
            chosen,
            text,
            cut,
            reasoning,
            tokens_computed=sum(done.prompt_read for done in self._completions),
            tokens_reused=self._completions[0].prompt_cached,
            tokens_written=sum(done.tokens for done in self._completions),
        )

    async def _think(self, max_tokens: int) -> None:
        self._prompt += self._tokens.pieces.thinking
        await self._write(max_tokens, stop=["</think>"])
        self._prompt += self._tokens.pieces.thought

    async def _write(self, max_tokens: int, **options: Any) -> str:
        """Let the model write freely, and add it to the prompt: never more tokens than it was allowed."""
        text = (await self._complete(max_tokens, **options, **sampling(self._call.sample))).text
        self._prompt += (await self._tokens.written(text))[:max_tokens]
        return text.strip()

    async def _choose(self, lead: str, choice: LabelChoice) -> str:
        self._prompt += await self._tokens.plain(lead)
        wanted = one_of(choice.labels) | sampling(self._call.sample)
        return (await self._complete(choice.reserved_tokens, **wanted)).text

    async def _complete(self, max_tokens: int, **options: Any) -> LlamaCppCompletion:
        done = await complete(self._http, self._prompt, max_tokens, **options)
        self._completions.append(done)
        return done


def _longest(answer: AnswerForm) -> int:
    """Tokens that an answer may take, lead included; no tokenizer makes more tokens than bytes."""
    match answer:
        case TokenChoice(options, then):
            label = max(len(option.label.encode()) for option in options)
            return 1 if then is None else max(1, label + _longest(then))
        case LabelChoice(_, lead):
            return len(lead.encode()) + answer.reserved_tokens
        case JsonOutput(max_tokens=max_tokens) | TextOutput(max_tokens):
            return max_tokens
