"""Which rubrics can feed which mode: by the kinds and the signs of their criteria, before anything is judged.

Knows no scores and no failure policy.
"""

import math
from typing import get_args

from trainer_client._criteria import Term
from trainer_client.wire.rewards import RewardMode


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


def _check_weights(terms: list[Term], mode: RewardMode) -> None:
    _refuse_pitfalls([term for term in terms if term.kind == "pitfall" and term.weight > 0], mode)
    if mode != "points":
        _refuse_negative_weights(terms, mode)
    if not any(term.weight > 0 for term in terms):
        raise UnsuitableRubric(
            f"no criterion has a positive weight, so {mode} has nothing to divide by; "
            "give at least one criterion a weight above 0"
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
