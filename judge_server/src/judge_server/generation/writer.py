"""A model that writes for a generator: words, JSON of a shape, or one of some labels, over any engine.

What it wrote and cannot be used is `RubricDiscarded`. An engine that gave no answer is asked again a few times and then is
`WriterFailed`, which says nothing about the input: whoever runs the generator leaves that input for another time.
"""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeVar

from pydantic import BaseModel

from judge_server.generation.discards import RubricDiscarded
from judge_server.generation.schemas import schema_of
from judge_server.generation.written import read_shape
from judge_server.judging.reading import read_label_choice
from judge_server.ports import (
    AnswerForm,
    Batch,
    Call,
    CallFailure,
    Engine,
    EngineIdentity,
    JsonOutput,
    LabelChoice,
    Reasoning,
    Reply,
    SamplingOptions,
    TextOutput,
)

Shape = TypeVar("Shape", bound=BaseModel)

MAX_CALL_ATTEMPTS = 4
"""How often an engine that gives no answer is asked."""

RETRY_DELAY_S, MAX_RETRY_DELAY_S = 0.2, 30.0


class WriterFailed(Exception):
    """The engine gave no answer, however often it was asked."""


@dataclass(slots=True)
class WriterUsage:
    """What writing took: calls that were answered, and their tokens (`Reply` says what each kind of token is)."""

    calls: int = 0
    tokens_computed: int = 0
    tokens_reused: int = 0
    tokens_written: int = 0

    def add(self, reply: Reply) -> None:
        """Count one more reply."""
        self.calls += 1
        self.tokens_computed += reply.tokens_computed
        self.tokens_reused += reply.tokens_reused
        self.tokens_written += reply.tokens_written


class Writer:
    """Asks one engine, at most `concurrency` calls at a time: as many as the engine takes, unless told otherwise.

    The engine must have been started; `identity` is what it said it is. `usage` counts what was used.
    """

    def __init__(
        self,
        engine: Engine,
        identity: EngineIdentity,
        *,
        concurrency: int | None = None,
        retry_delay_s: float = RETRY_DELAY_S,
    ) -> None:
        self.identity = identity
        self.usage = WriterUsage()
        self._engine = engine
        self._slots = asyncio.Semaphore(concurrency or identity.concurrent_batches)
        self._retry_delay_s = retry_delay_s
        self._totals: tuple[WriterUsage, ...] = (self.usage,)

    def with_own_usage(self) -> "Writer":
        """The same writer with a `usage` of its own, which enters this one's as well."""
        other = Writer.__new__(Writer)
        other.__dict__.update(self.__dict__)
        other.usage = WriterUsage()
        other._totals = (*self._totals, other.usage)
        return other

    async def write_text(
        self, prompt: str, *, system: str = "", max_tokens: int, temperature: float = 0.0, seed: int = 0
    ) -> str:
        """Words, without the white space around them.

        Raises:
            Discarded: `cut_short` at `max_tokens`, `context_overflow` where the prompt does not fit the model's context,
                `unreadable` where nothing was written.
            WriterFailed: the engine gave no answer.
        """
        reply = await self._ask(system, prompt, TextOutput(max_tokens), temperature, seed)
        text = (reply.text or "").strip()
        if reply.cut:
            raise RubricDiscarded("cut_short", f"it was not done after {max_tokens} tokens; allow more of them")
        if not text:
            raise RubricDiscarded("unreadable", "it wrote nothing")
        return text

    async def written(
        self,
        shape: type[Shape],
        prompt: str,
        *,
        system: str = "",
        max_tokens: int,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> Shape:
        """JSON of a shape, to which the engine is held where it can be; `read_shape` says how it is read.

        Raises:
            Discarded: as `read_shape`, or `context_overflow`.
            WriterFailed: the engine gave no answer.
        """
        reply = await self._ask(system, prompt, JsonOutput(schema_of(shape), max_tokens), temperature, seed)
        return read_shape(shape, reply.text or "", cut=reply.cut)

    async def choose(
        self,
        labels: Sequence[str],
        prompt: str,
        *,
        system: str = "",
        lead: str = "",
        reasoning: Reasoning | None = None,
    ) -> str:
        """One of the labels; `lead` is written for the model before it picks, reasons come before both.

        Raises:
            Discarded: `unreadable` where it named none of them, or `context_overflow`.
            WriterFailed: the engine gave no answer.
        """
        choice = LabelChoice(tuple(labels), lead)
        reply = await self._ask(system, prompt, choice, reasoning=reasoning)
        if reply.chosen in choice.labels:
            return reply.chosen
        label = read_label_choice(reply.text or reply.chosen or "", choice)
        if isinstance(label, CallFailure):
            raise RubricDiscarded("unreadable", label.detail)
        return label

    async def _ask(
        self,
        system: str,
        prompt: str,
        form: AnswerForm,
        temperature: float = 0.0,
        seed: int = 0,
        *,
        reasoning: Reasoning | None = None,
    ) -> Reply:
        sample = SamplingOptions(temperature, seed) if temperature else None
        batch = Batch(system, prompt, (Call("", form, reasoning=reasoning, sample=sample),))
        pause, attempt = self._retry_delay_s, 1
        while True:
            async with self._slots:
                outcome = await self._outcome(batch)
            if isinstance(outcome, Reply):
                for usage in self._totals:
                    usage.add(outcome)
                return outcome
            if outcome.kind == "truncated_input":
                raise RubricDiscarded("too_long", outcome.detail)
            if attempt == MAX_CALL_ATTEMPTS:
                raise WriterFailed(f"{outcome.kind}: {outcome.detail} (asked {MAX_CALL_ATTEMPTS} times)")
            await asyncio.sleep(max(pause, outcome.retry_after_s or 0.0))
            pause, attempt = min(4 * pause, MAX_RETRY_DELAY_S), attempt + 1

    async def _outcome(self, batch: Batch) -> Reply | CallFailure:
        async for _, outcome in self._engine.answer(batch):
            return outcome
        return CallFailure("engine", "the engine ended without an answer")
