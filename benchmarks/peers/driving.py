"""The process of a contender, which judges one pass after another and reports the cost of each.

A pass arrives as a line of JSON on standard input; its result is a line of JSON on standard output. Everything else
that a contender prints goes to standard error. Processor seconds cover only the pass, not imports and startup. This
module uses only the standard library and psutil, since it also runs in the peers' environments.
"""

import asyncio
import gc
import json
import os
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol, TextIO

import psutil

from benchmarks.peers.worksheets import criteria, question, response

RESPONSES_AT_ONCE = 4
"""Responses in flight in a timed pass, each with all of its criteria."""

LONGEST_REPLY = 512
"""Token limit of replies for contenders that ask for reasons."""

Score = float | str
"""A judgement: its score (1 for a satisfied criterion), or the reason why it failed."""


@dataclass(frozen=True)
class DriverConfig:
    """The configuration of a contender's process; `options` are specific to the contender."""

    url: str
    model: str
    criteria: int
    in_flight: int
    timeout_s: float
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Pass:
    """Judge the first `responses` responses of a set: all at once or, to time them, a few at a time."""

    set_number: int
    responses: int
    timed: bool = False


@dataclass
class PassResult:
    """The result of a pass: wall and processor seconds, scores per response, and latencies if the pass was timed.

    `error` is the reason if the pass as a whole failed.
    """

    seconds: float = 0.0
    cpu_s: float = 0.0
    scores: list[list[Score]] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    error: str | None = None


class WorksheetJudge(Protocol):
    """Judges worksheets by the rubric of the configuration."""

    async def judge(self, set_number: int, numbers: Sequence[int]) -> list[list[Score]]:
        """Judge these responses of a set, with as many calls in flight as allowed."""


def cpu_seconds(pids: Sequence[int]) -> float:
    """Return the processor seconds of processes and all their descendants so far."""
    total = 0.0
    for pid in pids:
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            times = one.cpu_times()
            total += times.user + times.system
    return total


async def run_pass(contender: WorksheetJudge, asked: Pass, pids: Sequence[int]) -> PassResult:
    """Run a pass; `pids` are the contender's processes besides this one."""
    result, numbers = PassResult(), range(asked.responses)
    gc.collect()
    others = cpu_seconds(pids)
    own, began = time.process_time(), time.perf_counter()
    try:
        if asked.timed:
            await _timed(contender, asked, result)
        else:
            result.scores = await contender.judge(asked.set_number, numbers)
    except Exception as error:  # noqa: BLE001 - a failed pass is a result
        result.error = f"{type(error).__name__}: {error}"[:300]
    result.seconds = time.perf_counter() - began
    result.cpu_s = time.process_time() - own
    result.cpu_s += cpu_seconds(pids) - others
    return result


async def _timed(contender: WorksheetJudge, asked: Pass, result: PassResult) -> None:
    numbers = iter(range(asked.responses))

    async def sender() -> None:
        for number in numbers:
            began = time.perf_counter()
            result.scores += await contender.judge(asked.set_number, [number])
            result.latencies.append(time.perf_counter() - began)

    await asyncio.gather(*(sender() for _ in range(RESPONSES_AT_ONCE)))


class SingleCallDriver:
    """Judges with a function for a single criterion: all calls concurrently, up to the configured number in flight."""

    def __init__(self, setting: DriverConfig, ask: Callable[[str, str, str], Awaitable[Score]]) -> None:
        self._criteria = criteria(setting.criteria)
        self._slots = asyncio.Semaphore(setting.in_flight)
        self._ask = ask

    async def judge(self, set_number: int, numbers: Sequence[int]) -> list[list[Score]]:
        """Call `ask(question, response, criterion)` for each pair; an exception ends the pass."""

        async def one(text: str, criterion: str) -> Score:
            async with self._slots:
                return await self._ask(problems, text, criterion)

        problems = question(set_number)
        texts = [response(set_number, number) for number in numbers]
        tasks = [asyncio.create_task(one(text, criterion)) for text in texts for criterion in self._criteria]
        try:
            scores = await asyncio.gather(*tasks)
        finally:
            for task in tasks:
                task.cancel()
        width = len(self._criteria)
        return [list(scores[start : start + width]) for start in range(0, len(scores), width)]


def failed(error: BaseException) -> str:
    """Return the judgement for an error: the name of its type."""
    return type(error).__name__


def drive(make: Callable[[DriverConfig], WorksheetJudge]) -> None:
    """Run a contender's process until standard input closes."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    asyncio.run(_drive(make, out))


async def _drive(make: Callable[[DriverConfig], WorksheetJudge], out: TextIO) -> None:
    setting = DriverConfig(**json.loads(sys.stdin.readline()))
    contender = make(setting)
    _write(out, {"ready": True})
    while line := await asyncio.to_thread(sys.stdin.readline):
        _write(out, asdict(await run_pass(contender, Pass(**json.loads(line)), setting.options.get("pids", []))))


def _write(out: TextIO, message: dict[str, Any]) -> None:
    out.write(json.dumps(message) + "\n")
    out.flush()
