"""Simulate training runs that share a judge: in which order their batches are judged, and on whose GPUs.

The code of the fair queue (`judge_server.scheduling.admission.Admission`) runs on simulated time. Each run works for a
while (rollouts and update), asks for the judgements of all responses of its step, waits until all are there, and begins
again. The calls about one response, whose length varies, occupy one replica for the time that the rates give.

The first table compares the order of batches: piece by piece, where each run gets its share of the engine at all times,
and batch after batch, where the one that would end first is finished first. The second compares the layouts of
`adjudge plan` (`judge_server.evaluation.capacity.layouts`) for 1, 100 and 10,000 runs.

The third says how well a run's next batch is predicted from its last steps (`judge_server.ledger.prediction`).

Rates, the seconds of a rollout, an update and a wake, and the memory of the judge are inputs. None is measured here.
"""

import argparse
import asyncio
import random
import statistics
import time
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
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
from judge_server.ledger.prediction import LAST_STEPS, StepBatch, predict
from judge_server.ports import Batch, Call, TokenChoice
from judge_server.scheduling.admission import Admission, QueueEntry, QueueRules

RUNS = (1, 100, 10_000)
LENGTHS = 16
"""How many different lengths responses have."""

SPREAD = 0.5
"""The standard deviation of the logarithm of a response's length."""

JITTER = 0.1
"""The standard deviation of the logarithm of the seconds between two batches of a run."""

PAUSE_S = 300.0
"""The seconds that a checkpoint or an evaluation adds to a step."""

MOST_STEPS = 200
"""The most steps of a run that are simulated."""

UNBOUNDED = QueueRules(calls=10**9)
"""The simulation shows how long the queue becomes, so it refuses nothing."""

BATCH = Batch("", "x" * 4000, (Call("Is it met?", TokenChoice(YES_NO)),))


class SimulatedRun(NamedTuple):
    """A run: the responses of a step, and the seconds of its rollouts and update."""

    responses: int
    work_s: float


class Simulated(NamedTuple):
    """What came of it: by run, the seconds of judging and of each step; the busy share of the replicas."""

    judging: list[list[float]]
    steps: list[list[float]]
    busy: float


def response_sizes() -> list[float]:
    """Return typical lengths of responses, whose mean is 1."""
    normal = statistics.NormalDist(0, SPREAD)
    sizes = [2.718281828 ** normal.inv_cdf((n + 0.5) / LENGTHS) for n in range(LENGTHS)]
    mean = statistics.fmean(sizes)
    return [size / mean for size in sizes]


class Simulation:
    """Training runs in front of one queue.

    Args:
        runs: the runs.
        replicas: engines, each of which judges one response at a time.
        seconds: the seconds that a replica works on a response of mean length.
        together: whether the responses of a step are one batch of the queue; otherwise runs share piece by piece.
        steps: the steps of each run.
        jitter: the standard deviation of the logarithm of a run's working time.
    """

    def __init__(
        self,
        runs: Sequence[SimulatedRun],
        replicas: int,
        seconds: float,
        *,
        together: bool = True,
        steps: int = 20,
        jitter: float = JITTER,
    ) -> None:
        self._runs, self._replicas, self._seconds = runs, replicas, seconds
        self._together, self._steps, self._jitter = together, steps, jitter
        self._sizes, self._random = response_sizes(), random.Random(0)
        self._worked = 0.0

    async def run(self) -> Simulated:
        """Have all runs take their steps; call in virtual time."""
        loop = asyncio.get_running_loop()
        self._admission = Admission(lambda: self._replicas, UNBOUNDED, clock=loop.time)
        seeds = [self._random.random() for _ in self._runs]
        found = await asyncio.gather(*[self._train(n, one, seeds[n]) for n, one in enumerate(self._runs)])
        judging, steps = [each[0] for each in found], [each[1] for each in found]
        return Simulated(judging, steps, self._worked / (self._replicas * loop.time()))

    async def _train(self, number: int, run: SimulatedRun, seed: float) -> tuple[list[float], list[float]]:
        loop, draw = asyncio.get_running_loop(), random.Random(seed)
        judging: list[float] = []
        steps: list[float] = []
        await asyncio.sleep(draw.random() * run.work_s if len(self._runs) > 1 else 0.0)
        for step in range(self._steps):
            began = loop.time()
            await asyncio.sleep(run.work_s * draw.lognormvariate(-(self._jitter**2) / 2, self._jitter))
            asked = loop.time()
            caller = Caller(f"run-{number}", batch=str(step) if self._together else "")
            async with asyncio.TaskGroup() as group:
                for size in draw.choices(self._sizes, k=run.responses):
                    group.create_task(self._judge(caller, size))
            judging.append(loop.time() - asked)
            steps.append(loop.time() - began)
        return judging, steps

    async def _judge(self, caller: Caller, size: float) -> None:
        entry = QueueEntry(caller, BATCH, asyncio.get_running_loop().time())
        async with self._admission.acquire(entry):
            await asyncio.sleep(size * self._seconds)
        self._worked += size * self._seconds


