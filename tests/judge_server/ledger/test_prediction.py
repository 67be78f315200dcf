"""The next batch of a run is predicted from its last steps, whatever these were like."""

from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from itertools import accumulate

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from judge_server.ledger.prediction import (
    HORIZON_S,
    LABELLED_RUNS,
    LAST_STEPS,
    OTHER_LABEL,
    PAUSED_AFTER,
    PREDICTION_TTL_S,
    PredictionMetrics,
    StepBatch,
    expected_calls,
    predict,
    step_batches,
)
from rubric_store.ledger.rows import StepRequest
from tests.hypothesis_examples import examples

START = datetime(2026, 5, 1, 12, tzinfo=UTC)


def at(seconds: float) -> datetime:
    """The time so many seconds after the start."""
    return START + timedelta(seconds=seconds)


def batches(gaps: Sequence[float], calls: Sequence[int]) -> list[StepBatch]:
    """Batches with these pauses before them."""
    return [StepBatch(at(time), size) for time, size in zip(accumulate(gaps), calls, strict=True)]


def asked(run: str, step: int, seconds: float, calls: int = 100, project: str = "default") -> StepRequest:
    return StepRequest(project, run, step, at(seconds), calls)


def test_a_steady_run_is_expected_one_interval_later_with_its_usual_calls() -> None:
    prediction = predict(batches([60] * 5, [768] * 5))
    assert prediction == (at(360), 60.0, 768.0)


@pytest.mark.parametrize("count", [0, 1])
def test_nothing_is_predicted_before_there_are_two_steps(count: int) -> None:
    assert predict(batches([60] * count, [768] * count)) is None


@given(st.integers(3, 40), st.floats(1, 3600), st.integers(0, 100_000), st.data())
@settings(max_examples=examples(100))
def test_one_long_pause_or_one_huge_step_changes_no_prediction_of_interval_and_calls(
    steps: int, gap: float, calls: int, data: st.DataObject
) -> None:
    gaps, sizes = [gap] * steps, [calls] * steps
    gaps[data.draw(st.integers(1, steps - 1), "the pause")] = 6 * 3600 + gap if steps > 3 else gap
    sizes[data.draw(st.integers(0, steps - 1), "the jump")] = 100 * calls
    prediction = predict(batches(gaps, sizes))
    assert prediction is not None
    assert prediction.interval_s == pytest.approx(gap, abs=1e-5)
    assert prediction.calls == calls


def test_a_run_whose_steps_become_a_hundred_times_larger_is_followed_after_half_of_the_steps_that_are_read() -> None:
    sizes = [100] * LAST_STEPS + [10_000] * LAST_STEPS
    expected = [predict(batches([60] * n, sizes[:n])) for n in range(LAST_STEPS, len(sizes) + 1)]
    changes = [one.calls for one in expected if one is not None]
    assert changes == sorted(changes)
    assert changes[LAST_STEPS // 2 + 1] == 10_000


ANY_REQUESTS = st.lists(
    st.builds(asked, st.just("r"), st.integers(0, 5), st.floats(-86_400, 86_400), st.integers(0, 10**6)), max_size=30
)


@given(ANY_REQUESTS, st.floats(-86_400, 86_400))
@settings(max_examples=examples(200))
def test_whatever_the_clock_does_calls_are_expected_in_whole_batches_and_never_below_zero(
    requests: list[StepRequest], now: float
) -> None:
    found = step_batches(requests)
    assert sum(batch.calls for batch in found) == sum(one.judge_calls for one in requests)
    assert [batch.arrived_at for batch in found] == sorted(batch.arrived_at for batch in found)
    prediction = predict(found)
    if prediction is None:
        return
    assert prediction.interval_s > 0
    expected = expected_calls(prediction, at(now))
    assert expected >= 0
    if prediction.calls and prediction.interval_s > 1:
        assert expected / prediction.calls == pytest.approx(round(expected / prediction.calls))
        assert expected <= prediction.calls * (1 + HORIZON_S / prediction.interval_s)


def test_the_requests_of_ranks_are_one_batch_and_steps_repeated_after_a_checkpoint_are_new_ones() -> None:
    requests = [asked("r", step, time) for step, time in ((1, 0), (1, 0.4), (2, 60), (3, 120), (3, 121), (2, 500))]
    assert step_batches(requests[::-1]) == [
        StepBatch(at(0), 200), StepBatch(at(60), 100), StepBatch(at(120), 200), StepBatch(at(500), 100),
    ]  # fmt: skip


def test_a_run_that_is_late_is_expected_at_once_until_it_counts_as_paused() -> None:
    prediction = predict(batches([100] * 5, [10] * 5))
    assert prediction is not None  # due 600 s after the start, every 100 s
    in_time = {now: expected_calls(prediction, at(now), 250) for now in (501, 550, 600, 650, 899, 901, 10_000)}
    assert in_time == {501: 20, 550: 30, 600: 30, 650: 30, 899: 30, 901: 0, 10_000: 0}
    assert PAUSED_AFTER == 3.0
    assert expected_calls(prediction, at(300), 250) == 0


class Requests:
    """A ledger's requests, or its failure."""

    def __init__(self, found: Sequence[StepRequest] | Exception) -> None:
        self.found = found
        self.since: list[datetime] = []

    async def __call__(self, since: datetime) -> Sequence[StepRequest]:
        self.since.append(since)
        if isinstance(self.found, Exception):
            raise self.found
        return self.found


def samples(metrics: PredictionMetrics) -> dict[str, float]:
    (family,) = metrics.collect()
    return {sample.labels["run"]: sample.value for sample in family.samples}


async def test_the_metric_names_runs_by_project_and_sums_those_beyond_the_most_active() -> None:
    many = range(LABELLED_RUNS + 5)
    requests = Requests(
        [
            asked(f"r{n}", step, 60.0 * step, calls=10 + n, project="b" if n == 24 else "default")
            for n in many
            for step in (1, 2)
        ]
    )
    now = [at(121)]
    metrics = PredictionMetrics(requests, lambda: now[0])
    assert samples(metrics) == {OTHER_LABEL: 0}
    await metrics.read()
    found = samples(metrics)
    assert len(found) == LABELLED_RUNS + 1
    assert found["b/r24"] == 34 * 5
    assert found[OTHER_LABEL] == sum(10 + n for n in range(5)) * 5
    now[0] = at(121 + PREDICTION_TTL_S / 2)
    await metrics.read()
    assert len(requests.since) == 1
    now[0] = at(0)  # the clock went back
    await metrics.read()
    assert len(requests.since) == 2
    now[0] = at(86_400)
    assert samples(metrics) == {OTHER_LABEL: 0}


async def test_nothing_is_predicted_while_the_ledger_cannot_be_read() -> None:
    requests = Requests([asked("r", step, 60.0 * step) for step in range(4)])
    now = [at(200)]
    metrics = PredictionMetrics(requests, lambda: now[0])
    await metrics.read()
    assert samples(metrics)["r"] == 500
    requests.found, now[0] = ConnectionError("down"), at(230)
    await metrics.read()
    assert samples(metrics) == {OTHER_LABEL: 0}
