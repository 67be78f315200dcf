"""What servers of the chat API answer, in the shapes that they use: completions, lists of models, and errors.

A body is read as JSON, or as the events of a stream that nobody asked for. Its values are then checked by models that
refuse what cannot be an answer. Whether the endpoint kept the model's answer back, or the model gave one that cannot be
read, is told apart here: only the second says anything about the judge.
"""

import math
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from functools import lru_cache
from itertools import accumulate, pairwise
from typing import Annotated, Any, NamedTuple

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import from_json

from judge_server.ports import MASS_TOLERANCE, TokenChoice

_OPENING, _CLOSING = "<think>", "</think>"
_CHANNEL, _BARE_ANALYSIS, _BARE_FINAL = "<|channel|>", "analysis", "assistantfinal"
_FINAL_CHANNEL = re.compile(r"<\|channel\|>final(?: ?<\|constrain\|>[a-z]{1,20})?<\|message\|>")
"""The channels of gpt-oss in a text that the server did not sort, with their control tokens and without."""

_SPACE_MARKS = str.maketrans({"\u2581": " ", "\u0120": " ", "\u010a": "\n", "\u0109": "\t"})
"""How some servers write a token's white space: the marks of SentencePiece and of byte-level BPE."""

_EDGES = "*_`\"'.,:;!()[]"
"""Marks around a label in the tokens of servers whose tokens are pieces of text."""

_NO_COUNT = -1
"""Stands for a token count that is not a number; it is clipped like every impossible count."""

_LINE_END = re.compile(r"\r\n|\r|\n")
_CUT = re.compile(r"length|max.{0,200}token|token.{0,200}limit", re.IGNORECASE)
_TOOL = re.compile(r"tool|function", re.IGNORECASE)
_WITHHELD = re.compile(
    r"filter|safety|refus|block|prohibit|recitation|spii|sensitive|guardrail|toxic|moderat|policy", re.IGNORECASE
)
_BROKEN_OFF = re.compile(r"error|fail|abort|cancel|insufficient|timeout|timed.?out|overload|other", re.IGNORECASE)
"""How servers say that an answer ended neither by itself nor at its limit: nobody holds to OpenAI's list."""

_EXCERPT = 300


class _ResponseModel(BaseModel):
    model_config = ConfigDict(frozen=True, extra="ignore", allow_inf_nan=False)


_PLACEHOLDER = re.compile(r"token_id:|bytes:|<0x[0-9A-Fa-f]{2}>$|$")


def _token_of(given: Mapping[str, Any]) -> Any:
    """Return the token of a candidate: the text of its bytes where the server writes an id or a placeholder."""
    token, raw = given.get("token"), given.get("bytes")
    if not isinstance(raw, list) or not raw or (isinstance(token, str) and not _PLACEHOLDER.match(token)):
        return token
    try:
        return bytes(raw).decode("utf-8", "replace")
    except (TypeError, ValueError):
        return token


def _possible(given: Any) -> Any:
    """Return candidates as pairs, without those that the server gives no probability: null, or minus infinity."""
    if given is None:
        return ()
    if isinstance(given, dict):  # by token
        return [(token, logprob) for token, logprob in given.items() if logprob not in _IMPOSSIBLE]
    if not isinstance(given, list):
        return given
    candidates = [top if isinstance(top, dict) else {} for top in given]
    return [(_token_of(top), top.get("logprob")) for top in candidates if top.get("logprob", 0) not in _IMPOSSIBLE]


_IMPOSSIBLE = (None, -math.inf)


class Position(_ResponseModel):
    """A token that was written, and the most likely ones there, each with the natural logarithm of its probability."""

    token: str
    top_logprobs: tuple[tuple[str, float], ...] = ()


