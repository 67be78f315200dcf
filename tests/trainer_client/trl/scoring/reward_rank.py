"""One of two ranks that call reward functions together: `python -m … RANK MEETING`. Prints each scene's outcome.

In each scene, the judge behaves differently per rank; the ranks' collective timeout ends a scene that hangs.
"""

import asyncio
import json
import sys
import time
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import httpx2
import torch

from tests.trainer_client.trl.judges import (
    CRITERIA,
    FakeJudgeTransport,
    Trainer,
    groups,
    obliging,
    pinned,
    problem,
    ranking,
    response,
    rewarding,
    stream,
    summary,
)
from trainer_client import AsyncClient
from trainer_client.trl import RubricReward

RANK = int(sys.argv[1])
ROWS = (["a", "a", "b", "b"], ["1", "2", "3", "4"])


def failing(body: Any) -> Any:
    return problem("internal", 500)


def by_version(name: str, version: int, wait: asyncio.Event | None = None) -> Any:
    async def answer(body: Any) -> Any:
        if wait is not None:
            await wait.wait()
        return stream(*groups(body), summary(rubrics=[pinned(name, version)]))

    return answer


async def outcome(call: Any) -> Any:
    """The result of a call, or its error: class, text and notes."""
    try:
        return await call
    except Exception as error:  # noqa: BLE001 - the scene is what came of it
        return [type(error).__name__, str(error), getattr(error, "__notes__", [])]


async def half_fails(max_unscored: float) -> Any:
    return await outcome(rewarding(FakeJudgeTransport(failing if RANK else obliging), max_unscored=max_unscored)(*ROWS))


async def unknown_rubric() -> Any:
    judge = FakeJudgeTransport((lambda body: problem("unknown-rubric", 404)) if RANK else obliging)
    return await outcome(rewarding(judge)(*ROWS))


async def own_function_fails() -> Any:
    def other(prompts: Any, **_: Any) -> Any:
        return [{}["missing"]] if RANK else [0.0] * len(prompts)

    return await outcome(rewarding(FakeJudgeTransport(), extra_rewards=[other])(*ROWS))


async def pins_differ() -> Any:
    reward = rewarding(FakeJudgeTransport(by_version("r", 3 + RANK)), "r")
    await reward(*ROWS)
    return reward.state()


async def two_rewards_in_opposite_order() -> Any:
    """The first function finishes first on one rank, and last on the other."""
    go = asyncio.Event()
    waits = [None, go] if RANK else [go, None]
    rewards = [rewarding(FakeJudgeTransport(by_version(n, 7, w)), n) for n, w in zip("xy", waits, strict=True)]
    calls = [asyncio.ensure_future(reward(*ROWS)) for reward in rewards]
    await asyncio.sleep(0.2)
    go.set()
    await asyncio.gather(*calls)
    return [reward.state() for reward in rewards]


async def components(*, unnamed: bool) -> Any:
    """A split beside another function, which the judge answers first on one rank and last on the other."""
    go = asyncio.Event()

    def answer(body: Any) -> Any:
        more = {"other": 1.0} if unnamed and RANK else {}
        return stream(
            *groups(body, lambda said: response(1.0, components={"a": float(said["text"]), "b": 0.0, **more})),
            summary(),
        )

    async def wait_and_answer(body: Any) -> Any:
        await go.wait()
        return answer(body)

    judge = FakeJudgeTransport(wait_and_answer if RANK else answer)
    other = rewarding(FakeJudgeTransport(by_version("y", 7, None if RANK else go)), "y")
    functions = [*rewarding(judge, CRITERIA, components="criterion").split(), other]
    calls = [asyncio.ensure_future(outcome(function(*ROWS))) for function in functions]
    await asyncio.sleep(0.2)
    go.set()
    return *(await asyncio.gather(*calls)), len(judge.asked)


async def ranked(prompts: list[str], said: list[str], size: int | None = None) -> Any:
    """The rewards of a ranking, for a trainer that gives each prompt so many responses, if it is known."""
    marks = {} if size is None else {"log_metric": Trainer(num_generations=size).log_metric}
    judge = FakeJudgeTransport(ranking)
    return await outcome(rewarding(judge, mode="ranking")(prompts, said, **marks)), len(judge.asked)


