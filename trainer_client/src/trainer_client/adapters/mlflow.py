"""MLflow: a scorer for `mlflow.genai.evaluate` whose feedback is a rubric's reward.

A row that could not be judged has a feedback with an error and without a value, which MLflow leaves out of aggregates.
"""

import json
from typing import Any

from mlflow.entities import AssessmentError, AssessmentSource, Feedback
from mlflow.genai.scorers import Scorer
from pydantic import PrivateAttr

from trainer_client.adapters.scorer import RubricScorer

__all__ = ["RubricFeedback"]

_INPUTS = ("prompt", "question", "query", "input", "request", "messages")


class RubricFeedback(Scorer):  # type: ignore[misc]
    """An MLflow scorer.

    The judge sees one of the inputs `prompt`, `question`, `query`, `input`, `request` and `messages`, or else all of
    them as JSON; the outputs; and `rubric`, `grounding`, `reference_answer` and `ground_truth` of the expectations, of
    which `expected_response` is the reference answer.

    Args:
        client: the service's address, by default the environment variable ADJUDGE_URL.
        rubric: a reference or a list of criteria, for rows whose expectations have no rubric.
        name: the name of the feedback.
        options: as for `RubricScorer`.
    """

    name: str = "rubric"
    _scorer: RubricScorer = PrivateAttr()

    def __init__(self, client: str | None = None, rubric: Any = None, *, name: str = "rubric", **options: Any) -> None:
        super().__init__(name=name)
        self._scorer = RubricScorer(client, rubric, **options)

    def __call__(self, *, inputs: Any = None, outputs: Any = None, expectations: Any = None) -> Feedback:
        """Score one row."""
        row = dict(expectations or {})
        if "expected_response" in row:
            row.setdefault("reference_answer", row.pop("expected_response"))
        scored = self._scorer.score_blocking(_prompt(inputs), _text(outputs), row)
        source = AssessmentSource(source_type="LLM_JUDGE", source_id=f"adjudge:{self._scorer.address}")
        metadata = {"status": scored.metadata["status"], "scores": json.dumps(scored.scores)}
        if scored.reward is None:
            error = AssessmentError(
                error_code="NO_REWARD", error_message=f"judging failed: {', '.join(scored.failures) or 'no reward'}"
            )
            return Feedback(name=self.name, error=error, source=source, metadata=metadata)
        return Feedback(
            name=self.name,
            value=scored.reward,
            rationale=scored.explanation or None,
            source=source,
            metadata=metadata,
        )


def _prompt(inputs: Any) -> Any:
    if isinstance(inputs, dict):
        for name in _INPUTS:
            if inputs.get(name):
                return inputs[name]
    return _text(inputs)


def _text(given: Any) -> str:
    if isinstance(given, dict):
        for name in ("response", "output", "answer", "content", "text"):
            if isinstance(given.get(name), str):
                return str(given[name])
    return given if isinstance(given, str) else json.dumps(given, ensure_ascii=False, default=str)
