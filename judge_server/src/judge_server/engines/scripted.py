"""A deterministic engine without a model, for tests and for measuring the overhead around a model.

It is never the default, because its answers say nothing about a response.
"""

import asyncio
import hashlib
import json
import re
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import lru_cache
from itertools import count, cycle
from typing import Any
from urllib.parse import SplitResult

from pydantic import NonNegativeFloat, PositiveInt

from judge_server.engines.common import RunningCalls
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
    Reply,
    TextOutput,
    TokenChoice,
)
from judge_server.ports.urls import UrlOptions

Draw = Callable[[int], int]
"""Draws one of `n` things, as a number from 0 to n - 1."""

Script = Callable[[Batch, Call], Reply | CallFailure]

CAPABILITIES = Capabilities(
    logprobs=True, token_menus=True, json_schema=True, prompt_logprobs=False, prefix_in_flight=True, seeds=True
)

_WIDEST_SCALE = 16
_QUARTERS = 5
_UNBOUNDED = 10
_MOST_SENTENCES = 8
_YES_NO = ["yes", "no"]
_WRITTEN = (JsonOutput, TextOutput)


def by_hash(batch: Batch, call: Call) -> Reply:
    """Answer from a hash of the prompt: the same prompt always gets the same verdict, and half of them are yes.

    Sampled text also depends on the seed. An option's mass does not depend on the other options. Any two options have
    more mass together than a reading of them needs, so no prompt is refused by chance.
    """
    asked = call.question
    seed = f"\0{call.sample.seed}" if call.sample is not None and call.sample.temperature else ""
    reason = ""
    if call.reasoning is not None:
        reason = f"Reason number {drawing(batch, asked + seed)(10_000)}."
        asked += f"\0{reason}"
    draw = drawing(batch, asked + seed)

    def masses(labels: Sequence[str]) -> tuple[float, ...]:
        if labels == _YES_NO:
            yes = fraction(batch, asked)
            return yes * 0.9, (1 - yes) * 0.9
        return tuple([_mass(batch, asked, label) for label in labels])

    return _reply(batch, call, masses, value=draw, label=draw, reason=reason)


def _mass(batch: Batch, asked: str, label: str) -> float:
    if label in _YES_NO:
        yes = fraction(batch, asked)
        return (yes if label == "yes" else 1 - yes) * 0.9
    return (1 + 3 * fraction(batch, f"{asked}\0{label}")) / 4 / _WIDEST_SCALE


def always(satisfied: bool) -> Script:
    """Return a script with one answer for all calls: yes or no, top or bottom of a scale, the first step."""

    def best(labels: Sequence[str]) -> int:
        ranked = sorted(range(len(labels)), key=lambda i: int(labels[i]) if labels[i].isdecimal() else -i)
        return ranked[-1 if satisfied else 0]

    def masses(labels: Sequence[str]) -> tuple[float, ...]:
        rest = 0.05 / max(1, len(labels) - 1)
        return tuple(0.9 if i == best(labels) else rest for i in range(len(labels)))

    def script(batch: Batch, call: Call) -> Reply:
        labels = call.answer.labels if isinstance(call.answer, LabelChoice) else ()
        return _reply(
            batch,
            call,
            masses,
            value=lambda n: n - 1 if satisfied else 0,
            label=lambda _: best(labels) if labels else 0,
            reason="It was to be so.",
        )

    return script


_CRITERION = re.compile(
    r"^(?:Criterion: |Statement: |- |\d+\. )(?P<negative>To avoid: )?"
    r"(?:(?:The response makes|[Tt]he response is wrong because of) this mistake: )?"
    r"(?P<description>.+)$",
    re.MULTILINE,
)
_FORM_OF_ANSWER = re.compile(r" \((?:grade|compare|at most) [^()\n]*\)")
_RESPONSE = re.compile(
    r"^Response(?: [AB])?:\n(?P<text>.*?)"
    r"(?=^Response B:|^Correct final answer:|^Final answer found|^The response states no final answer|\Z)",
    re.MULTILINE | re.DOTALL,
)
_STEP = re.compile(r"step (\d+)", re.IGNORECASE)
_TOKEN = re.compile(r"\d+(?:[.,]\d+)*|[^\W\d_]+")
_IN_MOST_CRITERIA = {"response", "answer", "final", "that", "with"}