def _positions_of(given: Any) -> Any:
    """Return the positions of a choice's `logprobs`, which are objects or, as in `/completions`, parallel lists.

    Where the server gives null for a position, its token is unknown, so that no other takes its place.
    """
    if not given:
        return ()
    if not isinstance(given, dict):
        raise ValueError("logprobs are not an object")
    content, tokens, tops = given.get("content"), given.get("tokens"), given.get("top_logprobs")
    if content is None and isinstance(tokens, list) and isinstance(tops, list):
        content = [{"token": token, "top_logprobs": top} for token, top in zip(tokens, tops, strict=False)]
    return () if content is None else [_position_of(one) for one in _items(content)]


def _position_of(given: Any) -> Any:
    if given is None:
        return {"token": "\N{REPLACEMENT CHARACTER}"}  # nosec B105
    if not isinstance(given, dict):
        return given
    return {"token": _token_of(given), "top_logprobs": _possible(given.get("top_logprobs"))}


def _items(given: Any) -> list[Any]:
    if not isinstance(given, list):
        raise ValueError("the content of logprobs is not a list")
    return given


def _text_of(given: Any) -> str | None:
    """Return a text as it is, and a list of texts or parts joined; None for anything else."""
    if isinstance(given, str):
        return given
    if isinstance(given, dict):
        given = [given]
    if not isinstance(given, list):
        return None
    texts = [part.get("text", part.get("content")) if isinstance(part, dict) else part for part in given]
    texts = [text.get("value") if isinstance(text, dict) else text for text in texts]
    found = [text for text in texts if isinstance(text, str)]
    return "".join(found) if found else None


def _as_list(given: Any) -> Any:
    return given if isinstance(given, list) else []


class _Message(_ResponseModel):
    content: str | None = None
    reasoning_content: Annotated[str | None, BeforeValidator(_text_of)] = None
    reasoning: Annotated[str | None, BeforeValidator(_text_of)] = None
    refusal: Annotated[str | None, BeforeValidator(_text_of)] = None
    tool_calls: Annotated[tuple[Any, ...], BeforeValidator(_as_list)] = ()
    function_call: Any = None


def _with_sorted_parts(message: dict[str, Any]) -> dict[str, Any]:
    """Sort the parts of a message's content into text, thinking, refusals and calls of tools."""
    content = message["content"]
    sorted_parts: dict[str, list[Any]] = {"text": [], "thinking": [], "refusal": [], "tool": []}
    for part in content if isinstance(content, list) else [content]:
        kind = str(part.get("type") or "text") if isinstance(part, dict) else "text"
        if "thinking" in kind or "reasoning" in kind:
            sorted_parts["thinking"].append(_text_of(part.get("thinking")) or _text_of(part) or "")
        elif kind == "refusal":
            sorted_parts["refusal"].append(_text_of(part.get("refusal")) or "refused")
        elif "tool" in kind or "function" in kind:
            sorted_parts["tool"].append(part)
        elif (text := _text_of(part)) is not None:
            sorted_parts["text"].append(text)
    texts, thinking, refusal, tool = sorted_parts.values()
    return (
        message
        | {"content": "".join(texts) if texts else None}
        | ({"reasoning_content": "".join(thinking)} if thinking else {})
        | ({"refusal": "".join(refusal)} if refusal else {})
        | ({"tool_calls": tool} if tool else {})
    )


class _CompletionChoice(_ResponseModel):
    message: _Message = _Message()
    finish_reason: str | None = None
    logprobs: Annotated[tuple[Position, ...], BeforeValidator(_positions_of)] = ()
    content_filter_results: Any = None

    @model_validator(mode="before")
    @classmethod
    def _with_one_message(cls, given: Any) -> Any:
        """Read a content in parts, and a choice that has a `text` in place of a message, as in `/completions`."""
        if not isinstance(given, dict):
            return given
        message = given.get("message")
        if message is None:
            return given | {"message": {"content": _text_of(given.get("text"))}}
        if isinstance(message, dict) and isinstance(message.get("content"), list | dict):
            return given | {"message": _with_sorted_parts(message)}
        return given


