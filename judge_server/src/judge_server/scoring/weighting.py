"""Weights that follow the policy: more for the criteria that tell the responses of a group apart.

A criterion that all responses of a group pass, or all fail, adds the same to every reward, and a trainer that compares
them learns nothing from its weight. Under `weighting: "contrast"` each criterion j of a category gets the weight
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

from trainer_client.modes import Term
from trainer_client.rewards import read_criteria
from trainer_client.wire import Criterion
from trainer_client.wire.rewards import RewardOptions
from trainer_client.wire.verdicts import Verdict

BLEND = 0.5
"""The share of a factor that follows the group; the rest is the prior, 1."""

LARGEST_FACTOR = 4.0
"""The largest factor before the weights of a category are scaled to their sum."""


def effective_weights(
    criteria: Sequence[Criterion | Term], group: Sequence[Sequence[Verdict]], options: RewardOptions
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
