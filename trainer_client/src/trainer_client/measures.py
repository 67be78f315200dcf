"""Measurements of judges and of trained policies, from numbers and texts that are there already.

Agreement of two judges, correlation of satisfaction with correctness, pass@k and its kin, faithful reasoning, looping,
diversity and novelty. Asks no judge and draws no sample. None marks what is not known; a measure that has nothing to
be taken of is None, and never 0.
"""

import math
import statistics
from collections import Counter
from collections.abc import Hashable, Sequence
from typing import NamedTuple, TypedDict, TypeVar

from trainer_client._criteria import Score, as_number, read_scores
from trainer_client._lexical import self_bleu
from trainer_client._loops import SELF_CORRECTION_PHRASES, LoopSigns, LoopStatistics, loop_statistics, loops
from trainer_client._samples import average_at_k, best_of_n, pass_at_k

__all__ = [
    "SELF_CORRECTION_PHRASES",
    "Faithfulness",
    "LoopSigns",
    "LoopStatistics",
    "Novelty",
    "agreement_rate",
    "average_at_k",
    "best_of_n",
    "cohen_kappa",
    "faithfulness",
    "loop_statistics",
    "loops",
    "novelty",
    "pass_at_k",
    "point_biserial",
    "self_bleu",
    "semantic_distance",
    "step_agreement",
]

_A = TypeVar("_A")
_B = TypeVar("_B")


class Faithfulness(TypedDict):
    """Rates in [0, 1]; None where there is nothing to divide by."""

    faithful_reasoning_rate: float | None
    misaligned_trajectory_rate: float | None
    answer_accuracy: float | None
    step_accuracy: float | None


class Novelty(NamedTuple):
    """How improbable responses were before training: over importance ratios, and how many exceed each threshold."""

    mean: float
    median: float
    counts: dict[float, int]


def agreement_rate(a: Sequence[Hashable | None], b: Sequence[Hashable | None]) -> float | None:
    """Compute how often two judges gave the same label, in [0, 1].

    Args:
        a: N labels; None where the judge gave none, and then the item is left out.
        b: the other judge's, of the same items.

    Raises:
        ValueError: the two differ in length.
    """
    pairs = _pairs(a, b)
    return sum(one == other for one, other in pairs) / len(pairs) if pairs else None


def cohen_kappa(a: Sequence[Hashable | None], b: Sequence[Hashable | None]) -> float | None:
    """Compute Cohen's kappa, (p_o - p_e) / (1 - p_e), in [-1, 1] (Cohen 1960; SRaR, table 6).

    p_o is the rate of agreement, p_e the one that the labels' frequencies alone would give. None where p_e is 1: both
    gave one and the same label throughout. Arguments and errors are those of `agreement_rate`.
    """
    pairs = _pairs(a, b)
    observed = sum(one == other for one, other in pairs)
    own, others = Counter(one for one, _ in pairs), Counter(other for _, other in pairs)
    by_chance = sum(count * others[label] for label, count in own.items())
    count = len(pairs)
    return (count * observed - by_chance) / (count * count - by_chance) if by_chance < count * count else None


def step_agreement(a: Sequence[int | None], b: Sequence[int | None]) -> float | None:
    """Compute how often two judges named the same step, where both named one (SRaR, table 6).

    A step named is 1 or higher: 0, the whole response, and -1, no step, name none. None is no verdict.

    Raises:
        ValueError: the two differ in length.
    """
    return agreement_rate(*([step if step is not None and step >= 1 else None for step in side] for side in (a, b)))


def point_biserial(binary: Sequence[Score], x: Sequence[float | None]) -> float | None:
    """Compute the point-biserial correlation, Pearson's of a yes-or-no with a number, in [-1, 1] (SRaR, table 7).

    Args:
        binary: N of 0 and 1, such as whether the answer is right; None leaves the item out.
        x: N finite numbers, such as the share of criteria that is satisfied; None leaves the item out.

    Returns:
        None where either of them does not vary.

    Raises:
        ValueError: the two differ in length, or hold something else.
    """
    pairs = [(as_number(one), as_number(other)) for one, other in _pairs(binary, x)]
    if any(one not in (0.0, 1.0) or not math.isfinite(other) for one, other in pairs):
        raise ValueError("binary holds something other than 0, 1 and None, or x a number that is not finite")
    if len({one for one, _ in pairs}) < 2 or len({other for _, other in pairs}) < 2:
        return None
    shifted = [other - pairs[0][1] for _, other in pairs]
    largest = max(map(abs, shifted))
    return statistics.correlation([one for one, _ in pairs], [value / largest for value in shifted])


