"""An engine that asks a decision model behind HTTP: `POST /v1/systemone`, or OpenAI's `POST /v1/decisions`.

All calls of a batch, which are those about one response, go into one request. It is split where the server's limits
require it: by questions, by estimated tokens, and in halves if the server refuses it, so that one question that it
cannot answer does not fail the others.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from http import HTTPStatus
from typing import Any
from urllib.parse import SplitResult

from pydantic import NonNegativeFloat, PositiveInt

from judge_server.engines.openai.calls import ChatMessage
from judge_server.engines.openai.http import EndpointError, OpenAIHttp, base_url_of, mixed_weights
from judge_server.engines.openai.probe import (
    DEFAULT_CONTEXT_TOKENS,
    TokenCounter,
    choose_model,
    context_of,
    estimate,
    find_control_tokens,
    find_counter,
    list_models,
    models_answer,
    start_error,
)
from judge_server.engines.systemone.questions import (
    WRITES_NOTHING,
    Dialect,
    Distribution,
    TypedQuestion,
    questions_of,
    read_answers,
    reply_of,
    request_body,
    state_of,
    token_usage,
)
from judge_server.errors import EngineStartError, EngineUnavailable
from judge_server.judging.prompts.fencing import break_tokens
from judge_server.ports import Batch, Call, CallFailure, Capabilities, EngineIdentity, Option, Reply, TokenChoice
from judge_server.ports.urls import UrlOptions

CONCURRENCY = 16
MAX_QUESTIONS = 64
"""Questions in a request: the limit of vLLM."""

MAX_OPTIONS = 26
"""Options of a question: the limit of vLLM; llama.cpp takes 52 and the hosted APIs 255."""

REQUEST_TOKENS = 64_000
"""Estimated tokens of a request, state and all questions together: the limit of hosted Jev."""

_TEMPLATE_TOKENS = 64
"""The tokens that a server's template is assumed to add around a question."""

_MAX_REPORTED_TOKENS = 2**31 - 1
_SPLIT_STATUSES = (HTTPStatus.BAD_REQUEST, HTTPStatus.REQUEST_ENTITY_TOO_LARGE, HTTPStatus.UNPROCESSABLE_ENTITY)
_PROBE = Batch(
    "",
    "Seven is a prime number.",
    (Call("Is a number mentioned?", TokenChoice((Option("yes", ()), Option("no", ())))),),
)

TYPED_QUESTIONS = Capabilities(
    logprobs=True,
    token_menus=True,
    json_schema=False,
    prompt_logprobs=False,
    prefix_in_flight=True,
    seeds=False,
    typed_questions=True,
)
"""What decision models can do."""


@dataclass(frozen=True, slots=True)
class Limits:
    """What a server takes: questions in a request, options of a question, and estimated tokens of a request."""

    questions: int = MAX_QUESTIONS
    options: int = MAX_OPTIONS
    request_tokens: int = REQUEST_TOKENS


