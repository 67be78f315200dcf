"""Scoring groups through a client, some responses at a time, in order; what fails costs only itself."""

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import httpx2

from adjudge_services.cli.score_input import GroupLine, one_response
from adjudge_services.settings import Settings
from adjudge_services.wiring import build_app, prepare_store
from trainer_client import AdjudgeError, AsyncClient
from trainer_client.wire import GroupRewards, RewardAnswer, Usage


@dataclass(slots=True)
class ScoredFile:
    """What became of a file: its groups in order, lines that could not be scored and why, and the cost."""

    groups: list[GroupRewards] = field(default_factory=list)
    refused: dict[int, str] = field(default_factory=dict)
    usage: Usage = field(default_factory=Usage)
    judge: str = ""


@asynccontextmanager
async def open_client(url: str | None, settings: Settings) -> AsyncIterator[AsyncClient]:
    """A client of the service at `url`, or of one inside this process, its model loaded."""
    if url is not None:
        async with AsyncClient(url) as client:
            yield client
        return
    await prepare_store(settings)
    inside = settings.model_copy(update={"host": "127.0.0.1", "keys": "loopback"})  # nobody else can reach it
    app = build_app(inside, wait_for_judge=True)
    inner = AsyncClient("http://localhost", api_key="", transport=httpx2.ASGITransport(app))
    async with app.router.lifespan_context(app), inner as client:
        yield client


async def score_groups(
    client: AsyncClient,
    lines: Sequence[GroupLine],
    options: dict[str, Any],
    *,
    concurrency: int,
    advance: Callable[[], None],
) -> ScoredFile:
    """Score every response of every line; `advance` is called after each response."""
    slots = asyncio.Semaphore(concurrency)
    totals: Counter[str] = Counter()
    scored = ScoredFile()

    async def score_one(line: GroupLine, index: int) -> RewardAnswer | AdjudgeError:
        async with slots:
            try:
                return await client.rewards(groups=[one_response(line.group, index)], **options)
            except AdjudgeError as error:
                return error
            finally:
                advance()

    work = [[score_one(line, i) for i in range(len(line.group.responses))] for line in lines]
    answers = iter(await asyncio.gather(*(coroutine for group in work for coroutine in group)))
    for line in lines:
        parts = [next(answers) for _ in line.group.responses]
        errors = [part for part in parts if isinstance(part, AdjudgeError)]
        if errors:
            scored.refused[line.number] = str(errors[0])
            continue
        rewards = [part for part in parts if isinstance(part, RewardAnswer)]
        responses = tuple(part.groups[0].responses[0] for part in rewards)
        scored.groups.append(rewards[0].groups[0].model_copy(update={"responses": responses}))
        if (judge := rewards[0].judge) is not None:
            scored.judge = f"{judge.model}, {judge.fingerprint[:19]}…"
        for part in rewards:
            totals.update(part.usage.model_dump())
    scored.usage = Usage(**totals)
    return scored
