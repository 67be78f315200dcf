"""A training run of a soak, in a separate process: scores one group after another and logs the answers.

Each sender sends a group every `period_s`, skipping the times at which it still waits for an answer. On SIGTERM, the
process ends when the requests in flight are answered.
"""

import argparse
import asyncio
import json
import signal
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import suppress
from itertools import count
from math import ceil
from typing import Any, TextIO

from benchmarks.soak.workload import RUBRIC, RULES, group_of, subject_of
from trainer_client import AdjudgeError, AsyncClient
from trainer_client.wire import RewardAnswer

DEADLINE_S = 15.0
RETRY_BUDGET_S = 90.0


def answer_record(answer: RewardAnswer) -> dict[str, Any]:
    """Return an answer's fields to log. Verdicts are a text per response, with a `sign` per criterion."""
    responses = answer.groups[0].responses
    verdicts = [verdict for response in responses for verdict in response.verdicts]
    return {
        "request_id": answer.request_id,
        "rewards": [response.reward for response in responses],
        "verdicts": ["".join(sign(verdict.score) for verdict in response.verdicts) for response in responses],
        "failures": Counter(verdict.failure.kind for verdict in verdicts if verdict.failure is not None),
        "reasons": sorted({verdict.failure.detail for verdict in verdicts if verdict.failure is not None})[:3],
        "cached": answer.usage.cached,
    }


def sign(score: object) -> str:
    """Encode a verdict's score as one character: 1, 0, - for a failed verdict, ? for any other score."""
    return "-" if score is None else {1.0: "1", 0.0: "0"}.get(score, "?") if isinstance(score, float) else "?"


def next_beat(beat: float, period: float, now: float) -> float:
    """Return the next time after `beat`, in steps of `period`, that is not past; `now` if the period is 0 (seconds)."""
    return beat + period * max(1, ceil((now - beat) / period)) if period else now


class Run:
    """A training run; `number` distinguishes its requests from those of another run."""

    def __init__(self, client: AsyncClient, number: int, rubric: Any, period_s: float, log: TextIO) -> None:
        self._client = client
        self._number = number
        self._rubric = rubric
        self._period_s = period_s
        self._log = log
        self._stopped = asyncio.Event()

    def stop(self) -> None:
        """Start no further requests."""
        self._stopped.set()

    async def score(self, senders: int, first: int) -> None:
        """Score until stopped."""
        numbers = count(first)
        async with asyncio.TaskGroup() as tasks:
            for place in range(senders):
                tasks.create_task(self._send(numbers, self._period_s * place / senders))

    async def _send(self, numbers: Iterator[int], after_s: float) -> None:
        """Send at the sender's own regular times.

        A late sender waits for its next time; otherwise all senders that a fault delays would send together afterwards,
        and stay synchronised from then on.
        """
        beat = time.time() + after_s
        await self._rest(after_s)
        while not self._stopped.is_set():
            await self._ask(next(numbers), time.time())
            beat = next_beat(beat, self._period_s, time.time())
            await self._rest(beat - time.time())

    async def _ask(self, request: int, began: float) -> None:
        subject = subject_of(self._number, request)
        group, step = group_of(subject), request // 10
        try:
            answer = await self._client.rewards([group], self._rubric, deadline_s=DEADLINE_S, step=step)
            outcome: dict[str, Any] = answer_record(answer)
        except AdjudgeError as error:
            outcome = {"error": f"{type(error).__name__}: {error}"}
        line = {"subject": subject, "began": began, "ended": time.time(), **outcome}
        self._log.write(json.dumps(line) + "\n")

    async def _rest(self, seconds: float) -> None:
        if seconds > 0:
            with suppress(TimeoutError):
                await asyncio.wait_for(self._stopped.wait(), seconds)


async def score(given: argparse.Namespace, log: TextIO) -> None:
    """Score until SIGTERM."""
    rubric: Any = {"criteria": RULES} if given.inline else f"{RUBRIC}@1"
    async with AsyncClient(given.url, run=f"run-{given.number}", retries=30, retry_budget_s=RETRY_BUDGET_S) as client:
        run = Run(client, given.number, rubric, given.period, log)
        asyncio.get_running_loop().add_signal_handler(signal.SIGTERM, run.stop)
        await run.score(given.senders, given.first)


def main() -> None:
    """Run a training run from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("url")
    parser.add_argument("log")
    parser.add_argument("--number", type=int, required=True)
    parser.add_argument("--first", type=int, required=True, help="number of the first request")
    parser.add_argument("--senders", type=int, required=True)
    parser.add_argument("--period", type=float, required=True)
    parser.add_argument("--inline", action="store_true", help="send the rubric with each request")
    given = parser.parse_args()
    with open(given.log, "a", encoding="utf-8", buffering=1) as log:
        asyncio.run(score(given, log))


if __name__ == "__main__":
    main()
