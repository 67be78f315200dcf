"""A call as chat messages: the request for each form of answer, and how its completion is read.

No constraint is sent with a token choice, so that its masses are those before any constraint.

Answers are validated by models that refuse any other shape, and their values are checked.
"""

import json
import math
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from judge_server.ports import (
    MASS_TOLERANCE,
    Batch,
    Call,
    CallFailure,
    Capabilities,
    JsonOutput,
    LabelChoice,
    Reply,
    TextOutput,
    TokenChoice,
)
from judge_server.prompts.fencing import break_tokens

_OPENING, _CLOSING = "<think>", "</think>"
_SPACE_MARKS = str.maketrans({"\u2581": " ", "\u0120": " "})
"""How some servers write a token's leading space: the marks of SentencePiece and of byte-level BPE."""

_NO_COUNT = -1
"""Stands for a token count that is not a number; it is clipped like every impossible count."""


class _ResponseModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


class TopToken(_ResponseModel):
    """A candidate token at a position, and the natural logarithm of its probability."""

    token: str
    logprob: float


class Position(_ResponseModel):
    """A token that was written, and the most likely ones at its position."""

    token: str
    top_logprobs: tuple[TopToken, ...] = ()


class _Logprobs(_ResponseModel):
    content: tuple[Position, ...] | None = None


class _Message(_ResponseModel):
    content: str | None = None
    reasoning_content: str | None = None
    reasoning: str | None = None


class _CompletionChoice(_ResponseModel):
    message: _Message
    finish_reason: str | None = None
    logprobs: _Logprobs | None = None


def _as_count(given: Any) -> int:
    if given is None:
        return 0
    return given if isinstance(given, int) and not isinstance(given, bool) else _NO_COUNT


def _as_counts(given: Any) -> Any:
    """Return an object of counts; impossible ones if it is not an object, because counts decide no verdict."""
    if given is None:
        return {}
    return given if isinstance(given, dict | BaseModel) else {"prompt_tokens": _NO_COUNT, "cached_tokens": _NO_COUNT}


_Count = Annotated[int, BeforeValidator(_as_count)]


class _PromptTokens(_ResponseModel):
    cached_tokens: _Count = 0


class _Usage(_ResponseModel):
    prompt_tokens: _Count = 0
    completion_tokens: _Count = 0
    prompt_tokens_details: Annotated[_PromptTokens, BeforeValidator(_as_counts)] = _PromptTokens()


class TokenCounts(NamedTuple):
    """Prompt tokens computed, prompt tokens reused, tokens written; `clipped` tells whether the server's differed."""

    computed: int
    reused: int
    written: int
    clipped: bool


