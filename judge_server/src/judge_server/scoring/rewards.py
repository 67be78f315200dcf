"""Turn the verdicts on a response, or on a group of them, into rewards, as scoring and recomputing both do.

No plan, request or database is needed here, so that recomputing from the ledger gives the same numbers. The formulas of
the modes are in `trainer_client`.

Weights may follow the policy: more for the criteria that tell the responses of a group apart. A criterion that all
responses of a group pass, or all fail, adds the same to every reward, and a trainer that compares them learns nothing
from its weight. Under `weighting: "contrast"` each criterion j of a category gets the weight
w_j a_j / s, where

- v_j is the mean square deviation of its values from their mean over the G responses; a missing verdict deviates by 0,
  so that a judge that fails never raises a weight;
- a_j = min(`LARGEST_FACTOR`, 1 - `BLEND` + `BLEND` * v_j / m), with m the mean of v over the category; 1 if m is 0;
- s = sum |w_k| a_k / sum |w_k| over the category, so that the category keeps the sum of its weights.

A category is the criteria of one first tag (`untagged` without one), as for `components: "tag"`, whose weights have
the same sign: what a tag gives and what it takes stay apart, so that a reward keeps its range.

This is a reading of POW3R (Tyagi et al., arXiv 2605.20164) by a summary, since its formulas were not at hand. The
ratio of variances, the blend with a prior of 1, the clip and the sums that are kept are the paper's. The numbers are
ours, and so are the division by G where verdicts are missing, the split by sign, and scaling after the clip. The paper
also smooths factors over epochs. That is left out, because the service keeps no state between requests: the same
verdicts always give the same weights. With this blend no factor is below 1 - `BLEND`, so there is no lower clip.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from judge_server.errors import InvalidRequest, invalid_field
from trainer_client import wire
from trainer_client.dropout import CriteriaSample
from trainer_client.modes import Term
from trainer_client.penalties import penalise
from trainer_client.rewards import ResponseFacts, RewardOutcome, read_criteria, reward_verdicts
from trainer_client.steps import NO_STEP, step_deltas
from trainer_client.wire.ledger import RewardRules, StepBudgets

DEFAULT_BUDGETS = StepBudgets()

BLEND = 0.5
"""The share of a factor that follows the group; the rest is the prior, 1."""

LARGEST_FACTOR = 4.0
"""The largest factor before the weights of a category are scaled to their sum."""


class RewardResult(NamedTuple):
    """A response's reward, the reward before penalties (None if there were none), and the formula's outcome.

    `declared` is the reward under the rubric's own weights, if it was computed under others.
    """

    reward: float | None
    unpenalised: float | None
    outcome: RewardOutcome
    declared: float | None = None

    def fields(self) -> dict[str, Any]:
        """Return the fields of an answer that it fills."""
        return {
            "reward": self.reward,
            "declared_reward": self.declared,
            "unpenalised": self.unpenalised,
            "status": self.outcome.status,
            "policy_applied": self.outcome.policy_applied,
            "dropped": self.outcome.dropped,
            "components": self.outcome.components,
        }


def reward_of(
    criteria: Sequence[wire.Criterion | Term],
    verdicts: Sequence[wire.Verdict],
    rules: RewardRules,
    facts: ResponseFacts,
    weights: Mapping[str, float] | None = None,
) -> RewardResult:
    """Return the reward of one response. Arguments and errors are those of `reward_verdicts` and `penalise`.

    Args:
        weights: the `effective_weights` of the group, by criterion; without any, those of the rubric act.

    Raises:
        InvalidRequest: the numbers in the request give a reward that is not finite.
    """
    if weights:
        declared = reward_of(criteria, verdicts, rules, facts).reward
        result = reward_of(with_weights(read_criteria(criteria), weights), verdicts, rules, facts)
        return result._replace(declared=declared)
    try:
        outcome = reward_verdicts(criteria, verdicts, rules, facts)
    except ArithmeticError as error:
        raise _not_finite(str(error)) from error
    return penalised(outcome, rules.reward, facts)


def penalised(outcome: RewardOutcome, options: wire.RewardOptions, facts: ResponseFacts) -> RewardResult:
    """Return the reward of one response with the request's penalties; raises as `reward_of`."""
    _require_finite(outcome.reward, outcome)
    if not options.has_penalties or outcome.policy_applied in wire.ZERO_POLICIES:  # a failure stays at 0
        return RewardResult(outcome.reward, None, outcome)
    try:
        reward = penalise(outcome.reward, options, tokens=facts.tokens, stopped=facts.stopped)
    except ArithmeticError as error:
        raise _not_finite(str(error)) from error
    _require_finite(reward, outcome)
    return RewardResult(reward, outcome.reward, outcome)