def refused(body: Any = None) -> Any:
    raise httpx2.ConnectError("refused")


async def one_judge_is_away(*, forever: bool) -> Any:
    """The judge of rank 1 is away for two rounds, or for good."""
    judge = FakeJudgeTransport(*[refused] * 3, refused if forever else obliging) if RANK else FakeJudgeTransport()
    if RANK and forever:
        judge.readiness = [refused]
    reward = rewarding(judge, max_unscored=0.4, wait_for_judge_s=100.0)
    return await outcome(reward(*ROWS))


async def both_are_away() -> Any:
    """Rank 1 gives up first by its own clock; both stop after the same round."""
    judge = FakeJudgeTransport(refused)
    judge.readiness = [refused]
    return await outcome(rewarding(judge, max_unscored=0.4, wait_for_judge_s=50.0 if RANK else 50.5)(*ROWS))


async def run_names() -> Any:
    """The name that each rank makes differs; so does what a resumed state has."""
    state = SimpleNamespace(global_step=0, stateful_callbacks={})
    judges = [FakeJudgeTransport(), FakeJudgeTransport()]
    trainer = Trainer(args=SimpleNamespace(output_dir=f"out-{RANK}", run_name=None))
    unnamed = [RubricReward(AsyncClient("http://judge.test", transport=judge), "r") for judge in judges]
    calls = [reward(*ROWS, trainer_state=state, **trainer.logs) for reward in unnamed]
    await asyncio.gather(*calls)
    return sorted({judge.asked[0]["run"].rsplit("-", 2)[0] for judge in judges})


class SleepingJudge(FakeJudgeTransport):
    """Notes when it was woken, asked and put to sleep, by a clock that both ranks have."""

    def __init__(self) -> None:
        super().__init__(obliging)
        self.times: list[tuple[str, float]] = []

    async def handle_async_request(self, request: httpx2.Request) -> httpx2.Response:
        """Answer leases at once, and everything else as any judge."""
        verb = request.url.path.rpartition("/")[2]
        self.times.append((verb, time.monotonic()))
        if verb in ("sleep", "wake"):
            state = "asleep" if verb == "sleep" else "awake"
            return httpx2.Response(200, json={"judge": "default", "state": state})
        return await super().handle_async_request(request)


async def shared_memory() -> Any:
    """Rank 1 generates for longer; its judge is slower."""
    judge = SleepingJudge()
    await asyncio.sleep(0.3 * RANK)
    began = time.monotonic()
    rewards = await outcome(rewarding(judge, judge_lease_s=60)(*ROWS))
    return rewards, began, judge.times, time.monotonic()


async def after_an_error() -> Any:
    return await outcome(rewarding(FakeJudgeTransport())(*ROWS))


async def scenes() -> dict[str, Any]:
    return {
        "half fails, and may": await half_fails(0.5),
        "half fails, and may not": await half_fails(0.4),
        "unknown rubric": await unknown_rubric(),
        "own function fails": await own_function_fails(),
        "pins differ": await pins_differ(),
        "two rewards": await two_rewards_in_opposite_order(),
        "components": await components(unnamed=False),
        "unnamed component": await components(unnamed=True),
        "whole groups": await ranked([f"{RANK}"] * 3, ["1", "2", "3"]),
        "split group": await ranked(["a", "a", "b", "b"] if RANK else ["a"] * 4, list("1234")),
        "repeated prompt": await ranked(["a"] * 4, list("1234"), size=4),
        "known split group": await ranked(["a"] * 4, list("1234"), size=8),
        "one judge is away": await one_judge_is_away(forever=False),
        "one judge is away for good": await one_judge_is_away(forever=True),
        "both are away": await both_are_away(),
        "run names": await run_names(),
        "shared memory": await shared_memory(),
        "after an error": await after_an_error(),
    }


if __name__ == "__main__":
    torch.distributed.init_process_group(
        "gloo", init_method=f"file://{sys.argv[2]}", rank=RANK, world_size=2, timeout=timedelta(seconds=60)
    )
    print(json.dumps(asyncio.run(scenes())))
    torch.distributed.destroy_process_group()
