"""A call as chat messages: the request for each form of answer, and how its completion is read.

No constraint is sent with a token choice, so that its masses are those before any constraint.
"""

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from judge_server.engines.openai.completions import ChatCompletion, TokenCounts
from judge_server.judging.prompts.fencing import break_tokens
from judge_server.ports import (
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

LimitField = Literal["max_tokens", "max_completion_tokens"]
Temperatures = Literal["any", "positive", "own"]
"""Which temperatures an endpoint takes: any, any above 0, or only its own, which no request names."""

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
        least_tokens: the smallest token limit that it takes; a smaller one is raised to it.
        temperatures: which temperatures it takes; others are left out, so that it applies its own.
        system_role: whether it takes a system message; without it, the text begins the first user message.
        counted_logprobs: whether `logprobs` is the number of candidates, as in `/completions`.
    """

    model: str
    limit_field: LimitField = "max_tokens"
    top_logprobs: int = 0
    choice_tokens: int = 1
    choices: bool = False
    control_tokens: re.Pattern[str] | None = None
    least_tokens: int = 1
    temperatures: Temperatures = "any"
    system_role: bool = True
    counted_logprobs: bool = False

    @property
    def decoding(self) -> str:
        """How answers are decoded, with everything that was negotiated and can change a verdict."""
        greedy = "greedy" if self.temperatures == "any" else "at the endpoint's own temperature"
        return (
            f"{greedy}; {f'top {self.top_logprobs}' if self.top_logprobs else 'text'}"
            + (f"; at least {self.least_tokens} tokens" if self.least_tokens > 1 else "")
            + ("" if self.system_role else "; system text in the user message")
        )

    def body(self, messages: Sequence[ChatMessage], limit: int, **options: Any) -> dict[str, Any]:
        """Return the body of a request for one completion of at most `limit` tokens, greedy unless `options` differ.

        The endpoint tokenises the messages itself, control tokens included, so those that it has named are broken here.
        """
        messages = self.folded(messages)
        if self.control_tokens is not None:
            messages = [{**message, "content": self._broken(message["content"])} for message in messages]
        fixed = {"model": self.model, "messages": messages, self.limit_field: self.limit(limit)}
        options = {"temperature": 0} | options
        if self.temperatures == "own" or (self.temperatures == "positive" and not options["temperature"]):
            del options["temperature"]
        return fixed | options

    def limit(self, tokens: int) -> int:
        """Return the token limit to send for an answer of at most `tokens` tokens."""
        return max(tokens, self.least_tokens)

    def folded(self, messages: Sequence[ChatMessage]) -> Sequence[ChatMessage]:
        """Return the messages with the system text where the endpoint takes it."""
        if self.system_role or not messages or messages[0]["role"] != "system":
            return messages
        system, user, *others = messages
        if not (lead := text_of(system)):
            return [user, *others]
        content = user["content"]
        folded = (
            f"{lead}\n\n{content}" if isinstance(content, str) else [{"type": "text", "text": f"{lead}\n\n"}, *content]
        )
        return [{**user, "content": folded}, *others]

    def _broken(self, content: str | list[dict[str, Any]]) -> str | list[dict[str, Any]]:
        """Return a content without control tokens in its texts."""
        if self.control_tokens is None:
            return content
        if isinstance(content, str):
            return break_tokens(self.control_tokens, content)
        return [{**part, "text": self._broken(part["text"])} if "text" in part else part for part in content]

    def logprobs(self) -> dict[str, Any]:
        """Return the options that ask for as many log-probabilities as the endpoint gives."""
        if not self.top_logprobs:
            return {}
        if self.counted_logprobs:
            return {"logprobs": self.top_logprobs}
        return {"logprobs": True, "top_logprobs": self.top_logprobs}


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


def byte_length(text: str) -> int:
    """Return the length of a text in UTF-8."""
    return len(text) if text.isascii() else len(text.encode("utf-8", "replace"))


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
        case TokenChoice(then=None, lead="") if dialect.top_logprobs and not call.think_tokens:
            return dialect.limit(dialect.choice_tokens)
        case TokenChoice(lead=lead):
            return dialect.limit(TEXT_ANSWER_TOKENS + len(lead.encode()))
        case LabelChoice(labels):
            return dialect.limit(LABEL_JSON_TOKENS + max(len(label.encode()) for label in labels))
        case JsonOutput(max_tokens=limit) | TextOutput(limit):
            return dialect.limit(limit)


def max_prompt_tokens(messages: Sequence[ChatMessage]) -> int:
    """Return an upper bound on the tokens of these messages: one per byte, and those of images and chat template."""
    text = sum([byte_length(text_of(message)) for message in messages])
    return text + MAX_IMAGE_TOKENS * count_images(messages) + TEMPLATE_TOKENS


def reserved_tokens(call: Call, dialect: Dialect) -> int:
    """Return how many tokens of the context everything that the model writes may take."""
    reasons = dialect.limit(call.reasoning.max_tokens + call.think_tokens) if call.reasoning is not None else 0
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
        place = completion.place_of(call.answer)
        thought = thinking or (completion.thinks and not place.follows_lead)  # a lead may look like thinking
        if not thought and (reason := completion.why_invalid(place.position)):
            return CallFailure(
                "engine", f"the endpoint gave {reason}, which is impossible; check what serves the model"
            )
        masses = None if thought else completion.masses(call.answer, place)
        if masses is not None and (split := completion.split_mass(call.answer, place)) > max(masses) > 0:
            return CallFailure(
                "parse",
                f"the judge put a probability of {split:.2g} on tokens that only begin an answer, and at most "
                f"{max(masses):.2g} on a whole one; let its prompt ask for answers that are one token each",
            )
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