class DecisionClient:
    """Asks the decision model at `url` about batches.

    `answered_as` is the model that the first answer names. Answers that name another one are refused, because verdicts
    of different weights must not be mixed.
    """

    def __init__(self, http: OpenAIHttp, url: str, dialect: Dialect, model: str, limits: Limits) -> None:
        self.http = http
        self._url = url
        self._dialect = dialect
        self._model = model
        self._limits = limits
        self._control_tokens: re.Pattern[str] | None = None
        self._counter: TokenCounter | None = None
        self.answered_as: Any = None

    async def start(self) -> None:
        """Ask a question to see that the model answers any, and find out how its tokens are counted and written.

        Raises `EndpointError` if it gives no answer.
        """
        self._control_tokens = await find_control_tokens(self.http)
        counter = await find_counter(self.http, self._model)
        self._counter = TokenCounter(self.http, self._model, counter, at_once=1)
        (asked,) = [questions for _, questions in self._typed(_PROBE) if not isinstance(questions, CallFailure)]
        body = await self._post(_PROBE, asked)
        self.answered_as = body.get("model")
        reply = reply_of(_PROBE.calls[0], asked, read_answers(self._dialect, body, asked))
        if isinstance(reply, CallFailure):
            raise EndpointError(reply, HTTPStatus.OK)

    async def answer(self, batch: Batch) -> AsyncIterator[tuple[int, Reply | CallFailure]]:
        """Answer the calls of a batch with as few requests as the limits allow, one after the other."""
        typed = dict(self._typed(batch))
        for index, questions in typed.items():
            if isinstance(questions, CallFailure):
                yield index, questions
        askable = {index: questions for index, questions in typed.items() if not isinstance(questions, CallFailure)}
        waiting = list(self._split(batch, askable))
        while waiting:
            part = waiting.pop(0)
            try:
                outcomes = await self._ask(batch, {index: askable[index] for index in part})
            except EndpointError as error:
                if len(part) > 1 and error.status in _SPLIT_STATUSES:
                    middle = len(part) // 2
                    waiting[:0] = [part[:middle], part[middle:]]
                    continue
                outcomes = dict.fromkeys(part, error.failure)
            for index, outcome in outcomes.items():
                yield index, outcome

    async def count_tokens(self, batch: Batch) -> int:
        """Count the tokens of the state and the longest question: by the server if it can, else estimated upwards."""
        counter = self._counter
        if counter is None:
            raise EngineUnavailable("the engine is not running")
        longest = max(
            (
                "" if isinstance(asked, CallFailure) else max(map(_shown, asked), key=len)
                for _, asked in self._typed(batch)
            ),
            key=len,
        )
        message: ChatMessage = {"role": "user", "content": f"{self._shown_state(batch)}\n{longest}"}
        return await counter.count([message]) + _TEMPLATE_TOKENS

    def _typed(self, batch: Batch) -> Iterator[tuple[int, tuple[TypedQuestion, ...] | CallFailure]]:
        for index, call in enumerate(batch.calls):
            yield index, questions_of(index, call, self._limits.options)

    def _split(self, batch: Batch, askable: Mapping[int, tuple[TypedQuestion, ...]]) -> Iterator[list[int]]:
        """Yield the calls of each request: as many as fit into the limits, and at least one."""
        state_tokens = estimate(self._shown_state(batch))
        part: list[int] = []
        questions, tokens = 0, state_tokens
        for index, asked in askable.items():
            more = sum(estimate(_shown(question)) + _TEMPLATE_TOKENS for question in asked)
            if part and (
                questions + len(asked) > self._limits.questions or tokens + more > self._limits.request_tokens
            ):
                yield part
                part, questions, tokens = [], 0, state_tokens
            part.append(index)
            questions, tokens = questions + len(asked), tokens + more
        if part:
            yield part

    async def _ask(
        self, batch: Batch, asked: Mapping[int, tuple[TypedQuestion, ...]]
    ) -> dict[int, Reply | CallFailure]:
        """Return the outcomes of calls that share a request. Raises `EndpointError` if it gets no answer."""
        questions = [question for several in asked.values() for question in several]
        body = await self._post(batch, questions)
        if body.get("model") != self.answered_as:
            raise mixed_weights(body.get("model"), self.answered_as)
        answers: Mapping[str, Distribution | CallFailure] = read_answers(self._dialect, body, questions)
        outcomes = {index: reply_of(batch.calls[index], several, answers) for index, several in asked.items()}
        return _with_tokens(outcomes, token_usage(body))

    async def _post(self, batch: Batch, questions: Sequence[TypedQuestion]) -> dict[str, Any]:
        state: Any = self._broken(state_of(batch))
        body = request_body(self._dialect, self._model, state, [self._broken_question(q) for q in questions])
        return await self.http.post_for_object(self._url, body)

    def _broken_question(self, question: TypedQuestion) -> TypedQuestion:
        return replace(question, instructions=self._broken(question.instructions))

    def _broken(self, value: Any) -> Any:
        """Break the model's control tokens in all texts of a value, because the server tokenises them with its own."""
        if self._control_tokens is None:
            return value
        if isinstance(value, str):
            return break_tokens(self._control_tokens, value)
        if isinstance(value, dict):
            return {name: self._broken(inner) for name, inner in value.items()}
        return [self._broken(inner) for inner in value] if isinstance(value, list) else value

    def _shown_state(self, batch: Batch) -> str:
        return f"{batch.system}\n{batch.shared}"


def _shown(question: TypedQuestion) -> str:
    """Return the text of a question, with its options, as far as it counts towards tokens."""
    return "\n".join([question.instructions, *[f"{o.label}: {o.description}" for o in question.options]])


def _with_tokens(
    outcomes: dict[int, Reply | CallFailure], reported: tuple[int, int, int]
) -> dict[int, Reply | CallFailure]:
    """Divide the tokens of a request among its replies; impossible counts are clipped to possible ones."""
    read, cached, written = [min(max(0, count), _MAX_REPORTED_TOKENS) for count in reported]
    cached = min(cached, read)
    clipped = (read, cached, written) != reported
    answered = [index for index, outcome in outcomes.items() if isinstance(outcome, Reply)]
    for place, index in enumerate(answered):
        computed, reused, output = [
            count // len(answered) + (place < count % len(answered)) for count in (read - cached, cached, written)
        ]
        outcome = outcomes[index]
        assert isinstance(outcome, Reply)
        outcomes[index] = outcome._replace(
            tokens_computed=computed, tokens_reused=reused, tokens_written=output, counts_clipped=clipped
        )
    return outcomes


class DecisionOptions(UrlOptions):
    """The options of a `systemone+http://` URL.

    Attributes:
        context: tokens of the state and one question together; by default the server's, or 8192.
        model: the model's name on the server; required if the server has several.
        concurrency: requests at a time; by default 16, or 1 on llama.cpp.
        timeout_s: seconds that the server may send nothing.
        questions: questions in a request.
        options: options of a question. llama.cpp takes up to 52, hosted models up to 255.
        request_tokens: estimated tokens of a request.
    """

    context: PositiveInt | None = None
    model: str | None = None
    concurrency: PositiveInt | None = None
    timeout_s: NonNegativeFloat = 120.0
    questions: PositiveInt = MAX_QUESTIONS
    options: PositiveInt = MAX_OPTIONS
    request_tokens: PositiveInt = REQUEST_TOKENS


