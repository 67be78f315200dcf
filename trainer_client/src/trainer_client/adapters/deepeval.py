"""DeepEval: a metric whose score is a rubric's reward.

A test case that could not be judged raises `NoReward`. If DeepEval ignores errors, it reports this as the metric's
error, and the metric has no score.
"""

from typing import Any

from deepeval.metrics import BaseMetric
from deepeval.test_case import LLMTestCase

from trainer_client.adapters.scorer import RubricScorer, Scored

__all__ = ["RubricMetric"]


class RubricMetric(BaseMetric):  # type: ignore[misc]
    """A DeepEval metric.

    The judge sees the test case's `input` and `actual_output`; `expected_output` as the reference answer; `context`, or
    else `retrieval_context`, as the grounding; and `rubric`, `grounding`, `reference_answer` and `ground_truth` of its
    metadata, which come before these.

    Args:
        client: the service's address, by default the environment variable ADJUDGE_URL.
        rubric: a reference or a list of criteria, for test cases whose metadata has no rubric.
        threshold: the reward from which on a test case succeeds.
        name: the metric's name in reports.
        scorer: a scorer to use in place of `client`, `rubric` and `options`.
        options: as for `RubricScorer`.
    """

    def __init__(
        self,
        client: str | None = None,
        rubric: Any = None,
        *,
        threshold: float = 0.5,
        name: str = "Rubric",
        scorer: RubricScorer | None = None,
        **options: Any,
    ) -> None:
        self.threshold = threshold
        self.include_reason = True
        # DeepEval makes a metric for each test case from the attributes that are named like arguments.
        self.name, self.scorer = name, scorer or RubricScorer(client, rubric, **options)

    def measure(self, test_case: LLMTestCase, *args: Any, **kwargs: Any) -> float:
        """Score a test case.

        Raises:
            NoReward: it could not be judged.
        """
        self._forget()
        scored = self.scorer.score_blocking(test_case.input, test_case.actual_output, _row(test_case))
        return self._read(scored)

    async def a_measure(self, test_case: LLMTestCase, *args: Any, **kwargs: Any) -> float:
        """Score a test case; see `measure`."""
        self._forget()
        scored = await self.scorer.score_one(test_case.input, test_case.actual_output, _row(test_case))
        return self._read(scored)

    @property
    def __name__(self) -> str:
        return self.name

    def _forget(self) -> None:
        self.score: float | None = None
        self.reason: str | None = None
        self.success: bool | None = None
        self.error: str | None = None
        self.score_breakdown: dict[str, float] = {}

    def _read(self, scored: Scored) -> float:
        self.reason = scored.explanation or None
        self.score_breakdown = scored.scores
        score = self.scorer.require(scored)
        self.score, self.success = score, score >= self.threshold
        return score


def _row(test_case: LLMTestCase) -> dict[str, Any]:
    documents = test_case.context or test_case.retrieval_context
    row: dict[str, Any] = {
        "reference_answer": test_case.expected_output,
        "grounding": "\n\n".join(str(document) for document in documents) if documents else None,
    }
    row |= getattr(test_case, "metadata", None) or {}
    return {name: value for name, value in row.items() if value is not None}
