"""Simulate training runs that share a judge, to check the plans of `adjudge plan` for three layouts of GPUs.

The code of the fair queue (`judge_server.scheduling.admission.Admission`) runs on simulated time. Each run works for a
while (rollouts and update), asks for the judgements of all responses of its step, waits until all are there, and begins
again. The calls about one response, whose length varies, occupy one replica for the time that the rates give.

The table has the layouts of `judge_server.evaluation.capacity.layouts` for 1, 100 and 10,000 runs. Rates, the seconds
of a rollout, an update and a wake, and the memory of the judge are inputs. None is measured here.
"""

import argparse
import asyncio
import math
import random
import statistics
import time
from typing import Any, NamedTuple

from tests.fixtures.virtual_time import run_in_virtual_time

from benchmarks.report import publish
from judge_server.evaluation.capacity import (
    PUBLISHED,
    Demand,
    Layout,
    Training,
    estimate,
    judge_layouts,
    published_rates,
)
from judge_server.judging.questions import YES_NO
from judge_server.judging.results import Caller
from judge_server.ports import Batch, Call, TokenChoice
from judge_server.scheduling.admission import Admission, QueueEntry, QueueRules

RUNS = (1, 100, 10_000)
LENGTHS = 16
"""How many different lengths responses have."""

SPREAD = 0.5
"""The standard deviation of the logarithm of a response's length."""

JITTER = 0.1
"""The standard deviation of the logarithm of the seconds between two batches of a run."""

MOST_STEPS = 200
"""The most steps of a run that are simulated."""

UNBOUNDED = QueueRules(calls=10**9)
"""The simulation shows how long the queue becomes, so it refuses nothing."""

BATCH = Batch("", "x" * 4000, (Call("Is it met?", TokenChoice(YES_NO)),))


class SimulatedRun(NamedTuple):
    """A run: the responses of a step, the seconds of its rollouts and update, and the number of steps."""

    responses: int
    work_s: float
    steps: int


def response_sizes() -> list[float]:
    """Return typical lengths of responses, whose mean is 1."""
    normal = statistics.NormalDist(0, SPREAD)
    sizes = [math.exp(normal.inv_cdf((n + 0.5) / LENGTHS)) for n in range(LENGTHS)]
    mean = statistics.fmean(sizes)
    return [size / mean for size in sizes]


class Simulation:
    """Equal training runs in front of one queue; create it in virtual time.

    Args:
        run: each of the runs.
        replicas: engines, each of which judges one response at a time.
        seconds: the seconds that a replica works on a response of mean length.
    """

    def __init__(self, run: SimulatedRun, replicas: int, seconds: float) -> None:
        self._run, self._seconds, self._sizes = run, seconds, response_sizes()
        self._admission = Admission(lambda: replicas, UNBOUNDED, clock=asyncio.get_running_loop().time)

    async def train(self, runs: int) -> list[float]:
        """Have as many runs take their steps; return the seconds of every step."""
        draw = random.Random(0)
        seeds = [draw.random() for _ in range(runs)]
        steps = await asyncio.gather(*[self._train(n, seed, alone=runs == 1) for n, seed in enumerate(seeds)])
        return [seconds for of_run in steps for seconds in of_run]

    async def _train(self, number: int, seed: float, *, alone: bool) -> list[float]:
        loop, draw, run = asyncio.get_running_loop(), random.Random(seed), self._run
        steps = []
        if not alone:  # runs begin at different times
            await asyncio.sleep(draw.random() * run.work_s)
        for step in range(run.steps):
            began = loop.time()
            await asyncio.sleep(run.work_s * draw.lognormvariate(-(JITTER**2) / 2, JITTER))
            caller = Caller(f"run-{number}", batch=str(step))
            async with asyncio.TaskGroup() as group:
                for size in draw.choices(self._sizes, k=run.responses):
                    group.create_task(self._judge(caller, size))
            steps.append(loop.time() - began)
        return steps

    async def _judge(self, caller: Caller, size: float) -> None:
        entry = QueueEntry(caller, BATCH, asyncio.get_running_loop().time())
        async with self._admission.acquire(entry):
            await asyncio.sleep(size * self._seconds)


