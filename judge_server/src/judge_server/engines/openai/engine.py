"""An engine that calls a server of the OpenAI chat API: vLLM's, llama.cpp's, or a hosted one.

It asks in plain chat, which all such servers support; what else a server can do is probed when the engine starts. The
server declares which weights answer; an answer that names another model than the first one did is refused.
"""

import asyncio
import json
import math
import re
from collections.abc import AsyncIterator
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from typing import Any
from urllib.parse import SplitResult

from pydantic import NonNegativeFloat, PositiveInt

from judge_server.engines.common import FIXED_QUESTION, RunningCalls, SleepLevel, require_same_answer
from judge_server.engines.openai.batched_chat import BatchedChat, BatchLimits
from judge_server.engines.openai.calls import (
    ChatMessage,
    answer_body,
    chosen_label,
    context_overflow,
    first_messages,
    follow_up,
    max_prompt_tokens,
    read_answer,
    reserved_tokens,
    sampling,
    with_choice,
    with_reasons,
)
from judge_server.engines.openai.completions import ChatCompletion, ModelList, TokenCounts, parse_body
from judge_server.engines.openai.http import EndpointError, OpenAIHttp, base_url_of, mixed_weights
from judge_server.engines.openai.probe import (
    LEAST_TOKENS,
    NOT_YET,
    REFUSALS,
    Endpoint,
    TokenCounter,
    min_tokens,
    models_answer,
    probe,
    refuses_limit,
)
from judge_server.engines.openai.sleep import SglangMemory, VllmMemory, wake_at_start
from judge_server.engines.openai.weights import load_adapter
from judge_server.errors import CannotLoad, CannotSleep, EngineNotReady, EngineStartError, EngineUnavailable
from judge_server.ports import Adapter, Batch, Call, CallFailure, EngineIdentity, Reply, TokenChoice
from judge_server.ports.urls import UrlOptions

CONCURRENCY = 16
CONSTRAINTS = ("response_format", "structured_outputs")
"""The options that constrain an answer."""


class EndpointOptions(UrlOptions):
    """The options of an `openai+http://` URL.

    Attributes:
        context: tokens of a prompt and its answer; by default what the server reports, else 8192.
        model: the model's name on the server; required if the server has several.
        concurrency: calls at a time; by default 16, or 1 at a llama.cpp server.
        timeout_s: a call fails if the server sends nothing for this many seconds.
        images: `true` for a model that takes images.
        sleep: the level at which the server may sleep, 1 or 2; by default it never does. Only for a server that nobody
            else uses.
        policy: `true` if a trainer changes the server's weights and declares each version.
    """

    context: PositiveInt | None = None
    model: str | None = None
    concurrency: PositiveInt | None = None
    timeout_s: NonNegativeFloat = 120.0
    images: bool = False
    sleep: SleepLevel | None = None
    policy: bool = False