def by_words(batch: Batch, call: Call) -> Reply:
    """Answer by the words of a criterion that a response has, so that examples can be followed without a model.

    A criterion that names numbers is met as far as the response has these numbers, any other as far as it has the
    words of four letters or more: yes if it has half of them. A call without criteria or responses is answered by hash.
    """
    texts = [found["text"] for found in _RESPONSE.finditer(batch.shared)]
    criteria = list(_CRITERION.finditer(call.question))
    if not texts or not criteria:
        return by_hash(batch, call)
    descriptions = [_FORM_OF_ANSWER.sub("", one["description"]) for one in criteria]
    shares = [[_share(description, text) for description in descriptions] for text in texts]
    overall = [
        _mean(1 - share if one["negative"] else share for one, share in zip(criteria, of, strict=True)) for of in shares
    ]
    first = shares[0]

    def masses(labels: Sequence[str]) -> tuple[float, ...]:
        if labels == _YES_NO or len(texts) == 2:
            share = first[0] if labels == _YES_NO else (1 + overall[0] - overall[1]) / 2
            yes = 0.06 + 0.9 * share
            return yes, 1 - yes
        best = _place(overall[0], len(labels))
        return tuple(0.9 if i == best else 0.1 / (len(labels) - 1) for i in range(len(labels)))

    def label(number: int) -> int:
        labels = call.answer.then.labels if isinstance(call.answer, TokenChoice) and call.answer.then else ()
        step = _step(criteria[0]["description"], texts[0])
        return labels.index(step) if step in labels else 0

    following = cycle(first)
    words = ", ".join(_wanted(criteria[0]["description"]))
    reason = f"Of the words {words}, the response has {first[0]:.0%}."
    return _reply(batch, call, masses, value=lambda n: _place(next(following), n), label=label, reason=reason)


def _wanted(description: str) -> list[str]:
    tokens = _TOKEN.findall(description.casefold())
    numbers = [token for token in tokens if token[0].isdigit()]
    words = [token for token in tokens if len(token) > 3 and token not in _IN_MOST_CRITERIA]
    return list(dict.fromkeys(numbers or words or tokens))


def _share(description: str, text: str) -> float:
    has = set(_TOKEN.findall(text.casefold()))
    return _mean(float(word in has) for word in _wanted(description))


def _step(description: str, text: str) -> str:
    """The number of the step that has most of the words; empty if there are no steps."""
    _, *parts = _STEP.split(text)
    numbers, texts = parts[::2], parts[1::2]
    return max(zip(numbers, texts, strict=True), key=lambda part: _share(description, part[1]), default=("", ""))[0]


def _place(share: float, n: int) -> int:
    """The place of a share in [0, 1] on a scale of n; a half is rounded up."""
    return int(share * (n - 1) + 0.5)


def _mean(values: Iterable[float]) -> float:
    given = list(values)
    return sum(given) / len(given) if given else 0.0


class ScriptedOptions(UrlOptions):
    """The options of a `scripted://` URL.

    Attributes:
        delay_s: seconds before each answer.
        context: tokens of a prompt and its answer.
        concurrency: calls at a time.
    """

    delay_s: NonNegativeFloat = 0.0
    context: PositiveInt = 1_000_000
    concurrency: PositiveInt = 64


