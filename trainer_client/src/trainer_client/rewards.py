"""Where verdicts become a reward: one number per response from its criteria and their scores.

A score of None is a judge's failure, never a 0: what happens then is the caller's failure policy, and nothing
else decides it. This module judges nothing and knows no group of responses.

Modes, with s_j the score and w_j the weight of criterion j:

- `weighted_mean`: sum w_j s_j / sum w_j, clipped to [0, 1] (RGR-GRPO, eq. 4).
- `partial_credit`: the same formula, s_j being the share awarded / w_j (Rubric-Grounded RL, eqs. 2 and 11).
- `factual_override`: 1 if there are factual criteria and all are satisfied, else the weighted mean (eq. 5).
- `points`: sum w_j s_j / sum of the positive w_j; may be negative, is not clipped (RuscaRL, eq. 4).
- `stepwise`: the base reward (1 - lambda) * accuracy + lambda * format, accuracy being the mean score of the
  `answer` criteria (SRaR, eq. 6). The other criteria act through `trainer_client.steps.step_deltas` alone.
- `graded_mean`: the plain mean of s_j, and of 1 - s_j for a negative criterion: one of negative weight or of kind
  `pitfall` (DRO, appendix G). How large weights are plays no part.
- `gate`: 1 if at least the fraction rho of the criteria is satisfied, else 0 (what DRO's consistency gate, section 4,
  asks of one response). Weights play no part.
- `likert`: the one score of the whole response, see `likert_score` (Likert-GRPO of RGR-GRPO, section 3).
- `outcome`: the one score of the whole response, 1 if its final answer equals the ground truth, else 0 (Outcome-GRPO,
  ibid.).

A criterion is *satisfied* when its score is 1: a graded or probable yes is not one.
"""

import operator
from collections.abc import Callable, Sequence
from functools import partial
from typing import Literal, NamedTuple, SupportsIndex, get_args

from trainer_client._criteria import CriterionLike, Score, Term, read_criteria, read_scores
from trainer_client._formulas import FORMULAS, Scored, gate
from trainer_client._suitability import UnsuitableRubric, check_terms
from trainer_client.wire.rewards import NEEDS_NO_RUBRIC, FailurePolicy, RewardMode

__all__ = [
    "RewardOutcome",
    "UnscoredCriteria",
    "UnsuitableRubric",
    "assess",
    "check_rubric",
    "likert_score",
    "reward",
]


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


_WHOLE_RESPONSE = Term("(response)", "point", 1.0)


def reward(
    criteria: Sequence[CriterionLike],
    scores: Sequence[Score],
    mode: RewardMode,
    on_failure: FailurePolicy = "null",
    *,
    format_ok: bool | None = None,
    format_weight: float = 0.1,
    gate_fraction: float = 0.5,
) -> float | None:
    """Compute the reward of one response; the parameters and errors are those of `assess`."""
    outcome = assess(
        criteria,
        scores,
        mode,
        on_failure,
        format_ok=format_ok,
        format_weight=format_weight,
        gate_fraction=gate_fraction,
    )
    return outcome.reward


