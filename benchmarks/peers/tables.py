"""Tables of the results: medians over rounds, and ratios to Adjudge computed round by round.

Figures per judgement are None if nothing was judged.
"""

import math
import statistics
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from benchmarks.peers.contenders import ADJUDGE
from benchmarks.peers.rounds import FaultResult, RoundResult


def cost_rows(turns: Mapping[str, Sequence[RoundResult]]) -> list[dict[str, Any]]:
    """Return the cost of each contender's successful judgements. Ratios are None without Adjudge."""
    mine = turns.get(ADJUDGE)
    return [
        {
            "": name,
            "judgements/s": _spread([_rate(turn) for turn in its]),
            "CPU s per 1,000": _spread([_cpu(turn) * 1000 for turn in its]),
            "server's": _middle([_each(turn, turn.counts.cpu_s) * 1000 for turn in its]),
            "p99 ms": _p99(its),
            "Adjudge: by wall clock": mine and _spread([_over(_rate(m), _rate(t)) for m, t in _pairs(mine, its)]),
            "per CPU second": mine and _spread([_over(_cpu(t), _cpu(m)) for m, t in _pairs(mine, its)]),
        }
        for name, its in turns.items()
    ]


def work_rows(turns: Mapping[str, Sequence[RoundResult]]) -> list[dict[str, Any]]:
    """Return each contender's use of the server per judgement, and the speedup of a second run."""
    return [
        {
            "": name,
            "judgements": sum(map(_scored, its)),
            "failed": sum(_failed(turn) for turn in its),
            "calls": _middle([_each(turn, turn.counts.calls) for turn in its]) or None,
            "computed": _middle([_each(turn, turn.counts.computed) for turn in its]),
            "written": _middle([_each(turn, turn.counts.written) for turn in its]),
            "second run": _second_run(its),
        }
        for name, its in turns.items()
    ]


def fault_rows(fates: Mapping[str, FaultResult]) -> list[dict[str, Any]]:
    """Return a row per contender."""
    return [
        {
            "": name,
            "right": fate.tally.right,
            "failed, and reported": fate.tally.failed,
            "made up": fate.tally.made_up,
            "lost with the run": fate.tally.lost,
            "calls": fate.counts.calls,
            "of them retries": fate.counts.again,
            "seconds": fate.took.seconds,
            "reported errors": _reasons(fate),
        }
        for name, fate in fates.items()
    ]


def _p99(turns: Sequence[RoundResult]) -> float | None:
    seconds = [second for turn in turns if turn.timed is not None for second in turn.timed.latencies]
    return statistics.quantiles(seconds, n=100, method="inclusive")[98] * 1000 if len(seconds) > 1 else None


def _scored(turn: RoundResult) -> int:
    return sum(isinstance(score, float) for scores in turn.first.scores for score in scores)


def _failed(turn: RoundResult) -> int:
    return sum(map(len, turn.first.scores)) - _scored(turn)


def _rate(turn: RoundResult) -> float:
    return _scored(turn) / turn.first.seconds


def _cpu(turn: RoundResult) -> float:
    return _each(turn, turn.first.cpu_s)


def _each(turn: RoundResult, total: float) -> float:
    return _over(total, _scored(turn))


def _over(one: float, other: float) -> float:
    return one / other if other else math.inf


def _pairs(mine: Sequence[RoundResult], its: Sequence[RoundResult]) -> Iterator[tuple[RoundResult, RoundResult]]:
    return zip(mine, its, strict=True)


def _second_run(turns: Sequence[RoundResult]) -> str | None:
    ratios = [turn.first.seconds / turn.second.seconds for turn in turns if turn.second is not None]
    return _spread(ratios) if ratios else None


def _middle(values: Sequence[float]) -> float | None:
    """Return the median; None if it is infinite, since nothing was judged."""
    middle = statistics.median(values)
    return middle if math.isfinite(middle) else None


def _spread(values: Sequence[float]) -> str | None:
    if _middle(values) is None:
        return None
    return f"{_short(statistics.median(values))} ({_range(values)})"


def _range(values: Sequence[float]) -> str:
    return f"{_short(min(values))}..{_short(max(values))}"


def _short(value: float) -> str:
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


def _reasons(fate: FaultResult) -> str:
    if fate.took.error is not None:
        return fate.took.error.partition(":")[0]
    reasons = [score for scores in fate.took.scores for score in scores if isinstance(score, str)]
    return ", ".join(f"{reason} {reasons.count(reason)}" for reason in sorted(set(reasons)))
