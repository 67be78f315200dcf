"""Endpoints that tests kill, stop and restart, a judge over them, and a record of all scores it returned."""

import asyncio
import signal
import sys
from collections import Counter
from collections.abc import AsyncIterator, Callable, Iterable
from contextlib import asynccontextmanager
from functools import partial
from pathlib import Path

from judge_server.engines.openai.engine import OpenAIEngine
from judge_server.engines.pool import EnginePool
from judge_server.scheduling.call_runner import MAX_HOLD_S
from judge_server.scheduling.pools import PoolRules
from judge_server.scoring.judge import Judge
from judge_server.scoring.scorer import Scorer
from tests.fixtures.network_namespaces import NetworkNamespace
from tests.fixtures.ports import unused_port
from tests.judge_server.support import judge
from trainer_client.wire import RewardRequest

PARTS = 12
CRITERIA = [{"id": f"c{n}", "description": f"Part {n} holds.", "weight": n + 1} for n in range(PARTS)]

Score = tuple[float | None, float | None]


class EndpointProcess:
    """A `tests.judge_server.faults.endpoint` process on its own port, here or in a namespace, and its log."""

    def __init__(self, name: str, folder: Path, namespace: NetworkNamespace | None = None) -> None:
        self.name = name
        self.port = unused_port()
        self._island = namespace
        self.log = folder / name
        self._child: asyncio.subprocess.Process | None = None

    @property
    def url(self) -> str:
        """The base URL of its API."""
        return f"http://{self._host}:{self.port}/v1"

    async def start(self, fault: str = "none") -> None:
        """Start it, or restart it on the same port."""
        pipe = asyncio.subprocess.PIPE
        module = [sys.executable, "-m", "tests.judge_server.faults.endpoint"]
        command = [*module, self._host, str(self.port), str(self.log), fault]
        if self._island is not None:
            command = self._island.wrap_command(*command)
        self._child = child = await asyncio.create_subprocess_exec(*command, stdin=pipe, stdout=pipe)
        assert child.stdout is not None
        assert await child.stdout.readline() == b"ready\n"

    def send(self, what: signal.Signals) -> None:
        """Send it a signal."""
        assert self._child is not None
        self._child.send_signal(what)

    async def kill(self) -> None:
        """Kill it if it is running, even when it is stopped."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()
            await child.wait()

    def events(self) -> list[tuple[str, str]]:
        """The events of all calls, in order."""
        lines = self.log.read_text().splitlines() if self.log.exists() else []
        return [(event, key) for event, key in (line.split(" ") for line in lines)]

    def count(self, *events: str) -> Counter[str]:
        """How often any of these events happened to each call."""
        return Counter(key for event, key in self.events() if event in events)

    @property
    def _host(self) -> str:
        return "127.0.0.1" if self._island is None else self._island.address

    @property
    def in_flight(self) -> Counter[str]:
        """The calls that have begun and not ended."""
        return self.count("begin") - self.count("end", "gone", "page")


class Fleet:
    """Two endpoints, a judge over both, and all scores that its runs received.

    `score` checks the invariants: a response with a failed verdict has no reward, and no verdict has two values.
    """

    def __init__(self, endpoints: list[EndpointProcess], pool: EnginePool, judge: Judge) -> None:
        self.endpoints = endpoints
        self.pool = pool
        self._scorer = Scorer(judge, None)  # type: ignore[arg-type]
        self._told: dict[tuple[str, str], Score] = {}

    @property
    def states(self) -> list[str]:
        """The states of both endpoints."""
        return [view.state for view in self.pool.members()]

    def count(self, *events: str) -> Counter[str]:
        """How often any of these events happened to each call, at either endpoint."""
        return sum((endpoint.count(*events) for endpoint in self.endpoints), Counter())

    async def score(self, run: str, responses: Iterable[int]) -> list[float | None]:
        """The rewards of these responses, each judged by twelve criteria."""
        texts = [f"Response {n}." for n in responses]
        group = {"id": "g", "prompt": "Is 7 prime?", "responses": texts}
        body = {"run": run, "rubric": {"criteria": CRITERIA}, "groups": [group], "deadline_s": 60}
        answer = await self._scorer.score(RewardRequest.model_validate(body), request_id="r", project_id="p")
        rewarded = answer.groups[0].responses
        for text, response in zip(texts, rewarded, strict=True):
            judged = [verdict for verdict in response.verdicts if verdict.status == "ok"]
            assert (response.reward is not None) == (len(judged) == PARTS)
            for verdict in judged:
                score = (verdict.score, verdict.probability)
                assert self._told.setdefault((text, verdict.criterion), score) == score
        return [response.reward for response in rewarded]

    async def two_runs(self) -> tuple[list[float | None], list[float | None]]:
        """The rewards of two concurrent runs of twelve responses each, two of them shared."""
        return await asyncio.gather(self.score("one", range(12)), self.score("other", range(10, 22)))

    async def until(self, holds: Callable[[], bool]) -> None:
        """Wait until the condition is true."""
        async with asyncio.timeout(30):
            while not holds():  # noqa: ASYNC110 - polls other processes
                await asyncio.sleep(0.01)


CALLS = 22 * PARTS
"""The number of distinct calls of two runs."""


@asynccontextmanager
async def fleet(
    folder: Path,
    *faults: str,
    health_timeout_s: float = 30.0,
    timeout_s: float = 60.0,
    max_hold_s: float = MAX_HOLD_S,
) -> AsyncIterator[Fleet]:
    """Two running endpoints with these faults and a judge over them; their health is checked continually."""
    endpoints = [EndpointProcess(name, folder) for name in ("a", "b")]
    engines = {
        endpoint.name: partial(OpenAIEngine, endpoint.url, concurrency=300, timeout_s=timeout_s)
        for endpoint in endpoints
    }
    pool = EnginePool(engines, PoolRules(interval_s=0.05, health_timeout_s=health_timeout_s, misses=1, pause_s=0.05))
    try:
        await asyncio.gather(*map(EndpointProcess.start, endpoints, faults))
        made = await judge(pool, queue_calls=10_000, retry_times={"max_hold_s": max_hold_s})  # type: ignore[arg-type]
        try:
            yield Fleet(endpoints, pool, made)
        finally:
            await made.close()
    finally:
        for endpoint in endpoints:
            await endpoint.kill()


def only(events: Counter[str], times: int) -> bool:
    """Whether each of these happened exactly this often."""
    return set(events.values()) <= {times}


__all__ = ["CALLS", "EndpointProcess", "Fleet", "fleet", "only"]
