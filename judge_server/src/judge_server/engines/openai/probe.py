"""Probe an endpoint when the engine starts: what it serves, what it can do, and how it counts tokens.

A capability counts only if it is accepted and has an effect. An endpoint that does not answer is an error: a temporary
failure must not pass for a missing capability, because capabilities are part of the judge's fingerprint.

Tokens of a conversation are counted by servers that can (vLLM, llama.cpp) and estimated for others. The estimate is
meant to be too high, because a prompt cut slightly short costs less than one that is refused.
"""

import asyncio
import hashlib
import math
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from itertools import islice, product
from typing import Any, Literal, TypeVar, get_args

from pydantic import ValidationError

from judge_server.engines.openai.calls import (
    ChatMessage,
    Dialect,
    LimitField,
    Temperatures,
    byte_length,
    count_images,
    json_schema,
    labels_schema,
    max_prompt_tokens,
    structured_choice,
    text_of,
)
from judge_server.engines.openai.completions import ChatCompletion, ModelCard, ModelList, parse_body, shape_error
from judge_server.engines.openai.http import EndpointError, HttpAnswer, OpenAIHttp, UnreadableLogprobs, encode
from judge_server.errors import EngineNotReady, EngineStartError, EngineUnavailable
from judge_server.judging.prompts.fencing import control_token_pattern
from judge_server.ports import IMAGE_TOKENS, CallFailure, Capabilities

ValueT = TypeVar("ValueT")

CountMethod = Literal["messages", "template", "estimate"]
"""How tokens are counted: vLLM counts messages, llama.cpp the text that it renders from them first."""

MESSAGE_OVERHEAD_TOKENS = 16
"""The tokens that the estimate assumes a chat template adds to a message."""

MAX_TOKEN_BYTES = 128
"""The most bytes of a token in common vocabularies; longer ones are runs of spaces or dashes."""

_PROSE = re.compile(r"[A-Za-z ]+")

DEFAULT_CONTEXT_TOKENS = 8192
TOP_LOGPROBS = (20, 10, 8, 5, 2)
"""How many log-probabilities to ask for: the most that servers give by default, then fewer."""

COUNTED_LOGPROBS = 5
"""How many to ask for where `logprobs` is their number: the most that such servers give by default."""

LEAST_TOKENS = (1, 2, 16, 64, 256, 1024)
"""Token limits to try where one token is refused. Some models think within the limit, and need room for it."""

READY_TIMEOUT_S = 2.0
"""How long an endpoint may take to answer a readiness check."""

VOTE_TEMPERATURE = 0.7
"""The temperature to try where 0 is refused: one that votes are usually sampled at."""

_LISTED = 10
_MAX_CONTEXT_TOKENS = 2**30
_MAX_CONTROL_TOKENS = 4096
_IN_TEMPLATE = re.compile(r"<[^\s<>'\"]{1,62}>|\[/?[A-Z_]{2,60}\]")
"""What looks like a control token in a chat template; it may also be a tag that the template explains to the model."""

_COLOUR = "Name any colour, in one word."
_CAPITAL = "What is the capital of France? Answer in one word."
_IMPLAUSIBLE_LABELS = ("quartz-17", "basalt-42")
_STAR = "Invent a name for a star that has none yet."
REFUSALS = frozenset({400, 403, 404, 405, 415, 422, 500, 501})
"""Statuses with which servers refuse what they do not support, once they have answered a plain request."""

_REFUSED_FIELDS = frozenset({400, 422, 501})
"""Statuses with which servers refuse a field of the plainest request, or its value, without naming it."""

_LATER = frozenset({408, 425, 429})
"""Statuses below 500 with which a list of models is only late, and not refused."""