def prediction_row(name: str, run: SimulatedRun, *, jitter: float, pause_every: int = 0) -> dict[str, Any]:
    """Replay the steps of a simulated run, and predict each batch after the first two from those before it.

    With `pause_every`, each n-th step takes five minutes more, as with a checkpoint or an evaluation.
    """
    found = run_in_virtual_time(Simulation([run], 4, 0.1, steps=MOST_STEPS, jitter=jitter).run())
    now, batches = datetime(2026, 1, 1, tzinfo=UTC), []
    for number, (judging, whole) in enumerate(zip(found.judging[0], found.steps[0], strict=True), start=1):
        paused = PAUSE_S if pause_every and number % pause_every == 0 else 0.0
        batches.append(StepBatch(now + timedelta(seconds=paused + whole - judging), run.responses))
        now += timedelta(seconds=paused + whole)
    errors = []
    for place in range(2, len(batches)):
        prediction = predict(batches[:place])
        if prediction is not None:
            late = (batches[place].arrived_at - prediction.due_at).total_seconds()
            errors.append(abs(late) / prediction.interval_s)
    return {
        "run": name,
        "batches": len(errors),
        "error, median": f"{statistics.median(errors):.1%}",
        "error, 95%": f"{percentile(errors):.1%}",
        "within a fifth of a step": f"{statistics.fmean(error <= 0.2 for error in errors):.0%}",
    }


PREDICTED = (
    ("steps vary by 3%", 0.03, 0),
    ("steps vary by 10%", 0.1, 0),
    ("steps vary by 30%", 0.3, 0),
    ("3%, and each 20th step takes 5 minutes more", 0.03, 20),
    ("3%, and each 5th step takes 5 minutes more", 0.03, 5),
)
"""Runs for the table of predictions: name, jitter, and how often a step is long."""


class Case(NamedTuple):
    """Runs that share replicas, for the comparison of orders."""

    name: str
    runs: Sequence[SimulatedRun]
    replicas: int
    seconds: float
    steps: int = 40


CASES = (
    Case("2 runs; judging takes as long as the rest", [SimulatedRun(64, 32.0)] * 2, 4, 2.0),
    Case("4 runs; judging takes a third of the rest", [SimulatedRun(64, 48.0)] * 4, 4, 1.0),
    Case("8 runs; judging takes a tenth of the rest", [SimulatedRun(64, 60.0)] * 8, 1, 6 / 64),
    Case("100 runs on 4 engines", [SimulatedRun(64, 60.0)] * 100, 4, 0.0233, 10),
    Case("100 runs on 4 slower engines", [SimulatedRun(64, 60.0)] * 100, 4, 0.0305, 10),
    Case(
        "1 run with 640 responses, 9 with 64",
        [SimulatedRun(640, 60.0), *[SimulatedRun(64, 60.0)] * 9],
        1,
        4.0 / 64,
    ),
)


def order_rows(case: Case) -> list[dict[str, Any]]:
    """Simulate a case in both orders; a row for each size of steps."""
    found = [
        run_in_virtual_time(
            Simulation(case.runs, case.replicas, case.seconds, together=together, steps=case.steps).run()
        )
        for together in (False, True)
    ]
    rows = []
    for responses in sorted({run.responses for run in case.runs}):
        own = [n for n, run in enumerate(case.runs) if run.responses == responses]
        judging = [[s for n in own for s in one.judging[n]] for one in found]
        steps = [statistics.fmean([s for n in own for s in one.steps[n]]) for one in found]
        pieces, batches = (statistics.fmean(one) for one in judging)
        rows.append(
            {
                "runs": case.name,
                "responses": responses,
                "busy": f"{found[0].busy:.0%}, {found[1].busy:.0%}",
                "judging s, by piece": pieces,
                "by batch": batches,
                "change": f"{batches / pieces - 1:+.0%}",
                "p95, by piece": percentile(judging[0]),
                "p95, by batch": percentile(judging[1]),
                "step s, by piece": steps[0],
                "step, by batch": steps[1],
                "change of step": f"{steps[1] / steps[0] - 1:+.1%}",
            }
        )
    return rows


def percentile(values: Sequence[float]) -> float:
    """Return the 95th percentile."""
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, round(0.95 * len(ordered)))]


def simulate_layout(layout: Layout, demand: Demand, training: Training, seconds: float, batches: int) -> float:
    """Return the mean seconds of a step in a layout. Of runs that judge on their own GPUs, one stands for all."""
    runs = demand.runs if layout.name == "dedicated" else 1
    steps = max(1, min(MOST_STEPS, batches // (runs * demand.responses)))
    every = [SimulatedRun(demand.responses, layout.rollout_s + training.update_s)] * runs
    found = run_in_virtual_time(Simulation(every, layout.replicas, seconds, steps=steps).run())
    return statistics.fmean(s for run in found.steps for s in run) + layout.wake_s


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
    parser.add_argument("--only", choices=("order", "layouts", "predictions"), help="one of the tables")
    given = parser.parse_args()
    if given.only in (None, "order"):
        rows = [row for case in CASES for row in order_rows(case)]
        publish("layouts_order", "Piece by piece, and batch after batch", rows, notes=[f"jitter of the work {JITTER}"])
    if given.only in (None, "predictions"):
        run = SimulatedRun(given.responses, given.rollout_s + given.update_s)
        rows = [prediction_row(name, run, jitter=jitter, pause_every=every) for name, jitter, every in PREDICTED]
        title = f"The next batch of a run of {run.work_s:g} s a step, predicted from its last {LAST_STEPS} steps"
        publish("layouts_predictions", title, rows, notes=["errors are shares of the interval between two batches"])
    if given.only in (None, "layouts"):
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