def _require_finite(reward: float | None, outcome: RewardOutcome) -> None:
    """Refuse a scored response without a finite reward: a trainer would take it for a failure, or train on it."""
    if reward is None and outcome.status == "unscored":
        return
    if reward is None or not math.isfinite(reward):
        raise _not_finite("nothing" if reward is None else f"{reward:g}")


def _not_finite(why: str) -> InvalidRequest:
    message = (
        f"the reward of a scored response is not a finite number ({why}); use weights, penalties and lengths that are "
        "neither huge nor close to 0"
    )
    return invalid_field("reward", message)


def step_rewards(
    criteria: Sequence[wire.Criterion | Term],
    verdicts: Sequence[wire.Verdict],
    use: wire.VerdictUse,
    spans: Sequence[tuple[int, int, int]],
    budgets: StepBudgets = DEFAULT_BUDGETS,
    *,
    sample: CriteriaSample | None = None,
) -> tuple[wire.StepReward, ...]:
    """Return the reward of each step.

    Args:
        criteria: the M criteria.
        verdicts: the M verdicts.
        use: which number of a verdict counts.
        spans: (number, start, end) of the whole response, as step 0, and of each step.
        budgets: the total that all criteria of one kind together add or subtract.
        sample: which criteria rubric dropout left out.
    """
    named = [NO_STEP if verdict.step is None else verdict.step for verdict in verdicts]
    highest = max([number for number, _, _ in spans], default=0)
    deltas = step_deltas(
        criteria,
        [verdict.value(use) for verdict in verdicts],
        named,
        highest,
        suggest=budgets.suggest,
        pitfall=budgets.pitfall,
        bonus=budgets.bonus,
        soft=use == "probability",
        inclusions=None if sample is None else sample.inclusions(),
    )
    for delta in deltas.values():
        if delta is not None and not math.isfinite(delta):
            raise _not_finite(f"the delta of a step is {delta:g}")
    return tuple([wire.StepReward(number=n, start=start, end=end, delta=deltas.get(n)) for n, start, end in spans])


def effective_weights(
    criteria: Sequence[wire.Criterion | Term], group: Sequence[Sequence[wire.Verdict]], options: wire.RewardOptions
) -> dict[str, float]:
    """Return the weights by which a group of G responses is rewarded, instead of those of the rubric.

    Args:
        criteria: the M criteria of the rubric.
        group: the M verdicts on each of the G responses.
        options: how verdicts become a reward.

    Returns:
        The weight of each criterion that counts and has one, by its id; none if the rubric's own are to be used.

    Raises:
        ValueError: a response has no verdict on a criterion.
    """
    if options.weighting == "declared":
        return {}
    categories: dict[tuple[str, bool], list[tuple[Term, float]]] = {}
    for term, verdicts in zip(read_criteria(criteria), zip(*group, strict=True), strict=True):
        if any(verdict.status == "left_out" for verdict in verdicts):
            raise ValueError(
                "reward.weighting 'contrast' needs a verdict on every criterion, and rubric dropout left some out; use "
                "'declared', which estimates rewards by the rubric's own weights"
            )
        if term.weight and not term.shadow and (options.kinds is None or term.kind in options.kinds):
            spread = _spread([verdict.value(options.use) for verdict in verdicts])
            categories.setdefault((term.tag, term.weight > 0), []).append((term, spread))
    return {label: weight for category in categories.values() for label, weight in _shifted(category).items()}


def with_weights(terms: Sequence[Term], weights: Mapping[str, float]) -> list[Term]:
    """Return criteria with other weights, by id; those without one there keep theirs."""
    return [term._replace(weight=weights.get(term.label, term.weight)) for term in terms]


def _spread(values: Sequence[float | None]) -> float:
    """The sum of square deviations of the known values from their mean, divided by the number of all values."""
    known = [value for value in values if value is not None]
    if not known or min(known) == max(known):  # rounding must not make equal values differ
        return 0.0
    mean = math.fsum(known) / len(known)
    return math.fsum((value - mean) ** 2 for value in known) / len(values)


def _shifted(category: Sequence[tuple[Term, float]]) -> dict[str, float]:
    mean = math.fsum(spread for _, spread in category) / len(category)
    size = math.fsum(abs(term.weight) for term, _ in category)
    if not mean:
        return {term.label: term.weight for term, _ in category}
    factors = [min(LARGEST_FACTOR, 1.0 - BLEND + BLEND * spread / mean) for _, spread in category]
    scale = math.fsum(abs(term.weight) / size * factor for (term, _), factor in zip(category, factors, strict=True))
    return {term.label: term.weight * (factor / scale) for (term, _), factor in zip(category, factors, strict=True)}
