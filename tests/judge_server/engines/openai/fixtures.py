"""Endpoints of the OpenAI chat API for tests: llama.cpp's real server, and one that misbehaves on demand."""

import asyncio
import json
from collections import Counter
from collections.abc import AsyncIterator
from dataclasses import dataclass
from typing import Any

import pytest_asyncio

from judge_server.engines.llamacpp.process import LlamaCppProcess
from judge_server.engines.openai.engine import OpenAIEngine
from judge_server.models import fetch
from judge_server.ports import Batch, Call, CallFailure, EngineIdentity, Option, Reply, TokenChoice
from tests.judge_server.engines.servers.misbehaving import TRIGGER, MisbehavingServer

MODEL = "smollm2-135m"
"""The smallest model: no test here depends on what a model thinks, and the engine in this process has a larger one."""
CONTEXT_TOKENS = 600
YES_NO = TokenChoice(
    (Option("yes", ("yes", "Yes", "YES", " yes", " Yes")), Option("no", ("no", "No", "NO", " no", " No")))
)


def batch(*questions: str | Call) -> Batch:
    """A batch of these questions, with yes or no as answers unless a call says otherwise."""
    calls = tuple(q if isinstance(q, Call) else Call(q, YES_NO) for q in questions)
    return Batch("Answer yes or no.", "7 is prime.\n", calls)


async def outcomes(engine: OpenAIEngine, asked: Batch) -> list[Reply | CallFailure]:
    """The outcome of every call, in order."""
    found = [answer async for answer in engine.answer(asked)]
    assert sorted(index for index, _ in found) == list(range(len(asked.calls)))
    return [outcome for _, outcome in sorted(found, key=lambda answer: answer[0])]


class Endpoint:
    """A misbehaving server for one test, and engines over its endpoints."""

    def __init__(self) -> None:
        self.server = MisbehavingServer()
        self.engines: list[OpenAIEngine] = []

    def engine(self, name: str, **options: Any) -> OpenAIEngine:
        """An engine over the endpoint of this name, not yet started."""
        made = OpenAIEngine(self.server.url(name), **options)
        self.engines.append(made)
        return made

    async def started(self, name: str, **options: Any) -> tuple[OpenAIEngine, EngineIdentity]:
        """A started engine and its identity."""
        engine = self.engine(name, **options)
        return engine, await engine.start()

    async def only(self, name: str, call: Call | str, **options: Any) -> Reply | CallFailure:
        """The outcome of one call."""
        engine, _ = await self.started(name, **options)
        (outcome,) = await outcomes(engine, batch(call))
        return outcome

    async def reply(self, name: str, call: Call | str) -> Reply:
        """The reply to one call."""
        outcome = await self.only(name, call)
        assert isinstance(outcome, Reply), outcome
        return outcome

    async def failure(self, name: str, **options: Any) -> CallFailure:
        """The failure of a call that triggers the endpoint's misbehaviour."""
        outcome = await self.only(name, TRIGGER, **options)
        assert isinstance(outcome, CallFailure), outcome
        return outcome

    @property
    def events(self) -> list[str]:
        """The events at the server."""
        return self.server.log.events

    async def until(self, *events: str) -> None:
        """Wait until each of these events has happened as often as it is listed."""
        async with asyncio.timeout(20):
            while Counter(events) - Counter(self.events):  # noqa: ASYNC110 - the log has no event
                await asyncio.sleep(0.01)

    def chats(self, *, of: str) -> list[dict[str, Any]]:
        """The bodies of chat requests that contain `of`."""
        asked = self.server.log.asked
        bodies = [a["body"] for a in asked if a["path"].endswith("chat/completions")]
        return [body for body in bodies if of in json.dumps(body)]


@pytest_asyncio.fixture(loop_scope="session")
async def endpoint() -> AsyncIterator[Endpoint]:
    """A server for one test, whose engines are closed afterwards."""
    made = Endpoint()
    await made.server.start()
    yield made
    for engine in made.engines:
        await engine.close()
    await made.server.close()


@dataclass(frozen=True)
class LlamaCppServer:
    """The base URL and key of llama.cpp's own server."""

    base_url: str
    api_key: str


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def llamacpp_server() -> AsyncIterator[LlamaCppServer]:
    """llama.cpp's server with the smallest model, in a separate process."""
    process = LlamaCppProcess(context_tokens=CONTEXT_TOKENS, threads=1)
    await process.start(fetch(MODEL))
    key = process.http.headers["Authorization"].removeprefix("Bearer ")
    yield LlamaCppServer(f"{str(process.http.base_url).rstrip('/')}/v1", key)
    await process.stop()
