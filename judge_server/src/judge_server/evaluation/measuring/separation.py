"""How well a rubric separates good responses from bad ones, by their rewards and verdicts.

Pure functions of judged responses whose quality is known.
"""

import math
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import fmean
from typing import Any, Final

from judge_server.intervals import wilson
from trainer_client.wire import Criterion, ResponseReward
from trainer_client.wire.problems import Meaning

MAX_SUMMARY_CRITERIA = 200


@dataclass(frozen=True, slots=True)
class LabelledPrompt:
    """The judged good and bad responses to a prompt, and the rubric's criteria.

    `rubric` names the rubric in a report; verdicts with the same rubric name and criterion id are counted together.
    """

    rubric: str
    criteria: tuple[Criterion, ...]
    good: tuple[ResponseReward, ...]
    bad: tuple[ResponseReward, ...]


@dataclass(frozen=True, slots=True)
class CriterionSeparation:
    """How one criterion separates good from bad responses.

    Attributes:
        rubric, criterion: the rubric's name and the criterion's id.
        good, bad: mean score in [0, 1] of the good and of the bad responses with a verdict; None if there are none.
        difference: the advantage of good responses, in [-1, 1]: `good - bad`, or `bad - good` for a criterion with a
            negative weight or of kind `pitfall`, which good responses do not satisfy. None if either mean is None.
        verdicts, failed: number of verdicts with a score, and of failed ones.
        interval: 95% interval of `difference` (Newcombe's, from Wilson's intervals of both means), as if verdicts were
            independent; None if `difference` is.
        description: the criterion's text.
    """

    rubric: str
    criterion: str
    good: float | None
    bad: float | None
    difference: float | None
    verdicts: int
    failed: int
    interval: Sequence[float] | None = None
    description: str = ""

    @property
    def reading(self) -> str:
        """What the difference says."""
        return read_difference(self.difference, self.interval)


READINGS: Final[Mapping[str, Meaning]] = {
    "tells them apart": Meaning(
        "Good responses have a clearly higher score on the criterion than bad ones: by at least 0.1.",
        "Keep the criterion.",
    ),
    "points the wrong way": Meaning(
        "Bad responses have a clearly higher score on the criterion than good ones.",
        "Reword the criterion, or drop it. Check the sign of its weight.",
    ),
    "says the same of both": Meaning(
        "The scores of good and bad responses differ by less than 0.1. All these responses may have what it asks for, "
        "or lack it.",
        "Keep it if your policy's responses differ in it. Otherwise reword or drop it.",
    ),
    "too few verdicts to tell": Meaning(
        "The 95% interval of the difference contains 0.",
        "Give more labelled responses.",
    ),
    "not judged on both sides": Meaning(
        "No good response, or no bad one, has a verdict on the criterion.",
        "See which verdicts failed and why.",
    ),
}
"""What `read_difference` says of a criterion, and what to do about it."""

USEFUL_FROM = 0.1
"""Below this difference a criterion is shown as saying the same of both; a visual aid, not a test."""


def read_difference(difference: float | None, interval: Sequence[float] | None) -> str:
    """What a criterion's difference between good and bad responses says, in words."""
    if difference is None:
        return "not judged on both sides"
    if abs(difference) < USEFUL_FROM:
        return "says the same of both"
    if interval is not None and interval[0] <= 0 <= interval[1]:
        return "too few verdicts to tell"
    return "tells them apart" if difference > 0 else "points the wrong way"


