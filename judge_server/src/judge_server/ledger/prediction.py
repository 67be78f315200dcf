"""Predict when a run asks for its next batch of verdicts, and how large it is, from its last steps in the ledger.

A run asks for the verdicts of a step, trains, and asks again. The next batch is expected one interval after the last
one, with as many calls as usual: interval and calls are the medians over the last steps, so one pause, one evaluation
or one large batch changes neither. A run that is late by several intervals pauses or has ended, and nothing is expected
of it.

`PredictionMetrics` reports the calls of the next minutes for autoscalers, because a judge takes minutes to start. A
judge that sleeps is not woken by a prediction: only its trainer knows when the memory is free.
"""

import asyncio
import logging
import math
import statistics
from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby, pairwise
from typing import NamedTuple

from prometheus_client.core import GaugeMetricFamily, Metric

from rubric_store.ledger.rows import StepRequest
from rubric_store.tenants.rows import DEFAULT_PROJECT

log = logging.getLogger("adjudge")

LAST_STEPS = 8
"""The steps of a run that a prediction is made from."""

PAUSED_AFTER = 3.0
"""A run that is late by more than this many intervals pauses or has ended."""

HORIZON_S = 300.0
"""The seconds ahead for which calls are predicted: about what a judge takes to start with its model on disk."""

HISTORY_S = 6 * 3600.0
"""The seconds of requests that are read. A run needs two steps within them."""

PREDICTION_TTL_S = 15.0
"""The seconds for which the requests that were read are cached."""

PREDICTION_TIMEOUT_S = 5.0
"""The seconds to wait for the ledger; after that the page omits the predictions."""

LABELLED_RUNS = 20
OTHER_LABEL = "(other)"


class StepBatch(NamedTuple):
    """What a run asked for at one step: when its first request arrived, and the judge calls of all of them."""

    arrived_at: datetime
    calls: int


class Prediction(NamedTuple):
    """The next batch of a run: when it is due, the seconds between two batches, and its judge calls."""

    due_at: datetime
    interval_s: float
    calls: float


def step_batches(requests: Sequence[StepRequest]) -> list[StepBatch]:
    """Return a run's batches in the order in which they arrived.

    Requests that follow each other with the same step are one batch. A run that goes back to a checkpoint repeats
    steps, which are batches of their own.
    """
    ordered = sorted(requests, key=lambda one: one.arrived_at)
    batches = [list(own) for _, own in groupby(ordered, key=lambda one: one.step)]
    return [StepBatch(own[0].arrived_at, sum(one.judge_calls for one in own)) for own in batches]


def predict(batches: Sequence[StepBatch]) -> Prediction | None:
    """Return the next batch of a run, from its batches in order; None if there are no two at different times."""
    last = batches[-LAST_STEPS:]
    intervals = [(after.arrived_at - before.arrived_at).total_seconds() for before, after in pairwise(last)]
    intervals = [seconds for seconds in intervals if seconds > 0]
    if not intervals:
        return None
    interval_s = statistics.median(intervals)
    calls = float(statistics.median(one.calls for one in last))
    return Prediction(last[-1].arrived_at + timedelta(seconds=interval_s), interval_s, calls)


def expected_calls(prediction: Prediction, now: datetime, horizon_s: float = HORIZON_S) -> float:
    """Return the judge calls that a run is expected to make within so many seconds: those of whole batches."""
    due_s = (prediction.due_at - now).total_seconds()
    if due_s > horizon_s or due_s < -PAUSED_AFTER * prediction.interval_s:
        return 0.0
    return prediction.calls * (1 + math.floor((horizon_s - max(0.0, due_s)) / prediction.interval_s))


class PredictionMetrics:
    """The calls that runs are expected to make, for Prometheus. Call `read` before `collect`.

    Args:
        requests: reads the requests since a time, of all runs that name their steps; may raise `ConnectionError`.
        now: returns the time.
    """

    def __init__(
        self,
        requests: Callable[[datetime], Awaitable[Sequence[StepRequest]]],
        now: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self._requests, self._now = requests, now
        self._predictions: dict[str, Prediction] = {}
        self._read_at: datetime | None = None
        self._reading = asyncio.Lock()

    async def read(self) -> None:
        """Predict anew unless that was done a moment ago; on an error nothing is predicted."""
        async with self._reading:
            now = self._now()
            if self._read_at is not None and 0 <= (now - self._read_at).total_seconds() < PREDICTION_TTL_S:
                return
            self._read_at, self._predictions = now, {}
            try:
                async with asyncio.timeout(PREDICTION_TIMEOUT_S):
                    found = await self._requests(now - timedelta(seconds=HISTORY_S))
            except (ConnectionError, TimeoutError) as error:
                log.warning("batches cannot be predicted now: %s", error or "the ledger does not answer")
                return
            of_run: defaultdict[str, list[StepRequest]] = defaultdict(list)
            for one in found:
                of_run[one.run if one.project_id == DEFAULT_PROJECT else f"{one.project_id}/{one.run}"].append(one)
            for run, own in of_run.items():
                if (prediction := predict(step_batches(own))) is not None:
                    self._predictions[run] = prediction

    def collect(self) -> Iterator[Metric]:
        """The current metric: the runs with the most calls by name, and the rest together."""
        now = self._now()
        calls = {run: expected_calls(prediction, now) for run, prediction in self._predictions.items()}
        ordered = sorted(((number, run) for run, number in calls.items() if number), reverse=True)
        predicted = GaugeMetricFamily(
            "adjudge_predicted_calls",
            f"Judge calls that runs are expected to make in the next {HORIZON_S:.0f} s, from their last steps; of the "
            "whole store, the same from every process that serves the API",
            labels=["run"],
        )
        for number, run in ordered[:LABELLED_RUNS]:
            predicted.add_metric([run], number)
        predicted.add_metric([OTHER_LABEL], sum(number for number, _ in ordered[LABELLED_RUNS:]))
        yield predicted