NOT_YET = frozenset({None, 502, 503, 504})
"""Statuses of a server that is down or still loading its model; None if there was no answer."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The properties of an endpoint.

    Attributes:
        dialect: what its requests look like.
        answered_as: the model that its answers name; every later one must name the same.
        release: the `system_fingerprint` of its answers, if any.
        maker: the owner and the server that it names.
        template_digest: the hash of the chat template, if it returns it.
        counter: how it counts tokens.
        models: the ids of the models that it lists; empty if it has no such list.
        thinks: whether the model thinks before each answer, although nothing asks it to.
        batches: whether it takes several conversations in one request, as vLLM's batch route does.
    """

    dialect: Dialect
    answered_as: str | None
    release: str | None
    maker: str
    template_digest: str
    context_tokens: int
    capabilities: Capabilities
    counter: CountMethod
    models: tuple[str, ...]
    thinks: bool
    batches: bool


async def probe(http: OpenAIHttp, *, model: str | None, context_tokens: int | None) -> Endpoint:
    """Find out what an endpoint serves and what it can do.

    Raises:
        EngineNotReady: it cannot be reached, or is not ready yet.
        EngineStartError: it refuses the key or does not serve the model; the message says what to do.
    """
    try:
        return await _probe(http, model, context_tokens)
    except EndpointError as error:
        remedy = ""
        if error.status in (404, 405) and "model" not in error.failure.detail.lower():
            remedy = "; check that the engine URL ends where the OpenAI API begins, usually in /v1"
        raise start_error(error, http.base_url, remedy) from error


def start_error(error: EndpointError, url: str, remedy: str = "") -> EngineStartError:
    """Return why the engine of an endpoint cannot start, and what to do; `EngineNotReady` if it may start later."""
    remedy = remedy or ("" if error.status else "; start the server, or correct the engine URL")
    may_recover = error.status in NOT_YET or error.failure.kind == "overloaded"
    return (EngineNotReady if may_recover else EngineStartError)(f"{url} cannot judge: {error.failure.detail}{remedy}")


async def models_answer(http: OpenAIHttp) -> HttpAnswer | None:
    """Ask for the list of models, to see whether an endpoint answers; None if it does not."""
    try:
        async with asyncio.timeout(READY_TIMEOUT_S):
            return await http.get(f"{http.base_url}/models")
    except (EndpointError, TimeoutError):
        return None


async def _probe(http: OpenAIHttp, model: str | None, context_tokens: int | None) -> Endpoint:
    cards, server = await list_models(http, model)
    card = choose_model(http, cards, model)
    dialect = await _plain_dialect(http, Dialect(model or card.id))
    if not await _takes_system_role(http, dialect):
        dialect = replace(dialect, system_role=False)
    dialect, first = await _first_answer(http, dialect)
    dialect = replace(dialect, choices=await _supports_structured_choice(http, dialect))
    properties = await _get_json_object(http, "props")
    tokenizer = await _get_json_object(http, "tokenizer_info")
    dialect = replace(dialect, control_tokens=_control_token_pattern(properties, tokenizer))
    capabilities = Capabilities(
        logprobs=dialect.top_logprobs > 0,
        token_menus=False,
        json_schema=await _supports_json_schema(http, dialect),
        prompt_logprobs=await _supports_prompt_logprobs(http, dialect),
        prefix_in_flight=card.owned_by == "vllm",
        seeds=await _honours_seeds(http, dialect),
    )
    template = properties.get("chat_template") or tokenizer.get("chat_template")
    return Endpoint(
        dialect,
        first.model,
        first.system_fingerprint,
        f"{card.owned_by or 'an unnamed maker'} ({server or 'an unnamed server'})",
        hashlib.sha256(template.encode()).hexdigest() if isinstance(template, str) else "applied by the endpoint",
        context_tokens or _context(card, properties),
        capabilities,
        await find_counter(http, dialect.model),
        tuple(card.id for card in cards),
        first.thinks,
        not first.thinks and await _takes_batches(http, dialect),
    )


