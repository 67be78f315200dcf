"""The writing model of a generator, over any engine, and the reasons for which its output is discarded.

A `Writer` asks for text, for JSON of a shape (a pydantic model), or for one of several labels. Output that cannot be
used raises `RubricDiscarded` with a reason from a closed list, so that reasons can be counted. A discard is final: a
run does not try the same input again. An engine that gives no answer is retried a few times and then raises
`WriterFailed`, which says nothing about the input: a later run may try that input again.
"""

import asyncio
import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any, Literal, TypeVar

from pydantic import BaseModel, ValidationError

from judge_server.errors import EngineStartError
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
"""Why the model's output gave no rubric.

- `unreadable`: the output contains no JSON, or none of the offered labels; `wrong_shape`: the JSON does not have the
  requested shape; `cut_short`: the output reached its token limit.
- `too_long`: the prompt does not fit the model's context, or the reference answer is too long; `empty_source`: there is
  nothing to make a rubric from.
- `too_few`, `too_many`: the number of criteria is out of bounds; `duplicate_criteria`: two criteria say the same.
- `empty_criterion`: a criterion says nothing; `unknown_kind`: a criterion is of a kind that the method does not have.
- `bad_weight`: a weight is outside the method's range, no weight is positive, or their sum is too small.
- `leaks_reference`: a criterion gives away the reference answer.
- `wrong_reference_answer`: the reference answer does not agree with the ground truth.
- `not_satisfied_by_reference`: the reference answer satisfies too few of the criteria.
- `not_self_contained`: a question or a criterion needs a text that its reader does not have.
- `no_contrast`: nothing distinguishes good responses from bad ones.
- `invalid_rubric`: the rubric cannot be published for another reason.
"""


class RubricDiscarded(Exception):
    """The model's output for an input is not a usable rubric. `detail` says in a sentence what is wrong with it."""

    def __init__(self, reason: DiscardReason, detail: str) -> None:
        super().__init__(f"{reason}: {detail}")
        self.reason = reason
        self.detail = detail


_ANNOTATION_KEYS = frozenset({"title", "description", "default", "examples"})


@cache
def schema_of(shape: type[BaseModel]) -> str:
    """Return the JSON Schema of a pydantic model as compact text, in the form that engines take.

    References are inlined, annotations for human readers removed, and every field is required, in the model's order.

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
            raise ValueError(f"{name} contains itself, which engines cannot enforce; unroll it to a fixed depth")
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
"""pydantic's error types for lists of the wrong length, and the reasons they map to."""


def read_shape(shape: type[Shape], text: str, *, cut: bool) -> Shape:
    """Parse the last complete JSON value in a text that has the shape.

    A bare list is accepted for a shape whose only field is a list. Surrounding words, code fences, comments and other
    dialects of JSON are tolerated; incomplete values are not repaired.

    Args:
        shape: the pydantic model to parse.
        text: the model's output.
        cut: whether the output reached its token limit.

    Raises:
        RubricDiscarded: `unreadable`, `cut_short` or `wrong_shape`; `too_few` or `too_many` if a list of the shape has
            the wrong length.
    """
    beginning = excerpt(text)
    if len(text) > MAX_JSON_TEXT_CHARACTERS:
        raise RubricDiscarded(
            "unreadable", f"the output has {len(text)} characters; the limit is {MAX_JSON_TEXT_CHARACTERS}"
        )
    values = list(find_values(text))
    complete = [one for one in values if one.ended == "whole"]
    discard: RubricDiscarded | None = None
    for one in reversed(complete):
        try:
            return shape.model_validate(_as_object(shape, one))
        except ValidationError as error:
            discard = discard or _to_discard(error)
    if cut and (not complete or values[-1].ended != "whole"):
        raise RubricDiscarded("cut_short", f"the output reached its token limit; it began {beginning!r}")
    if discard is not None:
        raise discard
    raise RubricDiscarded("unreadable", _why_unreadable(values, beginning))


def _as_object(shape: type[BaseModel], parsed: ParsedValue) -> object:
    fields = list(shape.model_fields)
    if isinstance(parsed.value, list) and len(fields) == 1:
        return {fields[0]: parsed.value}
    return parsed.value


def _to_discard(error: ValidationError) -> RubricDiscarded:
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    detail = f"{place}: {first['msg']}" if place else first["msg"]
    return RubricDiscarded(_LENGTH_ERRORS.get(first["type"], "wrong_shape"), detail)


def _why_unreadable(values: Sequence[ParsedValue], beginning: str) -> str:
    if not beginning:
        return "the model wrote nothing"
    if not values:
        return f"the output contains no JSON; it began {beginning!r}"
    fault = "ends in the middle of a JSON value" if values[-1].ended == "cut" else "contains invalid JSON"
    return f"the output {fault}; it began {beginning!r}"


