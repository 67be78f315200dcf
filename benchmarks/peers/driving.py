"""A contender's process: it judges one pass after another as it is told, and says what each took.

A pass comes as a line of JSON on standard input; what it took goes out as one. Whatever else a contender prints goes
to standard error. Processor seconds are taken around the pass alone, so imports and starts cost nobody anything.
Standard library and psutil only: the peers' environment reads this too.
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
"""Responses under way at a time, each with all of its criteria."""

LONGEST_REPLY = 512
"""Tokens that a contender which asks for reasons lets the model write."""

Score = float | str
"""A judgement: its score, 1 for a satisfied criterion, or why there is none."""


@dataclass(frozen=True)
class DriverConfig:
    """What a contender is told at its start. `options` are its own."""

    url: str
    model: str
    criteria: int
    in_flight: int
    timeout_s: float
    options: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True)
class Pass:
    """Responses 0 to `responses` of a set to judge: all at once, or, to time them, a few at a time."""

    set_number: int
    responses: int
    timed: bool = False


@dataclass
class PassResult:
    """A pass: wall and processor seconds, the scores of each response, and the seconds of each where it was timed.

    `broke` says why the pass as a whole brought nothing.
    """

    seconds: float = 0.0
    cpu_s: float = 0.0
    scores: list[list[Score]] = field(default_factory=list)
    latencies: list[float] = field(default_factory=list)
    error: str | None = None


class WorksheetJudge(Protocol):
    """Judges worksheets under the rubric of the setting."""

    async def judge(self, set_number: int, numbers: Sequence[int]) -> list[list[Score]]:
        """Judge these responses of a set, as many at a time as allowed."""


def cpu_seconds(pids: Sequence[int]) -> float:
    """Processor seconds of processes and all their descendants so far."""
    total = 0.0
    for pid in pids:
        process = psutil.Process(pid)
        for one in (process, *process.children(recursive=True)):
            times = one.cpu_times()
            total += times.user + times.system
    return total


async def run_pass(contender: WorksheetJudge, asked: Pass, pids: Sequence[int]) -> PassResult:
    """Have a pass judged; `pids` are the contender's processes beside this one."""
    took, numbers = PassResult(), range(asked.responses)
    gc.collect()
    others = cpu_seconds(pids)
    own, began = time.process_time(), time.perf_counter()
    try:
        if asked.timed:
            await _timed(contender, asked, took)
        else:
            took.scores = await contender.judge(asked.set_number, numbers)
    except Exception as error:  # noqa: BLE001 - what ends a contender's pass is a finding
        took.error = f"{type(error).__name__}: {error}"[:300]
    took.seconds = time.perf_counter() - began
    took.cpu_s = time.process_time() - own
    took.cpu_s += cpu_seconds(pids) - others
    return took


async def _timed(contender: WorksheetJudge, asked: Pass, took: PassResult) -> None:
    numbers = iter(range(asked.responses))

    async def sender() -> None:
        for number in numbers:
            began = time.perf_counter()
            took.scores += await contender.judge(asked.set_number, [number])
            took.latencies.append(time.perf_counter() - began)

    await asyncio.gather(*(sender() for _ in range(RESPONSES_AT_ONCE)))


class EachCall:
    """Judging by a function for one criterion: all calls at once, as many under way as the setting allows."""

    def __init__(self, setting: DriverConfig, ask: Callable[[str, str, str], Awaitable[Score]]) -> None:
        self._criteria = criteria(setting.criteria)
        self._slots = asyncio.Semaphore(setting.in_flight)
        self._ask = ask

    async def judge(self, set_number: int, numbers: Sequence[int]) -> list[list[Score]]:
        """Ask `ask(question, response, criterion)` of each; what it raises ends the pass."""

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
    """A judgement that an error left without a score."""
    return type(error).__name__


def drive(make: Callable[[DriverConfig], WorksheetJudge]) -> None:
    """Be a contender's process until standard input closes."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    asyncio.run(_drive(make, out))


async def _drive(make: Callable[[DriverConfig], WorksheetJudge], out: TextIO) -> None:
    setting = DriverConfig(**json.loads(sys.stdin.readline()))
    contender = make(setting)
    _say(out, {"ready": True})
    while line := await asyncio.to_thread(sys.stdin.readline):
        _say(out, asdict(await run_pass(contender, Pass(**json.loads(line)), setting.options.get("pids", []))))


def _say(out: TextIO, said: dict[str, Any]) -> None:
    out.write(json.dumps(said) + "\n")
    out.flush()
