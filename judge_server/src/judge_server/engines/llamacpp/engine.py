"""llama.cpp as an engine: one model in a child process with one slot, which answers a response's calls in turn.

There is one slot because llama.cpp's slots do not share a prefix in flight: with one, the prefix of a response is read
once and stays cached for all its criteria (docs/decisions/0004). Prompts are sent as token ids: the chat template is
split around its messages, and only its own text may become control tokens, so no judged text can. A child that dies is
restarted; until it is up, calls fail.

A file that says it is a decision model is asked typed questions instead, through llama.cpp's own route for them.

Completions are streamed, with a progress event after every part of the prompt, because llama.cpp notices a closed
connection only when it has something to send. So cancelling a call frees the slot.
"""

import asyncio
import hashlib
import json
import logging
import math
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any
from urllib.parse import SplitResult

import httpx2
from pydantic import PositiveInt

from judge_server.engines.common import TAGS, LoraPath, split_at_marks, thinking_marks
from judge_server.engines.llamacpp.process import LlamaCppProcess, Weights, locate_weights, with_adapter
from judge_server.engines.openai.http import EndpointError
from judge_server.engines.systemone.engine import TYPED_QUESTIONS, DecisionClient
from judge_server.errors import CannotLoad, EngineStartError, EngineUnavailable
from judge_server.models.adapters import require_unchanged
from judge_server.ports import (
    Adapter,
    AnswerForm,
    Batch,
    Call,
    CallFailure,
    Capabilities,
    EngineIdentity,
    JsonOutput,
    LabelChoice,
    Option,
    Reply,
    SamplingOptions,
    TextOutput,
    TokenChoice,
)
from judge_server.ports.urls import UrlOptions
from rubric_store.byte_cache import ByteCache

log = logging.getLogger("adjudge")

TOP_TOKENS = 200
"""How many next-token probabilities are read. A spelling below all of these has less than 1/200 of the mass."""

_GONE = (httpx2.HTTPError, RuntimeError)
"""The errors of a request to a dead child, or through a closed client."""

_PAUSE_S, _MAX_RESTART_PAUSE_S = 1.0, 60.0
_STEADY_S = 60.0
"""After this uptime, the pause before a restart is the shortest again."""

_SYSTEM, _USER = "\x02system\x03", "\x02user\x03"
_REASONS, _ASK = "\x02reasons\x03", "\x02ask\x03"
_REMEMBERED_BYTES = 32 * 2**20


@dataclass(frozen=True, slots=True)
class TemplateTokens:
    """The fixed pieces of a chat template.

    Attributes:
        head: before the system message.
        middle: between the system and the user message.
        tail: between the user message and the answer, with thinking skipped.
        think: between the user message and the start of the model's thinking.
        again: between the assistant's message and a second user message; None if the template does not allow one.
        tail_again: after the second user message, with thinking skipped.
        thought: the end of a thinking block.
        end: what the model writes to end its thinking.
    """

    head: list[int]
    middle: list[int]
    tail: list[int]
    think: list[int]
    again: list[int] | None
    tail_again: list[int]
    thought: list[int]
    end: str = TAGS.end