class ChatCompletion(_ResponseModel):
    """An answer of `/chat/completions`, of which only the first choice is read."""

    model: str | None = None
    system_fingerprint: str | None = None
    choices: Annotated[tuple[_CompletionChoice, ...], Field(min_length=1)]
    usage: Annotated[_Usage, BeforeValidator(_as_counts)] = _Usage()

    @property
    def thoughts(self) -> str:
        """The text that the server returned separately as thinking."""
        message = self.choices[0].message
        return message.reasoning_content or message.reasoning or ""

    @property
    def content(self) -> str:
        """The unmodified text of the answer."""
        return self.choices[0].message.content or ""

    @property
    def cut(self) -> bool:
        """Whether the answer ended at its token limit."""
        return self.choices[0].finish_reason == "length"

    def answer_text(self, *, thinking: bool) -> str:
        """Return the text without the thinking before it.

        Some chat templates open the thinking block themselves, so that only its end is in the text. The end is looked
        for if the model was allowed `thinking` and the server returned none separately.
        """
        text = self.content.lstrip()
        if text.startswith(_OPENING) or (thinking and not self.thoughts and _CLOSING in text):
            return text.partition(_CLOSING)[2].strip()
        return text.strip()

    @property
    def first_position(self) -> int | None:
        """The index of the first token that is more than white space; None without log-probabilities."""
        return next((i for i, p in enumerate(self._positions) if p.token.translate(_SPACE_MARKS).strip()), None)

    def masses(self, token_choice: TokenChoice) -> tuple[float, ...] | None:
        """Return the probability of each option at the first token that is not white space.

        None without log-probabilities. Use them only if `invalid_reason` is empty.
        """
        if not self._positions:
            return None
        at = self.first_position
        return tuple(0.0 for _ in token_choice.options) if at is None else _masses(self._positions[at], token_choice)

    @property
    def invalid_reason(self) -> str:
        """Why the log-probabilities that `masses` reads are impossible, in words; empty if they are possible or absent.

        A probability is at most 1, and so is the sum over different tokens.
        """
        at = self.first_position
        logprobs = [] if at is None else [t.logprob for t in self._positions[at].top_logprobs]
        highest = max(logprobs, default=0.0)
        if highest > MASS_TOLERANCE:
            return f"a log-probability of {highest:g}"
        total = math.fsum(map(math.exp, logprobs))
        return f"probabilities that add up to {total:.6g}" if total > 1.0 + MASS_TOLERANCE else ""

    @property
    def has_spread_logprobs(self) -> bool:
        """Whether the first token's log-probabilities are possible, and more than one token is likely."""
        at = self.first_position
        if at is None or self.invalid_reason:
            return False
        logprobs = sorted((t.logprob for t in self._positions[at].top_logprobs), reverse=True)
        return len(logprobs) > 1 and logprobs[1] > math.log(1e-6)

    def tokens(self, *, most_prompt: int, most_written: int) -> TokenCounts:
        """Return the server's token counts, clipped to 0..`most_prompt` and 0..`most_written`.

        A server may report anything: negative counts, more than a database integer holds, or no number at all.
        """
        usage = self.usage
        reported = (usage.prompt_tokens, usage.prompt_tokens_details.cached_tokens, usage.completion_tokens)
        prompt = min(max(0, reported[0]), most_prompt)
        reused = min(max(0, reported[1]), prompt)
        written = min(max(0, reported[2]), most_written)
        return TokenCounts(prompt - reused, reused, written, clipped=reported != (prompt, reused, written))

    @property
    def _positions(self) -> tuple[Position, ...]:
        logprobs = self.choices[0].logprobs
        return (logprobs.content or ()) if logprobs is not None else ()


class ModelCard(_ResponseModel):
    """A model of `/models`; `max_model_len` is vLLM's, `aliases` and `meta` are llama.cpp's."""

    id: str
    aliases: tuple[str, ...] | None = None
    owned_by: str | None = None
    max_model_len: int | None = None
    meta: dict[str, object] | None = None

    @property
    def names(self) -> tuple[str, ...]:
        """Every name under which it can be requested."""
        return (self.id, *(self.aliases or ()))


class ModelList(_ResponseModel):
    """An answer of `/models`."""

    data: tuple[ModelCard, ...]


def shape_error(error: ValidationError) -> str:
    """Describe in a few words where an answer has the wrong shape."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return f"{place}: {first['msg']}" if place else first["msg"]


def parse_error_body(body: bytes) -> tuple[str, str]:
    """Return the message in an error's body, and its code or type; both may be empty."""
    try:
        content = json.loads(body)
    except (ValueError, RecursionError):
        return body[:200].decode(errors="replace").strip(), ""
    error = content.get("error", content) if isinstance(content, dict) else content
    if not isinstance(error, dict):
        return str(error)[:300], ""
    words = error.get("message") or error.get("detail") or error
    return str(words)[:300], f"{error.get('code') or ''} {error.get('type') or ''}".strip()


def _masses(position: Position, token_choice: TokenChoice) -> tuple[float, ...]:
    tops = [(top.token.translate(_SPACE_MARKS), math.exp(top.logprob)) for top in position.top_logprobs]
    return tuple(math.fsum(p for token, p in tops if token in option.spellings) for option in token_choice.options)


LimitField = Literal["max_tokens", "max_completion_tokens"]
ChatMessage = Mapping[str, Any]
"""A message whose content is text, or the parts of one: texts and images."""

MAX_IMAGE_TOKENS = 32_768
"""The most prompt tokens of an image."""

TEXT_ANSWER_TOKENS = 12
"""The most tokens of an answer that is read as text: a verdict and a step number."""

TEMPLATE_TOKENS = 4096
"""The most tokens that a chat template is assumed to add around the messages, with a preamble of its own."""

