"""From sums of a run's tables to the figures that are told: rates, means, deviations. Pure."""

from collections.abc import Iterable, Sequence
from math import sqrt
from typing import Any

from sqlalchemy import Row

from trainer_client.wire.runs import CriterionFigures

_COUNTS = ("requests", "responses", "scored", "partial", "unscored", "verdicts", "failed", "cached", "judge_calls")
_TOKENS = {
    "prompt_tokens_computed": "tokens_computed",
    "prompt_tokens_reused": "tokens_reused",
    "tokens_written": "tokens_written",
}
_ROUNDING = 1e-12
"""The share of the mean's square below which a variance from sums is rounding."""


def judging_figures(step_rows: Sequence[Row[Any]], failed: Sequence[Row[Any]]) -> dict[str, Any]:
    """The fields of `JudgingFigures` from rows of `ledger_run_steps` and of `ledger_run_failures`, or sums of them."""
    counts = {name: _sum(step_rows, name) for name in _COUNTS}
    tokens = {field: _sum(step_rows, column) for field, column in _TOKENS.items()}
    return {
        **counts,
        **tokens,
        "mean_reward": _mean_reward(step_rows),
        "mean_seconds": sum(step_row.seconds for step_row in step_rows) / counts["requests"],
        "failures": {row.kind: int(row.verdicts) for row in failed},
        "modes": distinct_values(step_rows, "mode"),
    }


def criterion_figures(row: Row[Any]) -> CriterionFigures:
    """The figures of a criterion from sums of `ledger_run_criteria`."""
    verdicts, failed = int(row.verdicts), int(row.failed)
    given = verdicts - failed
    return CriterionFigures(
        criterion=row.criterion,
        verdicts=verdicts,
        failed=failed,
        pass_rate=int(row.passed) / given if given else None,
        mean_score=row.score_sum / given if given else None,
    )


def reward_deviation(step_rows: Sequence[Row[Any]]) -> float | None:
    """The standard deviation of the rewards around their mean, dividing by their number; None where there are none."""
    mean = _mean_reward(step_rows)
    if mean is None:
        return None
    variance = sum(step_row.reward_squares for step_row in step_rows) / _sum(step_rows, "rewards") - mean**2
    return sqrt(variance) if variance > _ROUNDING * mean**2 else 0.0


def distinct_values(rows: Iterable[Row[Any]], name: str) -> tuple[str, ...]:
    """The distinct values of a column that are not empty, in order."""
    return tuple(sorted({value for row in rows if (value := getattr(row, name))}))


def _mean_reward(step_rows: Sequence[Row[Any]]) -> float | None:
    rewards = _sum(step_rows, "rewards")
    return sum(step_row.reward_sum for step_row in step_rows) / rewards if rewards else None


def _sum(rows: Iterable[Row[Any]], name: str) -> int:
    return sum(int(getattr(row, name)) for row in rows)
