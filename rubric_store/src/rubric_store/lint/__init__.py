"""Lint for rubrics: the papers' structural rules, and common sense about wording, weights and overlap.

Lint reads criteria alone and asks no model, so it cannot tell whether a criterion is true. It finds what makes judges
disagree or rewards go the wrong way. `docs/rubric-lint.md` measures how often it is right.
"""

from collections.abc import Sequence
from typing import Final

from rubric_store.lint.rules import (
    SIMILARITY,
    Finding,
    Severity,
    System,
    check_structure,
    check_weights,
    check_wording,
    find_leaked_answers,
    find_overlaps,
    similarity,
)
from trainer_client.wire import Criterion

__all__ = ["SIMILARITY", "Finding", "Severity", "System", "lint", "similarity"]

_ORDER: Final[dict[Severity, int]] = {"error": 0, "warning": 1, "note": 2}


def lint(
    criteria: Sequence[Criterion],
    *,
    system: System | None = None,
    similarity_threshold: float = SIMILARITY,
    answer: str | None = None,
) -> list[Finding]:
    """Check a rubric and return the findings.

    Args:
        criteria: the rubric's criteria.
        system: the paper whose structural rules apply; by default none do.
        similarity_threshold: the similarity from which two criteria are reported, in (0, 1].
        answer: the question's final answer, to find criteria that give it away. By default it is taken from an
            `answer` criterion.

    Returns:
        Errors first, then warnings, then notes, each in the order of the criteria.

    Raises:
        ValueError: `similarity_threshold` is not in (0, 1].
    """
    if not 0 < similarity_threshold <= 1:
        raise ValueError(f"similarity_threshold is {similarity_threshold!r}; it must be above 0 and at most 1")
    findings = check_structure(criteria, system) if system else []
    for criterion in criteria:
        findings += check_wording(criterion)
    findings += find_overlaps(criteria, similarity_threshold)
    findings += check_weights(criteria)
    findings += find_leaked_answers(criteria, answer)
    position: dict[str | None, int] = {None: -1, **{criterion.id: index for index, criterion in enumerate(criteria)}}
    return sorted(findings, key=lambda finding: (_ORDER[finding.severity], position[finding.criterion]))
