"""Which rubrics can feed which mode: by the kinds and the signs of the criteria that count, before anything is judged.

Knows no scores and no failure policy.
"""

import math
from collections.abc import Collection
from typing import get_args

from trainer_client._criteria import Term
from trainer_client.wire.criteria import CriterionKind
from trainer_client.wire.rewards import NEEDS_NO_RUBRIC, RewardMode


class UnsuitableRubric(ValueError):
    """A rubric that cannot feed the mode it was to be used in; the message says what to change."""


def check_terms(terms: list[Term], mode: RewardMode) -> None:
    """Refuse terms that cannot feed a mode; the rules and errors are those of `trainer_client.rewards.check_rubric`."""
    if mode not in get_args(RewardMode):
        raise ValueError(f"mode is {mode!r}; use one of {', '.join(get_args(RewardMode))}")
    match mode:
        case "likert" | "outcome":
            pass
        case "stepwise":
            if not any(term.kind == "answer" for term in terms):
                raise UnsuitableRubric(
                    "no criterion has kind 'answer', so stepwise has no accuracy to start from; "
                    "add a criterion of kind 'answer' that checks the final answer"
                )
        case "graded_mean":
            if not terms:
                raise UnsuitableRubric("there are no criteria, so graded_mean has no grade to average; add a criterion")
        case "gate":
            _refuse_pitfalls([term for term in terms if term.kind == "pitfall"], mode)
            _refuse_negative_weights(terms, mode)
        case _:
            _check_weights(terms, mode)


def filter_kinds(terms: list[Term], kinds: Collection[str] | None, mode: RewardMode) -> list[Term]:
    """Give the terms of some kinds; all where `kinds` is None.

    Raises:
        UnsuitableRubric: there is none of them.
        ValueError: an unknown kind, or a mode that reads no criteria.
    """
    if kinds is None:
        return terms
    if mode in NEEDS_NO_RUBRIC:
        raise ValueError(f"mode {mode!r} rewards the whole response, not criteria of some kinds; leave kinds out")
    known = get_args(CriterionKind)
    for kind in kinds:
        if kind not in known:
            raise ValueError(f"kinds has {kind!r}; use {', '.join(known)}")
    kept = [term for term in terms if term.kind in kinds]
    if not kept:
        wanted = " or ".join(repr(kind) for kind in kinds)
        raise UnsuitableRubric(
            f"no criterion is of kind {wanted}, and no other counts; add one, or name other kinds in reward.kinds"
        )
    return kept


def _check_weights(terms: list[Term], mode: RewardMode) -> None:
    _refuse_pitfalls([term for term in terms if term.kind == "pitfall" and term.weight > 0], mode)
    takes_mistakes = mode in ("clipped_points", "absolute_points")
    if mode != "points" and not takes_mistakes:
        _refuse_negative_weights(terms, mode)
    if takes_mistakes and not any(term.weight for term in terms):
        raise UnsuitableRubric(
            f"no criterion has a weight, so {mode} has nothing to divide by; give at least one a weight other than 0"
        )
    if not takes_mistakes and not any(term.weight > 0 for term in terms):
        raise UnsuitableRubric(
            f"no criterion has a positive weight, so {mode} has nothing to divide by; "
            "give at least one criterion a weight above 0, or use mode 'clipped_points' for a list of mistakes"
        )
    if not math.isfinite(sum(abs(term.weight) for term in terms)):
        raise UnsuitableRubric("the weights are too large to add up; divide them all by the same number")


def _refuse_pitfalls(pitfalls: list[Term], mode: RewardMode) -> None:
    for term in pitfalls:
        raise UnsuitableRubric(
            f"criterion {term.label!r} is a pitfall of weight {term.weight:g}, so {mode} would reward the mistake; "
            "use mode 'stepwise' or 'graded_mean', or mode 'points' with a negative weight"
        )


def _refuse_negative_weights(terms: list[Term], mode: RewardMode) -> None:
    for term in terms:
        if term.weight < 0:
            raise UnsuitableRubric(
                f"the weight of criterion {term.label!r} is {term.weight:g}, and {mode} takes no "
                "negative weights; use mode 'points', or give it a weight of 0 or more"
            )