async def list_models(http: OpenAIHttp, model: str | None) -> tuple[tuple[ModelCard, ...], str]:
    """Return the models that an endpoint lists, none if it has no such list, and the server that it names.

    If a `model` is chosen already, a list that is refused or cannot be read is as good as none.
    """
    answer = await http.get(f"{http.base_url}/models")
    server = answer.headers.get("Server", "")
    missing = answer.status in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED)
    refused = HTTPStatus.BAD_REQUEST <= answer.status <= HTTPStatus.INTERNAL_SERVER_ERROR
    if missing or (model is not None and refused and answer.status not in _LATER):
        return (), server  # if it is the key that is refused, the first question says so
    if answer.status == HTTPStatus.FORBIDDEN:
        raise EngineStartError(
            f"{http.base_url}/models is not allowed (HTTP 403); name the model to judge with in the engine URL, "
            "?model=NAME, or set ADJUDGE_ENGINE_API_KEY to a key that may list models"
        )
    if not answer.ok:
        http.raise_for_status(answer)
    try:
        return ModelList.model_validate(parse_body(answer.body)).data, server
    except ValueError as error:
        if model is not None:
            return (), server
        why = shape_error(error) if isinstance(error, ValidationError) else str(error).partition("\n")[0]
        raise EngineStartError(
            f"{http.base_url}/models does not return a list of models ({why}); "
            "check that the engine URL ends where the OpenAI API begins, usually in /v1"
        ) from None


def choose_model(http: OpenAIHttp, cards: tuple[ModelCard, ...], model: str | None) -> ModelCard:
    """Return the card of the model to judge with; raises `EngineStartError` if that is unclear or not served."""
    served = ", ".join(card.id for card in cards[:_LISTED]) + (", …" if len(cards) > _LISTED else "")
    if model is None:
        if len(cards) == 1:
            return cards[0]
        offer = f"serves {served}" if cards else "lists no models"
        raise EngineStartError(f"{http.base_url} {offer}; name the one to judge with in the engine URL: ?model=NAME")
    for card in cards:
        if card.is_called(model):
            return card
    if cards:
        raise EngineStartError(
            f"{http.base_url} does not serve {model!r} but {served}; correct the engine URL's ?model="
        )
    return ModelCard(id=model)


async def _plain_dialect(http: OpenAIHttp, dialect: Dialect) -> Dialect:
    """Return the dialect of the plainest request that the endpoint accepts.

    Each field of such a request is refused by some server: the name of the limit, a limit of one token, temperature 0.
    What the words of a refusal name is changed first. A refusal that names nothing is met by trying every combination,
    those with the fewest changes first. Raises the first refusal if none is accepted.
    """
    left = [
        replace(dialect, limit_field=field, temperatures=temperatures, least_tokens=least)
        for field, temperatures, least in product(get_args(LimitField), _TEMPERATURES, LEAST_TOKENS)
    ]
    named: set[str] = set()
    first: EndpointError | None = None
    while left:
        asked = min(left, key=lambda one: (len(named - _changes(one)), len(_changes(one)), one.least_tokens))
        left.remove(asked)
        try:
            await http.chat(asked.body(_user(_COLOUR), 1))
        except EndpointError as error:
            blamed = _blamed(error, asked)
            final = error.failure.kind != "engine" or error.failure.retry_after_s == math.inf
            if final or not (error.status in _REFUSED_FIELDS or blamed):
                raise
            first = first or error
            named |= blamed
            continue
        if asked.temperatures == "positive" and not await _accepts(http, asked, temperature=VOTE_TEMPERATURE):
            return replace(asked, temperatures="own")
        return asked
    assert first is not None
    raise first


_TEMPERATURES: tuple[Temperatures, ...] = ("any", "positive")


def _changes(dialect: Dialect) -> set[str]:
    """Return what is changed in the plainest request of a dialect."""
    changed = {
        "field": dialect.limit_field != "max_tokens",
        "temperature": dialect.temperatures != "any",
        "limit": dialect.least_tokens > 1,
    }
    return {name for name, is_changed in changed.items() if is_changed}


