"""Where verdicts become a reward: one number per response from its criteria and their scores.

A score of None is a judge's failure, never a 0: what happens then is the caller's failure policy, and nothing
else decides it. This module judges nothing and knows no group of responses.

Modes, with s_j the score and w_j the weight of criterion j:

- `weighted_mean`: sum w_j s_j / sum w_j, clipped to [0, 1] (RGR-GRPO, eq. 4).
- `factual_override`: 1 if there are factual criteria and all are satisfied, else the weighted mean (eq. 5).
- `points`: sum w_j s_j / sum of the positive w_j; may be negative, is not clipped (RuscaRL, eq. 4).
- `stepwise`: the base reward (1 - lambda) * accuracy + lambda * format, accuracy being the mean score of the
  `answer` criteria (SRaR, eq. 6). The other criteria act through `trainer_client.steps.step_deltas` alone.

A criterion is *satisfied* when its score is 1: a graded or probable yes is not one.
"""

import math
from collections.abc import Callable, Sequence
from typing import Literal, NamedTuple, get_args

from trainer_client._criteria import CriterionLike, Score, Term, read_criteria, read_scores
from trainer_client.wire.rewards import FailurePolicy, RewardMode


class UnsuitableRubric(ValueError):
    """A rubric that cannot feed the mode it was to be used in; the message says what to change."""


class UnscoredCriteria(ValueError):
    """The judge failed on criteria that the reward needs, and the failure policy is `error`.

    `criteria` holds their ids.
    """

    def __init__(self, criteria: tuple[str, ...]) -> None:
        super().__init__(
            f"the judge gave no score for {', '.join(criteria)}; judge again, or use on_failure "
            "'null' (no reward), 'zero' (reward 0) or 'skip' (reward from the rest)"
        )
        self.criteria = criteria


class RewardOutcome(NamedTuple):
    """A reward and how it came about.

    `status` is `scored` if every criterion has a score, `partial` if some have none and there is a reward all
    the same, `unscored` if the scores give none; then `reward` is None, or 0.0 under the policy `zero`.
    `policy_applied` names the failure policy that made the reward, where one did. `dropped` counts the
    criteria that `skip` left out of it.
    """

    reward: float | None
    status: Literal["scored", "partial", "unscored"]
    policy_applied: Literal["zero", "skip"] | None = None
    dropped: int = 0


Scored = list[tuple[Term, float]]


def _weighted_mean(scored: Scored) -> float | None:
    total = sum(term.weight for term, _ in scored)
    if total <= 0:
        return None
    return min(1.0, max(0.0, sum(term.weight * score for term, score in scored) / total))


def _factual_override(scored: Scored) -> float | None:
    mean = _weighted_mean(scored)
    factual = [score for term, score in scored if term.kind == "factual"]
    return 1.0 if mean is not None and factual and min(factual) == 1.0 else mean


def _points(scored: Scored) -> float | None:
    positive = sum(term.weight for term, _ in scored if term.weight > 0)
    return sum(term.weight * score for term, score in scored) / positive if positive > 0 else None


def _accuracy(scored: Scored) -> float | None:
    return sum(score for _, score in scored) / len(scored) if scored else None


_FORMULAS: dict[RewardMode, Callable[[Scored], float | None]] = {
    "weighted_mean": _weighted_mean,
    "factual_override": _factual_override,
    "points": _points,
    "stepwise": _accuracy,
}
"""The formula of each mode over the criteria it needs; None where there is nothing to divide by."""


def reward(
    criteria: Sequence[CriterionLike],
    scores: Sequence[Score],
    mode: RewardMode,
    on_failure: FailurePolicy = "null",
    *,
    format_ok: bool | None = None,
    format_weight: float = 0.1,
) -> float | None:
    """Compute the reward of one response; the parameters and errors are those of `assess`."""
    return assess(criteria, scores, mode, on_failure, format_ok=format_ok, format_weight=format_weight).reward