class ScriptedEngine:
    """An engine that answers by a script, a function from a call to its outcome.

    Each call takes `delay_s` seconds, and at most `concurrent_batches` calls run at a time, whatever their batch. What
    `capabilities` lacks is not returned: the answer is then text, as from a chat model. Engines with different scripts
    need different values of `weights_digest`, or they count as one judge.
    """

    fatal_error = ""
    pool = None

    def __init__(
        self,
        script: Script = by_hash,
        *,
        delay_s: float = 0.0,
        context_tokens: int = 1_000_000,
        concurrent_batches: int = 64,
        capabilities: Capabilities = CAPABILITIES,
        weights_digest: str = "none",
    ) -> None:
        self._script = script
        self._delay_s = delay_s
        self._context_tokens = context_tokens
        self._concurrent_batches = concurrent_batches
        self._capabilities = capabilities
        self._weights_digest = weights_digest
        self._running_calls = RunningCalls()
        self._running = False
        self._asleep = False
        self._adapter = ""

    @property
    def concurrent_calls(self) -> int | None:
        """As many calls as batches; None without a delay, because such calls take no place."""
        return self._concurrent_batches if self._delay_s else None

    @classmethod
    def from_url(cls, url: SplitResult) -> "ScriptedEngine":
        """Create from `scripted://hash`, `scripted://words`, `scripted://yes` or `scripted://no`.

        Options: `?delay_s=`, `?context=`, `?concurrency=`.
        """
        scripts: dict[str, Script] = {"hash": by_hash, "words": by_words, "yes": always(True), "no": always(False)}
        if url.netloc not in scripts:
            raise ValueError(f"scripted://{url.netloc} is unknown; use scripted://{' or scripted://'.join(scripts)}")
        options = ScriptedOptions.of(url)
        return cls(
            scripts[url.netloc],
            delay_s=options.delay_s,
            context_tokens=options.context,
            concurrent_batches=options.concurrency,
            weights_digest="none" if url.netloc == "hash" else url.netloc,
        )

    async def start(self) -> EngineIdentity:
        """Start; there is nothing to load."""
        self._running = True
        self._semaphore = asyncio.Semaphore(self._concurrent_batches)
        return self._identity

    @property
    def _identity(self) -> EngineIdentity:
        return EngineIdentity(
            model=f"scripted+{self._adapter[:12]}" if self._adapter else "scripted",
            weights_digest=f"{self._weights_digest} {self._adapter}".rstrip(),
            engine="scripted",
            chat_template_digest="none",
            decoding="scripted",
            context_tokens=self._context_tokens,
            concurrent_batches=self._concurrent_batches,
            capabilities=self._capabilities,
        )

    async def answer(self, batch: Batch) -> AsyncIterator[tuple[int, Reply | CallFailure]]:
        """Answer each call after the delay; one that exceeds the context is refused."""
        if not self._delay_s:
            await asyncio.sleep(0)
            for index, call in enumerate(batch.calls):
                yield index, self._outcome(batch, call)
            return
        calls = {index: self._delayed(batch, call) for index, call in enumerate(batch.calls)}
        async with aclosing(self._running_calls.answers(calls)) as answers:
            async for answer in answers:
                yield answer

    async def count_tokens(self, batch: Batch) -> int:
        """Count four characters as a token."""
        return max(_room(batch, call) for call in batch.calls)

    async def ready(self) -> bool:
        """Whether the engine was started and not closed."""
        return self._running

    async def sleep(self) -> None:
        """Fail every call from now on, as a model without its memory would."""
        self._asleep = True

    async def wake(self) -> None:
        """Answer calls again."""
        self._asleep = False

    async def load(self, adapter: Adapter | None, version: str) -> EngineIdentity:
        """Answer as the script does to prompts that hold the hash of the adapter, which may be any file."""
        self._adapter = "" if adapter is None else adapter.sha256
        return self._identity

    async def close(self) -> None:
        """Close; later calls fail."""
        self._running = False

    async def _delayed(self, batch: Batch, call: Call) -> Reply | CallFailure:
        async with self._semaphore:
            await asyncio.sleep(self._delay_s)
            return self._outcome(batch, call)

    def _outcome(self, batch: Batch, call: Call) -> Reply | CallFailure:
        if not self._running or self._asleep:
            return CallFailure("engine", f"the scripted engine is {'asleep' if self._asleep else 'closed'}")
        if (tokens := _room(batch, call)) > self._context_tokens:
            return CallFailure("truncated_input", f"{tokens} tokens; the context holds {self._context_tokens}")
        asked = replace(batch, system=f"{batch.system}\0{self._adapter}") if self._adapter else batch
        outcome = self._script(asked, call)
        return _shown(call.answer, outcome, self._capabilities) if isinstance(outcome, Reply) else outcome


def _reply(
    batch: Batch,
    call: Call,
    masses: Callable[[Sequence[str]], tuple[float, ...]],
    *,
    value: Draw,
    label: Draw,
    reason: str,
) -> Reply:
    """Answer in the form asked for: masses for token choices, `label` for label choices, both draws for text."""
    given = reason[: 4 * call.reasoning.max_tokens] if call.reasoning is not None else None
    form, chosen, shown, cut, option_masses = call.answer, None, None, False, None
    match form:
        case TokenChoice():
            option_masses = masses([option.label for option in form.options])
            chosen = form.then.labels[label(len(form.then.labels))] if form.then is not None else None
        case LabelChoice():
            chosen = form.labels[label(len(form.labels))]
        case JsonOutput() | TextOutput():
            text = fill(form.schema, value, label) if isinstance(form, JsonOutput) else say(label)
            shown = text[: 4 * form.max_tokens]
            cut = shown != text
    return Reply(
        option_masses,
        chosen,
        shown,
        cut,
        given,
        tokens_computed=_tokens(len(call.question)),
        tokens_reused=_tokens(len(batch.system) + len(batch.shared)),
        tokens_written=_tokens(len(given or "")) + _tokens(len(shown or "")),
    )


