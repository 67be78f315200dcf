"""How many tokens a conversation takes: asked of servers that tell (vLLM, llama.cpp), estimated for others.

The estimate is meant to be too high: a prompt that is cut a little short costs less than one that is refused.
"""

import asyncio
import math
import re
from collections.abc import Sequence
from typing import Literal, TypeVar

from judge_server.engines.openai_calls import Message, most_prompt_tokens
from judge_server.engines.openai_http import EndpointError, OpenAIHttp
from judge_server.errors import EngineGone
from judge_server.ports import CallFailed

FoundT = TypeVar("FoundT")

Counter = Literal["messages", "template", "estimate"]
"""How tokens are counted: vLLM counts messages, llama.cpp a text into which it first renders them."""

AROUND_MESSAGE = 16
"""Tokens that a chat template puts around a message, in the estimate."""

LONGEST_TOKEN = 128
"""No common vocabulary has a token of more bytes; longer ones are runs of spaces or dashes."""

_PROSE = re.compile(r"[A-Za-z ]+")


def estimate(text: str) -> int:
    """Tokens of a text, erring upwards: half a token for a letter of ASCII or a space, one for every other byte."""
    prose = sum(len(run) for run in _PROSE.findall(text))
    return math.ceil(prose / 2) + len(text.encode("utf-8", "replace")) - prose


def at_least(messages: Sequence[Message]) -> int:
    """A number of tokens that the messages exceed with any tokenizer."""
    return sum(len(message["content"].encode("utf-8", "replace")) for message in messages) // LONGEST_TOKEN


async def find_counter(http: OpenAIHttp, model: str) -> Counter:
    """The way this endpoint counts."""
    messages: list[Message] = [{"role": "system", "content": "Count."}, {"role": "user", "content": "One, two."}]
    counters: tuple[Counter, ...] = ("messages", "template")
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

    def __init__(self, http: OpenAIHttp, model: str, counter: Counter, *, at_once: int) -> None:
        self._http = http
        self._model = model
        self._counter = counter
        self._at_once = asyncio.Semaphore(at_once)

    async def count(self, messages: Sequence[Message]) -> int:
        """Tokens of the prompt made of these messages, within what their length allows. Raises `EngineGone`."""
        if self._counter == "estimate":
            return sum(estimate(m["content"]) + AROUND_MESSAGE for m in messages) + AROUND_MESSAGE
        try:
            async with self._at_once:
                told = await _count(self._http, self._model, self._counter, messages)
        except EndpointError as error:
            raise EngineGone(error.failure.detail) from error
        return min(max(told, at_least(messages)), most_prompt_tokens(messages))


async def _count(http: OpenAIHttp, model: str, counter: Counter, messages: Sequence[Message]) -> int:
    tokenize = f"{http.root_url}/tokenize"
    if counter == "messages":
        return _is(int, (await http.post_for_object(tokenize, {"model": model, "messages": messages})).get("count"))
    rendered = await http.post_for_object(f"{http.root_url}/apply-template", {"messages": messages})
    body = {"content": _is(str, rendered.get("prompt")), "add_special": True, "parse_special": True}
    return len(_is(list, (await http.post_for_object(tokenize, body)).get("tokens")))


def _is(kind: type[FoundT], found: object) -> FoundT:
    if not isinstance(found, kind):
        raise EndpointError(CallFailed("engine", "the endpoint's tokenizer answers in a shape of its own"), 200)
    return found
