"""How often one policy's responses beat another's, from comparisons in both orders (DRO, pairwise win rate)."""

from collections.abc import Sequence
from statistics import fmean

from judge_server.evaluation.trajectories import MeasureEstimate, interval
from trainer_client.wire import Comparison


def win_rates(problems: Sequence[Sequence[Comparison]], *, seed: int = 0) -> dict[str, MeasureEstimate]:
    """Measure wins of `a` over `b`; every problem weighs the same.

    `win_rate` is the mean score of `a` in [0, 1]: each order of a pair is a win (1), a loss (0) or a tie (one half),
    and a pair's score is the mean of its two. `tie_rate` is the share of pairs of score one half, `order_agreement` the
    share whose two orders say the same: what is missing to 1 went by the place where a response stood.

    Args:
        problems: the comparisons of each problem; those that failed are left out.
        seed: of the bootstrap behind the intervals.

    Returns:
        The measures; none where no comparison succeeded.
    """
    judged = [[pair for pair in pairs if pair.score is not None] for pairs in problems]
    rows = [
        (
            fmean(pair.score for pair in pairs if pair.score is not None),
            fmean(pair.preferred == "tie" for pair in pairs),
            fmean(bool(pair.consistent) for pair in pairs),
        )
        for pairs in judged
        if pairs
    ]
    if not rows:
        return {}
    found = {}
    for name, column in zip(("win_rate", "tie_rate", "order_agreement"), zip(*rows, strict=True), strict=True):
        value = fmean(column)
        low, high = interval(column, fmean, value, share=True, seed=seed)
        found[name] = MeasureEstimate(value, low, high, len(rows))
    return found
