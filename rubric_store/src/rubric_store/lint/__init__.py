"""Lint for rubrics: the structural rules of the papers, and common sense about wording, weights and overlap.

Everything here reads criteria alone. It asks no model, so it cannot know whether a criterion is true; it finds what
makes judges disagree or rewards go the wrong way. How often it is right is measured in `docs/rubric-lint.md`.
"""

from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from rubric_store.lint.papers import System, apparent_system, check_structure
from rubric_store.lint.rules import (
    SIMILARITY,
    Finding,
    Severity,
    check_weights,
    check_wording,
    find_leaked_answers,
    find_overlaps,
    similarity,
)
from trainer_client.wire import Criterion

__all__ = ["SIMILARITY", "Finding", "Severity", "System", "apparent_system", "lint", "similarity"]

_ORDER: Final[dict[Severity, int]] = {"error": 0, "warning": 1, "note": 2}


def lint(
    criteria: Sequence[Criterion],
    *,
    system: System | None = None,
    similarity_threshold: float = SIMILARITY,
    answer: str | None = None,
) -> list[Finding]:
    """Look a rubric through.

    Args:
        criteria: the rubric's.
        system: the paper whose structural rules it is to keep. Unless given it is the one it looks like, and what
            breaks its rules is a warning, since nobody said that the rubric is meant for it.
        similar_from: how alike two criteria are reported from, as a share of their content words, in (0, 1].
        answer: the question's final answer, to find criteria that give it away; what an `answer` criterion says of it
            unless given.

    Returns:
        Errors first, then warnings, then notes, each in the order of the criteria.

    Raises:
        ValueError: `similar_from` is no share.
    """
    if not 0 < similarity_threshold <= 1:
        raise ValueError(f"similar_from is {similarity_threshold!r}; it is a share above 0 and at most 1")
    found = check_structure(criteria, system) if system else _check_apparent_system(criteria)
    for criterion in criteria:
        found += check_wording(criterion)
    found += find_overlaps(criteria, similarity_threshold)
    found += check_weights(criteria)
    found += find_leaked_answers(criteria, answer)
    place: dict[str | None, int] = {None: -1, **{criterion.id: index for index, criterion in enumerate(criteria)}}
    return sorted(found, key=lambda finding: (_ORDER[finding.severity], place[finding.criterion]))


def _check_apparent_system(criteria: Sequence[Criterion]) -> list[Finding]:
    system = apparent_system(criteria)
    if system is None:
        return []
    return [replace(one, severity="warning") for one in check_structure(criteria, system)]