class LlamaCppTokenizer:
    """Tokenises with a running llama.cpp server, and caches texts that recur."""

    def __init__(self, http: httpx2.AsyncClient, template: str, pieces: TemplateTokens) -> None:
        self._http = http
        self._seen: ByteCache[str, list[int]] = ByteCache(_REMEMBERED_BYTES)
        self._prefix: tuple[tuple[str, str], list[int]] | None = None
        self.template = template
        self.pieces = pieces

    @classmethod
    async def load(cls, http: httpx2.AsyncClient) -> "LlamaCppTokenizer":
        """Read the model's chat template and tokenise its fixed pieces.

        Raises:
            EngineStartError: the template does not accept a system and a user message.
        """
        template = await _rendered(http, {"system": _SYSTEM}, {"user": _USER})
        one_turn = split_at_marks(template, _SYSTEM, _USER)
        if one_turn is None:
            raise EngineStartError(
                "the model's chat template does not accept a system message followed by a user message; "
                "choose an instruction-tuned model"
            )
        more = {"assistant": _REASONS}, {"user": _ASK}
        two_turns = await _rendered(http, {"system": _SYSTEM}, {"user": _USER}, *more)
        second = split_at_marks(two_turns, _SYSTEM, _USER, _REASONS, _ASK)
        head, middle, tail = one_turn
        thinking = await _rendered(http, {"system": _SYSTEM}, {"user": _USER}, think=True)
        (*_, think) = split_at_marks(thinking, _USER) or (tail,)
        *_, again, tail_again = second or ("", "")
        marks = thinking_marks(two_turns)
        think = marks.opened(think)
        tail, tail_again = tail + marks.answer, tail_again + marks.answer
        pieces = TemplateTokens(
            head=await _tokenise(http, head, control=True, start=True),
            middle=await _tokenise(http, middle, control=True),
            tail=await _tokenise(http, tail, control=True),
            think=await _tokenise(http, think, control=True),
            again=await _tokenise(http, again, control=True) if second else None,
            tail_again=await _tokenise(http, tail_again, control=True),
            thought=await _tokenise(http, marks.closing, control=True),
            end=marks.end,
        )
        digested = [template, *([two_turns] if second else []), *([thinking] if thinking != template else [])]
        digested += [marks.answer] if marks.answer else []
        return cls(http, "\0".join(digested), pieces)

    @property
    def warm_up(self) -> list[int]:
        """A short valid prompt."""
        return self.pieces.head + self.pieces.middle + self.pieces.tail

    async def prefix(self, batch: Batch) -> list[int]:
        """Return everything before the question. It is cached for the last batch, whose calls come one by one."""
        key = (batch.system, batch.shared)
        if self._prefix is None or self._prefix[0] != key:
            shared = await _tokenise(self._http, batch.shared)
            self._prefix = key, self.pieces.head + await self.plain(batch.system) + self.pieces.middle + shared
        return self._prefix[1]

    async def question(self, text: str, *, think: bool = False) -> list[int]:
        """Return the question and what the template puts before the answer, or before the model's thinking."""
        return await self.plain(text) + (self.pieces.think if think else self.pieces.tail)

    async def second_turn(self, ask: str) -> list[int]:
        """Return the end of the assistant's first message, and the user's `ask`.

        Raises `EngineUnavailable` if the template does not allow a second turn.
        """
        if self.pieces.again is None:
            raise EngineUnavailable(
                "the model's chat template allows no second turn, so it cannot give a rationale first"
            )
        return self.pieces.again + await self.plain(ask) + self.pieces.tail_again

    async def spellings(self, option: Option) -> list[int]:
        """Return the ids of the option's spellings that are a single token for this model."""
        ids = [await self.plain(spelling) for spelling in option.spellings]
        return sorted({i[0] for i in ids if len(i) == 1})

    async def plain(self, text: str) -> list[int]:
        """Return the ids of a text, none of which is a control token."""
        ids = self._seen.get(text)
        if ids is None:
            ids = await self.written(text)
            self._seen.put(text, ids)
        return ids

    async def lead(self, text: str) -> list[int]:
        """Return the ids of a text that is written on behalf of the model, control tokens included."""
        return await _tokenise(self._http, text, control=True) if text else []

    async def written(self, text: str) -> list[int]:
        """Like `plain`, but not cached, for a text that will not recur."""
        return await _tokenise(self._http, text)


async def _rendered(http: httpx2.AsyncClient, *messages: dict[str, str], think: bool = False) -> str:
    """Render messages with the model's chat template; empty if the template refuses them."""
    body = [{"role": role, "content": content} for message in messages for role, content in message.items()]
    options = {"chat_template_kwargs": {"enable_thinking": think}}
    answer = await http.post("/apply-template", json={"messages": body, **options})
    return str(answer.json().get("prompt", ""))