def assess(
    criteria: Sequence[CriterionLike],
    scores: Sequence[Score],
    mode: RewardMode,
    on_failure: FailurePolicy = "null",
    *,
    format_ok: bool | None = None,
    format_weight: float = 0.1,
) -> RewardOutcome:
    """Compute the reward of one response and say how it came about.

    The failure policy acts when a criterion that the reward needs has no score: any criterion, but in
    `stepwise` those of kind `answer` only. `skip` drops them and takes the formula over the rest; where that
    leaves nothing to divide by there is no reward.

    Args:
        criteria: M criteria, as `Criterion` models or mappings.
        scores: M numbers in [0, 1]; None where the judge failed.
        mode: the formula, see the module.
        on_failure: `null` (no reward), `error`, `zero` (reward 0.0) or `skip`.
        format_ok: `stepwise` only, and needed there: whether the response has step headers and a boxed answer
            (`trainer_client.steps.has_format`).
        format_weight: `stepwise` only: lambda, in [0, 1] (0.1 in the paper).

    Raises:
        UnsuitableRubric: the criteria cannot feed the mode.
        UnscoredCriteria: `on_failure` is `error` and a criterion that the reward needs has no score.
        ValueError: an unknown mode or policy, a wrong number of scores, a weight or score out of range.
    """
    terms = read_criteria(criteria)
    _check_terms(terms, mode)
    if on_failure not in get_args(FailurePolicy):
        raise ValueError(f"on_failure is {on_failure!r}; use one of {', '.join(get_args(FailurePolicy))}")
    values = read_scores(scores, len(terms))
    if mode == "stepwise":
        share, addend = _format_share(format_ok, format_weight)
        pairs = [(t, s) for t, s in zip(terms, values, strict=True) if t.kind == "answer"]
    else:
        share, addend = 1.0, 0.0
        pairs = list(zip(terms, values, strict=True))

    scored = [(term, score) for term, score in pairs if score is not None]
    dropped = len(pairs) - len(scored)
    if dropped and on_failure != "skip":
        if on_failure == "error":
            raise UnscoredCriteria(tuple(term.label for term, score in pairs if score is None))
        if on_failure == "zero":
            return RewardOutcome(0.0, "unscored", "zero")
        return RewardOutcome(None, "unscored")
    value = _FORMULAS[mode](scored)
    if value is None:
        return RewardOutcome(None, "unscored")
    status: Literal["scored", "partial"] = "partial" if None in values else "scored"
    return RewardOutcome(share * value + addend, status, "skip" if dropped else None, dropped)


def check_rubric(criteria: Sequence[CriterionLike], mode: RewardMode) -> None:
    """Refuse a rubric that cannot feed a mode, before anything is judged.

    Raises:
        UnsuitableRubric: `weighted_mean` and `factual_override` take no negative weight and need a positive
            one, `points` needs a positive weight, `stepwise` a criterion of kind `answer`. Only `stepwise` takes
            a `pitfall` of positive weight: a sum of weights would reward the mistake.
        ValueError: an unknown mode or kind, or a weight that is no finite number.
    """
    _check_terms(read_criteria(criteria), mode)


def _check_terms(terms: list[Term], mode: RewardMode) -> None:
    if mode not in _FORMULAS:
        raise ValueError(f"mode is {mode!r}; use one of {', '.join(_FORMULAS)}")
    if mode == "stepwise":
        if not any(term.kind == "answer" for term in terms):
            raise UnsuitableRubric(
                "no criterion has kind 'answer', so stepwise has no accuracy to start from; "
                "add a criterion of kind 'answer' that checks the final answer"
            )
        return
    for term in terms:
        if term.kind == "pitfall" and term.weight > 0:
            raise UnsuitableRubric(
                f"criterion {term.label!r} is a pitfall of weight {term.weight:g}, so {mode} would reward the mistake; "
                "use mode 'stepwise', or mode 'points' with a negative weight"
            )
    if mode != "points":
        for term in terms:
            if term.weight < 0:
                raise UnsuitableRubric(
                    f"the weight of criterion {term.label!r} is {term.weight:g}, and {mode} takes no "
                    "negative weights; use mode 'points', or give it a weight of 0 or more"
                )
    if not any(term.weight > 0 for term in terms):
        raise UnsuitableRubric(
            f"no criterion has a positive weight, so {mode} has nothing to divide by; "
            "give at least one criterion a weight above 0"
        )
    if not math.isfinite(sum(abs(term.weight) for term in terms)):
        raise UnsuitableRubric("the weights are too large to add up; divide them all by the same number")


def _format_share(format_ok: bool | None, format_weight: float) -> tuple[float, float]:
    """Give (1 - lambda, lambda * format), what accuracy is multiplied by and what is added to it."""
    if not 0.0 <= format_weight <= 1.0:
        raise ValueError(f"format_weight is {format_weight!r}; it is a share in [0, 1]")
    if format_ok is None and format_weight > 0:
        raise ValueError("stepwise needs format_ok: pass steps.has_format(text), or format_weight=0")
    return 1.0 - format_weight, format_weight * bool(format_ok)
