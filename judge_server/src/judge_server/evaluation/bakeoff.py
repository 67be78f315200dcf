"""Compare contenders on one labelled data set: quality against cost. A contender is a judge and how it is asked.

Every contender has the figures of its own verdicts, as `evaluate` computes them. Differences are paired: they are taken
over the items that every measured contender has a verdict on, so that no contender gains by failing on a hard one.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isnan
from typing import Any, Literal, NamedTuple, TypeAlias, get_args

from judge_server.evaluation.judging import Judgement
from judge_server.evaluation.metrics import UNDEFINED, Estimate, Figure, RowBootstrap, as_json
from judge_server.evaluation.report import (
    common_verdicts,
    cost_of_judgement,
    evaluate,
    measured_verdicts,
    verdict_arrays,
)

Cost: TypeAlias = Literal["seconds", "tokens_computed", "tokens_written", "calls"]
"""A cost of a judgement, under its name in `CostFigures`."""

COSTS: tuple[Cost, ...] = get_args(Cost)

SHARE_ANSWERED = 0.95
"""The fewest verdicts of a contender that is recommended, as a share of those of the one with the most."""

VERDICT_FIGURES: tuple[Figure, ...] = ("balanced_accuracy", "auroc", "ece")
PAIRS_RIGHT = "pairs_right"
"""The share of pairs judged right, with disagreement of the two orders counted as half."""


class Contender(NamedTuple):
    """A judge and how it is asked.

    Attributes:
        name: what tables call it.
        judge: an engine URL, or the name of a service's judge.
        options: the fields of `judging` in a request that are not the default.
    """

    name: str
    judge: str
    options: Mapping[str, Any]


class Differences(NamedTuple):
    """A contender minus the first one, over the items that every measured contender has a verdict on.

    Attributes:
        n: the number of those verdicts or, in a data set of pairs, of those comparisons.
        quality: the difference of each quality figure.
        cost: the difference of each cost of a judgement, over the examples that every contender asked its judge about.
    """

    n: int
    quality: Mapping[str, Estimate]
    cost: Mapping[Cost, Estimate]


class ContenderResult(NamedTuple):
    """The figures of a contender.

    Attributes:
        contender: the contender.
        problem: why it has no figures; empty if it has some.
        model, fingerprint: the judge.
        n, rows: the number of verdicts (or comparisons of pairs) with a score, and of rows that they come from.
        failed, refused: the number of failed verdicts, and of examples that the service refused.
        quality: balanced accuracy, AUROC and ECE, or the share of pairs judged right.
        cost: the costs of a judgement; empty if every answer came from a cache.
        differences: to the first contender that has figures; None for that one.
        on_front: whether no other contender is as good for less, or better for as much.
        recommended: whether it is the cheapest of those that are not shown to be worse than the best.
    """

    contender: Contender
    problem: str = ""
    model: str = ""
    fingerprint: str = ""
    n: int = 0
    rows: int = 0
    failed: int = 0
    refused: int = 0
    quality: Mapping[str, Estimate] = {}
    cost: Mapping[Cost, Estimate] = {}
    differences: Differences | None = None
    on_front: bool = False
    recommended: bool = False


@dataclass(frozen=True, slots=True)
class BakeOff:
    """The results in the order of the contenders; `quality` and `cost` name the two figures of the front."""

    results: tuple[ContenderResult, ...]
    quality: str
    cost: Cost

    def as_json(self) -> dict[str, Any]:
        """Return the comparison as JSON; undefined numbers are null."""
        front = {"quality": self.quality, "cost": self.cost}
        rows = [as_json(one.contender) | as_json(one) | {"problem": one.problem or None} for one in self.results]
        return {"front": front, "contenders": [{n: v for n, v in row.items() if n != "contender"} for row in rows]}


def pareto_front(points: Sequence[tuple[float, float]]) -> list[bool]:
    """Return for each (quality, cost) whether no other point has at least its quality at no more cost, and differs.

    A point with a nan is not on the front and keeps no other from it.
    """

    def beats(a: tuple[float, float], b: tuple[float, float]) -> bool:
        return a[0] >= b[0] and a[1] <= b[1] and a != b

    known = [point for point in points if not any(map(isnan, point))]
    return [point in known and not any(beats(other, point) for other in known) for point in points]


def bake_off(entries: Sequence[tuple[Contender, Sequence[Judgement] | str]], cost: Cost = "seconds") -> BakeOff:
    """Compare contenders.

    Args:
        entries: each contender with what it answered, one judgement per example in the same order for all; or with the
            reason why it was not judged.
        cost: the cost that the front weighs against quality.
    """
    results: dict[int, ContenderResult] = {}
    measured: dict[int, Sequence[Judgement]] = {}
    for number, (contender, answered) in enumerate(entries):
        results[number] = _measure(contender, answered)
        if not results[number].problem and not isinstance(answered, str):
            measured[number] = answered
    for number, moved in _differences(measured).items():
        results[number] = results[number]._replace(differences=moved)
    balanced: Figure = "balanced_accuracy"
    quality = balanced if any(balanced in one.quality for one in results.values()) or not measured else PAIRS_RIGHT
    points = [
        (one.quality.get(quality, UNDEFINED).value, one.cost.get(cost, UNDEFINED).value) for one in results.values()
    ]
    chosen = _recommended(measured, results, quality, cost)
    return BakeOff(
        tuple(
            [
                one._replace(on_front=on_front, recommended=number == chosen)
                for (number, one), on_front in zip(results.items(), pareto_front(points), strict=True)
            ]
        ),
        quality,
        cost,
    )


def _recommended(
    measured: Mapping[int, Sequence[Judgement]], results: Mapping[int, ContenderResult], quality: str, cost: Cost
) -> int | None:
    """Return the cheapest contender of those of which the interval of the difference to the best one reaches 0.

    One that has fewer than `SHARE_ANSWERED` of the most verdicts is left out: it fails where others do not.
    """
    most = max([results[number].n for number in measured], default=0)
    known = {
        number: results[number].quality[quality].value
        for number in measured
        if not isnan(results[number].quality.get(quality, UNDEFINED).value)
        and results[number].n >= SHARE_ANSWERED * most
    }
    if not known:
        return None
    best = max(known, key=lambda number: known[number])

    def as_good(number: int) -> bool:
        if number == best:
            return True
        moved = _differences({best: measured[best], number: measured[number]})[number].quality.get(quality, UNDEFINED)
        return not isnan(moved.value) and not moved.high < 0

    costs = {number: results[number].cost.get(cost, UNDEFINED).value for number in known if as_good(number)}
    priced = {number: value for number, value in costs.items() if not isnan(value)}
    return min(priced, key=lambda number: priced[number], default=None)


def _measure(contender: Contender, answered: Sequence[Judgement] | str) -> ContenderResult:
    if isinstance(answered, str):
        return ContenderResult(contender, answered)
    try:
        found = evaluate(answered)
    except ValueError as error:
        return ContenderResult(contender, str(error))
    overall, pairs, refused = found.overall, found.pairs, sum(found.refused.values())
    known = next(one for one in answered if not one.problem)
    quality: dict[str, Estimate] = {}
    if overall.n:
        quality |= {name: overall.figures[name] for name in VERDICT_FIGURES}
    if pairs is not None and pairs.n:
        quality[PAIRS_RIGHT] = pairs.accuracy
    failed = overall.failed + (0 if pairs is None else pairs.failed)
    problem = ""
    if not quality:
        problem = "every verdict failed" if failed else "it gives no verdict on a labelled criterion"
    return ContenderResult(
        contender,
        problem,
        known.model,
        known.fingerprint,
        overall.n + (0 if pairs is None else pairs.n),
        len({one.example.row for one in answered if _is_scored(one)}),
        failed,
        refused,
        quality,
        {} if found.cost is None else {name: getattr(found.cost, name) for name in COSTS},
    )


def _is_scored(judgement: Judgement) -> bool:
    """Whether a judgement has a score that is measured."""
    return judgement.pair_right is not None or any(one.score is not None for one in measured_verdicts(judgement))


def _differences(measured: Mapping[int, Sequence[Judgement]]) -> dict[int, Differences]:
    """Compare every contender but the first with the first, over what all have in common."""
    if len(measured) < 2:
        return {}
    first, *others = measured
    bootstrap = RowBootstrap([one.example.row for one in measured[first]])
    items = common_verdicts(list(measured.values()))
    rows = [said[0].row for said in items]
    arrays = dict(zip(measured, map(verdict_arrays, zip(*items, strict=True)), strict=True)) if items else {}
    right = {number: [one.pair_right for one in judged] for number, judged in measured.items()}
    pairs = [place for place, said in enumerate(zip(*right.values(), strict=True)) if None not in said]
    pair_rows = [measured[first][place].example.row for place in pairs]
    asked = [
        place
        for place in range(len(measured[first]))
        if all(not judged[place].problem and judged[place].usage.judge_calls for judged in measured.values())
    ]
    found = {}
    for number in others:
        quality: dict[str, Estimate] = {}
        if items:
            moved = bootstrap.differences(rows, arrays[first], arrays[number])
            quality |= {name: moved[name] for name in VERDICT_FIGURES}
        if pairs:
            gains = [(right[number][place] or 0.0) - (right[first][place] or 0.0) for place in pairs]
            quality[PAIRS_RIGHT] = bootstrap.mean(pair_rows, gains)
        both = [[measured[side][place] for place in asked] for side in (first, number)]
        cost = {name: _cost_difference(bootstrap, name, *both) for name in COSTS} if asked else {}
        found[number] = Differences(len(items) + len(pairs), quality, cost)
    return found


def _cost_difference(
    bootstrap: RowBootstrap, cost: Cost, first: Sequence[Judgement], second: Sequence[Judgement]
) -> Estimate:
    rows = [one.example.row for one in first]
    return bootstrap.statistic(rows, lambda w: cost_of_judgement(second, cost, w) - cost_of_judgement(first, cost, w))