LABEL_JSON_TOKENS = 24
"""The most tokens of the JSON around a label."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """What an endpoint accepts, as found when the engine started.

    Attributes:
        model: the model name in requests.
        limit_field: the field that limits the tokens written.
        top_logprobs: how many log-probabilities it returns for a token; 0 for none.
        choice_tokens: how many tokens it must write until one is more than white space.
        choices: whether an answer can be constrained to labels without a schema, as in vLLM.
        control_tokens: a pattern that matches where to break the model's control tokens in messages; None if the
            endpoint names none.
    """

    model: str
    limit_field: LimitField = "max_tokens"
    top_logprobs: int = 0
    choice_tokens: int = 1
    choices: bool = False
    control_tokens: re.Pattern[str] | None = None

    def body(self, messages: Sequence[ChatMessage], limit: int, **options: Any) -> dict[str, Any]:
        """Return the body of a request for one completion of at most `limit` tokens, greedy unless `options` differ.

        The endpoint tokenises the messages itself, control tokens included, so those that it has named are broken here.
        """
        if self.control_tokens is not None:
            messages = [{**message, "content": self._broken(message["content"])} for message in messages]
        return {"model": self.model, "messages": messages, self.limit_field: limit, "temperature": 0} | options

    def _broken(self, content: str | list[dict[str, Any]]) -> str | list[dict[str, Any]]:
        """Return a content without control tokens in its texts."""
        if self.control_tokens is None:
            return content
        if isinstance(content, str):
            return break_tokens(self.control_tokens, content)
        return [{**part, "text": self._broken(part["text"])} if "text" in part else part for part in content]

    def logprobs(self) -> dict[str, Any]:
        """Return the options that ask for as many log-probabilities as the endpoint gives."""
        return {"logprobs": True, "top_logprobs": self.top_logprobs} if self.top_logprobs else {}


def first_messages(batch: Batch, call: Call) -> list[ChatMessage]:
    """Return the system message and the first user message; images stand between the response and the question."""
    content: str | list[dict[str, Any]] = batch.shared + call.question
    if batch.images:
        images = [{"type": "image_url", "image_url": {"url": image}} for image in batch.images]
        content = [{"type": "text", "text": batch.shared}, *images, {"type": "text", "text": call.question}]
    return [{"role": "system", "content": batch.system}, {"role": "user", "content": content}]


def text_of(message: ChatMessage) -> str:
    """Return the text of a message, its parts joined."""
    content = message["content"]
    return content if isinstance(content, str) else "".join([part.get("text", "") for part in content])


def count_images(messages: Sequence[ChatMessage]) -> int:
    """Return the number of images in these messages."""
    parts = [part for message in messages if not isinstance(message["content"], str) for part in message["content"]]
    return sum(part["type"] == "image_url" for part in parts)


def with_reasons(messages: list[ChatMessage], call: Call, reasons: str) -> list[ChatMessage]:
    """Return the conversation with the rationale and the request for the answer."""
    ask = call.reasoning.ask if call.reasoning is not None else ""
    return [*messages, {"role": "assistant", "content": reasons}, {"role": "user", "content": ask}]


def sampling(call: Call, capabilities: Capabilities) -> dict[str, Any]:
    """Return the sampling options of the call."""
    if call.sample is None:
        return {}
    seed = {"seed": call.sample.seed} if capabilities.seeds else {}
    return {"temperature": call.sample.temperature} | seed


def answer_body(
    call: Call, messages: Sequence[ChatMessage], dialect: Dialect, capabilities: Capabilities
) -> dict[str, Any]:
    """Return the body of the request for the answer itself."""
    limit = call.think_tokens + answer_tokens(call, dialect)
    options = sampling(call, capabilities)
    schema = _schema(call)
    if isinstance(call.answer, TokenChoice) and not call.think_tokens:
        options |= dialect.logprobs()
    elif isinstance(call.answer, LabelChoice) and dialect.choices:
        options |= structured_choice(call.answer.labels)
    elif schema is not None and capabilities.json_schema:
        options |= json_schema(schema)
    return dialect.body(messages, limit, **options)


def follow_up(call: Call, dialect: Dialect, capabilities: Capabilities) -> LabelChoice | None:
    """Return the label choice to ask for in a turn of its own, after the token choice; None if there is none."""
    if not isinstance(call.answer, TokenChoice) or call.answer.then is None or not call.answer.then.ask:
        return None
    separate = dialect.top_logprobs and (dialect.choices or capabilities.json_schema) and not call.think_tokens
    return call.answer.then if separate else None


def with_choice(messages: Sequence[ChatMessage], answer_text: str, choice: LabelChoice) -> list[ChatMessage]:
    """Return the conversation with the first answer and the request for the label choice."""
    return [*messages, {"role": "assistant", "content": answer_text}, {"role": "user", "content": choice.ask}]


def answer_tokens(call: Call, dialect: Dialect) -> int:
    """Return the most tokens of the answer, without thinking."""
    match call.answer:
        case TokenChoice(then=None) if dialect.top_logprobs and not call.think_tokens:
            return dialect.choice_tokens
        case TokenChoice():
            return TEXT_ANSWER_TOKENS
        case LabelChoice(labels):
            return LABEL_JSON_TOKENS + max(len(label.encode()) for label in labels)
        case JsonOutput(max_tokens=limit) | TextOutput(limit):
            return limit


def max_prompt_tokens(messages: Sequence[ChatMessage]) -> int:
    """Return an upper bound on the tokens of these messages: one per byte, and those of images and chat template."""
    text = sum(len(text_of(message).encode("utf-8", "replace")) for message in messages)
    return text + MAX_IMAGE_TOKENS * count_images(messages) + TEMPLATE_TOKENS


def reserved_tokens(call: Call, dialect: Dialect) -> int:
    """Return how many tokens of the context everything that the model writes may take."""
    reasons = call.reasoning.max_tokens + call.think_tokens if call.reasoning is not None else 0
    then = call.answer.then if isinstance(call.answer, TokenChoice) else None
    follow_up_tokens = len(then.ask.encode()) + LABEL_JSON_TOKENS if then is not None and then.ask else 0
    return reasons + call.think_tokens + answer_tokens(call, dialect) + follow_up_tokens


def read_answer(call: Call, completion: ChatCompletion, tokens: TokenCounts) -> Reply | CallFailure:
    """Read the completion of an `answer_body` request; a failure if its log-probabilities are impossible."""
    thinking = bool(call.think_tokens)
    answer_text = completion.answer_text(thinking=thinking)
    masses = chosen = None
    text: str | None = answer_text
    if isinstance(call.answer, TokenChoice):
        thought = thinking or completion.thoughts or answer_text != completion.content.strip()
        if not thought and (reason := completion.invalid_reason):
            return CallFailure(
                "engine", f"the endpoint gave {reason}, which is impossible; check what serves the model"
            )
        masses = None if thought else completion.masses(call.answer)
        if masses is not None and any(masses) and call.answer.then is None:
            text = None
    elif isinstance(call.answer, LabelChoice):
        chosen = chosen_label(answer_text, call.answer)
        text = answer_text if chosen is None else None
    return Reply(
        masses,
        chosen,
        text,
        cut=completion.cut and text is not None,
        tokens_computed=tokens.computed,
        tokens_reused=tokens.reused,
        tokens_written=tokens.written,
        counts_clipped=tokens.clipped,
    )


def json_schema(schema: object) -> dict[str, Any]:
    """Return the option that constrains an answer to a JSON Schema."""
    named = {"name": "answer", "strict": True, "schema": schema}
    return {"response_format": {"type": "json_schema", "json_schema": named}}


def structured_choice(labels: Sequence[str]) -> dict[str, Any]:
    """Return the option that constrains an answer to labels on vLLM's server."""
    return {"structured_outputs": {"choice": list(labels)}}


