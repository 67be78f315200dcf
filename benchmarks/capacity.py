"""Plan 1, 100 and 10,000 training runs on one deployment, and simulate its queue for each.

The plan is that of `adjudge plan` (`judge_server.capacity`). The simulation runs the code of the fair queue
(`judge_server.scheduling.admission.Admission`) on simulated time: each run trains for a while, asks for the judgements
of all responses of its step, waits until all are there, and begins again. One batch of calls for each response, of
varying length, occupies one replica for the time that the rates give. The runs begin at random times.
"""

import argparse
import asyncio
import random
import statistics
import time
from collections.abc import Sequence
from typing import Any, NamedTuple

from tests.fixtures.virtual_time import run_in_virtual_time

from benchmarks.report import publish
from judge_server.capacity import PUBLISHED, Demand, Estimate, Rates, estimate, published_rates
from judge_server.judging.questions import YES_NO
from judge_server.judging.results import Caller
from judge_server.ports import Batch, Call, TokenChoice
from judge_server.scheduling.admission import Admission, QueueEntry, QueueRules

RUNS = (1, 100, 10_000)
LENGTHS = 16
"""How many different lengths responses have."""

SPREAD = 0.5
"""The standard deviation of the logarithm of a response's length."""

UNBOUNDED = QueueRules(calls=10**9)
"""The simulation shows how long the queue becomes, so it refuses nothing."""


class SizedBatch(NamedTuple):
    """A batch of calls about a response, and its length relative to the mean."""

    batch: Batch
    size: float


class Simulated(NamedTuple):
    """What came of the steps: seconds until all verdicts were there, the share of busy time, most calls held."""

    seconds: list[float]
    busy: float
    held: int


def sized_batches(computed: int, criteria: int) -> list[SizedBatch]:
    """Return batches of typical lengths, whose mean size is 1."""
    normal = statistics.NormalDist(0, SPREAD)
    sizes = [2.718281828 ** normal.inv_cdf((n + 0.5) / LENGTHS) for n in range(LENGTHS)]
    mean = statistics.fmean(sizes)
    calls = tuple([Call(f"Criterion {n}?", TokenChoice(YES_NO)) for n in range(criteria)])
    return [SizedBatch(Batch("", "x" * round(4 * computed * size / mean), calls), size / mean) for size in sizes]


class Simulation:
    """Training runs in front of one queue.

    Args:
        demand: the runs and their steps.
        plan: the replicas, and how long a step is to be judged alone.
        seconds: the seconds that one replica works on a response of mean length.
        batches: the batches to draw from.
        steps: the steps of each run.
    """

    def __init__(
        self, demand: Demand, plan: Estimate, seconds: float, batches: Sequence[SizedBatch], steps: int
    ) -> None:
        self._demand, self._plan, self._seconds, self._batches, self._steps = demand, plan, seconds, batches, steps
        self._random = random.Random(0)
        self._waited: list[float] = []
        self._worked = self._held = self._most_held = 0.0

    async def run(self) -> Simulated:
        """Have all runs take their steps; call in virtual time."""
        loop = asyncio.get_running_loop()
        self._admission = Admission(lambda: self._plan.replicas, UNBOUNDED, clock=loop.time)
        interval = 3600 / self._demand.steps_per_hour
        await asyncio.gather(*[self._train(number, interval) for number in range(self._demand.runs)])
        busy = self._worked / (self._plan.replicas * loop.time())
        return Simulated(self._waited, busy, round(self._most_held))

    async def _train(self, number: int, interval: float) -> None:
        loop, caller = asyncio.get_running_loop(), Caller(f"run-{number}")
        await asyncio.sleep(self._random.uniform(0, interval))
        for step in range(self._steps):
            if step:
                await asyncio.sleep(max(0.0, interval - self._plan.alone_s))
            began = loop.time()
            drawn = self._random.choices(self._batches, k=self._demand.responses)
            async with asyncio.TaskGroup() as group:
                for one in drawn:
                    group.create_task(self._judge(caller, one))
            self._waited.append(loop.time() - began)

    async def _judge(self, caller: Caller, one: SizedBatch) -> None:
        calls = len(one.batch.calls)
        self._held += calls
        self._most_held = max(self._most_held, self._held)
        entry = QueueEntry(caller, one.batch, asyncio.get_running_loop().time())
        async with self._admission.acquire(entry):
            await asyncio.sleep(one.size * self._seconds)
        self._worked += one.size * self._seconds
        self._held -= calls


def row(demand: Demand, rates: Rates, computed: int, criteria: int, steps: int) -> dict[str, Any]:
    """Plan a demand, simulate it, and return both as a row of the table."""
    seconds = rates.seconds(computed, criteria)
    plan = estimate(demand, seconds, rates.gpus)
    began = time.process_time()
    found = run_in_virtual_time(Simulation(demand, plan, seconds, sized_batches(computed, criteria), steps).run())
    ordered = sorted(found.seconds)
    return {
        "runs": f"{demand.runs:,}",
        "judgements/h": f"{demand.runs * demand.steps_per_hour * demand.responses * criteria:,.0f}",
        "GPUs": f"{plan.gpus:,}",
        "busy, planned": f"{plan.busy:.0%}",
        "simulated": f"{found.busy:.0%}",
        "a step s, planned": f"{plan.alone_s + plan.queued_s:.2f}",
        "mean": f"{statistics.fmean(ordered):.2f}",
        "p95": f"{ordered[min(len(ordered) - 1, round(0.95 * len(ordered)))]:.2f}",
        "most calls held": f"{found.held:,}",
        "steps": f"{len(ordered):,}",
        "CPU s": f"{time.process_time() - began:.0f}",
    }


def main() -> None:
    """Plan and simulate from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rates", default="llama-3.1-8b-fp8@h100", choices=PUBLISHED, help="published rates")
    parser.add_argument("--runs", type=int, nargs="+", default=RUNS, help="training runs at the same time")
    parser.add_argument("--steps-per-hour", type=float, default=60.0, help="training steps per hour of each run")
    parser.add_argument("--responses", type=int, default=64, help="responses of a step")
    parser.add_argument("--criteria", type=int, default=12, help="criteria of the rubric, one call each")
    parser.add_argument("--computed", type=int, default=1480, help="prompt tokens computed for a response")
    parser.add_argument("--judging-s", type=float, default=6.0, help="seconds that judging may add to a step")
    parser.add_argument("--batches", type=int, default=640_000, help="about how many batches to simulate in a row")
    given = parser.parse_args()
    rates = published_rates(given.rates)
    rows = []
    for runs in given.runs:
        steps = max(1, min(100, given.batches // (runs * given.responses)))
        demand = Demand(runs, given.steps_per_hour, given.responses, given.judging_s)
        rows.append(row(demand, rates, given.computed, given.criteria, steps))
    publish(
        "capacity",
        f"Training runs of {given.steps_per_hour:g} steps an hour with {given.responses} responses and "
        f"{given.criteria} criteria, judged by {rates.name}",
        rows,
        notes=[f"rates: {rates.source}", "steps of a run are simulated one after another; a run waits for its judge"],
    )


if __name__ == "__main__":
    main()