@dataclass(frozen=True, slots=True)
class Separation:
    """How a rubric separates good from bad responses to the same prompts.

    Attributes:
        prompts: number of prompts with at least one good and one bad response that have a reward. All figures of
            rewards are computed over these prompts.
        good, bad: number of their responses with a reward.
        unscored: number of responses without a reward, over all prompts.
        mean_good, mean_bad: mean rewards, with equal weight for each prompt.
        ordered: how often a good response has a higher reward than a bad one to the same prompt, with ties counted as
            half, averaged over prompts: 1 is perfect, 0.5 is chance (the area under the ROC curve, within prompts).
        interval: 95% interval of `ordered` by resampling prompts (percentiles, 1,000 resamples); None with fewer than
            two prompts.
        tied: share of pairs with equal rewards.
        criteria: each criterion separately, over all verdicts, least useful first.
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


def separation(labelled: Sequence[LabelledPrompt]) -> Separation:
    """Measure how rewards and verdicts separate good from bad responses to the same prompts."""
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
        interval=_interval(ordered),
        tied=_mean(ties),
        criteria=_by_criterion(labelled),
    )


def count_rubrics(labelled: Sequence[LabelledPrompt]) -> dict[str, int]:
    """How many rubrics rank good above bad more often than chance, as often, less often, or cannot be compared."""
    ordered: dict[str, list[float]] = defaultdict(list)
    for one in labelled:
        good, bad = _rewards(one.good), _rewards(one.bad)
        ordered[one.rubric] += [fmean(_order(g, b) for g in good for b in bad)] if good and bad else []
    means = [_mean(values) for values in ordered.values()]
    return {
        "above_chance": sum(mean is not None and mean > 0.5 for mean in means),
        "at_chance": sum(mean == 0.5 for mean in means),
        "below_chance": sum(mean is not None and mean < 0.5 for mean in means),
        "not_compared": sum(mean is None for mean in means),
    }


def separation_summary(labelled: Sequence[LabelledPrompt]) -> dict[str, Any]:
    """A `Separation` as JSON, with `rubrics`, the counts of `count_rubrics`, and the number of all criteria.

    Of the criteria it has the `MAX_SUMMARY_CRITERIA` least useful.
    """
    found = separation(labelled)
    summary: dict[str, Any] = asdict(found) | {"interval": found.interval and list(found.interval)}
    summary["criteria"] = [asdict(one) for one in found.criteria[:MAX_SUMMARY_CRITERIA]]
    return {**summary, "criteria_count": len(found.criteria), "rubrics": count_rubrics(labelled)}


def _rewards(responses: Sequence[ResponseReward]) -> list[float]:
    return [response.reward for response in responses if response.reward is not None]


def _order(good: float, bad: float) -> float:
    return 0.5 if good == bad else float(good > bad)


def _interval(values: Sequence[float]) -> tuple[float, float] | None:
    if len(values) < 2:
        return None
    from judge_server.evaluation.metrics import RowBootstrap  # imports numpy, which the service does without

    prompts = range(len(values))
    found = RowBootstrap(prompts).mean(prompts, values)
    return found.low, found.high


def _by_criterion(labelled: Sequence[LabelledPrompt]) -> tuple[CriterionSeparation, ...]:
    scores: dict[tuple[str, str], tuple[list[float], list[float]]] = defaultdict(lambda: ([], []))
    failed: dict[tuple[str, str], int] = defaultdict(int)
    criteria: dict[tuple[str, str], Criterion] = {}
    for one in labelled:
        criteria |= {(one.rubric, criterion.id): criterion for criterion in one.criteria}
        for side, responses in enumerate((one.good, one.bad)):
            for verdict in (verdict for response in responses for verdict in response.verdicts):
                key = (one.rubric, verdict.criterion)
                if verdict.score is None:
                    failed[key] += 1
                else:
                    scores[key][side].append(verdict.score)
    measured = [_criterion(key[0], one, *scores[key], failed[key]) for key, one in criteria.items()]
    return tuple(sorted(measured, key=lambda one: math.inf if one.difference is None else one.difference))


def _criterion(
    rubric: str, criterion: Criterion, good: Sequence[float], bad: Sequence[float], failed: int
) -> CriterionSeparation:
    high, low = _mean(good), _mean(bad)
    difference = interval = None
    if high is not None and low is not None:
        better, worse = (bad, good) if criterion.avoided else (good, bad)
        difference = low - high if criterion.avoided else high - low
        interval = _difference_interval(better, worse)
    verdicts = len(good) + len(bad)
    return CriterionSeparation(
        rubric, criterion.id, high, low, difference, verdicts, failed, interval, criterion.description
    )


def _difference_interval(better: Sequence[float], worse: Sequence[float]) -> tuple[float, float]:
    """Newcombe's interval of a difference of two means of scores in [0, 1] (Newcombe 1998, method 10)."""
    one, other = fmean(better), fmean(worse)
    one_low, one_high = wilson(sum(better), len(better))
    other_low, other_high = wilson(sum(worse), len(worse))
    difference = one - other
    low = difference - math.hypot(one - one_low, other_high - other)
    high = difference + math.hypot(one_high - one, other - other_low)
    return max(-1.0, low), min(1.0, high)


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None