class _Usage(NamedTuple):
    """The counts that a server reports; `_NO_COUNT` for what is not a number, since counts decide no verdict."""

    prompt: int
    cached: int
    written: int

    @classmethod
    def of(cls, given: Any) -> "_Usage":
        if given is None:
            return cls(0, 0, 0)
        if not isinstance(given, dict):
            return cls(_NO_COUNT, 0, 0)
        details = given.get("prompt_tokens_details")
        if details is None:
            cached = 0
        else:
            cached = _as_count(details.get("cached_tokens")) if isinstance(details, dict) else _NO_COUNT
        return cls(_as_count(given.get("prompt_tokens")), cached, _as_count(given.get("completion_tokens")))


def _as_count(given: Any) -> int:
    if given is None:
        return 0
    return given if isinstance(given, int) and not isinstance(given, bool) else _NO_COUNT


class TokenCounts(NamedTuple):
    """Prompt tokens computed, prompt tokens reused, tokens written; `clipped` tells whether the server's differed."""

    computed: int
    reused: int
    written: int
    clipped: bool


class Place(NamedTuple):
    """Where the token of a choice stands, and whether the tokens begin with the choice's lead.

    The position is None if there is no such token, or if it begins in the lead.
    """

    position: int | None
    follows_lead: bool


class ChatCompletion(_ResponseModel):
    """An answer of `/chat/completions`, of which only the first choice is read."""

    model: str | None = None
    system_fingerprint: str | None = None
    choices: Annotated[tuple[_CompletionChoice, ...], Field(min_length=1)]
    usage: Any = None

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
        return bool(_CUT.search(self.choices[0].finish_reason or ""))

    @property
    def withheld(self) -> str:
        """Why the endpoint gave no answer of the model, in words and with its own; empty if it gave one."""
        choice = self.choices[0]
        message, reason = choice.message, choice.finish_reason or ""
        if message.refusal:
            return f"the endpoint refused to answer: {message.refusal[:_EXCERPT]}"
        cut = self.cut
        if message.tool_calls or message.function_call or (not cut and _TOOL.search(reason)):
            return "the endpoint called a tool in place of an answer; turn off tools for this model"
        if cut:
            return ""
        said = f"finish_reason {reason!r}"
        if _WITHHELD.search(reason):
            filters = _triggered(choice.content_filter_results)
            return f"the endpoint withheld the answer ({said}{f': {filters}' if filters else ''})"
        if _BROKEN_OFF.search(reason):
            return f"the endpoint broke the answer off ({said})"
        if message.content is None and not self.thoughts and self.first_position is None:
            return f"the endpoint gave an answer without a text ({said if reason else 'no finish_reason'})"
        return ""

    def answer_text(self, *, thinking: bool) -> str:
        """Return the text without the thinking before it.

        Some chat templates open the thinking block themselves, so that only its end is in the text. The end is looked
        for if the model was allowed `thinking` and the server returned none separately.
        """
        text = self.content.lstrip()
        if text.startswith(_CHANNEL) or (text.startswith(_BARE_ANALYSIS) and _BARE_FINAL in text):
            return _final_channel(text)
        if text.startswith(_OPENING) or (thinking and not self.thoughts and _CLOSING in text):
            return text.partition(_CLOSING)[2].strip()
        return text.strip()

    @property
    def thinks(self) -> bool:
        """Whether the model thought before its answer, although nothing asked it to."""
        return bool(self.thoughts) or self.answer_text(thinking=False) != self.content.strip()

    @property
    def first_position(self) -> int | None:
        """The index of the first token that is more than white space; None without log-probabilities."""
        return next((i for i, token in enumerate(self._tokens) if token.strip()), None)

    def place_of(self, token_choice: TokenChoice) -> "Place":
        """Return the place of the token that stands for an option: the first after the lead that is not white space."""
        tokens = self._tokens
        begin, lead_end = 0, token_choice.lead_end("".join(tokens)) if token_choice.lead else 0
        for index, token in enumerate(tokens):
            end = begin + len(token)
            if end > lead_end and token[max(0, lead_end - begin) :].strip():
                return Place(index if begin >= lead_end else None, lead_end > 0)
            begin = end
        return Place(None, lead_end > 0)

    def masses(self, token_choice: TokenChoice, place: "Place") -> tuple[float, ...] | None:
        """Return the probability of each option at its `place_of` the choice.

        None without log-probabilities. Use them only if `why_invalid` is empty.
        """
        if not self._positions:
            return None
        if place.position is None:
            return None if place.follows_lead else tuple(0.0 for _ in token_choice.options)
        candidates = self._positions[place.position].top_logprobs
        return _masses(candidates, token_choice) if candidates else None

    def split_mass(self, token_choice: TokenChoice, place: "Place") -> float:
        """Return the probability of tokens that only begin an option, because the model writes it in several tokens."""
        if not self._positions or place.position is None:
            return 0.0
        whole = frozenset().union(*_bare_spellings(token_choice))
        candidates = self._positions[place.position].top_logprobs
        begun = [(_label_in(token), logprob) for token, logprob in candidates]
        return math.fsum(
            math.exp(logprob)
            for label, logprob in begun
            if label and label not in whole and any(spelling.startswith(label) for spelling in whole)
        )

    def why_invalid(self, at: int | None) -> str:
        """Say why the log-probabilities of a token are impossible; empty if they are possible or absent.

        A probability is at most 1, and so is the sum over different tokens.
        """
        logprobs = [] if at is None else [logprob for _, logprob in self._positions[at].top_logprobs]
        highest = max(logprobs, default=0.0)
        if highest > MASS_TOLERANCE:
            return f"a log-probability of {highest:g}"
        total = math.fsum(map(math.exp, logprobs))
        return f"probabilities that add up to {total:.6g}" if total > 1.0 + MASS_TOLERANCE else ""

    @property
    def has_spread_logprobs(self) -> bool:
        """Whether the first token's log-probabilities are possible, and more than one token is likely."""
        at = self.first_position
        if at is None or self.why_invalid(at):
            return False
        logprobs = sorted([logprob for _, logprob in self._positions[at].top_logprobs], reverse=True)
        return len(logprobs) > 1 and logprobs[1] > math.log(1e-6)

    def distance(self, other: "ChatCompletion") -> float:
        """Return how differently two answers begin: the total variation distance of their first tokens, from 0 to 1.

        Without log-probabilities, texts are the same or not.
        """
        at, other_at = self.first_position, other.first_position
        if at is None or other_at is None:
            return float(self.content != other.content)
        ours, theirs = [
            {token: math.exp(logprob) for token, logprob in answer.top_logprobs}
            for answer in (self._positions[at], other._positions[other_at])
        ]
        return math.fsum(abs(ours.get(token, 0.0) - theirs.get(token, 0.0)) for token in ours.keys() | theirs) / 2

    def tokens(self, *, most_prompt: int, most_written: int) -> TokenCounts:
        """Return the server's token counts, clipped to 0..`most_prompt` and 0..`most_written`.

        A server may report anything: negative counts, more than a database integer holds, or no number at all.
        """
        reported = _Usage.of(self.usage)
        prompt = min(max(0, reported.prompt), most_prompt)
        reused = min(max(0, reported.cached), prompt)
        written = min(max(0, reported.written), most_written)
        return TokenCounts(prompt - reused, reused, written, clipped=reported != (prompt, reused, written))

    @property
    def _tokens(self) -> list[str]:
        return [_unmarked(position.token) for position in self._positions]

    @property
    def _positions(self) -> tuple[Position, ...]:
        return self.choices[0].logprobs