def _blamed(error: EndpointError, asked: Dialect) -> set[str]:
    """Return what of a plain request the words of a refusal blame."""
    words, status = error.failure.detail.lower(), error.status
    if status not in REFUSALS or status == HTTPStatus.NOT_FOUND:
        return set()
    if asked.limit_field == "max_tokens" and "max_completion_tokens" in words:
        return {"field"}
    blamed = {"temperature"} if "temperature" in words else set()
    return blamed | ({"limit"} if refuses_limit(error) else set())


def refuses_limit(error: EndpointError) -> bool:
    """Whether the words of a refusal blame the token limit."""
    refused = error.status in REFUSALS and error.failure.kind == "engine"
    return refused and bool(_LIMIT.search(error.failure.detail))


_LIMIT = re.compile(r"max\w{0,40}[_ ]tokens|(output|token) limit", re.IGNORECASE)


async def _takes_system_role(http: OpenAIHttp, dialect: Dialect) -> bool:
    """Whether the endpoint takes a system message; templates of some models refuse any, or one before several turns."""
    turns: list[ChatMessage] = [*_user(_COLOUR), {"role": "assistant", "content": "Red."}, *_user(_COLOUR)]
    system: ChatMessage = {"role": "system", "content": "Answer in one word."}
    folding = replace(dialect, system_role=False)
    if await _try(http, dialect.body([system, *turns], 1)) is not None:
        return True
    if await _try(http, folding.body([system, *turns], 1)) is not None:
        return False
    return await _try(http, dialect.body([system, *_user(_COLOUR)], 1)) is not None


async def _accepts(http: OpenAIHttp, dialect: Dialect, **options: Any) -> bool:
    return await _try(http, dialect.body(_user(_COLOUR), 1, **options)) is not None


async def _first_answer(http: OpenAIHttp, dialect: Dialect) -> tuple[Dialect, ChatCompletion]:
    """Return the dialect with the most log-probabilities that the endpoint gives, and an answer in it."""
    asked, answer = dialect, None
    for top in TOP_LOGPROBS:
        asked = replace(dialect, top_logprobs=top)
        answer = await _try(http, asked.body(_user(_COLOUR), 4, **asked.logprobs()))
        if answer is not None:
            break
    if answer is None or answer.first_position is None:
        counted = replace(dialect, top_logprobs=COUNTED_LOGPROBS, counted_logprobs=True)
        other = await _try(http, counted.body(_user(_COLOUR), 4, **counted.logprobs()))
        if other is not None and other.first_position is not None:
            asked, answer = counted, other
    if answer is None:
        return dialect, await http.chat(dialect.body(_user(_COLOUR), 4))
    at = answer.first_position
    if at is None or not answer.has_spread_logprobs or answer.thinks:
        return dialect, answer
    return replace(asked, choice_tokens=at + 1), answer


async def _supports_json_schema(http: OpenAIHttp, dialect: Dialect) -> bool:
    answer = await _try(http, dialect.body(_user(_CAPITAL), 48, **json_schema(labels_schema(_IMPLAUSIBLE_LABELS))))
    return answer is not None and any(
        f'"{label}"' in answer.answer_text(thinking=False) for label in _IMPLAUSIBLE_LABELS
    )


async def _supports_structured_choice(http: OpenAIHttp, dialect: Dialect) -> bool:
    answer = await _try(http, dialect.body(_user(_CAPITAL), 48, **structured_choice(_IMPLAUSIBLE_LABELS)))
    return answer is not None and answer.answer_text(thinking=False) in _IMPLAUSIBLE_LABELS


