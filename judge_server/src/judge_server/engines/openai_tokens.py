"""How many tokens a conversation takes: asked of servers that tell (vLLM, llama.cpp), estimated for others.

The estimate is meant to be too high: a prompt that is cut a little short costs less than one that is refused.
"""

import asyncio
import math
import re
from collections.abc import Sequence
from typing import Literal, TypeVar

from judge_server.engines.openai_calls import ChatMessage, max_prompt_tokens
from judge_server.engines.openai_http import EndpointError, OpenAIHttp
from judge_server.errors import EngineUnavailable
from judge_server.ports import CallFailure

FoundT = TypeVar("FoundT")

CountMethod = Literal["messages", "template", "estimate"]
"""How tokens are counted: vLLM counts messages, llama.cpp a text into which it first renders them."""

MESSAGE_OVERHEAD_TOKENS = 16
"""Tokens that a chat template puts around a message, in the estimate."""

MAX_TOKEN_BYTES = 128
"""No common vocabulary has a token of more bytes; longer ones are runs of spaces or dashes."""

_PROSE = re.compile(r"[A-Za-z ]+")


def estimate(text: str) -> int:
    """Tokens of a text, erring upwards: half a token for a letter of ASCII or a space, one for every other byte."""
    prose = sum(len(run) for run in _PROSE.findall(text))
    return math.ceil(prose / 2) + len(text.encode("utf-8", "replace")) - prose


def min_tokens(messages: Sequence[ChatMessage]) -> int:
    """A number of tokens that the messages exceed with any tokenizer."""
    return sum(len(message["content"].encode("utf-8", "replace")) for message in messages) // MAX_TOKEN_BYTES


async def find_counter(http: OpenAIHttp, model: str) -> CountMethod:
    """The way this endpoint counts."""
    messages: list[ChatMessage] = [{"role": "system", "content": "Count."}, {"role": "user", "content": "One, two."}]
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
    """Counts the tokens of conversations, a few at a time."""

    def __init__(self, http: OpenAIHttp, model: str, counter: CountMethod, *, at_once: int) -> None:
        self._http = http
        self._model = model
        self._counter = counter
        self._at_once = asyncio.Semaphore(at_once)

    async def count(self, messages: Sequence[ChatMessage]) -> int:
        """Tokens of the prompt made of these messages, within what their length allows. Raises `EngineUnavailable`."""
        if self._counter == "estimate":
            return sum(estimate(m["content"]) + MESSAGE_OVERHEAD_TOKENS for m in messages) + MESSAGE_OVERHEAD_TOKENS
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


def _require_type(kind: type[FoundT], found: object) -> FoundT:
    if not isinstance(found, kind):
        raise EndpointError(CallFailure("engine", "the endpoint's tokenizer answers in a shape of its own"), 200)
    return found