async def _tokenise(http: httpx2.AsyncClient, text: str, *, control: bool = False, start: bool = False) -> list[int]:
    body = {"content": text, "parse_special": control, "add_special": start}
    answer = await http.post("/tokenize", json=body)
    answer.raise_for_status()
    ids: list[int] = answer.json()["tokens"]
    return ids


@contextmanager
def _answering() -> Iterator[None]:
    """Raise `EngineUnavailable` if the child dies meanwhile."""
    try:
        yield
    except _GONE as error:
        raise EngineUnavailable(f"llama.cpp gave no answer: {error or type(error).__name__}") from error


class LlamaCppOptions(UrlOptions):
    """The options of a `llamacpp://` URL.

    Attributes:
        context: tokens of a prompt and its answer; limited by the context that the model was trained for.
        threads: threads that compute; by default all cores.
        lora: the GGUF file of a LoRA adapter that every call uses.
    """

    context: PositiveInt = 8192
    threads: PositiveInt | None = None
    lora: LoraPath | None = None


class LlamaCppEngine:
    """A GGUF model on this machine, a chat model or a decision model.

    `model` is a catalogue name, an `hf://` reference or a path. With a probe's file (`judge_server.models.probes`) it
    answers one question, which its identity names. `lora` is the GGUF file of a LoRA adapter that every call uses, at
    the strength that the file says. It counts as part of the weights, in their name and their digest. `load` replaces
    it by another, or leaves none.
    """

    fatal_error = ""
    concurrent_calls = None
    pool = None

    def __init__(
        self, model: str, *, context_tokens: int = 8192, threads: int | None = None, lora: Path | None = None
    ) -> None:
        self.model = model
        self.lora = lora
        self._lora_name = ""
        self._context_tokens = context_tokens
        self._process = LlamaCppProcess(
            context_tokens=context_tokens, threads=threads or os.cpu_count() or 1, lora=lora
        )
        self._tokens: LlamaCppTokenizer | None = None
        self._decisions: DecisionClient | None = None
        self._down = "the engine is not started"
        self._weights: Weights | None = None
        self._build = ""
        self._upkeep: asyncio.Task[None] | None = None
        self._cached_salt: str | None = None

    @classmethod
    def from_url(cls, url: SplitResult) -> "LlamaCppEngine":
        """Create from `llamacpp://NAME`, `llamacpp:///path/to/file.gguf` or `llamacpp://hf/owner/repo/file.gguf`.

        Options: `?context=8192` (tokens; fewer for a model trained for fewer), `?threads=` (default: all cores),
        `?lora=/path/adapter.gguf` (a LoRA adapter).
        """
        options = LlamaCppOptions.of(url)
        model = f"hf:/{url.path}" if url.netloc == "hf" else url.netloc or url.path
        return cls(model, context_tokens=options.context, threads=options.threads, lora=options.lora)

    async def start(self) -> EngineIdentity:
        """Check the model file and the adapter, load them in a child process and warm it up.

        Raises:
            EngineStartError: a file is missing or damaged, or they do not load together; the message says what to do.
        """
        if find_spec("xllamacpp") is None:
            raise EngineStartError(
                "llama.cpp is not installed here: run pip install 'adjudge[cpu]', or name another judge in "
                "ADJUDGE_ENGINE_URL, such as openai+http://HOST:PORT/v1"
            )
        self._weights = weights = await asyncio.to_thread(self._locate)
        build = await self._load(weights)
        self._upkeep = asyncio.create_task(self._keep_up(weights))
        self._build = build
        return self._identity(weights)

    def _identity(self, weights: Weights) -> EngineIdentity:
        identity = EngineIdentity(
            model=weights.name,
            weights_digest=weights.sha256,
            engine=f"llama.cpp {self._build}",
            chat_template_digest="in the weights",
            decoding="typed questions",
            context_tokens=self._context_tokens,
            concurrent_batches=1,
            capabilities=TYPED_QUESTIONS,
        )
        if self._tokens is None:
            return identity
        return replace(
            identity,
            chat_template_digest=hashlib.sha256(self._tokens.template.encode()).hexdigest(),
            decoding=f"greedy, or sampled from the whole distribution; top {TOP_TOKENS}",
            capabilities=Capabilities(
                logprobs=True, token_menus=True, json_schema=True, prompt_logprobs=False, prefix_in_flight=False
            ),
            asks=weights.asks,
        )

    async def answer(self, batch: Batch) -> AsyncIterator[tuple[int, Reply | CallFailure]]:
        """Answer the calls in order. The first one computes the shared part, and the others reuse it.

        The calls to a decision model share a request.
        """
        if self._decisions is not None:
            async for answered in self._decisions.answer(batch):
                yield answered
            return
        for index, call in enumerate(batch.calls):
            try:
                outcome = await self._answer_one(batch, call)
            except (*_GONE, EngineUnavailable) as error:
                outcome = CallFailure("engine", f"llama.cpp gave no answer: {error or type(error).__name__}")
            yield index, outcome

    async def count_tokens(self, batch: Batch) -> int:
        """Count the tokens of the longest prompt with the chat template, and of all that may follow it."""
        if self._decisions is not None:
            return await self._decisions.count_tokens(batch)
        tokens = self._loaded_tokens()
        with _answering():
            questions = [len(await _asked(tokens, c)) + await reserved_tokens(tokens, c) for c in batch.calls]
            return len(await tokens.prefix(batch)) + max(questions)

    async def prompt_tokens(self, batch: Batch, call: Call) -> list[int]:
        """Return the token ids of a call's prompt, with the chat template, up to the answer.

        Raises `EngineUnavailable` if the model is a decision model, which has no prompts, or does not answer.
        """
        if self._decisions is not None:
            raise EngineUnavailable("a decision model is asked typed questions and has no prompts to count")
        tokens = self._loaded_tokens()
        with _answering():
            return await tokens.prefix(batch) + await _asked(tokens, call)

    async def option_token(self, option: Option) -> int:
        """Return the id of the option's label, or else of a spelling that is a single token.

        Raises `EngineUnavailable` if no spelling is, or the model does not answer.
        """
        with _answering():
            tokens = self._loaded_tokens()
            found = [
                *await tokens.spellings(replace(option, spellings=(option.label,))),
                *await tokens.spellings(option),
            ]
        if not found:
            raise EngineUnavailable(f"no spelling of {option.label!r} is a single token of this model")
        return found[0]

    async def ready(self) -> bool:
        """Whether the child runs and llama.cpp reports that it is healthy."""
        return self._loaded and await self._process.healthy()

    async def sleep(self) -> None:
        """Stop the child, which frees its memory."""
        await self._stop("the engine is asleep")

    async def wake(self) -> None:
        """Load the same files in a new child.

        Raises:
            EngineUnavailable: they have changed, or cannot be loaded now; the message says why.
        """
        if self._loaded or self._weights is None:
            return
        try:
            await self._load_again(self._weights)
        except (EngineStartError, OSError) as error:
            raise EngineUnavailable(str(error)) from error
        self._upkeep = asyncio.create_task(self._keep_up(self._weights))

    async def load(self, adapter: Adapter | None, version: str) -> EngineIdentity:
        """Start a new child with this adapter in place of the one before, or without one.

        Raises:
            CannotLoad: the adapter does not suit the model; the child before was started again.
            EngineUnavailable: that failed too.
        """
        before = self._weights
        if before is None:
            raise CannotLoad(self._down)
        given, replaced = (self.lora, self._lora_name), not self._loaded
        self.lora, self._lora_name = (None, "") if adapter is None else (adapter.path, adapter.id)
        try:
            weights = await asyncio.to_thread(self._locate)
            if replaced or weights.sha256 != before.sha256:
                replaced = True
                await self._restart(weights)
            self._process.lora = self.lora  # the same content may have moved
            if adapter is not None:
                await asyncio.to_thread(require_unchanged, adapter)
        except (EngineStartError, CannotLoad, OSError) as error:
            self.lora, self._lora_name = given
            self._process.lora = self.lora
            if replaced:
                await self._restore(before, error)
            raise CannotLoad(str(error)) from error
        self._weights = weights
        return self._identity(weights)

    async def _restart(self, weights: Weights) -> None:
        """Load these weights, whose files were just hashed, in a new child."""
        await self._stop("the engine is loading other weights")
        self._process.lora = self.lora
        await self._load(weights)
        self._upkeep = asyncio.create_task(self._keep_up(weights))

    async def _restore(self, before: Weights, why: Exception) -> None:
        """Load the weights before in a new child. Raises `EngineUnavailable` if that fails."""
        try:
            if (await asyncio.to_thread(self._locate)).sha256 != before.sha256:
                raise EngineStartError("their files have changed")
            await self._restart(before)
        except (EngineStartError, OSError) as error:
            raise EngineUnavailable(f"{why}; the weights before cannot be loaded again: {error}") from error

    async def close(self) -> None:
        """Stop the child, which frees its memory."""
        await self._stop("the engine is closed")

    async def _stop(self, why: str) -> None:
        self._down = why
        await self._unload()
        if self._upkeep is not None:
            self._upkeep.cancel()
            await asyncio.gather(self._upkeep, return_exceptions=True)
            self._upkeep = None
        await self._process.stop()

    async def _answer_one(self, batch: Batch, call: Call) -> Reply | CallFailure:
        tokens, prompt = self._loaded_tokens(), await self.prompt_tokens(batch, call)
        after = await reserved_tokens(tokens, call)
        if len(prompt) + after > self._context_tokens:
            return CallFailure(
                "truncated_input",
                f"the prompt takes {len(prompt)} tokens, its answer up to {after}, and the judge's context holds "
                f"{self._context_tokens}; allow judging.truncate, or raise the engine's ?context=",
            )
        fresh, self._cached_salt = batch.cache_salt != self._cached_salt, None
        reply = await LlamaCppExchange(self._process.http, tokens, prompt, call, fresh=fresh).reply()
        self._cached_salt = batch.cache_salt  # only now: a call that is cancelled may leave another prompt in the cache
        return reply

    @property
    def _loaded(self) -> bool:
        return self._tokens is not None or self._decisions is not None

    async def _unload(self) -> None:
        decisions, self._tokens, self._decisions = self._decisions, None, None
        if decisions is not None:
            await decisions.http.close()

    def _locate(self) -> Weights:
        weights = locate_weights(self.model)
        return weights if self.lora is None else with_adapter(weights, self.lora, self._lora_name)

    async def _load(self, weights: Weights) -> str:
        """Start the child and warm it up; calls are answered from then on."""
        build = await self._process.start(weights.path)
        http = self._process.http
        try:
            tokens = decisions = None
            await self._process.check_adapter()
            if await self._process.serves_decisions():
                decisions = await self._process.decision_client()
            else:
                tokens = await LlamaCppTokenizer.load(http)
                await complete(http, tokens.warm_up, 1, **sampling(None))
            loaded_context = (await http.get("/props")).json()["default_generation_settings"]["n_ctx"]
        except (*_GONE, EngineUnavailable, EndpointError) as error:
            await self._process.stop()
            raise EngineStartError(f"llama.cpp loaded {weights.path} but gave no answer: {error}") from error
        self._context_tokens = min(self._context_tokens, loaded_context)
        self._cached_salt = None  # the new child has cached nothing but the warm-up
        self._tokens, self._decisions = tokens, decisions
        return build

    async def _keep_up(self, weights: Weights) -> None:
        """Restart the child whenever it dies, after a pause that grows while it keeps dying."""
        loop, pause = asyncio.get_running_loop(), 0.0
        while True:
            began = loop.time()
            await self._process.wait()
            if loop.time() - began > _STEADY_S:
                pause = 0.0
            self._down = "its process died and is being started again"
            await self._unload()
            log.warning("the llama.cpp process died; starting it again")
            while not self._loaded:
                await self._process.stop()
                pause = min(max(2 * pause, _PAUSE_S), _MAX_RESTART_PAUSE_S)
                await asyncio.sleep(pause)
                try:
                    await self._load_again(weights)
                except (EngineStartError, OSError) as error:
                    self._down = f"its process died and cannot be started again: {error}"
                    log.warning("llama.cpp cannot be started again: %s", error)

    async def _load_again(self, weights: Weights) -> None:
        if (await asyncio.to_thread(self._locate)).sha256 != weights.sha256:
            files = weights.path if self.lora is None else f"{weights.path} or its adapter {self.lora}"
            raise EngineStartError(f"{files} has changed; restart the service to judge with the new file")
        await self._load(weights)

    def _loaded_tokens(self) -> LlamaCppTokenizer:
        if self._tokens is None:
            raise EngineUnavailable(self._down)
        return self._tokens


