"""Read the criteria and scores passed to the formulas: models, mappings, and plain or numpy numbers.

Errors of shape and range name the index of the invalid value.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, get_args

from trainer_client.wire.criteria import Criterion, CriterionKind

Score = Any
"""A number in [0, 1] (float, int, bool, a numpy or tensor scalar), or None if judging failed."""

_KINDS = frozenset(get_args(CriterionKind))


CriterionLike = Criterion | Mapping[str, Any]
"""A `Criterion`, or a mapping with its `kind` (default `point`), `weight` (default 1), `shadow` (default False) and,
for messages, `id`."""


class Term(NamedTuple):
    """The fields of a criterion that the formulas need: a label for messages, kind, weight, and whether it is a shadow.

    Shadow criteria are judged but not rewarded, so every formula leaves them out.
    """

    label: str
    kind: str
    weight: float
    shadow: bool = False


def read_criteria(criteria: Sequence[CriterionLike | Term]) -> list[Term]:
    """Read criteria in order. Terms stay as they are, so that a rubric can be read once for many responses.

    Raises:
        ValueError: a kind is unknown, or a weight is not a finite number; the message names the index.
    """
    return [_term(index, criterion) for index, criterion in enumerate(criteria)]


def _term(index: int, criterion: CriterionLike | Term) -> Term:
    if isinstance(criterion, Term):
        return criterion
    if isinstance(criterion, Criterion):  # a check for Mapping would be slow
        label, kind, given, shadow = criterion.id, criterion.kind, criterion.weight, criterion.shadow
    else:
        label = criterion.get("id", f"criteria[{index}]")
        kind, given = criterion.get("kind", "point"), criterion.get("weight", 1.0)
        shadow = bool(criterion.get("shadow", False))
    if kind not in _KINDS:
        raise ValueError(f"criteria[{index}].kind is {kind!r}; use one of {', '.join(sorted(_KINDS))}")
    weight = given if type(given) is float else as_number(given)
    if not math.isfinite(weight):
        raise ValueError(f"criteria[{index}].weight is {given!r}; a weight must be a finite number")
    return Term(str(label), kind, weight, shadow)


def read_scores(scores: Sequence[Score], count: int) -> list[float | None]:
    """Read the scores of `count` criteria; None stays None.

    Raises:
        ValueError: there are not `count` scores, or one is not a number in [0, 1]; the message names the index.
    """
    if len(scores) != count:
        raise ValueError(
            f"{len(scores)} scores for {count} criteria; give one for each criterion, None where judging failed"
        )
    return [None if score is None else _score(index, score) for index, score in enumerate(scores)]


def _score(index: int, given: Score) -> float:
    score = given if type(given) is float else as_number(given)
    if not 0.0 <= score <= 1.0:
        raise ValueError(f"scores[{index}] is {given!r}; use a number in [0, 1], or None if judging failed")
    return score


def as_number(given: Any) -> float:
    """Convert a scalar to a float; NaN if it is not a number. Text is never a number."""
    if isinstance(given, str | bytes | bytearray):
        return math.nan
    try:
        return float(given)
    except (TypeError, ValueError, OverflowError):
        return math.nan