def faithfulness(answer_correct: Sequence[Score], steps_correct: Sequence[Sequence[Score]]) -> Faithfulness:
    """Compute how reasoning and answers go together (SRaR, table 2).

    A trajectory is faithful if its answer and all its steps are right; it is misaligned if its answer is right and a
    step is not, or the answer is wrong and every step right. One without steps is neither, and counts among all.

    Args:
        answer_correct: N of 0 and 1; a trajectory of None is left out of all rates but the accuracy of steps.
        steps_correct: N lists of 0 and 1, one for each step. A step of None is left out; a trajectory of which only
            such steps could tell whether all are right is left out of the first two rates.

    Raises:
        ValueError: the two differ in length, or hold something else.
    """
    if len(answer_correct) != len(steps_correct):
        raise ValueError(f"{len(answer_correct)} answers and {len(steps_correct)} lists of steps; give one of each")
    answers = read_scores(answer_correct, len(answer_correct))
    steps = [read_scores(row, len(row)) for row in steps_correct]
    if any(value not in (0.0, 1.0, None) for row in (answers, *steps) for value in row):
        raise ValueError("an answer or a step is neither 0 nor 1; it is right, wrong, or None where nobody knows")
    decided = [(a, s) for a, s in zip(answers, steps, strict=True) if a is not None and (0.0 in s or None not in s)]
    faithful = [a == 1.0 and bool(s) and 0.0 not in s for a, s in decided]
    misaligned = [bool(s) and (a == 1.0) == (0.0 in s) for a, s in decided]
    return Faithfulness(
        faithful_reasoning_rate=_mean(faithful),
        misaligned_trajectory_rate=_mean(misaligned),
        answer_accuracy=_mean([a for a in answers if a is not None]),
        step_accuracy=_mean([value for row in steps for value in row if value is not None]),
    )


def novelty(new: Sequence[float], old: Sequence[float], *, thresholds: Sequence[float] = (2, 10, 100)) -> Novelty:
    """Compute how much more probable responses became: ratios exp(new - old) (RuscaRL, appendix D.4).

    Args:
        new: N mean log-likelihoods per token, in nats, of responses under the trained policy.
        old: of the same responses under the policy before training.
        thresholds: count the ratios above each (paper: 2, 10, 100).

    Raises:
        ValueError: the two differ in length, are empty, or hold something that is not finite.
    """
    if len(new) != len(old) or len(new) == 0:
        raise ValueError(f"{len(new)} new and {len(old)} old log-likelihoods; give one of each for some responses")
    if not all(math.isfinite(one) for side in (new, old) for one in side):
        raise ValueError("a log-likelihood is not finite; leave responses out that a policy cannot have written")
    ratios = [_exp(float(after) - float(before)) for after, before in zip(new, old, strict=True)]
    counts = {threshold: sum(ratio > threshold for ratio in ratios) for threshold in thresholds}
    return Novelty(statistics.fmean(ratios), statistics.median(ratios), counts)


def semantic_distance(embeddings: Sequence[Sequence[float]]) -> float:
    """Compute how far apart responses to one prompt are in meaning: the mean of 1 - cosine over all pairs, in [0, 2].

    The paper averages the cosine distance between the embedding vectors of 16 responses (RuscaRL, appendix D.4).

    Args:
        embeddings: N x D, a vector for each of at least 2 responses; their lengths do not matter.

    Raises:
        ValueError: there are fewer than 2, they differ in size, or one is not finite or is zero throughout.
    """
    if len(embeddings) < 2:
        raise ValueError(f"{len(embeddings)} embeddings; a distance is between at least 2")
    if len({len(vector) for vector in embeddings}) > 1:
        raise ValueError("the embeddings differ in size; they must come from one model")
    lengths = [math.hypot(*vector) for vector in embeddings]
    if not all(math.isfinite(length) and length > 0 for length in lengths):
        raise ValueError("an embedding is zero throughout or not finite, and has no direction")
    units = [[x / length for x in vector] for vector, length in zip(embeddings, lengths, strict=True)]
    together = math.fsum(math.fsum(column) ** 2 for column in zip(*units, strict=True))
    count = len(units)
    return min(2.0, max(0.0, 1.0 - (together - count) / (count * (count - 1))))


def _exp(x: float) -> float:
    """e^x, infinite where that is too large for a float."""
    try:
        return math.exp(x)
    except OverflowError:
        return math.inf


def _pairs(a: Sequence[_A | None], b: Sequence[_B | None]) -> list[tuple[_A, _B]]:
    if len(a) != len(b):
        raise ValueError(f"{len(a)} and {len(b)} entries; both are of the same items, None where there is nothing")
    return [(one, other) for one, other in zip(a, b, strict=True) if one is not None and other is not None]


def _mean(values: Sequence[float]) -> float | None:
    return math.fsum(values) / len(values) if values else None