async def _takes_batches(http: OpenAIHttp, dialect: Dialect) -> bool:
    """Whether two conversations in one request get the answers that each gets alone, under the index of each.

    This cannot change a verdict, so a failure means no, and is no reason not to start. Models that think are left out:
    vLLM 0.26 reads all answers of such a request with one parser of thoughts, which keeps a state.
    """
    bodies = [dialect.body(_user(text), 4, **dialect.logprobs()) for text in (_COLOUR, _CAPITAL)]
    fields = {name: value for name, value in bodies[0].items() if name != "messages"}
    try:
        one, other = await http.chat_together([encode(body["messages"]) for body in bodies], fields)
        if one is None or other is None:
            return False
        first, second = [await http.chat(body) for body in bodies]
    except EndpointError:
        return False
    return first.distance(one) + second.distance(other) < first.distance(other) + second.distance(one)


async def _honours_seeds(http: OpenAIHttp, dialect: Dialect) -> bool:
    """Whether the same seed gives the same sampled answer again."""
    answer_text = []
    for _ in range(2):
        answer = await _try(http, dialect.body(_user(_STAR), 16, temperature=1.0, seed=7))
        answer_text.append(answer and answer.thoughts + answer.content)
    return bool(answer_text[0]) and answer_text[0] == answer_text[1]


async def _supports_prompt_logprobs(http: OpenAIHttp, dialect: Dialect) -> bool:
    """Whether `/completions` returns the log-probabilities of given token ids, as vLLM does."""
    prompt = [1, 2, 3]
    body = {"model": dialect.model, "prompt": prompt, "max_tokens": 1, "temperature": 0, "prompt_logprobs": 1}
    try:
        answer = await http.post_for_object(f"{http.base_url}/completions", body)
        logprobs = answer["choices"][0]["prompt_logprobs"]
        return len(logprobs) == len(prompt) and all(
            str(i) in place for i, place in zip(prompt[1:], logprobs[1:], strict=True)
        )
    except (KeyError, IndexError, TypeError):
        return False
    except EndpointError as error:
        if error.status in REFUSALS or error.status == HTTPStatus.OK:
            return False
        raise


async def find_control_tokens(http: OpenAIHttp) -> re.Pattern[str] | None:
    """Return a pattern that matches where to break the control tokens that an endpoint reports; None without any."""
    properties = await _get_json_object(http, "props")
    return _control_token_pattern(properties, await _get_json_object(http, "tokenizer_info"))


async def context_of(http: OpenAIHttp, card: ModelCard) -> int:
    """Return how many tokens a prompt may have, as far as the endpoint says."""
    return _context(card, await _get_json_object(http, "props"))


def _control_token_pattern(properties: Mapping[str, Any], tokenizer: Mapping[str, Any]) -> re.Pattern[str] | None:
    return control_token_pattern(islice(_control_tokens(properties, tokenizer), _MAX_CONTROL_TOKENS))


async def _get_json_object(http: OpenAIHttp, path: str) -> Mapping[str, Any]:
    """Return llama.cpp's properties (`props`) or vLLM's tokenizer (`tokenizer_info`); empty for other servers."""
    answer = await http.get(f"{http.root_url}/{path}")
    content = answer.json() if answer.status == HTTPStatus.OK else None
    return content if isinstance(content, dict) else {}


def _control_tokens(properties: Mapping[str, Any], tokenizer: Mapping[str, Any]) -> Iterator[str]:
    """Yield the control tokens that an endpoint reports: by name, as added tokens, and in its chat template."""
    added = tokenizer.get("added_tokens_decoder")
    tokens = list(added.values()) if isinstance(added, dict) else []
    more = tokenizer.get("additional_special_tokens")
    tokens += more if isinstance(more, list) else []
    for reported in (properties, tokenizer):
        tokens += [reported.get(name) for name in ("bos_token", "eos_token", "pad_token", "unk_token")]
    for token in tokens:
        content = token.get("content") if isinstance(token, dict) else token
        if isinstance(content, str):
            yield content
    for reported in (properties, tokenizer):
        if isinstance(template := reported.get("chat_template"), str):
            yield from (match[0] for match in _IN_TEMPLATE.finditer(template))