def simulate_layout(layout: Layout, demand: Demand, training: Training, seconds: float, batches: int) -> float:
    """Return the mean seconds of a step in a layout. Of runs that judge on their own GPUs, one stands for all."""
    runs = demand.runs if layout.name == "dedicated" else 1
    steps = max(1, min(MOST_STEPS, batches // (runs * demand.responses)))
    run = SimulatedRun(demand.responses, layout.rollout_s + training.update_s, steps)

    async def simulate() -> list[float]:
        return await Simulation(run, layout.replicas, seconds).train(runs)

    return statistics.fmean(run_in_virtual_time(simulate())) + layout.wake_s


def layout_rows(demand: Demand, training: Training, seconds: float, gpus: int, batches: int) -> list[dict[str, Any]]:
    """Plan and simulate the layouts of a demand."""
    rows = []
    dedicated = estimate(demand, seconds, gpus)
    for layout in judge_layouts(demand, training, seconds, gpus, dedicated):
        began = time.process_time()
        row: dict[str, Any] = {"runs": f"{demand.runs:,}", "layout": layout.name}
        simulated = simulate_layout(layout, demand, training, seconds, batches)
        hours = layout.gpus * simulated / 3600 / demand.runs
        rows.append(
            row
            | {
                "GPUs": f"{layout.gpus:,}",
                "step s, planned": layout.step_s,
                "simulated": simulated,
                "error": f"{layout.step_s / simulated - 1:+.1%}",
                "GPU hours per step and run, planned": layout.gpu_hours_per_step,
                "GPU hours, simulated": hours,
                "CPU s": f"{time.process_time() - began:.0f}",
            }
        )
    return rows


def main() -> None:
    """Simulate from the command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rates", default="llama-3.1-8b-fp8@h100", choices=PUBLISHED, help="published rates")
    parser.add_argument("--runs", type=int, nargs="+", default=RUNS, help="training runs at the same time")
    parser.add_argument("--responses", type=int, default=64, help="responses of a step")
    parser.add_argument("--criteria", type=int, default=12, help="criteria of the rubric, one call each")
    parser.add_argument("--computed", type=int, default=1480, help="prompt tokens computed for a response")
    parser.add_argument("--gpus", type=int, default=8, help="GPUs of each run's trainer")
    parser.add_argument("--rollout-s", type=float, default=40.0, help="seconds of a step's rollouts")
    parser.add_argument("--update-s", type=float, default=20.0, help="seconds of its update")
    parser.add_argument("--wake-s", type=float, default=10.0, help="seconds to wake the judge and put it to sleep")
    parser.add_argument("--judge-memory", type=float, default=0.15, help="share of GPU memory of a judge kept awake")
    parser.add_argument("--batches", type=int, default=640_000, help="about how many responses to simulate in a row")
    given = parser.parse_args()
    rates = published_rates(given.rates)
    seconds = rates.seconds(given.computed, given.criteria)
    training = Training(given.gpus, given.rollout_s, given.update_s, given.wake_s, given.judge_memory)
    rows = []
    for runs in given.runs:
        demand = Demand(runs, 3600 / training.work_s, given.responses, training.work_s / 10)
        rows += layout_rows(demand, training, seconds, rates.gpus, given.batches)
    publish(
        "layouts",
        f"{given.responses} responses and {given.criteria} criteria a step, judged by {rates.name}, "
        f"{training.gpus} GPUs a run, {training.work_s:g} s of rollouts and update",
        rows,
        notes=[f"rates: {rates.source}", f"wake {training.wake_s:g} s, memory {training.judge_memory:.0%}: inputs"],
    )


if __name__ == "__main__":
    main()