class OpenAIEngine:
    """A model behind a chat API. `base_url` ends before `/chat/completions`, usually in `/v1`.

    `model` may be left out if the server lists exactly one. At most `concurrency` calls run at a time. The default is
    16, or 1 on llama.cpp's server, whose slots would each compute a prefix that they could share. A call fails if the
    server sends nothing for `timeout_s` seconds. `context_tokens` is taken from the server unless given. `images` says
    that the model takes images. `sleep` permits to put the server to sleep, at this level of vLLM's; nobody else may
    use the server then. `policy` says that somebody else, a trainer, changes the weights of the server, and that `load`
    only says so.
    """

    fatal_error = ""
    pool = None

    def __init__(
        self,
        base_url: str,
        *,
        model: str | None = None,
        api_key: str | None = None,
        concurrency: int | None = None,
        context_tokens: int | None = None,
        timeout_s: float = 120.0,
        images: bool = False,
        sleep: SleepLevel | None = None,
        policy: bool = False,
    ) -> None:
        self._http = OpenAIHttp(base_url, api_key, timeout_s=timeout_s)
        self._model = model
        self._images = images
        self._sleep_level = sleep
        self._policy = policy
        self._base: EngineIdentity | None = None
        self._memory: VllmMemory | SglangMemory | None = None
        self._told: Reply | CallFailure | None = None
        self._concurrency = concurrency or CONCURRENCY
        self._chosen_concurrency = concurrency
        self._context_tokens = context_tokens
        self._semaphore = asyncio.Semaphore(self._concurrency)
        self._endpoint: Endpoint | None = None
        self._learned = Learned()
        self._batch_limits = BatchLimits()
        self._counter: TokenCounter | None = None
        self._running_calls = RunningCalls()

    @property
    def concurrent_calls(self) -> int:
        """The most requests in flight at a time."""
        return self._concurrency

    @property
    def endpoint(self) -> Endpoint | None:
        """What was found out about the server; None before the start and after the close."""
        return self._endpoint

    @classmethod
    def from_url(cls, url: SplitResult, *, api_key: str | None = None) -> "OpenAIEngine":
        """Create from `openai+http://HOST:PORT/v1` or `openai+https://…`.

        Options: `?model=` (needed if several are served), `?concurrency=` (calls), `?context=` (tokens),
        `?timeout_s=120`, `?images=true` for a model that takes images, `?sleep=1` or `2` for a server that may sleep,
        `?policy=true` for one whose weights a trainer changes.
        """
        base_url = base_url_of(url)  # first, because errors about options show the whole URL
        options = EndpointOptions.of(url)
        return cls(
            base_url,
            model=options.model,
            api_key=api_key,
            concurrency=options.concurrency,
            context_tokens=options.context,
            timeout_s=options.timeout_s,
            images=options.images,
            sleep=options.sleep,
            policy=options.policy,
        )

    async def start(self) -> EngineIdentity:
        """Probe the server and its model. Raises `EngineStartError`, which says what to do."""
        if self._sleep_level is not None:
            try:
                await wake_at_start(self._http, self._sleep_level)
            except EngineUnavailable as error:
                raise EngineNotReady(f"{self._http.base_url}: {error}") from error
        self._base = identity = await self._find_out(self._model)
        return identity

    async def _find_out(self, model: str | None) -> EngineIdentity:
        """Probe a model of the server, and ask this one from now on. Raises `EngineStartError`."""
        context_tokens = self._context_tokens or (self._endpoint.context_tokens if self._endpoint else None)
        endpoint = await probe(self._http, model=model, context_tokens=context_tokens)
        dialect = endpoint.dialect
        if self._chosen_concurrency is None and "llamacpp" in endpoint.maker:
            self._concurrency = 1
            self._semaphore = asyncio.Semaphore(1)
        self._batch_limits.offered = endpoint.batches
        self._counter = TokenCounter(self._http, dialect.model, endpoint.counter, at_once=self._concurrency)
        self._endpoint = endpoint
        if self._sleep_level is not None:
            sglang = "sglang" in endpoint.maker
            self._memory = SglangMemory(self._http) if sglang else VllmMemory(self._http, self._sleep_level)
        release = f" ({endpoint.release})" if endpoint.release else ""
        return EngineIdentity(
            model=dialect.model,
            weights_digest=f"declared by the endpoint: {endpoint.answered_as or dialect.model}{release}",
            engine=f"OpenAI chat API of {endpoint.maker}",
            chat_template_digest=endpoint.template_digest,
            decoding=dialect.decoding,
            context_tokens=endpoint.context_tokens,
            concurrent_batches=self._concurrency,
            capabilities=replace(endpoint.capabilities, images=self._images),
        )

    async def answer(self, batch: Batch) -> AsyncIterator[tuple[int, Reply | CallFailure]]:
        """Answer the calls, in any order.

        The first call is sent alone, unless the server shares the prefix of calls that arrive together.
        """
        session = self._http.session_of(batch.cache_salt, batch.system, batch.shared, *batch.images)
        shares = self._endpoint is not None and self._endpoint.capabilities.prefix_in_flight
        # Only a vLLM server shares the prefix, and it knows the field.
        salted = {"cache_salt": batch.cache_salt} if batch.cache_salt and shares else {}
        requests = BatchedChat(self._http, session, self._batch_limits, salted)
        alone = 0 if shares else min(1, len(batch.calls))
        waves = (range(alone), range(alone, len(batch.calls)))
        for wave in waves:
            calls = {index: self._outcome(batch, batch.calls[index], requests) for index in wave}
            async with aclosing(self._running_calls.answers(calls)) as answers:
                async for answer in answers:
                    yield answer

    async def count_tokens(self, batch: Batch) -> int:
        """Count the tokens of the longest prompt, with the server if it can, and of all that the model may write."""
        endpoint, counter = self._endpoint, self._counter
        if endpoint is None or counter is None:
            raise EngineUnavailable("the engine is not running")

        async def count(call: Call) -> int:
            messages = first_messages(batch, call)
            if call.reasoning is not None:
                messages = with_reasons(messages, call, "")
            return await counter.count(endpoint.dialect.folded(messages)) + reserved_tokens(call, endpoint.dialect)

        return max(await asyncio.gather(*map(count, dict.fromkeys(batch.calls))))

    async def ready(self) -> bool:
        """Whether the server answers, and still lists the model if it lists any."""
        endpoint = self._endpoint
        answer = None if endpoint is None else await models_answer(self._http)
        if endpoint is None or answer is None:
            return False
        if not endpoint.models:
            return answer.status not in NOT_YET
        try:
            cards = ModelList.model_validate(parse_body(answer.body)).data
        except ValueError:
            return False
        return answer.ok and any(card.is_called(endpoint.dialect.model) for card in cards)

    async def sleep(self) -> None:
        """Have the server release its memory, after it has answered a fixed question."""
        if self._memory is None:
            raise CannotSleep(
                "the engine URL does not permit to put its server to sleep; add ?sleep=1 if nobody else uses the server"
            )
        if self._told is None:
            self._told = await self._tell()
        try:
            await self._memory.release()
        except CannotSleep:
            self._told = None
            raise

    async def wake(self) -> None:
        """Have the server take its memory, and answer the question as before: its weights may be lost.

        Raises `EngineUnavailable` if it does not.
        """
        if self._memory is None or self._told is None:
            return
        await self._memory.resume()
        require_same_answer(self._told, await self._tell())
        self._told = None

    async def load(self, adapter: Adapter | None, version: str) -> EngineIdentity:
        """Have a vLLM server load an adapter, and ask it by its name; or say what the trainer's server has now.

        Raises:
            CannotLoad: the server does not load it. Its other models stay as they are, and so does what is asked.
            EngineUnavailable: a trainer's server, which has other weights already, does not answer.
        """
        if self._base is None or self._endpoint is None:
            raise CannotLoad("the engine is not running")
        base = self._base
        if self._policy:
            if adapter is not None:
                raise CannotLoad("a trainer changes the weights of its server (?policy=true); name no adapter")
            try:
                found = await self._find_out(self._endpoint.dialect.model)
            except EngineStartError as error:
                raise EngineUnavailable(str(error)) from error
            return replace(found, weights_digest=f"declared by the caller: {version}")
        if adapter is not None and self._sleep_level == 2:
            raise CannotLoad("the server would lose the adapter when it sleeps at level 2; use ?sleep=1")
        try:
            name = base.model if adapter is None else await load_adapter(self._http, adapter)
            found = await self._find_out(name)
        except EngineStartError as error:
            raise CannotLoad(str(error)) from error
        if adapter is None:
            return found
        return replace(
            found,
            model=f"{base.model}+{adapter.id}",
            weights_digest=f"{base.weights_digest}, adapter {adapter.sha256}",
        )

    async def _tell(self) -> Reply | CallFailure:
        ((_, outcome),) = [answer async for answer in self.answer(FIXED_QUESTION)]
        return outcome

    async def close(self) -> None:
        """Cancel running calls and close every connection."""
        self._endpoint = self._counter = None
        await self._running_calls.cancel_all()
        await self._http.close()

    async def _outcome(self, batch: Batch, call: Call, requests: BatchedChat) -> Reply | CallFailure:
        try:
            async with self._semaphore:
                if (endpoint := self._endpoint) is None:
                    return CallFailure("engine", "the engine is not running")
                return await Conversation(requests, endpoint, self._learned).reply(batch, call)
        except EndpointError as error:
            return error.failure


