"""The metric in DeepEval's own evaluation."""

import os

import pytest

from tests.trainer_client.adapters.conftest import ANSWER, REWARDS, RIGHT, RUBRIC, WRONG, missing

os.environ.setdefault("DEEPEVAL_TELEMETRY_OPT_OUT", "YES")
pytest.importorskip("deepeval", reason=missing("deepeval"))

from deepeval import evaluate
from deepeval.evaluate.configs import AsyncConfig, CacheConfig, DisplayConfig, ErrorConfig
from deepeval.test_case import LLMTestCase

from trainer_client.adapters import NoReward
from trainer_client.adapters.deepeval import RubricMetric

pytestmark = pytest.mark.adapters


def results(cases, metric, *, run_async=True, ignore_errors=False):
    found = evaluate(
        cases,
        [metric],
        async_config=AsyncConfig(run_async=run_async),
        display_config=DisplayConfig(show_indicator=False, print_results=False),
        cache_config=CacheConfig(write_cache=False),
        error_config=ErrorConfig(ignore_errors=ignore_errors),
    )
    by_output = {result.actual_output: result.metrics_data[0] for result in found.test_results}
    return [by_output[case.actual_output] for case in cases]


@pytest.fixture(autouse=True)
def own_folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("run_async", [True, False])
def test_test_cases_are_scored_with_reasons(url, run_async):
    cases = [LLMTestCase(input="7 * 2?", actual_output=text) for text in REWARDS]
    data = results(cases, RubricMetric(url, RUBRIC, threshold=0.2, name="Right"), run_async=run_async)
    assert [one.score for one in data] == list(REWARDS.values())
    assert [one.success for one in data] == [True, True, False]
    assert data[1].reason == "says-14: 1\nexact: 0"
    assert data[0].name == "Right"


def test_metadata_provides_a_rubric_and_a_ground_truth(url):
    metadata = {"rubric": ANSWER, "ground_truth": "14"}
    metric = RubricMetric(url)
    assert metric.measure(LLMTestCase(input="7 * 2?", actual_output=RIGHT, metadata=metadata)) == 1.0
    assert metric.measure(LLMTestCase(input="7 * 2?", actual_output=WRONG, metadata=metadata)) == 0.0


def test_a_test_case_whose_judging_failed_has_an_error_and_no_score(away):
    [data] = results(
        [LLMTestCase(input="?", actual_output="14")], RubricMetric(rubric=RUBRIC, **away), ignore_errors=True
    )
    assert data.score is None
    assert "no reward" in data.error


def test_a_failed_judgement_stops_the_evaluation_unless_errors_are_ignored(away):
    with pytest.raises(NoReward):
        results([LLMTestCase(input="?", actual_output="14")], RubricMetric(rubric=RUBRIC, **away))
