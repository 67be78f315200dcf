"""MLflow: a scorer for `mlflow.genai.evaluate` whose feedback is a rubric's reward.

A row without an output, or that could not be judged, has a feedback with an error and without a value, which MLflow
leaves out of aggregates.
"""

import json
from typing import Any

from mlflow.entities import AssessmentError, AssessmentSource, Feedback
from mlflow.genai.scorers import Scorer
from pydantic import PrivateAttr

from trainer_client.adapters.scorer import RubricScorer

__all__ = ["RubricFeedback"]

_INPUTS = ("prompt", "question", "query", "input", "request", "messages")
_OUTPUTS = ("response", "output", "answer", "content", "text")


class RubricFeedback(Scorer):  # type: ignore[misc]
    """An MLflow scorer.

    The judge sees one of the inputs `prompt`, `question`, `query`, `input`, `request` and `messages`, or else all of
    them as JSON; the outputs; and `rubric`, `grounding`, `reference_answer` and `ground_truth` of the expectations, of
    which `expected_response` is the reference answer. A row whose output is None, or has None as its response, is not
    judged: its feedback has the error code NO_OUTPUT. If judging fails, that is NO_REWARD.

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
        source = AssessmentSource(source_type="LLM_JUDGE", source_id=f"adjudge:{self._scorer.address}")
        response = _text(outputs)
        if response is None:
            return Feedback(name=self.name, error=_NO_OUTPUT, source=source)
        row = dict(expectations or {})
        if "expected_response" in row:
            row.setdefault("reference_answer", row.pop("expected_response"))
        scored = self._scorer.score_blocking(_prompt(inputs), response, row)
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


_NO_OUTPUT = AssessmentError(
    error_code="NO_OUTPUT",
    error_message="the row has no output to judge; check what the model or predict_fn returned for it",
)


def _prompt(inputs: Any) -> Any:
    if isinstance(inputs, dict):
        for name in _INPUTS:
            if inputs.get(name):
                return inputs[name]
    return "" if inputs is None else _as_text(inputs)


def _text(outputs: Any) -> str | None:
    """The response in a row's outputs; None if there is none."""
    named = [outputs[name] for name in _OUTPUTS if name in outputs] if isinstance(outputs, dict) else [outputs]
    texts = [value for value in named if isinstance(value, str)]
    if texts:
        return str(texts[0])
    return None if named and all(value is None for value in named) else _as_text(outputs)


def _as_text(given: Any) -> str:
    return given if isinstance(given, str) else json.dumps(given, ensure_ascii=False, default=str)
