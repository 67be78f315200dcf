"""From the work of a response and an engine's rates to replicas, time in the queue and cost.

A training step asks for the judgements of all its responses at once, and the fair queue shares the replicas among the
steps that wait. So a step that takes T seconds alone takes T / (1 - rho), where rho is the share of the time in which
the replicas work for other runs (processor sharing). `python -m benchmarks.capacity` compares this with the queue.
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
        ValueError: a number is not above 0.
    """
    if min(demand.runs, demand.steps_per_hour, demand.responses, demand.judging_s, seconds_per_response) <= 0:
        raise ValueError("runs, steps per hour, responses, seconds and the work of a response must be above 0")
    work = demand.responses * seconds_per_response
    load = demand.runs * demand.steps_per_hour * work / 3600
    others = load * (demand.runs - 1) / demand.runs
    # work / c / (1 - others / c) <= judging_s, solved for c
    replicas = max(1, math.ceil(load / MOST_BUSY), math.ceil(work / demand.judging_s + others - 1e-9))
    alone = work / replicas
    queued = alone / (1 - others / replicas) - alone
    return Estimate(replicas, replicas * gpus_per_replica, load / replicas, alone, queued)
