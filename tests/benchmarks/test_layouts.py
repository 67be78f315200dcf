"""The plan of layouts agrees with the simulation of the queue."""

import pytest
from benchmarks.layouts import layout_rows

from judge_server.evaluation.capacity import Demand, Training

TRAINING = Training(gpus=8, rollout_s=40.0, update_s=20.0, wake_s=10.0, judge_memory=0.15)
TOLERANCE = 0.05
"""A planned step differs from a simulated one by at most this share."""


@pytest.mark.parametrize(("runs", "responses", "seconds"), [(1, 64, 0.0233), (1, 64, 0.5), (12, 32, 0.05)])
def test_the_planned_seconds_of_a_step_are_those_of_the_simulation(runs: int, responses: int, seconds: float) -> None:
    demand = Demand(runs, 3600 / TRAINING.work_s, responses, TRAINING.work_s / 10)
    rows = layout_rows(demand, TRAINING, seconds, 1, batches=6_000)
    assert {row["layout"] for row in rows} == {"dedicated", "shared", "sleeping"}
    for row in rows:
        assert row["step s, planned"] == pytest.approx(row["simulated"], rel=TOLERANCE)
        planned, simulated = row["GPU hours per step and run, planned"], row["GPU hours, simulated"]
        assert planned == pytest.approx(simulated, rel=TOLERANCE)