def _shown(form: AnswerForm, reply: Reply, capabilities: Capabilities) -> Reply:
    """Return the reply as an engine with these capabilities would give it."""
    if capabilities.logprobs and capabilities.token_menus and capabilities.json_schema:
        return reply
    match form:
        case TokenChoice(options, then) if reply.masses is not None and not (
            capabilities.logprobs and capabilities.token_menus
        ):
            text = options[reply.masses.index(max(reply.masses))].label
            if then is not None:
                text += f"{then.lead}{reply.chosen}"
            return reply._replace(masses=reply.masses if capabilities.logprobs else None, chosen=None, text=text)
        case LabelChoice() if not capabilities.token_menus:
            return reply._replace(chosen=None, text=reply.chosen)
        case JsonOutput() if not capabilities.json_schema and reply.text is not None:
            end = "" if reply.cut else "\n```\n"
            return reply._replace(text=f"These are my verdicts:\n```json\n{reply.text}{end}")
    return reply


def _room(batch: Batch, call: Call) -> int:
    asked = _tokens(len(batch.system) + len(batch.shared) + len(call.question)) + call.think_tokens
    if call.reasoning is not None:
        asked += call.reasoning.max_tokens + _tokens(len(call.reasoning.ask))
    return asked + (call.answer.max_tokens if isinstance(call.answer, _WRITTEN) else 1)


def _tokens(characters: int) -> int:
    return characters // 4


def fraction(batch: Batch, asked: str) -> float:
    """Return a number in [0, 1] from a hash of a prompt of the batch. What its prompts share is hashed once."""
    digest = _shared_hash(batch.system, batch.shared).copy()
    digest.update(asked.encode())
    return digest.digest()[0] / 255


@lru_cache(maxsize=64)
def _shared_hash(system: str, shared: str) -> "hashlib.blake2b":
    return hashlib.blake2b(f"{system}\0{shared}\0".encode(), digest_size=8)


def drawing(batch: Batch, asked: str) -> Draw:
    """Return a function that draws from a hash of a prompt of the batch, always the same sequence."""
    calls = count()

    def draw(n: int) -> int:
        text = f"{next(calls)}\0{batch.system}\0{batch.shared}\0{asked}"
        digest = hashlib.blake2b(text.encode(), digest_size=8).digest()
        return int.from_bytes(digest, "big") % n

    return draw


def say(label: Draw) -> str:
    """Return a few sentences."""
    return " ".join(f"Thought {label(10_000)}." for _ in range(2 + label(_MOST_SENTENCES)))


def fill(schema: str, value: Draw, label: Draw) -> str:
    """Return JSON that satisfies a JSON Schema: `label` picks listed values, `value` decides booleans and numbers.

    Supports const, enum, boolean, integer, number, string, array (prefixItems, items, minItems) and object.

    Raises:
        ValueError: the schema uses anything else.
    """
    return json.dumps(_filled(json.loads(schema), value, label), ensure_ascii=False)


def _filled(schema: dict[str, Any], value: Draw, label: Draw) -> Any:
    match schema:
        case {"const": only}:
            return only
        case {"enum": [*values]}:
            return values[label(len(values))]
        case {"type": "boolean"}:
            return bool(value(2))
        case {"type": "integer"}:
            low, high = schema.get("minimum", 0), schema.get("maximum", _UNBOUNDED)
            return int(low + value(int(high - low) + 1))
        case {"type": "number"}:
            low, high = schema.get("minimum", 0), schema.get("maximum", _UNBOUNDED)
            return low + (high - low) * value(_QUARTERS) / (_QUARTERS - 1)
        case {"type": "string"}:
            return f"Reason {label(1000)}."[: schema.get("maxLength")].ljust(schema.get("minLength", 0), ".")
        case {"type": "array"}:
            first = schema.get("prefixItems", [])
            others = [schema.get("items", {})] * (schema.get("minItems", 0) - len(first))
            return [_filled(item, value, label) for item in [*first, *others]]
        case {"type": "object"}:
            return {name: _filled(part, value, label) for name, part in schema.get("properties", {}).items()}
    raise ValueError(f"the scripted engine cannot answer in the form {json.dumps(schema)[:200]}")
