"""A broken connection to a judge means that the judge is unavailable, however it breaks."""

from collections.abc import Awaitable, Callable

import httpx2
import pytest

from judge_server.judging.results import Caller
from judge_server.ports import Batch
from judge_server.remote.executor import JudgeClient, JudgeUnavailable
from judge_server.remote.messages import ShardRequest

BROKEN = (
    httpx2.ReadError("reset by peer"),
    OSError("no route"),
    RuntimeError("unable to perform operation on <TCPTransport closed=True>"),
    AttributeError("'NoneType' object has no attribute 'getpeername'"),  # anyio, once uvloop has closed it
)


async def introduced(link: JudgeClient) -> None:
    await link.handshake()


async def asked(link: JudgeClient) -> None:
    async for _ in link.ask(ShardRequest.of([], Caller(), "none", 1.0)):
        pass


async def counted(link: JudgeClient) -> None:
    await link.count_tokens(Batch("", "", ()))


@pytest.mark.parametrize("broken", BROKEN, ids=lambda error: type(error).__name__)
@pytest.mark.parametrize("talk", [introduced, asked, counted], ids=lambda talk: talk.__name__)
async def test_a_broken_connection_makes_the_judge_unavailable(
    talk: Callable[[JudgeClient], Awaitable[None]], broken: Exception
) -> None:
    def breaks(request: httpx2.Request) -> httpx2.Response:
        raise broken

    link = JudgeClient("http://judge:8001", None, transport=httpx2.MockTransport(breaks))
    with pytest.raises(JudgeUnavailable, match="no answer from the judge at http://judge:8001"):
        await talk(link)
    await link.close()
