"""A call to a chat API, turn by turn: reasons, the answer, and a choice that follows it."""

from dataclasses import replace
from typing import Any

from judge_server.engines.openai_calls import (
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
from judge_server.engines.openai_http import EndpointError, OpenAIHttp
from judge_server.engines.openai_probe import Endpoint
from judge_server.engines.openai_tokens import min_tokens
from judge_server.engines.openai_wire import ChatCompletion, TokenCounts
from judge_server.ports import Batch, Call, CallFailure, Reply, TokenChoice


class Conversation:
    """Asks calls of one endpoint, as it was found when the engine started."""

    def __init__(self, http: OpenAIHttp, endpoint: Endpoint) -> None:
        self._http = http
        self._endpoint = endpoint

    async def reply(self, batch: Batch, call: Call) -> Reply | CallFailure:
        """Ask one call; raises `EndpointError`, which says how it failed."""
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
        return reply if isinstance(reply, CallFailure) else replace(_add_tokens(reply, tokens), reasoning=reasons)

    async def _answered(self, call: Call, messages: list[ChatMessage]) -> Reply | CallFailure:
        """The answer; a choice that follows a menu has a turn of its own where it can be held to its labels."""
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
        asked = replace(call, answer=choice)
        turns = with_choice(messages, label, choice)
        second, tokens = await self._constrained(answer_body(asked, turns, dialect, capabilities))
        chosen = chosen_label(second.answer_text(thinking=False), choice)
        return replace(_add_tokens(reply, tokens), chosen=chosen, text=None if chosen else second.content)

    async def _constrained(self, body: dict[str, Any]) -> tuple[ChatCompletion, TokenCounts]:
        try:
            return await self._chat(body)
        except EndpointError as error:
            # Hosted endpoints hold an answer to some schemas and refuse others: what is then written is read as text.
            if (
                error.status not in (400, 422)
                or error.failure.kind != "engine"
                or not body.pop("response_format", None)
            ):
                raise
            return await self._chat(body)

    async def _chat(self, body: dict[str, Any]) -> tuple[ChatCompletion, TokenCounts]:
        completion = await self._http.chat(body)
        if completion.model != self._endpoint.answered_as:
            raise EndpointError(
                CallFailure(
                    "engine",
                    f"answered as {completion.model!r}, where {self._endpoint.answered_as!r} was found at the start; "
                    "verdicts of other weights need a judge of their own: restart this one",
                ),
                200,
            )
        limit = body[self._endpoint.dialect.limit_field]
        return completion, completion.tokens(most_prompt=max_prompt_tokens(body["messages"]), most_written=limit)


def _add_tokens(reply: Reply, other: TokenCounts) -> Reply:
    """The reply with the tokens of another of its turns."""
    return replace(
        reply,
        tokens_computed=other.computed + reply.tokens_computed,
        tokens_reused=other.reused + reply.tokens_reused,
        tokens_written=other.written + reply.tokens_written,
        count_clipped_reply=other.clipped or reply.count_clipped_reply,
    )
