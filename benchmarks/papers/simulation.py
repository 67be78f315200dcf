"""Simulate groups of certainties, and how well rewards follow the tokens that reflect the reasoning.

This is the setup of DRO's appendix D: certainties are Gaussian; those of a few tokens vary with the quality of the
reasoning, those of all others independently of it. Most of the numbers are missing from the paper's text, so all of
them are fields of `Setup`. The rewards are those of `trainer_client.dro`.
"""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from trainer_client.dro import average_log_probability, average_probability, reasoning_reflection_reward

Array = npt.NDArray[np.float64]

REWARDS = ("average log-probability", "average probability", "R3")


@dataclass(frozen=True)
class Setup:
    """The distribution of a group. Certainties are probabilities; deviations are over the rollouts of a group."""

    group_size: int = 16
    shortest: int = 100
    longest: int = 1200
    reflective_mean: float = 0.5
    reflective_deviation: float = 0.15
    reflective_correlation: float = 0.5
    sure_share: float = 0.60
    sure_mean: float = 0.97
    sure_deviation: float = 0.02
    stray_share: float = 0.15
    stray_mean: float = 0.01
    stray_deviation: float = 0.01
    middling_share: float = 0.25
    middling_mean: float = 0.6
    middling_deviation: float = 0.05
    noise_correlation: float = 0.0
    floor: float = 1e-6
    beta: float = 10.0
    p_min: float = 0.05
    p_max: float = 0.95
    against: Literal["mean", "each"] = "mean"


@dataclass(frozen=True)
class Point:
    """Correlations of the three rewards, in the order of `REWARDS`: T groups x 3."""

    correlations: Array

    @property
    def means(self) -> Array:
        """The means over the groups: 3."""
        return np.asarray(self.correlations.mean(axis=0))

    @property
    def quartiles(self) -> Array:
        """The lower and upper quartiles over the groups: 2 x 3."""
        return np.quantile(self.correlations, (0.25, 0.75), axis=0)


def share(fraction: float) -> Callable[[int], int]:
    """Return a function from a reference's length to its number of reflective tokens: a fraction, at least one."""
    return lambda length: max(1, round(fraction * length))


def draw(setup: Setup, rng: np.random.Generator, length: int, reflective: int) -> Array:
    """Draw the certainties of one group, G x T, with the reflective tokens first.

    The certainty of a reflective token is mean + deviation (sqrt(rho) q + sqrt(1 - rho) e), where q is the quality of
    the rollout's reasoning, common to its reflective tokens, and e is the token's own noise. The other tokens have an
    independent q and rho = `noise_correlation`. All certainties are clipped to [floor, 1].
    """
    kinds = np.array(
        [
            (setup.sure_share, setup.sure_mean, setup.sure_deviation),
            (setup.stray_share, setup.stray_mean, setup.stray_deviation),
            (setup.middling_share, setup.middling_mean, setup.middling_deviation),
        ]
    )
    chosen = kinds[rng.choice(len(kinds), size=length, p=kinds[:, 0] / kinds[:, 0].sum())]
    means, deviations = chosen[:, 1], chosen[:, 2]
    means[:reflective], deviations[:reflective] = setup.reflective_mean, setup.reflective_deviation
    correlation = np.full(length, setup.noise_correlation)
    correlation[:reflective] = setup.reflective_correlation
    common = rng.standard_normal((setup.group_size, 2))[:, (np.arange(length) >= reflective).astype(int)]
    own = rng.standard_normal((setup.group_size, length))
    certainties = means + deviations * (np.sqrt(correlation) * common + np.sqrt(1 - correlation) * own)
    return np.asarray(certainties.clip(setup.floor, 1))


def correlations(setup: Setup, probs: Array, reflective: int) -> tuple[float, float, float]:
    """Compute the correlation of each reward with the z-scores of the reflective tokens over the group.

    With `against="mean"`, it is the correlation with a rollout's mean z-score; with `"each"`, the mean correlation with
    each token's z-score. Pearson's correlation is the same for rewards and advantages.
    """
    tokens = probs[:, :reflective]
    scores = (tokens - tokens.mean(axis=0)) / tokens.std(axis=0)
    targets = scores.mean(axis=1, keepdims=True) if setup.against == "mean" else scores
    rewards = np.column_stack(
        [
            average_log_probability(probs, floor=setup.floor),
            average_probability(probs),
            reasoning_reflection_reward(probs, beta=setup.beta, p_min=setup.p_min, p_max=setup.p_max)[0],
        ]
    )
    advantages = (rewards - rewards.mean(axis=0)) / rewards.std(axis=0)
    targets = (targets - targets.mean(axis=0)) / targets.std(axis=0)
    logp, prob, r3 = (advantages.T @ targets / len(probs)).mean(axis=1)
    return float(logp), float(prob), float(r3)


def measure(
    setup: Setup, reflective: Callable[[int], int], *, trials: int, seed: int, length: int | None = None
) -> Point:
    """Draw groups and compute their correlations.

    Args:
        setup: the distribution of groups.
        reflective: gives the number of reflective tokens for a length, at most the length.
        trials: number of groups.
        seed: seed of the generator; the same seed gives the same groups.
        length: tokens of the reference answer; None draws it uniformly from the setup's shortest to longest.
    """
    rng = np.random.default_rng(seed)
    results = []
    for _ in range(trials):
        tokens = length or int(rng.integers(setup.shortest, setup.longest, endpoint=True))
        count = reflective(tokens)
        results.append(correlations(setup, draw(setup, rng, tokens, count), count))
    return Point(np.array(results))
