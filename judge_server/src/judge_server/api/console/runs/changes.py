"""What changed in a run at a step: the pass rate of each criterion in the steps before and in those after."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from judge_server.api.console.tables import address
from trainer_client.wire.ledger_rows import CriterionBucket, RunCharts, StepBucket

CHANGE_STEPS = 10
"""The steps before and after a step that are compared."""


class Rate(NamedTuple):
    """A pass rate, and the number of verdicts that it is taken of; None without verdicts."""

    value: float | None
    verdicts: int


class CriterionChange(NamedTuple):
    """A criterion before and after a step, and the page of the responses that show it."""

    criterion: str
    before: Rate
    after: Rate
    href: str

    @property
    def change(self) -> float | None:
        """By how much the pass rate rose; None if it is not known on both sides."""
        if self.before.value is None or self.after.value is None:
            return None
        return self.after.value - self.before.value


class Changes(NamedTuple):
    """What changed at a step. The ranges of steps are written as `31–40`; a mean reward is None without rewards."""

    step: int
    before: str
    after: str
    rewards: tuple[float | None, float | None]
    criteria: tuple[CriterionChange, ...]


def read_changes(run: str, step: int, charts: RunCharts) -> Changes | None:
    """What changed at a step, the criterion that moved most first.

    Args:
        run: the run's name.
        step: the first step of those after.
        charts: the run's figures in the steps around it, one step a bucket.

    Returns:
        None if nothing was judged before the step, or nothing from there on.
    """
    before = [index for index, bucket in enumerate(charts.steps) if bucket.first < step]
    after = [index for index, bucket in enumerate(charts.steps) if bucket.first >= step]
    if not before or not after:
        return None
    last = charts.steps[after[-1]].last
    changed = []
    for criterion in dict.fromkeys(one.criterion for one in charts.criteria):
        own = [one for one in charts.criteria if one.criterion == criterion]
        rates = _rate(own, before), _rate(own, after)
        fell = (rates[1].value or 0.0) < (rates[0].value or 0.0)
        href = address(
            "responses", run=run, first=last, last=last, criterion=criterion, outcome="not passed" if fell else "passed"
        )
        changed.append(CriterionChange(criterion, *rates, href))
    changed.sort(key=lambda one: -abs(one.change or 0.0))
    left, right = ([charts.steps[index] for index in side] for side in (before, after))
    return Changes(step, _name(left), _name(right), (_mean(left), _mean(right)), tuple(changed))


def _rate(own: Iterable[CriterionBucket], buckets: Sequence[int]) -> Rate:
    chosen = [one for one in own if one.bucket in buckets]
    given = sum(one.given for one in chosen)
    return Rate(sum(one.passed for one in chosen) / given if given else None, given)


def _name(steps: Sequence[StepBucket]) -> str:
    return f"{steps[0].first}–{steps[-1].last}" if steps[0].first < steps[-1].last else f"{steps[0].first}"


def _mean(steps: Sequence[StepBucket]) -> float | None:
    rewarded = [(one.mean_reward, one.responses - one.unscored) for one in steps if one.mean_reward is not None]
    count = sum(number for _, number in rewarded)
    return sum(mean * number for mean, number in rewarded) / count if count else None
