"""Each monitor fires on a run with its problem, and stays silent on a healthy one."""

from itertools import chain
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from judge_server.intervals import correlation_interval, mean_interval, share_interval
from judge_server.ledger.monitoring.monitors import (
    MONITORS,
    Point,
    report,
    trend,
)
from rubric_store.ledger.rows import MonitoredRun
from tests.judge_server.ledger.monitoring.histories import control_round, history, level, ramp
from trainer_client.wire.runs import Interval, MonitorFinding, MonitorThresholds

LIMITS = MonitorThresholds()


def found(run: MonitoredRun, limits: MonitorThresholds = LIMITS) -> dict[str, MonitorFinding]:
    """The findings, by monitor."""
    return {finding.monitor: finding for finding in report("r", run, limits).findings}


@pytest.mark.parametrize("seed", range(3))
def test_a_healthy_run_has_no_findings(seed: int) -> None:
    same = [control_round(number, "f", [1.0, 0.0, None]) for number in range(3)]
    learning = history(seed=seed, reward=ramp(0.4, 0.8, 0, 60), shadow=ramp(0.4, 0.7, 0, 60), control=[*chain(*same)])
    told = report("r", learning, LIMITS)
    assert told.findings == ()
    assert set(told.monitors) == set(MONITORS)


GAMED: dict[str, dict[str, Any]] = {
    "shadow_divergence": {"reward": ramp(0.4, 0.8, 30, 55), "shadow": ramp(0.7, 0.2, 30, 55)},
    "gold_drift": {"gold": ramp(0.7, 0.1, 25, 55)},
    "saturated_criterion": {"met": lambda step: float(step >= 50)},
    "length_bias": {"length": ramp(200, 300, 30, 60), "pull": 0.6},
    "unscored": {"unscored": ramp(0.0, 0.3, 50, 56)},
    "templates": {"overlap": ramp(0.1, 0.9, 30, 58)},
    "member_disagreement": {"disagreement": ramp(0.1, 0.6, 30, 58)},
    "control_changed": {"control": [*control_round(1, "f", [1.0, 0.0]), *control_round(2, "f", [1.0, 1.0])]},
    "control_fingerprint": {"control": [*control_round(1, "f", [1.0, 0.0]), *control_round(2, "g", [1.0, 1.0])]},
}


@pytest.mark.parametrize("monitor", GAMED)
def test_each_monitor_alone_finds_its_problem(monitor: str) -> None:
    findings = found(history(**GAMED[monitor]))
    assert set(findings) == {monitor}
    finding = findings[monitor]
    assert finding.message
    assert finding.action
    began = {"saturated_criterion": 50, "control_changed": 20, "control_fingerprint": 20}.get(monitor)
    if began is not None:
        assert finding.began == began
    elif monitor == "unscored":
        assert finding.began is not None
        assert 50 <= finding.began <= 56
    else:
        assert finding.began is not None
        assert 15 <= finding.began <= 50


def test_a_reward_that_rises_with_its_shadow_is_not_gaming() -> None:
    assert found(history(reward=ramp(0.2, 0.9, 20, 55), shadow=ramp(0.2, 0.9, 20, 55))) == {}


def test_a_run_that_was_gamed_long_ago_is_still_reported() -> None:
    long_ago = history(160, reward=ramp(0.4, 0.8, 30, 55), shadow=ramp(0.7, 0.2, 30, 55))
    assert "shadow_divergence" in found(long_ago)


def test_longer_responses_are_no_finding_unless_they_are_rewarded_more() -> None:
    assert found(history(length=ramp(200, 400, 20, 60), pull=0.0)) == {}
    assert found(history(length=level(200), pull=0.8)) == {}


@pytest.mark.parametrize("sign", [1, -1])
def test_a_jump_is_no_larger_change_than_its_values_differ(sign: int) -> None:
    line = trend([Point(step, float(sign * (step >= 10))) for step in range(20)])
    assert line is not None
    assert line.change == sign


def test_too_few_steps_give_no_trend() -> None:
    assert found(history(8, reward=ramp(0, 1, 0, 8), shadow=ramp(1, 0, 0, 8))) == {}


def test_a_judge_that_changes_most_verdicts_on_the_control_set_is_critical() -> None:
    before, after = control_round(1, "f", [1.0] * 30), control_round(2, "f", [1.0] * 29 + [0.0])
    assert found(history(control=[*before, *after]))["control_changed"].severity == "warning"
    assert (
        found(history(control=[*before, *control_round(2, "f", [0.0] * 30)]))["control_changed"].severity == "critical"
    )


def test_a_failed_verdict_on_the_control_set_is_not_a_change() -> None:
    assert found(history(control=[*control_round(1, "f", [1.0, 0.0]), *control_round(2, "f", [None, 0.0])])) == {}


def test_the_gold_judge_is_compared_over_ranges_of_steps_with_intervals() -> None:
    told = report("r", history(gold=level(0.6)), LIMITS).gold
    assert len(told) == 10
    assert [one.responses for one in told] == [48] * 10
    assert all(one.difference and one.difference.low <= one.difference.value <= one.difference.high for one in told)
    assert sum(one.difference.low <= 0 <= one.difference.high for one in told if one.difference) >= 8


def test_a_monitor_without_its_signal_is_not_listed() -> None:
    run = history(20)._replace(signals=(), gold=())
    assert report("r", run, LIMITS).monitors == ("unscored",)


@given(st.floats(-5, 5), st.floats(-100, 100), st.integers(4, 60))
def test_a_straight_line_changes_by_its_slope_times_the_steps(slope: float, start: float, count: int) -> None:
    line = trend([Point(step, start + slope * step) for step in range(count)])
    assert line is not None
    assert line.change == pytest.approx(slope * (count - 1), abs=1e-6)


@given(st.integers(0, 500), st.integers(1, 500))
def test_wilsons_interval_contains_the_share_and_stays_within_0_and_1(successes: int, more: int) -> None:
    share = share_interval(successes, successes + more, 1.96)
    assert 0 <= share.low <= share.value + 1e-12
    assert share.value - 1e-12 <= share.high <= 1


@pytest.mark.parametrize("r", [1.0, -1.0])
def test_a_perfect_correlation_is_its_own_interval(r: float) -> None:
    assert correlation_interval(100.0, 100.0, r * 100.0, 50, 1.96) == Interval(value=r, low=r, high=r, n=50)


def test_intervals_need_variation() -> None:
    assert mean_interval(1.0, 1.0, 1, 1.96) is None
    assert correlation_interval(0.0, 1.0, 0.0, 50, 1.96) is None
    known = correlation_interval(100.0, 100.0, 50.0, 100, 1.96)
    assert known is not None
    assert known.low < known.value == 0.5 < known.high
