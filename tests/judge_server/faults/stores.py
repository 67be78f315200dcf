"""A service beside a store that tests kill and restart, and a check that its verdicts stay the same."""

import asyncio
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from tests.services.processes import Service, get, listening
from trainer_client import AsyncClient, Client
from trainer_client.wire import RewardAnswer

PARTS = 12
RUBRIC = {"criteria": [{"id": f"c{n}", "description": f"Part {n} holds.", "weight": n + 1} for n in range(PARTS)]}


class ConsistencyChecker:
    """A client that checks the invariants: no verdict fails, and none has two values."""

    def __init__(self, client: AsyncClient) -> None:
        self._client = client
        self._scores: dict[tuple[str, str], tuple[float | None, float | None]] = {}
        self.rewards: dict[tuple[str, int], float | None] = {}

    def continues_with(self, client: AsyncClient) -> None:
        """Use another client from now on."""
        self._client = client

    async def score(self, *texts: str, rubric: object = RUBRIC, **options: Any) -> RewardAnswer:
        """The answer to a request with these responses."""
        group = {"id": "g", "prompt": "Is 7 prime?", "responses": list(texts)}
        answer = await self._client.rewards([group], rubric, **options)  # type: ignore[arg-type]
        for text, response in zip(texts, answer.groups[0].responses, strict=True):
            assert response.reward is not None
            assert self.rewards.setdefault((text, len(response.verdicts)), response.reward) == response.reward
            for verdict in response.verdicts:
                assert verdict.status == "ok"
                score = (verdict.score, verdict.probability)
                assert self._scores.setdefault((text, verdict.criterion), score) == score
        return answer


@contextmanager
def running_service(engine: str, folder: Path, **settings: str) -> Iterator[Service]:
    """A service with its data in a folder, ready to judge."""
    named = {f"ADJUDGE_{name.upper()}": value for name, value in settings.items()}
    with (
        listening("serve", "--port", "0", "--engine", engine, ADJUDGE_DATA_DIR=str(folder), **named) as service,
        Client(service.url) as client,
    ):
        service.wait_until_ready(client)
        yield service


async def until_written(service: Service, verdicts: int) -> None:
    """Wait until the process has written at least this many verdicts and none waits."""
    async with asyncio.timeout(60):
        while (state := get(service, "/v1/ledger").json())["written"] < verdicts or state["waiting"]:
            assert state["lost"] == 0
            await asyncio.sleep(0.02)
