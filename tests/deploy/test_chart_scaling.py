"""Autoscaling of the chart's judges: one trigger only, scaling up quickly and down slowly."""

from typing import Any

import pytest

from tests.deploy.chart import objects
from tests.deploy.tools import needs_tools

pytestmark = needs_tools


def scaler(kind: str) -> dict[str, Any]:
    """Return the object that scales the judges, for one kind of autoscaling."""
    rendered = objects("production", "--set", f"judge.autoscaling.kind={kind}")
    scalers = [found for found in rendered if "scaleTargetRef" in found.get("spec", {})]
    (of_judge,) = [found for found in scalers if found["spec"]["scaleTargetRef"]["name"] == "adjudge-judge"]
    return of_judge


def query() -> str:
    """Return KEDA's Prometheus query."""
    (trigger,) = scaler("keda")["spec"]["triggers"]
    asked: str = trigger["metadata"]["query"]
    return asked


def test_judges_scale_by_waiting_calls_or_by_waiting_time_but_never_by_both() -> None:
    by_calls = scaler("hpa")
    assert by_calls["kind"] == "HorizontalPodAutoscaler"
    assert by_calls["spec"]["metrics"][0]["pods"]["metric"] == {"name": "adjudge_calls_waiting"}
    assert scaler("keda")["kind"] == "ScaledObject"
    assert "adjudge_queue_seconds_bucket" in query()


def test_judges_scale_before_predicted_calls_come_if_asked_to() -> None:
    chosen = ("--set", "judge.autoscaling.kind=keda", "--set", "judge.autoscaling.predictedCalls=90000")
    (of_judge,) = [
        found
        for found in objects("production", *chosen)
        if found["kind"] == "ScaledObject" and found["spec"]["scaleTargetRef"]["name"] == "adjudge-judge"
    ]
    waiting, predicted = of_judge["spec"]["triggers"]
    assert "adjudge_queue_seconds_bucket" in waiting["metadata"]["query"]
    assert predicted["metricType"] == "AverageValue"
    assert predicted["metadata"]["threshold"] == "90000"
    assert predicted["metadata"]["query"] == (
        'sum(max by (run) (adjudge_predicted_calls{namespace="judging",job="api"})) or vector(0)'
    )


@pytest.mark.parametrize("kind", ["hpa", "keda"])
def test_judges_scale_down_late_and_one_by_one(kind: str) -> None:
    spec = scaler(kind)["spec"]
    behavior = spec["behavior"] if kind == "hpa" else spec["advanced"]["horizontalPodAutoscalerConfig"]["behavior"]
    assert behavior == {
        "scaleDown": {
            "stabilizationWindowSeconds": 900,
            "policies": [{"type": "Pods", "value": 1, "periodSeconds": 900}],
        }
    }


def test_without_calls_the_wait_is_zero_instead_of_nan() -> None:
    assert query().startswith("(histogram_quantile(")
    assert query().endswith(">= 0) or vector(0)")