@dataclass(slots=True)
class Learned:
    """What an endpoint refused after the start, and no verdict depends on.

    Attributes:
        refused_constraints: JSON schemas and labels that it does not take, as canonical JSON.
        least_tokens, most_tokens: the token limits that it takes.
    """

    refused_constraints: set[str] = field(default_factory=set)
    least_tokens: int = 1
    most_tokens: float = math.inf

    def limit(self, tokens: int) -> int:
        """Return the token limit to send in place of this one."""
        return int(min(max(tokens, self.least_tokens), self.most_tokens))

    def refuse_limit(self, tokens: int) -> bool:
        """Record that a limit was refused: a short one is raised, a long one halved. Return whether one is left to try.

        Models that think need more room for some questions than for others, and every model writes only so much.
        """
        longer = next((limit for limit in LEAST_TOKENS if limit > tokens), None)
        if longer is None:
            self.most_tokens = min(self.most_tokens, tokens // 2)
        else:
            self.least_tokens = max(self.least_tokens, longer)
        return self.limit(tokens) != tokens

    def keep_limits(self, accepted: "Learned") -> None:
        """Take over the limits of a request that was accepted."""
        self.least_tokens = max(self.least_tokens, accepted.least_tokens)
        self.most_tokens = min(self.most_tokens, accepted.most_tokens)


class Conversation:
    """Sends a call to an endpoint turn by turn: rationale, answer, and a label choice that follows it.

    All turns go to `requests`, so that a router sends them to the engine that has computed their prefix. What the
    endpoint refuses is added to `learned`, and no later conversation sends it.
    """

    def __init__(self, requests: BatchedChat, endpoint: Endpoint, learned: Learned) -> None:
        self._requests = requests
        self._endpoint = endpoint
        self._learned = learned

    async def reply(self, batch: Batch, call: Call) -> Reply | CallFailure:
        """Return the reply to one call; raises `EndpointError` if a request fails."""
        dialect, capabilities = self._endpoint.dialect, self._endpoint.capabilities
        messages = first_messages(batch, call)
        least = min_tokens(messages) + reserved_tokens(call, dialect)
        if least > self._endpoint.context_tokens:
            return context_overflow(least, self._endpoint.context_tokens)
        if call.reasoning is None:
            return await self._answered(call, messages)
        limit = call.reasoning.max_tokens + call.think_tokens
        first, tokens = await self._chat(dialect.body(messages, limit, **sampling(call, capabilities)))
        reasons = first.answer_text(thinking=bool(call.think_tokens))
        messages = with_reasons(messages, call, reasons)
        reply = await self._answered(call, messages)
        return reply if isinstance(reply, CallFailure) else _add_tokens(reply, tokens)._replace(reasoning=reasons)

    async def _answered(self, call: Call, messages: list[ChatMessage]) -> Reply | CallFailure:
        """Ask for the answer. A label choice after a token choice gets a turn of its own if it can be constrained."""
        dialect, capabilities = self._endpoint.dialect, self._endpoint.capabilities
        choice = follow_up(call, dialect, capabilities)
        if choice is None or not isinstance(call.answer, TokenChoice):
            return read_answer(call, *await self._constrained(answer_body(call, messages, dialect, capabilities)))
        token_choice = replace(call, answer=replace(call.answer, then=None))
        reply = read_answer(
            token_choice, *await self._constrained(answer_body(token_choice, messages, dialect, capabilities))
        )
        if isinstance(reply, CallFailure) or reply.masses is None or not any(reply.masses):
            return reply
        label = call.answer.options[reply.masses.index(max(reply.masses))].label
        choice_call = replace(call, answer=choice)
        turns = with_choice(messages, label, choice)
        second, tokens = await self._constrained(answer_body(choice_call, turns, dialect, capabilities))
        chosen = chosen_label(second.answer_text(thinking=False), choice)
        return _add_tokens(reply, tokens)._replace(chosen=chosen, text=None if chosen else second.content)

    async def _constrained(self, body: dict[str, Any]) -> tuple[ChatCompletion, TokenCounts]:
        given = {name: body[name] for name in CONSTRAINTS if name in body}
        if not given:
            return await self._chat(body)
        constraint = json.dumps(given, sort_keys=True)
        free = {name: value for name, value in body.items() if name not in CONSTRAINTS}
        if constraint in self._learned.refused_constraints:
            return await self._chat(free)
        try:
            return await self._chat(body)
        except EndpointError as error:
            # Hosted endpoints accept some schemas and refuse others. If refused, ask without one and read the text.
            if error.status not in (400, 422) or error.failure.kind != "engine":
                raise
        found = await self._chat(free)
        self._learned.refused_constraints.add(constraint)
        return found

    async def _chat(self, body: dict[str, Any]) -> tuple[ChatCompletion, TokenCounts]:
        limit_field = self._endpoint.dialect.limit_field
        limits = self._learned
        while True:
            body = {**body, limit_field: limits.limit(body[limit_field])}
            try:
                completion = await self._requests.chat(body, limit=body[limit_field])
            except EndpointError as error:
                if refuses_limit(error):
                    limits = replace(limits)  # kept only if the endpoint takes them: its words alone prove nothing
                    if limits.refuse_limit(body[limit_field]):
                        continue
                raise self._changed(body, error) from error
            if limits is not self._learned:
                self._learned.keep_limits(limits)
            break
        if completion.withheld:
            raise EndpointError(CallFailure("engine", completion.withheld, math.inf), 200)
        if completion.model != self._endpoint.answered_as:
            raise mixed_weights(completion.model, self._endpoint.answered_as)
        return completion, completion.tokens(
            most_prompt=max_prompt_tokens(body["messages"]), most_written=body[limit_field]
        )

    def _changed(self, body: dict[str, Any], error: EndpointError) -> EndpointError:
        """Return the error, with what to do if it refuses what the endpoint accepted when the judge started.

        Going on without it would mix verdicts of two kinds under one fingerprint.
        """
        if error.status not in REFUSALS or error.failure.kind != "engine":
            return error
        words = error.failure.detail.lower()
        asked = ("logprobs", "temperature") if body.get("temperature") == 0 else ("logprobs",)
        named = [option for option in asked if option in body and option in words]
        if not self._endpoint.dialect.system_role or not re.search(r"\bsystem\b|roles? must alternate", words):
            roles = []
        else:
            roles = ["the system role"]
        if not (refused := [*named, *roles]):
            return error
        detail = (
            f"the endpoint refuses {refused[0]}, which it accepted when the judge started ({error.failure.detail}); "
            "restart the judge, so that it asks in another way"
        )
        return EndpointError(replace(error.failure, detail=detail), error.status)


def _add_tokens(reply: Reply, other: TokenCounts) -> Reply:
    """Return the reply with the tokens of another of its turns added."""
    return reply._replace(
        tokens_computed=other.computed + reply.tokens_computed,
        tokens_reused=other.reused + reply.tokens_reused,
        tokens_written=other.written + reply.tokens_written,
        counts_clipped=other.clipped or reply.counts_clipped,
    )
