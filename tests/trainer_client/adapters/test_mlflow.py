"""The scorer in `mlflow.genai.evaluate`, with a separate tracking store."""

import pytest

from tests.trainer_client.adapters.conftest import ANSWER, REWARDS, RIGHT, RUBRIC, WRONG, missing

pytest.importorskip("mlflow.genai", reason=missing("mlflow"))

import mlflow

from trainer_client.adapters.mlflow import RubricFeedback

pytestmark = pytest.mark.adapters


@pytest.fixture(autouse=True)
def tracking(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MLFLOW_DISABLE_TELEMETRY", "true")
    mlflow.set_tracking_uri(f"sqlite:///{tmp_path}/mlflow.db")
    mlflow.set_experiment("rubrics")


def evaluated(data, scorer):
    result = mlflow.genai.evaluate(data=data, scorers=[scorer])
    rows = {
        row["response"] if "response" in row else row["outputs"]: row for row in result.result_df.to_dict("records")
    }
    return rows, result.metrics


def test_rows_get_a_feedback_with_the_reward_and_its_reasons(url):
    data = [{"inputs": {"question": "7 * 2?"}, "outputs": text} for text in REWARDS]
    rows, metrics = evaluated(data, RubricFeedback(url, RUBRIC, name="right"))
    assert {text: row["right/value"] for text, row in rows.items()} == REWARDS
    assert metrics["right/mean"] == pytest.approx(sum(REWARDS.values()) / 3)


def test_expectations_provide_a_rubric_and_a_ground_truth(url):
    expected = {"rubric": ANSWER, "ground_truth": "14"}
    feedback = [
        RubricFeedback(url)(inputs={"question": "7 * 2?"}, outputs=text, expectations=expected)
        for text in (RIGHT, WRONG)
    ]
    assert [one.value for one in feedback] == [1.0, 0.0]
    assert feedback[0].rationale == "answer: 1"


def test_a_row_whose_judging_failed_has_an_error_and_no_value(away):
    feedback = RubricFeedback(rubric=RUBRIC, **away)(inputs={"question": "7 * 2?"}, outputs="14")
    assert feedback.value is None
    assert feedback.error.error_code == "NO_REWARD"
    assert "unreachable" in feedback.error.error_message
    _, metrics = evaluated([{"inputs": {"question": "7 * 2?"}, "outputs": "14"}], RubricFeedback(rubric=RUBRIC, **away))
    assert "rubric/mean" not in metrics


@pytest.mark.parametrize("outputs", [None, {"response": None}])
def test_a_row_without_an_output_is_not_judged(url, outputs):
    anything = [{"id": "any", "description": "Has text.", "verification": {"method": "regex", "pattern": "."}}]
    scorer = RubricFeedback(url, anything)
    feedback = scorer(inputs={"question": "7 * 2?"}, outputs=outputs)
    assert (feedback.value, feedback.error.error_code) == (None, "NO_OUTPUT")
    data = [{"inputs": {"question": "7 * 2?"}, "outputs": outputs}]
    assert "rubric/mean" not in mlflow.genai.evaluate(data=data, scorers=[scorer]).metrics
    assert scorer(inputs={"question": "7 * 2?"}, outputs="").value == 0.0