def labels_schema(labels: Sequence[str]) -> dict[str, Any]:
    """Return the schema of an object whose `answer` is one of the labels."""
    return {
        "type": "object",
        "properties": {"answer": {"type": "string", "enum": list(labels)}},
        "required": ["answer"],
        "additionalProperties": False,
    }


def _schema(call: Call) -> object | None:
    match call.answer:
        case LabelChoice(labels):
            return labels_schema(labels)
        case JsonOutput(schema):
            parsed: object = json.loads(schema)
            return parsed
        case TokenChoice() | TextOutput():
            return None


def chosen_label(answer_text: str, choice: LabelChoice) -> str | None:
    """Read the label of an answer constrained to labels, bare or by `labels_schema`; None if it is not one."""
    if answer_text in choice.labels:
        return answer_text
    try:
        answer = json.loads(answer_text)
    except (ValueError, RecursionError):
        return None
    label = answer.get("answer") if isinstance(answer, dict) else None
    return label if label in choice.labels else None


def context_overflow(tokens: int, context_tokens: int) -> CallFailure:
    """Return the failure of a prompt that cannot fit."""
    return CallFailure(
        "truncated_input",
        f"the prompt takes at least {tokens} tokens and the judge's context holds {context_tokens}; "
        "allow judging.truncate, or raise the engine's ?context= if the endpoint holds more",
    )
