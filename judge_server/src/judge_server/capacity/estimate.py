"""From the work of a response and an engine's rates to replicas, time in the queue and cost.

A training step asks for the judgements of all its responses at once, and a response is judged by one replica. Alone, a
step of n responses of s seconds takes T = s ceil(n / c) on c replicas. With other runs, which keep the replicas busy
for the share rho of the time, it waits about

    T rho^(sqrt(2 (k + 1)) - 1) / (k (1 - rho)), with k = max(1, c / n)

which is Sakasegawa's approximation (1977, Ann. Inst. Statist. Math. 29:67-75) for k servers of whole steps; with k = 1
it is processor sharing, T / (1 - rho) in all. `python -m benchmarks.capacity` compares this with the queue.
"""

import math
from typing import NamedTuple

MOST_BUSY = 0.8
"""The share of the time that replicas may be busy, so that a burst or a lost replica does not fill the queue."""


class Demand(NamedTuple):
    """What training asks of a judge.

    Attributes:
        runs: training runs at the same time.
        steps_per_hour: the steps of each run.
        responses: the responses of a step.
        judging_s: the seconds that judging may add to a step.
    """

    runs: int
    steps_per_hour: float
    responses: int
    judging_s: float


class Estimate(NamedTuple):
    """The replicas that a demand needs, and how they fare.

    Attributes:
        replicas: engines, each with its GPUs.
        gpus: GPUs of all replicas; 0 for CPUs.
        busy: the share of the time that a replica works.
        alone_s: seconds that a step takes to judge with nothing else in the queue.
        queued_s: seconds that it waits for other runs, on average.
    """

    replicas: int
    gpus: int
    busy: float
    alone_s: float
    queued_s: float


def estimate(demand: Demand, seconds_per_response: float, gpus_per_replica: int) -> Estimate:
    """Return the fewest replicas that are at most `MOST_BUSY` busy and judge a step in time.

    Args:
        demand: what is asked.
        seconds_per_response: the seconds that one replica works on a response.
        gpus_per_replica: the GPUs of a replica.

    Raises:
        ValueError: a number is not above 0, or one response takes longer than a step may.
    """
    if min(demand.runs, demand.steps_per_hour, demand.responses, demand.judging_s, seconds_per_response) <= 0:
        raise ValueError("runs, steps per hour, responses, seconds and the work of a response must be above 0")
    if seconds_per_response > demand.judging_s:
        raise ValueError(
            f"judging one response takes {seconds_per_response:.3g} s and a step may take {demand.judging_s:.3g} s; "
            "allow more seconds, or take a faster judge or fewer criteria"
        )
    load = demand.runs * demand.steps_per_hour * demand.responses * seconds_per_response / 3600
    replicas = max(1, math.ceil(load / MOST_BUSY - 1e-9))
    while True:
        alone = seconds_per_response * math.ceil(demand.responses / replicas)
        queued = alone * _waits(load * (1 - 1 / demand.runs) / replicas, max(1.0, replicas / demand.responses))
        if alone + queued <= demand.judging_s:
            return Estimate(replicas, replicas * gpus_per_replica, load / replicas, alone, queued)
        replicas += 1


def _waits(busy: float, servers: float) -> float:
    """Return the mean wait as a multiple of the time of a step."""
    exponent: float = math.sqrt(2 * (servers + 1)) - 1
    return float(busy**exponent / (servers * (1 - busy)))