def assess(
    criteria: Sequence[CriterionLike],
    scores: Sequence[Score],
    mode: RewardMode,
    on_failure: FailurePolicy = "null",
    *,
    format_ok: bool | None = None,
    format_weight: float = 0.1,
    gate_fraction: float = 0.5,
) -> RewardOutcome:
    """Compute the reward of one response and say how it came about.

    The failure policy acts when a criterion that the reward needs has no score: any criterion, but in
    `stepwise` those of kind `answer` only. A `gate` is decided, and no policy acts, if every way of filling in the
    missing scores gives the same reward. `skip` drops the unscored criteria and takes the formula over the rest;
    where that leaves nothing to divide by, or a gate nothing to count, there is no reward.

    Args:
        criteria: M criteria, as `Criterion` models or mappings. `likert` and `outcome` make no use of them, and they
            may be none there; `gate` lets every response pass where there are none.
        scores: M numbers in [0, 1]; None where the judge failed. One for `likert` and `outcome`.
        mode: the formula, see the module.
        on_failure: `null` (no reward), `error`, `zero` (reward 0.0) or `skip`.
        format_ok: `stepwise` only, and needed there: whether the response has step headers and a boxed answer
            (`trainer_client.steps.has_format`).
        format_weight: `stepwise` only: lambda, in [0, 1] (SRaR: 0.1).
        gate_fraction: `gate` only: rho, in [0, 1]. DRO's value is not known; 0.5 is ours. A rounding error of 1e-9 in
            rho * M is forgiven: of ten criteria, 0.1 * 3 asks for three.

    Raises:
        UnsuitableRubric: the criteria cannot feed the mode.
        UnscoredCriteria: `on_failure` is `error` and a criterion that the reward needs has no score; in `likert` and
            `outcome` it is called `(response)`.
        ValueError: an unknown mode or policy, a wrong number of scores, a weight or score out of range.
    """
    terms = read_criteria(criteria)
    check_terms(terms, mode)
    if on_failure not in get_args(FailurePolicy):
        raise ValueError(f"on_failure is {on_failure!r}; use one of {', '.join(get_args(FailurePolicy))}")
    if mode in NEEDS_NO_RUBRIC:
        if len(scores) != 1:
            raise ValueError(f"{len(scores)} scores in mode {mode!r}; give one, that of the whole response")
        terms = [_WHOLE_RESPONSE]
    values = read_scores(scores, len(terms))
    pairs = list(zip(terms, values, strict=True))
    share, addend = 1.0, 0.0
    formula: Callable[[Scored], float | None]
    if mode == "stepwise":
        share, addend = _format_share(format_ok, format_weight)
        pairs = [(term, score) for term, score in pairs if term.kind == "answer"]
    if mode == "gate":
        formula = partial(gate, fraction=_checked_fraction(gate_fraction))
        worst, best = (formula([(t, fill if s is None else s) for t, s in pairs]) for fill in (0.0, 1.0))
        if worst == best:
            return RewardOutcome(worst, "partial" if None in values else "scored")
    else:
        formula = FORMULAS[mode]

    scored = [(term, score) for term, score in pairs if score is not None]
    dropped = len(pairs) - len(scored)
    if dropped and on_failure != "skip":
        if on_failure == "error":
            raise UnscoredCriteria(tuple(term.label for term, score in pairs if score is None))
        if on_failure == "zero":
            return RewardOutcome(0.0, "unscored", "zero")
        return RewardOutcome(None, "unscored")
    value = formula(scored) if scored else None
    if value is None:
        return RewardOutcome(None, "unscored")
    status: Literal["scored", "partial"] = "partial" if None in values else "scored"
    return RewardOutcome(share * value + addend, status, "skip" if dropped else None, dropped)


def likert_score(rating: SupportsIndex, low: int = 1, high: int = 10) -> float:
    """Map a holistic rating n to (n - low) / (high - low), in [0, 1].

    RGR-GRPO's Likert judge rates from 1 to 10; how the paper turns that into a reward is not known, (n - 1) / 9 is
    ours.

    Raises:
        ValueError: the rating is no integer from `low` to `high` (7.0 and True are none), or `low` is not below
            `high`.
    """
    if low >= high:
        raise ValueError(f"low is {low!r} and high {high!r}; a scale needs low below high")
    try:
        number = None if isinstance(rating, bool) else operator.index(rating)
    except TypeError:
        number = None
    if number is None or not low <= number <= high:
        raise ValueError(f"rating is {rating!r}; a rating is an integer from {low} to {high}")
    return (number - low) / (high - low)


def check_rubric(criteria: Sequence[CriterionLike], mode: RewardMode) -> None:
    """Refuse a rubric that cannot feed a mode, before anything is judged.

    Raises:
        UnsuitableRubric: `weighted_mean`, `factual_override` and `partial_credit` take no negative weight and need a
            positive one, `points` needs a positive weight. These refuse a `pitfall` of positive weight: a sum of
            weights would reward the mistake. `gate` takes neither a negative weight nor any `pitfall`, whose
            satisfaction it would count for the response. `stepwise` needs a criterion of kind `answer`, and
            `graded_mean` any criterion. `likert` and `outcome` take anything, also no criteria.
        ValueError: an unknown mode or kind, or a weight that is no finite number.
    """
    check_terms(read_criteria(criteria), mode)


def _format_share(format_ok: bool | None, format_weight: float) -> tuple[float, float]:
    """Give (1 - lambda, lambda * format), what accuracy is multiplied by and what is added to it."""
    if not 0.0 <= format_weight <= 1.0:
        raise ValueError(f"format_weight is {format_weight!r}; it is a share in [0, 1]")
    if format_ok is None and format_weight > 0:
        raise ValueError("stepwise needs format_ok: pass steps.has_format(text), or format_weight=0")
    return 1.0 - format_weight, format_weight * bool(format_ok)


def _checked_fraction(fraction: float) -> float:
    if not 0.0 <= fraction <= 1.0:
        raise ValueError(f"gate_fraction is {fraction!r}; it is a share in [0, 1]")
    return float(fraction)
