"""A judge sends heartbeats; an api that hears nothing treats the connection as lost and asks another judge."""

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from judge_server.engines.scripted import ScriptedEngine
from judge_server.judging.results import Caller, collect
from judge_server.remote.executor import HEARTBEATS_MISSED, JudgeClient, JudgeUnavailable
from judge_server.remote.messages import PROTOCOL_VERSION, Handshake, ResultEvent, ShardRequest
from tests.judge_server.remote.judges import api_of, judges
from tests.judge_server.support import criteria, deadline_after, plans

BEAT_S = 0.05
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"


@asynccontextmanager
async def introducing_itself(heartbeat_s: float, *lines: ResultEvent) -> AsyncIterator[str]:
    """A fake judge that introduces itself and sends only these lines when asked; its address."""
    said = Handshake(protocol=PROTOCOL_VERSION, version="9", identity=None, ready=True, heartbeat_s=heartbeat_s)
    body = said.model_dump_json().encode()
    leave = asyncio.Event()

    async def answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        while head := await reader.readuntil(b"\r\n\r\n"):
            if head.startswith(b"GET"):
                writer.write(HEAD + b"Content-Length: %d\r\n\r\n" % len(body) + body)
                continue
            writer.write(HEAD + b"Transfer-Encoding: chunked\r\n\r\n")
            for line in lines:
                text = line.model_dump_json(exclude_defaults=True).encode() + b"\n"
                writer.write(b"%x\r\n%s\r\n" % (len(text), text))
            await leave.wait()
            return

    async with await asyncio.start_server(answer, "127.0.0.1", 0) as server:
        yield f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}"
        leave.set()


async def asked(link: JudgeClient) -> list[ResultEvent]:
    async with asyncio.timeout(HEARTBEATS_MISSED * BEAT_S * 20):
        return [line async for line in link.ask(ShardRequest.of([], Caller(), "none", 60.0))]


@pytest.mark.parametrize("lines", [(), (ResultEvent(),)], ids=["at once", "after a heartbeat"])
async def test_a_judge_that_promised_heartbeats_and_is_silent_is_unavailable(lines: tuple[ResultEvent, ...]) -> None:
    async with introducing_itself(BEAT_S, *lines) as url:
        link = JudgeClient(url, None)
        await link.handshake()
        with pytest.raises(JudgeUnavailable, match="no answer from the judge"):
            await asked(link)
        await link.close()


async def test_a_judge_that_promised_no_heartbeats_is_awaited() -> None:
    async with introducing_itself(0.0) as url:
        link = JudgeClient(url, None)
        await link.handshake()
        with pytest.raises(TimeoutError):
            async with asyncio.timeout(HEARTBEATS_MISSED * BEAT_S * 4):
                await asked(link)
        await link.close()


async def test_a_slow_judge_sends_heartbeats_and_is_awaited() -> None:
    beat_s = 8 * BEAT_S  # so that a slow machine sends each in time
    slow = ScriptedEngine(delay_s=HEARTBEATS_MISSED * beat_s * 1.5)
    async with judges(slow, heartbeat_interval_s=beat_s) as served, api_of(*served) as api:
        found = await collect(api.judge(plans(api, "Yes.", of=criteria("Alpha.")), await deadline_after(30.0)))
        assert [type(one).__name__ for one in found.by_digest.values()] == ["JudgeResult"]
        assert found.costs.calls == 1
