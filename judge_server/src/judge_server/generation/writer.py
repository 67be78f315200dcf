"""A model that writes for a generator, and why what it wrote may be discarded.

A model that writes for a generator: words, JSON of a shape, or one of some labels, over any engine.

What it wrote and cannot be used is `RubricDiscarded`. An engine that gave no answer is asked again a few times and then is
`WriterFailed`, which says nothing about the input: whoever runs the generator leaves that input for another time.

What a model wrote, read as the shape it was asked for: believed where it is that, thrown away where it is not.

Why something a model made is thrown away: a closed list of reasons, so that they can be counted.

A discard is a finding about what was written, and stands: the same input is not tried again. An engine that gave no
answer is no discard (`judge_server.generation.writer.WriterFailed`).

The JSON Schema of a pydantic model, as engines take it: whole in itself, without what only people read.
"""

import asyncio
import json
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeVar, get_args

from pydantic import BaseModel, ValidationError

from judge_server.judging.items import MAX_JSON_TEXT_CHARACTERS, excerpt
from judge_server.judging.replies import read_label_choice
from judge_server.judging.tolerant_json import ParsedValue, find_values
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

DiscardReason = Literal[
    "unreadable",
    "wrong_shape",
    "cut_short",
    "too_long",
    "empty_source",
    "too_few",
    "too_many",
    "empty_criterion",
    "unknown_kind",
    "duplicate_criteria",
    "bad_weight",
    "leaks_reference",
    "wrong_reference_answer",
    "not_satisfied_by_reference",
    "not_self_contained",
    "no_contrast",
    "invalid_rubric",
]
"""
- `unreadable`: no JSON in what was written, or no answer on offer; `wrong_shape`: JSON that is not what was asked for;
  `cut_short`: the text ended at its limit of tokens.
- `too_long`: the prompt does not fit the model's context; `empty_source`: there is nothing to make a rubric from.
- `too_few`, `too_many`: the number of criteria; `duplicate_criteria`: two of them say the same.
- `empty_criterion`: one of them says nothing; `unknown_kind`: one is of a kind that the method has not.
- `bad_weight`: a weight outside the method's range, or none above zero.
- `leaks_reference`: a criterion gives away the reference answer.
- `wrong_reference_answer`: the reference answer that was written does not agree with the ground truth.
- `not_satisfied_by_reference`: the reference answer does not satisfy what is left.
- `not_self_contained`: a question or a criterion needs a text that its reader does not have.
- `no_contrast`: there is nothing to tell good from bad by.
- `invalid_rubric`: no rubric that could be published, for another reason.
"""

DISCARD_REASONS: tuple[DiscardReason, ...] = get_args(DiscardReason)


class RubricDiscarded(Exception):
    """What was made of an input is no rubric. `detail` says in a sentence what was wrong with it."""

    def __init__(self, reason: DiscardReason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


_ANNOTATION_KEYS = frozenset({"title", "description", "default", "examples"})


@cache
def schema_of(shape: type[BaseModel]) -> str:
    """Compact JSON text. References are put in place, and every field is required, in the model's order.

    Raises:
        ValueError: the model contains itself.
    """
    schema = shape.model_json_schema()
    definitions = schema.pop("$defs", {})
    return json.dumps(_inline_references(schema, definitions, ()), separators=(",", ":"), ensure_ascii=False)


def _inline_references(schema: dict[str, Any], definitions: dict[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    if (reference := schema.get("$ref")) is not None:
        name = reference.rpartition("/")[2]
        if name in path:
            raise ValueError(f"{name} contains itself, so no model can be held to it; give it a depth")
        return _inline_references(definitions[name], definitions, (*path, name))
    inlined: dict[str, Any] = {}
    for key, value in schema.items():
        if key == "properties":
            inlined[key] = {name: _inline_references(part, definitions, path) for name, part in value.items()}
        elif key in ("items", "additionalProperties") and isinstance(value, dict):
            inlined[key] = _inline_references(value, definitions, path)
        elif key in ("anyOf", "oneOf", "allOf", "prefixItems"):
            inlined[key] = [_inline_references(part, definitions, path) for part in value]
        elif key not in _ANNOTATION_KEYS:
            inlined[key] = value
    if inlined.get("type") == "object" and "properties" in inlined:
        inlined |= {"required": list(inlined["properties"]), "additionalProperties": False}
    return inlined


Shape = TypeVar("Shape", bound=BaseModel)

_LENGTH_ERRORS: dict[str, DiscardReason] = {"too_long": "too_many", "too_short": "too_few"}
"""pydantic's words for lists of the wrong length, and ours."""


def read_shape(shape: type[Shape], text: str, *, cut: bool) -> Shape:
    """The last whole JSON value of a text that has the shape; a bare list fills a shape whose only field is one.

    Words around it, code fences, comments and other dialects of JSON are passed over. Nothing is mended.

    Raises:
        Discarded: `unreadable`, `cut_short`, `wrong_shape`, or `too_few` and `too_many` where a list of the shape has
            the wrong length.
    """
    beginning_text = excerpt(text)
    if len(text) > MAX_JSON_TEXT_CHARACTERS:
        raise RubricDiscarded(
            "unreadable", f"it wrote {len(text)} characters, and at most {MAX_JSON_TEXT_CHARACTERS} are read"
        )
    found = list(find_values(text))
    complete = [one for one in found if one.ended == "whole"]
    discard: RubricDiscarded | None = None
    for one in reversed(complete):
        try:
            return shape.model_validate(_as_object(shape, one))
        except ValidationError as error:
            discard = discard or _to_discard(error)
    if cut and (not complete or found[-1].ended != "whole"):
        raise RubricDiscarded("cut_short", f"it ended at its limit of tokens; it began {beginning_text!r}")
    if discard is not None:
        raise discard
    raise RubricDiscarded("unreadable", _why_unreadable(found, beginning_text))


def _as_object(shape: type[BaseModel], found: ParsedValue) -> object:
    fields = list(shape.model_fields)
    if isinstance(found.value, list) and len(fields) == 1:
        return {fields[0]: found.value}
    return found.value


def _to_discard(error: ValidationError) -> RubricDiscarded:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    detail = f"{place}: {first['msg']}" if place else first["msg"]
    return RubricDiscarded(_LENGTH_ERRORS.get(first["type"], "wrong_shape"), detail)


def _why_unreadable(found: Sequence[ParsedValue], beginning_text: str) -> str:
    if not beginning_text:
        return "it wrote nothing"
    if not found:
        return f"no JSON in what it wrote, which began {beginning_text!r}"
    how = "ends in the middle" if found[-1].ended == "cut" else "stops being JSON"
    return f"what it wrote {how}; it began {beginning_text!r}"


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
            Discarded: `cut_short` at `max_tokens`, `too_long` where the prompt does not fit the model's context,
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
            Discarded: as `read_shape`, or `too_long`.
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
            Discarded: `unreadable` where it named none of them, or `too_long`.
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
