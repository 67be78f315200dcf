"""Endpoints of the OpenAI chat API for tests: llama.cpp's real server, and one that misbehaves on demand."""

import asyncio
import json
import re
import sys
from collections import Counter
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import httpx2
import pytest
import pytest_asyncio

from judge_server.engines.llamacpp.process import LlamaCppProcess
from judge_server.engines.openai.engine import OpenAIEngine
from judge_server.models import fetch
from judge_server.ports import Batch, Call, CallFailure, EngineIdentity, Option, Reply, TokenChoice
from tests.judge_server.misbehaving import TRIGGER

MODEL = "smollm2-135m"
"""The smallest model: no test here depends on what a model thinks, and the engine in this process has a larger one."""
CONTEXT_TOKENS = 600
YES_NO = TokenChoice(
    (Option("yes", ("yes", "Yes", "YES", " yes", " Yes")), Option("no", ("no", "No", "NO", " no", " No")))
)


@dataclass(frozen=True)
class MisbehavingServer:
    """The running `tests.judge_server.misbehaving`; each test uses its own tag."""

    root: str

    def url(self, tag: str, name: str) -> str:
        """The base URL of the endpoint's OpenAI API."""
        return f"{self.root}/{tag}/{name}/v1"

    async def seen(self, tag: str) -> dict[str, Any]:
        """The requests and events under a tag, as `asked` and `events`."""
        async with httpx2.AsyncClient() as http:
            found: dict[str, Any] = (await http.get(f"{self.root}/{tag}/seen")).json()
            return found


@asynccontextmanager
async def serving() -> AsyncIterator[MisbehavingServer]:
    """Run the misbehaving server in a separate process until the block ends."""
    pipe = asyncio.subprocess.PIPE
    child = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "tests.judge_server.misbehaving", stdin=pipe, stdout=pipe
    )
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        yield MisbehavingServer(f"http://127.0.0.1:{int(await child.stdout.readline())}")
    finally:
        child.stdin.close()
        await child.wait()


@pytest_asyncio.fixture(scope="session", loop_scope="session")
async def misbehaving() -> AsyncIterator[MisbehavingServer]:
    """The misbehaving server, shared by all tests."""
    async with serving() as server:
        yield server


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
    """One endpoint of the misbehaving server, for one test."""

    def __init__(self, server: MisbehavingServer, tag: str) -> None:
        self.server = server
        self.tag = tag
        self.engines: list[OpenAIEngine] = []

    def engine(self, name: str, **options: Any) -> OpenAIEngine:
        """An engine over the endpoint of this name, not yet started."""
        made = OpenAIEngine(self.server.url(self.tag, name), **options)
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

    async def set_mood(self, mood: str) -> None:
        """Change how the endpoint lists its models."""
        async with httpx2.AsyncClient() as http:
            await http.get(f"{self.server.root}/{self.tag}/{mood}")

    async def events(self) -> list[str]:
        """The events at the server."""
        found: list[str] = (await self.server.seen(self.tag))["events"]
        return found

    async def until(self, *events: str) -> None:
        """Wait until each of these events has happened as often as it is listed."""
        async with asyncio.timeout(20):
            while Counter(events) - Counter(await self.events()):  # noqa: ASYNC110 - it happens in another process
                await asyncio.sleep(0.01)

    async def chats(self, *, of: str) -> list[dict[str, Any]]:
        """The bodies of chat requests that contain `of`."""
        asked = (await self.server.seen(self.tag))["asked"]
        bodies = [a["body"] for a in asked if a["path"].endswith("chat/completions")]
        return [body for body in bodies if of in json.dumps(body)]


@pytest_asyncio.fixture(loop_scope="session")
async def endpoint(misbehaving: MisbehavingServer, request: pytest.FixtureRequest) -> AsyncIterator[Endpoint]:
    """An endpoint for one test, whose engines are closed afterwards."""
    made = Endpoint(misbehaving, re.sub(r"\W", "-", request.node.name))
    yield made
    for engine in made.engines:
        await engine.close()


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