def read_together(content: Any, sizes: Sequence[int]) -> list[ChatCompletion | None]:
    """Read the answer to several conversations of `sizes` bytes, whose choices name theirs by `index`.

    None stands for a choice that is missing, there twice, unreadable or an error. If one names a conversation that was
    not asked, the indices mean something else, and no choice is read.

    The answer has one `usage` for all conversations. Its prompt tokens are shared out in proportion to their sizes. The
    tokens written are counted by each choice's `token_ids`, or shared out evenly if it has none.
    """
    completions: list[ChatCompletion | None] = [None] * len(sizes)
    if not isinstance(content, dict):
        return completions
    choices = [choice for choice in _as_list(content.get("choices")) if isinstance(choice, dict)]
    places = Counter(_length(choice.get("index")) for choice in choices)
    if not places.keys() <= set(range(len(sizes))):
        return completions
    shares = _usage_shares(content.get("usage"), sizes)
    for choice in choices:
        place = choice["index"]
        if places[place] > 1 or choice.get("error"):
            continue
        usage = shares[place]
        if isinstance(token_ids := choice.get("token_ids"), list):
            usage = usage | {"completion_tokens": len(token_ids)}
        with suppress(ValidationError):
            completions[place] = ChatCompletion.model_validate(content | {"choices": [choice], "usage": usage})
    return completions


