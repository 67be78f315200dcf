"""Answers of servers of the OpenAI chat API: models that refuse any other shape, and checks of their values.

An answer of the right shape may still be false, so log-probabilities and token counts are checked for plausibility.
"""

import json
import math
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError

from judge_server.ports import MASS_TOLERANCE, TokenChoice

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