class SystemOneEngine:
    """A decision model behind HTTP. `url` is that of the route; one that ends in `/decisions` speaks OpenAI's dialect.

    `model` may be left out if the server lists exactly one. At most `concurrency` requests run at a time, 1 by default
    on llama.cpp's server, whose slots would each compute a state that they could share. A request fails if the server
    sends nothing for `timeout_s` seconds. `context_tokens`, the most of a state and one question together, is taken
    from the server unless given.
    """

    fatal_error = ""
    concurrent_calls = None
    pool = None

    def __init__(
        self,
        url: str,
        *,
        model: str | None = None,
        api_key: str | None = None,
        concurrency: int | None = None,
        context_tokens: int | None = None,
        timeout_s: float = 120.0,
        limits: Limits | None = None,
    ) -> None:
        base_url, _, route = url.rstrip("/").rpartition("/")
        self._http = OpenAIHttp(base_url, api_key, timeout_s=timeout_s)
        self._url = f"{base_url}/{route}"
        self._dialect: Dialect = "decisions" if route == "decisions" else "systemone"
        self._model = model
        self._chosen_concurrency = concurrency
        self._context_tokens = context_tokens
        self._limits = limits or Limits()
        self._semaphore = asyncio.Semaphore(concurrency or CONCURRENCY)
        self._client: DecisionClient | None = None

    @classmethod
    def from_url(cls, url: SplitResult, *, api_key: str | None = None) -> "SystemOneEngine":
        """Create from `systemone+http://HOST:PORT` or `systemone+https://…`; the path defaults to `/v1/systemone`.

        Options: `?model=` (needed if several are served), `?concurrency=` (requests), `?context=` (tokens),
        `?timeout_s=120`, `?questions=64` (of a request), `?options=26` (of a question), `?request_tokens=64000`.
        """
        route = base_url_of(url, scheme="systemone")  # first, because errors about options show the whole URL
        if route.endswith("/v1"):
            route += "/systemone"
        options = DecisionOptions.of(url)
        return cls(
            route,
            model=options.model,
            api_key=api_key,
            concurrency=options.concurrency,
            context_tokens=options.context,
            timeout_s=options.timeout_s,
            limits=Limits(options.questions, options.options, options.request_tokens),
        )

    async def start(self) -> EngineIdentity:
        """Find the server's model, and ask it a question. Raises `EngineStartError`, which says what to do."""
        try:
            cards, server = await list_models(self._http, self._model)
            card = choose_model(self._http, cards, self._model)
            model = self._model or card.id
            client = DecisionClient(self._http, self._url, self._dialect, model, self._limits)
            await client.start()
            context = self._context_tokens or await context_of(self._http, card)
        except EndpointError as error:
            raise self._start_error(error) from error
        slots = 1 if card.owned_by == "llamacpp" else CONCURRENCY
        concurrency = self._chosen_concurrency or slots
        self._semaphore = asyncio.Semaphore(concurrency)
        self._client = client
        return EngineIdentity(
            model=model,
            weights_digest=f"declared by the endpoint: {client.answered_as or model}",
            engine=f"{self._dialect} API of {card.owned_by or 'an unnamed maker'} ({server or 'an unnamed server'})",
            chat_template_digest="applied by the endpoint",
            decoding="typed questions",
            context_tokens=context or DEFAULT_CONTEXT_TOKENS,
            concurrent_batches=concurrency,
            capabilities=TYPED_QUESTIONS,
        )

    def _start_error(self, error: EndpointError) -> Exception:
        if error.status in (HTTPStatus.NOT_FOUND, HTTPStatus.METHOD_NOT_ALLOWED, HTTPStatus.NOT_IMPLEMENTED):
            return EngineStartError(
                f"{self._url} answers no typed questions: {error.failure.detail}; serve a decision model there, or "
                "judge with a chat model: openai+http://HOST:PORT/v1"
            )
        return start_error(error, self._url)

    async def answer(self, batch: Batch) -> AsyncIterator[tuple[int, Reply | CallFailure]]:
        """Answer the calls of a batch, in any order."""
        async with self._semaphore:
            if self._client is None:
                for index in range(len(batch.calls)):
                    yield index, CallFailure("engine", "the engine is not running")
                return
            async for outcome in self._client.answer(batch):
                yield outcome

    async def count_tokens(self, batch: Batch) -> int:
        """Count the tokens of the state and the longest question."""
        if self._client is None:
            raise EngineUnavailable("the engine is not running")
        return await self._client.count_tokens(batch)

    async def ready(self) -> bool:
        """Whether the server answers."""
        answer = None if self._client is None else await models_answer(self._http)
        if answer is None:
            return False
        return answer.status < HTTPStatus.INTERNAL_SERVER_ERROR or answer.status == HTTPStatus.NOT_IMPLEMENTED

    async def close(self) -> None:
        """Close every connection; requests in flight fail."""
        self._client = None
        await self._http.close()


__all__ = ["TYPED_QUESTIONS", "WRITES_NOTHING", "DecisionClient", "Limits", "SystemOneEngine"]
