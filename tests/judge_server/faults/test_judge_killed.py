"""A service killed with calls in flight: calls finished a second earlier are cached and not repeated."""

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.fixtures.redis_process import RedisProcess, running_redis_process
from tests.judge_server.faults.endpoints import EndpointProcess
from tests.judge_server.faults.stores import (
    PARTS,
    RUBRIC,
    ConsistencyChecker,
    running_service,
    until_written,
)
from tests.services.processes import Service, without_settings
from trainer_client import AsyncClient, ConnectionFailed

pytestmark = [pytest.mark.redis, pytest.mark.faults]

EARLY = {"criteria": RUBRIC["criteria"][:6]}
"""The criteria whose calls the endpoint does not hold."""

HELD = 6


@pytest.fixture
async def endpoint(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[EndpointProcess]:
    """An endpoint that holds the later half of a response's calls, and answers each call at random."""
    without_settings(monkeypatch)
    process = EndpointProcess("calls", tmp_path)
    await process.start("hold")
    yield process
    await process.kill()


@pytest.fixture
def redis() -> Iterator[RedisProcess]:
    """A Redis that outlives the service."""
    with running_redis_process() as running:
        yield running


@contextmanager
def service_of(endpoint: EndpointProcess, redis: RedisProcess, folder: Path) -> Iterator[Service]:
    """A service over the endpoint, with data that the next one reuses."""
    engine = f"openai+http://127.0.0.1:{endpoint.port}/v1?concurrency=600"
    with running_service(engine, folder / "data", cache_url=redis.url) as service:
        yield service


async def test_a_killed_service_keeps_finished_calls_and_the_next_asks_only_for_the_rest(
    endpoint: EndpointProcess, redis: RedisProcess, tmp_path: Path
) -> None:
    early, texts = [f"Early {n}." for n in range(4)], [f"Response {n}." for n in range(84)]
    with service_of(endpoint, redis, tmp_path) as service:
        async with AsyncClient(service.url, run="r", retries=0) as client:
            checker = ConsistencyChecker(client)
            await checker.score(*early, rubric=EARLY)
            answered = endpoint.count("end")
            assert len(answered) == len(early) * HELD
            group = {"id": "g", "prompt": "Is 7 prime?", "responses": texts}
            lost = asyncio.create_task(client.rewards([group], RUBRIC))
            async with asyncio.timeout(60):
                while endpoint.in_flight.total() < len(texts) * HELD:  # noqa: ASYNC110 - polls another process
                    await asyncio.sleep(0.05)
            await asyncio.sleep(1.0)  # older results are in the cache
            service.process.kill()
            service.process.wait()
            with pytest.raises(ConnectionFailed):
                await lost
    finished = endpoint.count("end")
    assert len(finished) == len(answered) + len(texts) * HELD
    endpoint.send(signal.SIGUSR1)
    with service_of(endpoint, redis, tmp_path) as service:
        async with AsyncClient(service.url, run="r") as client:
            checker.continues_with(client)
            assert (await checker.score(*early, rubric=EARLY)).usage.judge_calls == 0
            await checker.score(*texts)
            await until_written(service, len(answered) + len(texts) * PARTS)
            recorded_verdicts = [each async for each in client.recorded_verdicts()]
    asked = endpoint.count("begin")
    assert {key: asked[key] for key in finished} == dict.fromkeys(finished, 1)
    assert max(asked.values()) == 2  # in flight at the fault, and repeated once
    assert len(recorded_verdicts) == 2 * len(answered) + len(texts) * PARTS
