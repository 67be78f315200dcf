"""How the rewards and advantages of a run would have moved under another judge.

Both judges are asked about the same responses. A reward is recomputed from the verdicts by the run's options, and an
advantage is the reward's distance from its group's mean in standard deviations (GRPO).
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from judge_server.evaluation.judging import Judgement
from judge_server.evaluation.labelled import MET_FROM
from judge_server.evaluation.metrics import Estimate, RowBootstrap, as_json, weighted_spearman
from judge_server.evaluation.runs import RunGroup
from judge_server.scoring.scorer import reward_of
from trainer_client.advantages import group_advantages


class JudgeComparison(NamedTuple):
    """What changes from judge a to judge b, over the responses that both could judge.

    Attributes:
        groups, responses, verdicts: their numbers.
        unscored_a, unscored_b: responses without a reward under each judge.
        turned: the share of verdicts that turn.
        by_criterion: the same by criterion, largest first, with the number of verdicts.
        reward_a, reward_b: mean rewards.
        reward_shift: mean of b's reward minus a's.
        reward_correlation: Spearman's rank correlation of rewards.
        advantage_distance: mean absolute change of the advantage.
        advantage_flipped: the share of responses whose advantage changes its sign, from above 0 to below or back.
        best_changed: the share of groups in which b's best response is not one of a's best.
    """

    groups: int
    responses: int
    verdicts: int
    unscored_a: int
    unscored_b: int
    turned: Estimate
    by_criterion: Mapping[str, tuple[Estimate, int]]
    reward_a: Estimate
    reward_b: Estimate
    reward_shift: Estimate
    reward_correlation: Estimate
    advantage_distance: Estimate
    advantage_flipped: Estimate
    best_changed: Estimate

    def as_json(self) -> dict[str, Any]:
        """Return the comparison as JSON."""
        fields = self._asdict()
        figures = {name: value for name, value in fields.items() if isinstance(value, Estimate)}
        counts = {name: value for name, value in fields.items() if isinstance(value, int)}
        criteria = {
            name: {**as_json({"turned": one})["turned"], "n": n} for name, (one, n) in self.by_criterion.items()
        }
        return {**counts, **as_json(figures), "by_criterion": criteria}


def compare_judges(groups: Sequence[RunGroup], a: Sequence[Judgement], b: Sequence[Judgement]) -> JudgeComparison:
    """Compare two judges on groups of a run.

    Args:
        groups: the groups.
        a, b: each judge's judgements, one per response, in the order of the groups.

    Raises:
        ValueError: no response was judged by both, or a group was ranked.
    """
    if any(group.options.mode == "ranking" for group in groups):
        raise ValueError(
            "the run has groups of mode 'ranking', whose responses were compared and not judged one by one; judge them "
            "by another mode to compare judges"
        )
    turned: list[tuple[str, str, float]] = []
    rows: list[str] = []
    rewards: tuple[list[float], list[float]] = ([], [])
    advantages: tuple[list[float], list[float]] = ([], [])
    best: list[tuple[str, float]] = []
    unscored = [0, 0]
    place = 0
    for group in groups:
        end = place + len(group.responses)
        sides = [_rewards(group, judged[place:end]) for judged in (a, b)]
        for first, second in zip(a[place:end], b[place:end], strict=True):
            turned += _turned(group.id, first, second)
        place = end
        for side, values in enumerate(sides):
            unscored[side] += sum(value is None for value in values)
        both = [n for n in range(len(group.responses)) if sides[0][n] is not None and sides[1][n] is not None]
        if not both:
            continue
        kept = [np.array([values[n] for n in both], dtype=float) for values in sides]
        rows += [group.id] * len(both)
        for side, own in enumerate(kept):
            rewards[side].extend(own.tolist())
            advantages[side].extend(group_advantages(own.tolist()).tolist())
        if len(both) > 1:
            tops = [set(np.flatnonzero(own == own.max()).tolist()) for own in kept]
            best.append((group.id, float(not tops[0] & tops[1])))
    if not rows:
        raise ValueError("no response has a reward under both judges, so there is nothing to compare")
    bootstrap = RowBootstrap([group.id for group in groups])
    difference = np.array(rewards[1]) - np.array(rewards[0])
    before, after = np.array(advantages[0]), np.array(advantages[1])
    criteria: dict[str, list[tuple[str, float]]] = {}
    for row, name, did in turned:
        criteria.setdefault(name, []).append((row, did))
    measured = {
        name: (bootstrap.mean([row for row, _ in some], [did for _, did in some]), len(some))
        for name, some in criteria.items()
    }
    return JudgeComparison(
        len(groups),
        len(rows),
        len(turned),
        unscored[0],
        unscored[1],
        bootstrap.mean([row for row, _, _ in turned], [did for *_, did in turned]),
        dict(sorted(measured.items(), key=lambda one: -one[1][0].value)),
        bootstrap.mean(rows, rewards[0]),
        bootstrap.mean(rows, rewards[1]),
        bootstrap.mean(rows, difference.tolist()),
        bootstrap.statistic(rows, weighted_spearman(*rewards)),
        bootstrap.mean(rows, np.abs(after - before).tolist()),
        bootstrap.mean(rows, (before * after < 0).astype(float).tolist()),
        bootstrap.mean([row for row, _ in best], [changed for _, changed in best]),
    )


def _turned(row: str, a: Judgement, b: Judgement) -> list[tuple[str, str, float]]:
    found = []
    for name, verdict in a.verdicts.items():
        other = b.verdicts.get(name)
        if verdict.score is not None and other is not None and other.score is not None:
            found.append((row, name, float((verdict.score >= MET_FROM) != (other.score >= MET_FROM))))
    return found


def _rewards(group: RunGroup, judged: Sequence[Judgement]) -> list[float | None]:
    """Return the reward of each response by the run's options; None where a failed verdict leaves none."""
    found: list[float | None] = []
    options = group.options
    for one, form in zip(judged, group.forms, strict=True):
        criteria = group.responses[0].criteria
        verdicts = [one.verdicts.get(criterion.id) for criterion in criteria]
        result = reward_of(
            criteria,
            [None if verdict is None else verdict.value(options.use) for verdict in verdicts],
            options,
            "null",
            failures=[None] * len(criteria),
            on_uncertain="null",
            uncertain=[verdict is not None and verdict.status == "uncertain" for verdict in verdicts],
            sample=None,
            **form._asdict(),
        )
        found.append(result.reward)
    return found
