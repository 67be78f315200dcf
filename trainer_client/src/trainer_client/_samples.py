"""What k samples of a problem give: pass@k, Avg@k, best of n."""

import math
import operator
from collections.abc import Sequence
from typing import SupportsIndex

from trainer_client._criteria import Score, as_number, read_scores


def pass_at_k(n: SupportsIndex, c: SupportsIndex, k: SupportsIndex) -> float:
    """Estimate the probability that one of k samples is right: 1 - C(n-c, k) / C(n, k) (Chen et al. 2021, eq. 1).

    Unbiased. Summed in logarithms over the shorter of k and c factors, so that nothing overflows or cancels.

    Args:
        n: how many samples there are.
        c: how many of them are right, 0 to n.
        k: 1 to n.

    Raises:
        ValueError: a number is out of range.
    """
    samples, right, drawn = (operator.index(given) for given in (n, c, k))
    if not (0 <= right <= samples and 1 <= drawn <= samples):
        raise ValueError(f"n is {n}, c {c} and k {k}; of n samples 0 to n are right, and 1 to n are drawn")
    if samples - right < drawn:
        return 1.0
    fewer, more = sorted((right, drawn))
    logs = (math.log1p(-more / count) for count in range(samples - fewer + 1, samples + 1))
    return -math.expm1(math.fsum(logs))


def average_at_k(correct: Sequence[Sequence[Score]]) -> float | None:
    """Compute Avg@k: the mean score of each problem's samples, averaged over the problems.

    Args:
        correct: for each problem its k samples, in [0, 1]; None leaves a sample out, and a problem without any.

    Raises:
        ValueError: a score is outside [0, 1].
    """
    rows = [[score for score in read_scores(row, len(row)) if score is not None] for row in correct]
    means = [math.fsum(row) / len(row) for row in rows if row]
    return math.fsum(means) / len(means) if means else None


def best_of_n(scores: Sequence[float | None], n: int) -> float | None:
    """Estimate the expected best of n samples, from m samples of a problem (RuscaRL, figure 4).

    Unbiased: the mean of the maximum over all sets of n of the m scores. Of scores 0 and 1 it is pass@n.

    Args:
        scores: m finite numbers; None leaves a sample out.
        n: at least 1.

    Returns:
        None where fewer than n samples have a score.

    Raises:
        ValueError: n is below 1, or a score is not a finite number.
    """
    known = sorted(as_number(score) for score in scores if score is not None)
    if n < 1 or not all(map(math.isfinite, known)):
        raise ValueError(f"n is {n} or a score is not finite; n is at least 1 and scores are finite numbers or None")
    if len(known) < n:
        return None
    share, best = n / len(known), []  # C(i-1, n-1) / C(m, n) for the i-th lowest score, from i = m down
    for i in range(len(known), n - 1, -1):
        best.append(share * known[i - 1])
        share *= (i - n) / (i - 1) if i > 1 else 0.0
    return math.fsum(best)