def _usage_shares(given: Any, sizes: Sequence[int]) -> list[dict[str, Any]]:
    """Share out the `usage` of several conversations, as that of each."""
    usage = _Usage.of(given)
    evenly = [1] * len(sizes)
    return [
        {"prompt_tokens": prompt, "prompt_tokens_details": {"cached_tokens": cached}, "completion_tokens": written}
        for prompt, cached, written in zip(
            _share(usage.prompt, sizes),
            _share(usage.cached, sizes),
            _share(usage.written, evenly),
            strict=True,
        )
    ]


def _share(total: int, weights: Sequence[int]) -> list[int]:
    """Split a count in proportion to weights, in whole numbers that add up to it; an impossible count stays one."""
    if total <= 0:
        return [total] * len(weights)
    ends = [total * weight // sum(weights) for weight in accumulate(weights)]
    return [end - start for start, end in pairwise([0, *ends])]


def _final_channel(text: str) -> str:
    """Return the last message of gpt-oss' final channel; empty if there is none, or if it is not clear which it is."""
    if text.startswith(_CHANNEL):
        _, *finals = _FINAL_CHANNEL.split(text)
        return finals[-1].removesuffix("<|return|>").strip() if finals else ""
    _, *finals = text.split(_BARE_FINAL)
    return finals[0].strip() if len(finals) == 1 else ""


def _masses(candidates: Iterable[tuple[str, float]], token_choice: TokenChoice) -> tuple[float, ...]:
    masses = [(_label_in(token), math.exp(logprob)) for token, logprob in candidates]
    spellings_of = _bare_spellings(token_choice)
    return tuple([math.fsum([mass for label, mass in masses if label in spellings]) for spellings in spellings_of])


@lru_cache
def _bare_spellings(token_choice: TokenChoice) -> tuple[frozenset[str], ...]:
    return tuple([frozenset(spelling.strip() for spelling in option.spellings) for option in token_choice.options])


def _label_in(token: str) -> str:
    """Return a token without the white space around it, and a word without the marks around it: "7." may become 7.5."""
    bare = _unmarked(token).strip()
    word = bare.strip(_EDGES)
    return word if word.isalpha() else bare


def _unmarked(token: str) -> str:
    return token if token.isascii() else token.translate(_SPACE_MARKS)


def _triggered(results: Any) -> str:
    """Return the names of the content filters that an Azure endpoint says were triggered."""
    if not isinstance(results, dict):
        return ""
    return ", ".join(str(name) for name, found in results.items() if isinstance(found, dict) and found.get("filtered"))


def _text_or_none(given: Any) -> str | None:
    return given if isinstance(given, str) else None


def _texts(given: Any) -> list[str]:
    return [text for text in given if isinstance(text, str)] if isinstance(given, list) else []


def _length(given: Any) -> int | None:
    return given if isinstance(given, int) and not isinstance(given, bool) else None


_Length = Annotated[int | None, BeforeValidator(_length)]


class ModelCard(_ResponseModel):
    """A model of `/models`; its other fields are read if they are what they are elsewhere.

    `max_model_len` is vLLM's, `aliases` and `meta` are llama.cpp's; the context's length has a name of its own at
    OpenRouter and Together, Groq, Mistral and LM Studio.
    """

    id: str
    aliases: Annotated[tuple[str, ...], BeforeValidator(_texts)] = ()
    owned_by: Annotated[str | None, BeforeValidator(_text_or_none)] = None
    max_model_len: _Length = None
    context_length: _Length = None
    context_window: _Length = None
    max_context_length: _Length = None
    meta: Annotated[dict[str, object], BeforeValidator(lambda given: given if isinstance(given, dict) else {})] = {}

    @model_validator(mode="before")
    @classmethod
    def _from_name(cls, given: Any) -> Any:
        """Read a card that is only a name, or that calls its id otherwise."""
        if isinstance(given, str):
            return {"id": given}
        if isinstance(given, dict) and given.get("id") is None:
            return given | {"id": given.get("name") or given.get("model")}
        return given

    def is_called(self, model: str) -> bool:
        """Whether `model` names it: by its id or an alias, up to case, `models/` before, `:latest` after, or `*`."""
        asked = _bare(model)
        names = [_bare(name) for name in (self.id, *self.aliases)]
        return any(asked == name or (name.endswith("*") and asked.startswith(name[:-1])) for name in names)


def _bare(name: str) -> str:
    return name.casefold().removeprefix("models/").removesuffix(":latest")


class ModelList(_ResponseModel):
    """An answer of `/models`."""

    data: tuple[ModelCard, ...]

    @model_validator(mode="before")
    @classmethod
    def _from_bare_list(cls, given: Any) -> Any:
        """Read a list without an object around it, or under another name."""
        if isinstance(given, list):
            return {"data": given}
        if not isinstance(given, dict) or isinstance(given.get("data"), list):
            return given
        if isinstance(given.get("models"), list):
            return {"data": given["models"]}
        return given | {"data": []} if given.get("data", "missing") is None else given


def parse_body(body: bytes) -> Any:
    """Return the content of a body: JSON, or the completion that the events of a stream add up to.

    Bytes that are not UTF-8 are replaced: a server that ends an answer inside a character sends such.

    Raises:
        ValueError: it is neither, or the stream ends before the answer does.
    """
    try:
        return _as_completion(from_json(body))
    except ValueError:
        text = body.decode("utf-8-sig", "replace")
    try:
        return _as_completion(from_json(text))
    except ValueError:
        if not re.search(r"^(data|event|:)", text, re.MULTILINE):
            raise
    events = list(_events(text))
    if len(events) == 1 and _is_whole(events[0]):
        return events[0]
    return _assembled(events, is_done=_DONE.search(text) is not None)


_DONE = re.compile(r"^data: *\[DONE\]", re.MULTILINE)


def _is_whole(content: Any) -> bool:
    choices = content.get("choices") if isinstance(content, dict) else None
    first = choices[0] if isinstance(choices, list) and choices else None
    return not isinstance(first, dict) or "delta" not in first or isinstance(first.get("message"), dict)


def _as_completion(content: Any) -> Any:
    return content if _is_whole(content) else _assembled([content])


def _events(text: str) -> Iterator[Any]:
    """Yield the JSON of a stream's events, and of what stands before the first one."""
    head: list[str] = []
    block: list[str] = []
    started = False
    for line in [*_LINE_END.split(text), ""]:
        name, _, value = line.partition(":")
        if name == "data":
            started = True
            block.append(value.strip())
            continue
        if not started and name not in ("event", "id", "retry", ""):
            head.append(line)
        if head and started:
            yield from _json_values(head)
            head = []
        yield from _json_values(block)
        block = []
    yield from _json_values(head)


def _json_values(lines: list[str]) -> Iterator[Any]:
    """Yield the JSON values of an event: one per line, or one over all lines."""
    given = [line for line in lines if line and line != "[DONE]"]
    if not given:
        return
    try:
        values = [from_json(line) for line in given]
    except ValueError:
        values = [from_json("\n".join(given))]
    yield from values


def _assembled(events: list[Any], *, is_done: bool = False) -> dict[str, Any]:
    """Return the completion that events add up to: their deltas joined, and the last of every other value."""
    whole: dict[str, Any] = {}
    choice: dict[str, Any] = {}
    message: dict[str, list[Any]] = {}
    logprobs: dict[str, list[Any]] = {}
    for event in events:
        if not isinstance(event, dict):
            raise ValueError("an event of the stream is not an object")
        whole |= {name: value for name, value in event.items() if name != "choices" and value is not None}
        for part in _as_list(event.get("choices")):
            if not isinstance(part, dict) or part.get("index") not in (0, None):
                continue
            choice |= {name: value for name, value in part.items() if value is not None}
            for total, more in ((message, part.get("message") or part.get("delta")), (logprobs, part.get("logprobs"))):
                for name, value in more.items() if isinstance(more, dict) else ():
                    if value is not None:
                        total.setdefault(name, []).extend(value if isinstance(value, list) else [value])
    if not is_done and whole.get("error") is None and choice.get("finish_reason") is None:
        raise ValueError("the stream ends before the answer does")
    message.pop("role", None)
    joined = {"message": message} | ({"logprobs": logprobs} if logprobs else {})
    return whole | {"choices": [choice | joined] if choice else []}


def shape_error(error: ValidationError) -> str:
    """Describe in a few words where an answer has the wrong shape."""
    first = error.errors(include_url=False, include_input=False, include_context=False)[0]
    place = ".".join(str(part) for part in first["loc"])
    return f"{place}: {first['msg']}" if place else first["msg"]


class EndpointWords(NamedTuple):
    """What an error says: its message, its code and type, and the HTTP status that it names; None if it names none."""

    message: str
    code: str
    status: int | None = None


def error_words(content: Any) -> EndpointWords:
    """Read the error in the content of an answer."""
    if isinstance(content, list) and content:  # one error in a list
        content = content[0]
    error = (content.get("error") or content) if isinstance(content, dict) else content
    if not isinstance(error, dict):
        return EndpointWords(str(error)[:_EXCERPT], "")
    words = error.get("message") or error.get("detail") or error.get("msg") or error
    metadata = error.get("metadata")
    if isinstance(metadata, dict) and metadata.get("raw"):  # what a router's upstream said
        words = f"{words}: {metadata['raw']}"
    codes = [error.get(name) for name in ("code", "type", "status")]
    status = next((int(str(c)) for c in codes if re.fullmatch(r"[45]\d\d", str(c))), None)
    return EndpointWords(str(words)[:_EXCERPT], " ".join(str(c) for c in codes if c), status)


def parse_error_body(body: bytes) -> EndpointWords:
    """Read the error in a body, whatever its form."""
    try:
        return error_words(parse_body(body))
    except ValueError:
        return EndpointWords(body[:200].decode(errors="replace").strip(), "")


def embedded_error(content: Any) -> EndpointWords | None:
    """Return the error in the content of an answer whose HTTP status is fine; None if there is none."""
    if not isinstance(content, Mapping):
        return None
    choices = content.get("choices")
    first = choices[0] if isinstance(choices, list) and choices and isinstance(choices[0], dict) else {}
    for error in (content.get("error"), first.get("error"), content if content.get("object") == "error" else None):
        if isinstance(error, dict) and not any(error.values()):
            continue
        if error:
            return error_words({"error": error})
    return None
