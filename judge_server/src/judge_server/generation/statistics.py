"""What a corpus of generated rubrics looks like: how many criteria, what weights, how long, of what kinds.

Counts only what it is given; where the rubrics are kept, and how the numbers are shown, is for others.
"""

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from judge_server.generation.validity import rates_by_kind
from trainer_client.wire.base import AnswerModel


class Distribution(AnswerModel):
    """Numbers in short: how many, the least, the quartiles, the most, mean and population deviation; zeros for none."""

    count: int = 0
    least: float = 0.0
    lower: float = 0.0
    median: float = 0.0
    upper: float = 0.0
    most: float = 0.0
    mean: float = 0.0
    deviation: float = 0.0

    @classmethod
    def of(cls, counts: Mapping[float, int]) -> "Distribution":
        """The distribution of values, each with how often it came. Quartiles are values that came."""
        number = sum(counts.values())
        if not number:
            return cls()
        ordered = sorted(counts)
        mean = math.fsum(value * counts[value] for value in ordered) / number
        variance = math.fsum(counts[value] * (value - mean) ** 2 for value in ordered) / number

        def at(share: float) -> float:
            rank, passed = max(1, math.ceil(share * number)), 0
            for value in ordered:
                passed += counts[value]
                if passed >= rank:
                    return value
            return ordered[-1]

        return cls(
            count=number,
            least=ordered[0],
            lower=at(0.25),
            median=at(0.5),
            upper=at(0.75),
            most=ordered[-1],
            mean=mean,
            deviation=math.sqrt(variance),
        )


class CorpusStatistics(AnswerModel):
    """A corpus of rubrics in numbers.

    Attributes:
        inputs: how many inputs there were, and `rubrics` how many of them gave one.
        criteria_per_rubric, weights, description_characters: of the rubrics, and of all their criteria.
        criteria_counts, weight_counts, length_counts: how often each came; a length is rounded down to a multiple of
            `LENGTH_STEP` characters. Values are written as text.
        kinds: criteria of each kind.
        tags: criteria of each tag, the commonest first.
        splits: rubrics of each split.
        flags: rubrics with each flag.
        discarded: inputs that gave none, by reason; the commonest first.
        validity: of the criteria whose validity was judged, how many are valid, by kind (`rates_by_kind`).
    """

    inputs: int
    rubrics: int
    criteria_per_rubric: Distribution
    weights: Distribution
    description_characters: Distribution
    criteria_counts: dict[str, int]
    weight_counts: dict[str, int]
    length_counts: dict[str, int]
    kinds: dict[str, int]
    tags: dict[str, int]
    splits: dict[str, int]
    flags: dict[str, int]
    discarded: dict[str, int]
    validity: dict[str, dict[str, float | int | None]]


LENGTH_STEP = 20
"""Characters."""

MOST_TAGS = 20
"""Tags that are counted by name; a corpus may have as many as criteria."""


def corpus_statistics(records: Iterable[Mapping[str, Any]], reasons: Sequence[str]) -> CorpusStatistics:
    """Count records of `rubrics.jsonl`, and the reasons why the other inputs gave no rubric."""
    sizes: Counter[float] = Counter()
    weights: Counter[float] = Counter()
    lengths: Counter[float] = Counter()
    kinds: Counter[str] = Counter()
    tags: Counter[str] = Counter()
    splits: Counter[str] = Counter()
    flags: Counter[str] = Counter()
    judged: list[Mapping[str, Any]] = []
    for record in records:
        judged += record["metadata"].get("validity", {}).get("items", [])
        criteria = record["criteria"]
        sizes[len(criteria)] += 1
        splits[record["split"]] += 1
        flags.update(record["flags"])
        for criterion in criteria:
            weights[criterion["weight"]] += 1
            lengths[len(criterion["description"])] += 1
            kinds[criterion["kind"]] += 1
            tags.update(criterion["tags"])
    steps = Counter[float]()
    for length, number in lengths.items():
        steps[length // LENGTH_STEP * LENGTH_STEP] += number
    return CorpusStatistics(
        inputs=sizes.total() + len(reasons),
        rubrics=sizes.total(),
        criteria_per_rubric=Distribution.of(sizes),
        weights=Distribution.of(weights),
        description_characters=Distribution.of(lengths),
        criteria_counts=_by_value(sizes),
        weight_counts=_by_value(weights),
        length_counts=_by_value(steps),
        kinds=dict(kinds.most_common()),
        tags=dict(tags.most_common(MOST_TAGS)),
        splits=dict(sorted(splits.items())),
        flags=dict(flags.most_common()),
        discarded=dict(Counter(reasons).most_common()),
        validity=rates_by_kind(judged),
    )


def _by_value(counts: Mapping[float, int]) -> dict[str, int]:
    return {f"{value:g}": counts[value] for value in sorted(counts)}