async def _asked(tokens: LlamaCppTokenizer, call: Call) -> list[int]:
    return await tokens.question(call.question, think=bool(call.think_tokens))


async def reserved_tokens(tokens: LlamaCppTokenizer, call: Call) -> int:
    """Return the most tokens after the prompt: all that the model may write, and all that is inserted in between."""
    after = _longest(call.answer)
    if call.think_tokens:
        after += call.think_tokens + len(tokens.pieces.thought)
    if call.reasoning is not None:
        after += call.reasoning.max_tokens + len(await tokens.second_turn(call.reasoning.ask))
    return after


class LlamaCppExchange:
    """Answers one call: thinking, rationale, then the answer, each appended to the prompt.

    What the model writes is tokenised again as plain text, so nothing in it is a control token. The first completion of
    a `fresh` exchange reuses nothing that llama.cpp has cached.
    """

    def __init__(
        self,
        http: httpx2.AsyncClient,
        tokens: LlamaCppTokenizer,
        prompt: list[int],
        call: Call,
        *,
        fresh: bool = False,
    ) -> None:
        self._fresh = fresh
        self._http = http
        self._tokens = tokens
        self._prompt = prompt
        self._call = call
        self._completions: list[LlamaCppCompletion] = []

    async def reply(self) -> Reply:
        """Return the model's reply. Raises `EngineUnavailable`, or an error of httpx2, if it does not answer."""
        if self._call.think_tokens:
            await self._think(self._call.think_tokens)
        reasoning = None
        if self._call.reasoning is not None:
            reasoning = await self._write(self._call.reasoning.max_tokens)
            self._prompt += await self._tokens.second_turn(self._call.reasoning.ask)
        masses, chosen, text, cut = None, None, None, False
        match self._call.answer:
            case TokenChoice(options, then, lead):
                self._prompt += await self._tokens.lead(lead)
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
                written = await self._complete(max_tokens, **sampling(self._call.sample))
                text, cut = written.text.strip(), written.truncated
        # Only the first completion counts as reuse: later ones read only what was appended to the prompt.
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
        end = self._tokens.pieces.end
        await self._write(max_tokens, stop=[end], preserved_tokens=[end])
        self._prompt += self._tokens.pieces.thought

    async def _write(self, max_tokens: int, **options: Any) -> str:
        """Let the model write freely, and append that to the prompt, with at most `max_tokens` tokens."""
        text = (await self._complete(max_tokens, **options, **sampling(self._call.sample))).text
        self._prompt += (await self._tokens.written(text))[:max_tokens]
        return text.strip()

    async def _choose(self, lead: str, choice: LabelChoice) -> str:
        self._prompt += await self._tokens.plain(lead)
        wanted = one_of(choice.labels) | sampling(self._call.sample)
        return (await self._complete(choice.reserved_tokens, **wanted)).text

    async def _complete(self, max_tokens: int, **options: Any) -> "LlamaCppCompletion":
        reused = {"cache_prompt": False} if self._fresh and not self._completions else {}
        done = await complete(self._http, self._prompt, max_tokens, **options, **reused)
        self._completions.append(done)
        return done


