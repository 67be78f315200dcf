import asyncio
import gc

import pytest

from tests.trainer_client.fake_service import GROUP_LINE, SUMMARY_LINE, stream
from trainer_client import AsyncClient, Client

GROUP = {"id": "q17", "prompt": "x?", "responses": ["42", "43"]}


@pytest.fixture(autouse=True)
def _hanging(service):
    service.script(stream(GROUP_LINE, hang=True))


def test_close_hangs_up(service, connect):
    groups = connect(service.url).stream_rewards([GROUP], "r")
    next(groups)
    assert not service.hung_up.is_set()
    groups.close()
    assert _hung_up(service)
    groups.close()
    assert next(groups, None) is None


def test_leaving_a_with_block_hangs_up(service, connect):
    with connect(service.url).stream_rewards([GROUP], "r") as groups:
        for _ in groups:
            break
    assert _hung_up(service)


def test_leaving_a_loop_hangs_up_once_the_stream_is_unreferenced(service):
    with Client(service.url) as client:
        for _ in client.stream_rewards([GROUP], "r"):
            break
        gc.collect()
        assert _hung_up(service)


async def test_leaving_an_async_loop_hangs_up_once_the_stream_is_unreferenced(service):
    async with AsyncClient(service.url) as client:
        async for _ in client.stream_rewards([GROUP], "r"):
            break
        gc.collect()
        assert await asyncio.to_thread(_hung_up, service)


async def test_leaving_an_async_with_block_hangs_up(service):
    async with AsyncClient(service.url) as client:
        async with client.stream_rewards([GROUP], "r") as groups:
            await anext(groups)
        assert await asyncio.to_thread(_hung_up, service)


async def test_cancelling_the_task_that_waits_for_a_group_hangs_up(service):
    first = asyncio.Event()

    async def go_through(client):
        async for _ in client.stream_rewards([GROUP], "r"):
            first.set()

    async with AsyncClient(service.url) as client:
        task = asyncio.create_task(go_through(client))
        await first.wait()
        task.cancel()
        with pytest.raises(asyncio.CancelledError):
            await task
        assert await asyncio.to_thread(_hung_up, service)


def test_fully_read_streams_share_one_connection(service, connect):
    service.script(stream(GROUP_LINE, SUMMARY_LINE))
    client = connect(service.url)
    for _ in range(3):
        list(client.stream_rewards([GROUP], "r"))
    assert (len(service.asked), service.connections) == (3, 1)


def _hung_up(service):
    return service.hung_up.wait(timeout=30)
