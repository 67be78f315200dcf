"""How well a rubric tells good responses from bad ones, from their rewards and verdicts.

Pure functions of what was judged. Knows neither who judged nor how the responses were found to be good or bad.
"""

import math
import random
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean

from trainer_client.wire import Criterion, ResponseReward

_RESAMPLES = 1000
_TAILS = (0.025, 0.975)


@dataclass(frozen=True, slots=True)
class LabelledPrompt:
    """A prompt's judged responses: those known to be good, those known to be bad, and the rubric they were judged by.

    `rubric` names the rubric in a report; responses under the same name and criterion id are counted together.
    """

    rubric: str
    criteria: tuple[Criterion, ...]
    good: tuple[ResponseReward, ...]
    bad: tuple[ResponseReward, ...]


@dataclass(frozen=True, slots=True)
class CriterionSeparation:
    """What one criterion says of good and of bad responses.

    Attributes:
        rubric, criterion: which one.
        good, bad: mean score, 0 to 1, of the good and of the bad responses with a verdict; None without any.
        difference: how much better good responses do by it, -1 to 1: `good - bad`, or `bad - good` where a satisfied
            criterion is bad news (a negative weight, or the kind `pitfall`). None where either mean is missing.
        verdicts, failed: verdicts it rests on, and those that failed.
    """

    rubric: str
    criterion: str
    good: float | None
    bad: float | None
    difference: float | None
    verdicts: int
    failed: int


@dataclass(frozen=True, slots=True)
class Separation:
    """What a rubric says of good and of bad responses to the same prompts.

    Attributes:
        prompts: prompts with a good and a bad response that have a reward; the figures of rewards rest on them alone.
        good, bad: their responses with a reward.
        unscored: responses without a reward, of all prompts.
        mean_good, mean_bad: mean reward of each, every prompt weighing the same.
        ordered: how often a good response has the higher reward than a bad one to the same prompt, ties counting
            half, averaged over prompts: 1 is perfect, 0.5 is chance (the area under the ROC curve, within prompts).
        interval: 95% interval of `ordered` by resampling prompts (percentiles, 1,000 resamples); None for one prompt.
        tied: share of the pairs whose rewards are equal.
        criteria: each criterion by itself, over all verdicts there are, the least useful first.
    """

    prompts: int
    good: int
    bad: int
    unscored: int
    mean_good: float | None
    mean_bad: float | None
    ordered: float | None
    interval: tuple[float, float] | None
    tied: float | None
    criteria: tuple[CriterionSeparation, ...]


def separation(labelled: Sequence[LabelledPrompt], *, seed: int = 0) -> Separation:
    """Measure how rewards and verdicts separate good from bad responses.

    Args:
        labelled: judged responses, a prompt each.
        seed: of the resampling behind `interval`.
    """
    rewards = [(_rewards(one.good), _rewards(one.bad)) for one in labelled]
    both = [(good, bad) for good, bad in rewards if good and bad]
    ordered = [fmean(_order(g, b) for g in good for b in bad) for good, bad in both]
    ties = [g == b for good, bad in both for g in good for b in bad]
    return Separation(
        prompts=len(both),
        good=sum(len(good) for good, _ in both),
        bad=sum(len(bad) for _, bad in both),
        unscored=sum(response.reward is None for one in labelled for response in (*one.good, *one.bad)),
        mean_good=_mean([fmean(good) for good, _ in both]),
        mean_bad=_mean([fmean(bad) for _, bad in both]),
        ordered=_mean(ordered),
        interval=_interval(ordered, seed),
        tied=_mean(ties),
        criteria=_by_criterion(labelled),
    )


def _rewards(responses: Sequence[ResponseReward]) -> list[float]:
    return [response.reward for response in responses if response.reward is not None]


def _order(good: float, bad: float) -> float:
    return 0.5 if good == bad else float(good > bad)


def _interval(values: Sequence[float], seed: int) -> tuple[float, float] | None:
    if len(values) < 2:
        return None
    draw = random.Random(seed)  # noqa: S311 (statistics, no secret)
    means = sorted(fmean(draw.choices(values, k=len(values))) for _ in range(_RESAMPLES))
    low, high = (means[min(int(tail * _RESAMPLES), _RESAMPLES - 1)] for tail in _TAILS)
    return low, high


def _by_criterion(labelled: Sequence[LabelledPrompt]) -> tuple[CriterionSeparation, ...]:
    scores: dict[tuple[str, str], tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    failed: dict[tuple[str, str], int] = defaultdict(int)
    inverted: dict[tuple[str, str], bool] = {}
    for one in labelled:
        inverted |= {(one.rubric, c.id): c.kind == "pitfall" or c.weight < 0 for c in one.criteria}
        for side, responses in enumerate((one.good, one.bad)):
            for verdict in (verdict for response in responses for verdict in response.verdicts):
                key = (one.rubric, verdict.criterion)
                if verdict.score is None:
                    failed[key] += 1
                else:
                    scores[key][side].append(verdict.score)
    measured = [_criterion(key, *scores[key], failed[key], is_inverted) for key, is_inverted in inverted.items()]
    return tuple(sorted(measured, key=lambda one: math.inf if one.difference is None else one.difference))


def _criterion(
    key: tuple[str, str], good: Sequence[float], bad: Sequence[float], failed: int, inverted: bool
) -> CriterionSeparation:
    high, low = _mean(good), _mean(bad)
    difference = None if high is None or low is None else (low - high if inverted else high - low)
    return CriterionSeparation(*key, high, low, difference, len(good) + len(bad), failed)


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None