def _longest(answer: AnswerForm) -> int:
    """Return the most tokens of an answer, lead included; no tokenizer makes more tokens than bytes."""
    match answer:
        case TokenChoice(options, then, lead):
            label = max(len(option.label.encode()) for option in options)
            return len(lead.encode()) + (1 if then is None else max(1, label + _longest(then)))
        case LabelChoice(_, lead):
            return len(lead.encode()) + answer.reserved_tokens
        case JsonOutput(max_tokens=max_tokens) | TextOutput(max_tokens):
            return max_tokens


_SEEDS = 2**32 - 1
"""llama.cpp replaces this seed by a random one."""

_COMPACT = {"x-guidance": {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}}
"""Keeps a small model from filling its token limit with white space, which JSON allows anywhere."""


@dataclass(slots=True)
class LlamaCppCompletion:
    """The text written, and what it cost.

    Attributes:
        text: the text, without the stop string.
        truncated: whether it ended at its token limit.
        first: the probabilities of the first token by id, before any constraint, if they were asked for.
        prompt_read, prompt_cached: prompt tokens that were computed, and those that were cached.
        tokens: tokens written.
    """

    text: str = ""
    truncated: bool = False
    first: dict[int, float] = field(default_factory=dict)
    prompt_read: int = 0
    prompt_cached: int = 0
    tokens: int = 0