MAX_CALL_ATTEMPTS = 4
"""Attempts at a call, the first included, before `WriterFailed`."""

RETRY_DELAY_S = 0.2
"""Pause before a call is retried, multiplied by four with each attempt."""

MAX_RETRY_DELAY_S = 30.0
"""Upper limit of that pause."""


class WriterFailed(Exception):
    """The engine gave no answer in any of `MAX_CALL_ATTEMPTS` attempts."""


@dataclass(slots=True)
class WriterUsage:
    """Usage of a writer: answered calls and their tokens (`Reply` defines each kind of token)."""

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
    """Sends writing tasks to one engine, at most as many calls at a time as it takes batches.

    The engine must have been started, and `identity` is the identity it returned. `usage` counts calls and tokens.

    Raises:
        EngineStartError: the engine is a probe, which writes nothing.
    """

    def __init__(self, engine: Engine, identity: EngineIdentity, *, retry_delay_s: float = RETRY_DELAY_S) -> None:
        if identity.asks:
            raise EngineStartError(f"{identity.model} is a probe: it answers one question and writes nothing")
        self.identity = identity
        self.usage = WriterUsage()
        self._engine = engine
        self._slots = asyncio.Semaphore(identity.concurrent_batches)
        self._retry_delay_s = retry_delay_s
        self._totals: tuple[WriterUsage, ...] = (self.usage,)

    def with_own_usage(self) -> "Writer":
        """Return the same writer with a separate `usage`, which is added to this writer's as well."""
        other = Writer.__new__(Writer)
        other.__dict__.update(self.__dict__)
        other.usage = WriterUsage()
        other._totals = (*self._totals, other.usage)
        return other

    async def write_text(
        self, prompt: str, *, system: str = "", max_tokens: int, temperature: float = 0.0, seed: int = 0
    ) -> str:
        """Ask for text, which is returned without surrounding white space.

        Raises:
            RubricDiscarded: `cut_short` at `max_tokens`, `too_long` if the prompt does not fit the model's context, or
                `unreadable` if the output is empty.
            WriterFailed: the engine gave no answer.
        """
        reply = await self._ask(system, prompt, TextOutput(max_tokens), temperature, seed)
        text = (reply.text or "").strip()
        if reply.cut:
            raise RubricDiscarded("cut_short", f"the text was not complete after {max_tokens} tokens; raise the limit")
        if not text:
            raise RubricDiscarded("unreadable", "the model wrote nothing")
        return text

    async def write_json(
        self,
        shape: type[Shape],
        prompt: str,
        *,
        system: str = "",
        max_tokens: int,
        temperature: float = 0.0,
        seed: int = 0,
    ) -> Shape:
        """Ask for JSON of a shape. Engines that can constrain their output do so; `read_shape` parses the answer.

        Raises:
            RubricDiscarded: as `read_shape`, or `too_long`.
            WriterFailed: the engine gave no answer.
        """
        reply = await self._ask(system, prompt, JsonOutput(schema_of(shape), max_tokens), temperature, seed)
        return read_shape(shape, reply.text or "", cut=reply.cut)

    async def choose(self, labels: Sequence[str], prompt: str, *, system: str = "") -> str:
        """Ask for one of the labels.

        Raises:
            RubricDiscarded: `unreadable` if the answer names none of the labels, or `too_long`.
            WriterFailed: the engine gave no answer.
        """
        choice = LabelChoice(tuple(labels))
        reply = await self._ask(system, prompt, choice)
        if reply.chosen in choice.labels:
            return reply.chosen
        label = read_label_choice(reply.text or reply.chosen or "", choice)
        if isinstance(label, CallFailure):
            raise RubricDiscarded("unreadable", label.detail)
        return label

    async def _ask(self, system: str, prompt: str, form: AnswerForm, temperature: float = 0.0, seed: int = 0) -> Reply:
        sample = SamplingOptions(temperature, seed) if temperature else None
        batch = Batch(system, prompt, (Call("", form, sample=sample),))
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
            if attempt == MAX_CALL_ATTEMPTS or outcome.retry_after_s == math.inf:
                tried = "1 attempt" if attempt == 1 else f"{attempt} attempts"
                raise WriterFailed(f"{outcome.kind}: {outcome.detail} ({tried})")
            await asyncio.sleep(max(pause, outcome.retry_after_s or 0.0))
            pause, attempt = min(4 * pause, MAX_RETRY_DELAY_S), attempt + 1

    async def _outcome(self, batch: Batch) -> Reply | CallFailure:
        async for _, outcome in self._engine.answer(batch):
            return outcome
        return CallFailure("engine", "the engine ended without an answer")