def _context(card: ModelCard, properties: Mapping[str, Any]) -> int:
    settings = properties.get("default_generation_settings")
    reported = (
        card.max_model_len,
        card.meta.get("n_ctx"),
        card.context_length,
        card.context_window,
        card.max_context_length,
        settings.get("n_ctx") if isinstance(settings, dict) else None,
    )
    return next((n for n in reported if isinstance(n, int) and 0 < n <= _MAX_CONTEXT_TOKENS), DEFAULT_CONTEXT_TOKENS)


async def _try(http: OpenAIHttp, body: dict[str, Any]) -> ChatCompletion | None:
    """Return the completion of a body; None if the endpoint does not accept it, or gives unreadable probabilities."""
    try:
        return await http.chat(body)
    except UnreadableLogprobs:
        return None
    except EndpointError as error:
        if error.status in REFUSALS:
            return None
        raise


def _user(text: str) -> list[ChatMessage]:
    return [{"role": "user", "content": text}]


def estimate(text: str) -> int:
    """Estimate the tokens of a text, erring upwards: half a token per ASCII letter or space, one per other byte."""
    prose = sum(len(run) for run in _PROSE.findall(text))
    return math.ceil(prose / 2) + byte_length(text) - prose


def min_tokens(messages: Sequence[ChatMessage]) -> int:
    """Return a lower bound on the tokens of the messages with any tokenizer."""
    return sum([byte_length(text_of(message)) for message in messages]) // MAX_TOKEN_BYTES


async def find_counter(http: OpenAIHttp, model: str) -> CountMethod:
    """Find out how this endpoint counts tokens."""
    messages = _user("One, two.")  # no system message, which some templates refuse
    counters: tuple[CountMethod, ...] = ("messages", "template")
    for counter in counters:
        try:
            if await _count(http, model, counter, messages):
                return counter
        except EndpointError as error:
            if error.status is None:
                raise
    return "estimate"


class TokenCounter:
    """Counts the tokens of conversations, at most `at_once` at a time."""

    def __init__(self, http: OpenAIHttp, model: str, counter: CountMethod, *, at_once: int) -> None:
        self._http = http
        self._model = model
        self._counter = counter
        self._at_once = asyncio.Semaphore(at_once)

    async def count(self, messages: Sequence[ChatMessage]) -> int:
        """Count the tokens of these messages, within the bounds of their length. Raises `EngineUnavailable`."""
        images = count_images(messages)
        if self._counter == "estimate" or images:  # servers count images each in their own way, or refuse to
            text = sum(estimate(text_of(m)) + MESSAGE_OVERHEAD_TOKENS for m in messages)
            return text + MESSAGE_OVERHEAD_TOKENS + IMAGE_TOKENS * images
        try:
            async with self._at_once:
                reported = await _count(self._http, self._model, self._counter, messages)
        except EndpointError as error:
            raise EngineUnavailable(error.failure.detail) from error
        return min(max(reported, min_tokens(messages)), max_prompt_tokens(messages))


async def _count(http: OpenAIHttp, model: str, counter: CountMethod, messages: Sequence[ChatMessage]) -> int:
    tokenize = f"{http.root_url}/tokenize"
    if counter == "messages":
        return _require_type(
            int, (await http.post_for_object(tokenize, {"model": model, "messages": messages})).get("count")
        )
    rendered = await http.post_for_object(f"{http.root_url}/apply-template", {"messages": messages})
    body = {"content": _require_type(str, rendered.get("prompt")), "add_special": True, "parse_special": True}
    return len(_require_type(list, (await http.post_for_object(tokenize, body)).get("tokens")))


def _require_type(kind: type[ValueT], value: object) -> ValueT:
    if not isinstance(value, kind):
        raise EndpointError(CallFailure("engine", "the endpoint's tokenizer answers in an unknown shape"), 200)
    return value