def sampling(sample: SamplingOptions | None) -> dict[str, Any]:
    """Return llama.cpp's options for sampling from the full distribution, or for greedy decoding."""
    if sample is None or not sample.temperature:
        return {"temperature": 0.0, "seed": 0}
    seed = sample.seed % _SEEDS
    return {"temperature": sample.temperature, "seed": seed, "top_k": 0, "top_p": 1.0, "min_p": 0.0}


def in_schema(schema: str) -> dict[str, Any]:
    """Return llama.cpp's options for JSON that satisfies a schema."""
    return {"json_schema": json.loads(schema) | _COMPACT}


def one_of(labels: tuple[str, ...]) -> dict[str, Any]:
    """Return llama.cpp's options for writing exactly one of these labels."""
    return {"grammar": "root ::= " + " | ".join(json.dumps(label, ensure_ascii=False) for label in labels)}


async def complete(http: httpx2.AsyncClient, prompt: list[int], n_predict: int, **options: Any) -> LlamaCppCompletion:
    """Let the model write at most `n_predict` tokens after a prompt.

    Raises:
        EngineUnavailable: llama.cpp refused the request, or stopped before the end.
    """
    body = {"prompt": prompt, "n_predict": n_predict, "cache_prompt": True, "stream": True, "return_progress": True}
    done = LlamaCppCompletion()
    async with http.stream("POST", "/completion", json=body | options) as response:
        if response.status_code != 200:
            refusal = (await response.aread()).decode(errors="replace")
            raise EngineUnavailable(f"HTTP {response.status_code}: {refusal[:200]}")
        async for event in _events(response):
            if "error" in event:
                raise EngineUnavailable(str(event["error"])[:200])
            done.text += event.get("content", "")
            if "completion_probabilities" in event and not done.first:
                likely = event["completion_probabilities"][0]["top_logprobs"]
                done.first = {token["id"]: math.exp(token["logprob"]) for token in likely}
            if event.get("stop"):
                timings = event["timings"]
                done.truncated = event["stop_type"] == "limit"
                done.prompt_read, done.prompt_cached = timings["prompt_n"], timings["cache_n"]
                done.tokens = timings["predicted_n"]
                return done  # llama.cpp closes the connection after a stream, so it need not be read to its end
    raise EngineUnavailable("it stopped in the middle of its answer")


async def _events(response: httpx2.Response) -> AsyncIterator[Any]:
    """Yield the JSON values of an event stream. Only a line feed ends a line: JSON may hold other separators."""
    rest = b""
    async for piece in response.aiter_bytes():
        *lines, rest = (rest + piece).split(b"\n")
        for line in lines:
            name, _, value = line.partition(b":")
            if name == b"data" and value.strip() != b"[DONE]":
                yield json.loads(value)
            elif name == b"error":
                yield {"error": value.decode(errors="replace")}
