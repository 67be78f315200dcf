"""open-instruct: a verifier for its GRPO trainers.

Import a module that calls `rubric_verifier` before the trainer builds its verifiers, and give the rows of the data set
`adjudge` as their `dataset`:

    from trainer_client.adapters.open_instruct import rubric_verifier

    rubric_verifier("http://judge:8000", "math/quadratics")

A response that could not be judged raises `NoReward` once the deadline and its retries are over, since open-instruct
cannot leave it out. It multiplies all rewards by `--verification_reward`, 10 by default.
"""

import json
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from open_instruct.ground_truth_utils import VerificationResult, VerifierFunction

from trainer_client import AsyncClient, Client
from trainer_client.adapters.scorer import RubricScorer, Scored
from trainer_client.client.calls import RubricLike

__all__ = ["rubric_verifier"]

_verifiers: list[type[VerifierFunction]] = []
"""The classes made here. open-instruct finds verifiers among the subclasses that are alive."""


def rubric_verifier(
    client: str | Client | AsyncClient | None = None,
    rubric: RubricLike | None = None,
    *,
    name: str = "adjudge",
    **options: Any,
) -> type[VerifierFunction]:
    """Define a verifier, which open-instruct then finds under its name.

    The label of a row is the ground truth, or an object (or JSON text of one) with any of `rubric`, `ground_truth`,
    `reference_answer`, `grounding` and `query`. The `rubrics` of open-instruct's own rubric data sets, each with a
    `description` and a `weight`, are read as a rubric.

    Args:
        client: the service's address, or a client; by default the environment variable ADJUDGE_URL.
        rubric: a reference or a list of criteria, for labels without a rubric.
        name: the value of the column `dataset` whose rows are judged.
        options: as for `RubricScorer`.
    """
    scorer = RubricScorer(client, rubric, **options)

    class AdjudgeVerifier(VerifierFunction):  # type: ignore[misc]
        def __init__(self, verifier_config: Any = None) -> None:
            super().__init__(name, weight=1.0, verifier_config=verifier_config)

        async def async_call(
            self,
            tokenized_prediction: list[int],
            prediction: str,
            label: Any,
            query: str | None = None,
            rollout_state: Mapping[str, Any] | None = None,
        ) -> VerificationResult:
            asked, row = _read_label(label, query)
            return _result(scorer, await scorer.score_one(asked, prediction, row))

        def __call__(
            self,
            tokenized_prediction: list[int],
            prediction: str,
            label: Any,
            query: str | None = None,
            rollout_state: Mapping[str, Any] | None = None,
        ) -> VerificationResult:
            asked, row = _read_label(label, query)
            return _result(scorer, scorer.score_blocking(asked, prediction, row))

    _verifiers.append(AdjudgeVerifier)
    return AdjudgeVerifier


def _result(scorer: RubricScorer, scored: Scored) -> VerificationResult:
    return VerificationResult(score=scorer.require(scored), reasoning=scored.explanation or None)


def _read_label(label: Any, query: str | None) -> tuple[str, dict[str, Any]]:
    """Return the question and the judged columns of a label."""
    if isinstance(label, str) and label.lstrip().startswith("{"):
        with suppress(ValueError):
            label = json.loads(label)
    if not isinstance(label, Mapping):
        return query or "", {"ground_truth": label}
    names = ("rubric", "ground_truth", "reference_answer", "grounding")
    row = {name: label[name] for name in names if label.get(name) is not None}
    if "rubric" not in row and label.get("rubrics"):
        row["rubric"] = [_criterion(number, one) for number, one in enumerate(label["rubrics"], start=1)]
    return str(label.get("query") or label.get("Question") or query or ""), row


def _criterion(number: int, given: Mapping[str, Any]) -> dict[str, Any]:
    description = next((given[key] for key in ("description", "rubric_item", "Ingredient") if given.get(key)), "")
    return {"id": f"c{number}", "description": description, "weight": given.get("weight", 1.0)}
