"""What a reward call logs: metrics, and a line for each row of TRL's table of completions."""

from collections import Counter, defaultdict
from collections.abc import Sequence

from trainer_client.trl.scoring.results import ScoredRow, judged_reward
from trainer_client.wire import ZERO_POLICIES, Usage

MAX_TRACKED_CRITERIA = 64
"""The number of criteria whose pass rates a run logs by id. Beyond it, pass rates are also logged by kind."""

_MAX_MARKS_SHOWN = 24


def reward_metrics(
    rows: Sequence[ScoredRow], usage: Sequence[Usage], wait_s: float, tracked_criteria: set[str], prefix: str = "rubric"
) -> dict[str, float]:
    """Compute the metrics of a reward call, by name. Metrics without data are left out.

    `unscored`, `partial` and `without_rubric` are shares of the rows, `failed_verdicts`, `uncertain_verdicts` and
    `cached` shares of the verdicts. `zeroed`, `skipped` and `failures/<kind>` count rows, `clipped` counts verdicts,
    and `saved_verdicts` those that rubric dropout left out. `pass/<criterion>` is the mean score of the criterion's
    verdicts, and `declared_reward` the mean reward under the rubric's own weights, where others are trained on.

    Args:
        rows: the scored rows of this rank.
        usage: the usage of each completed request.
        wait_s: wall seconds that judging took.
        tracked_criteria: the criteria whose scores are logged by id. Criteria of these rows are added to it, up to
            `MAX_TRACKED_CRITERIA`.
        prefix: the prefix of all names.
    """
    if not rows:
        return {}
    answers = [row.answer for row in rows if row.answer is not None]
    verdicts = [verdict for answer in answers for verdict in answer.verdicts if verdict.status != "left_out"]
    policies = Counter(answer.policy_applied for answer in answers)
    numbers: dict[str, float] = {
        "unscored": sum(judged_reward(row.answer) is None for row in rows) / len(rows),
        "partial": sum(answer.status == "partial" for answer in answers) / len(rows),
        "without_rubric": sum(row.without_rubric for row in rows) / len(rows),
        "zeroed": sum(policies[policy] for policy in ZERO_POLICIES),
        "skipped": policies["skip"],
        "wait_seconds": wait_s,
    }
    if verdicts:
        numbers["failed_verdicts"] = sum(verdict.status == "failed" for verdict in verdicts) / len(verdicts)
        numbers["uncertain_verdicts"] = sum(verdict.status == "uncertain" for verdict in verdicts) / len(verdicts)
        numbers["cached"] = sum(verdict.cached for verdict in verdicts) / len(verdicts)
    declared = [answer.declared_reward for answer in answers if answer.declared_reward is not None]
    if declared:
        numbers["declared_reward"] = sum(declared) / len(declared)
    if usage:
        numbers["clipped"] = sum(one.clipped for one in usage)
        numbers["judge_calls"] = sum(one.judge_calls for one in usage)
        if saved := sum(one.left_out for one in usage):
            numbers["saved_verdicts"] = saved
        numbers["judge_seconds"] = sum(one.seconds_judging for one in usage)
        numbers["queue_seconds"] = sum(one.seconds_queued for one in usage)
    for kind, count in Counter(kind for row in rows for kind in row.failures).items():
        numbers[f"failures/{kind}"] = count
    numbers |= _pass_rates(rows, tracked_criteria)
    return {f"{prefix}/{name}": float(number) for name, number in numbers.items()}


def _pass_rates(rows: Sequence[ScoredRow], tracked_criteria: set[str]) -> dict[str, float]:
    scores: defaultdict[str, list[float]] = defaultdict(list)
    by_kind: defaultdict[str, list[float]] = defaultdict(list)
    for row in rows:
        kinds = {criterion.id: criterion.kind for criterion in row.criteria or ()}
        for verdict in row.answer.verdicts if row.answer is not None else ():
            if verdict.score is not None and 0.0 <= verdict.score <= 1.0:
                scores[verdict.criterion].append(verdict.score)
                if verdict.criterion in kinds:
                    by_kind[kinds[verdict.criterion]].append(verdict.score)
    if len(tracked_criteria | scores.keys()) <= MAX_TRACKED_CRITERIA:
        tracked_criteria.update(scores)
        by_kind.clear()
    means = {id_: given for id_, given in scores.items() if id_ in tracked_criteria}
    means |= {f"kind/{kind}": given for kind, given in by_kind.items()}
    return {f"pass/{name}": sum(given) / len(given) for name, given in means.items()}


def verdict_summaries(rows: Sequence[ScoredRow]) -> list[str]:
    """Summarize each row's verdicts as `3 of 5: c1 ✓ c2 ✗ c3 ?`, with ? for a missing score."""
    return [_verdict_summary(row) for row in rows]


def _verdict_summary(row: ScoredRow) -> str:
    answer = row.answer
    reason = f"no reward ({', '.join(row.failures)})" if judged_reward(answer) is None else ""
    if answer is None or not answer.verdicts:
        return reason or "no criteria"
    judged = [verdict for verdict in answer.verdicts if verdict.status != "left_out"]
    met = sum(verdict.score or 0.0 for verdict in judged)
    marks = [f"{verdict.criterion} {_mark(verdict.score)}" for verdict in judged[:_MAX_MARKS_SHOWN]]
    if len(judged) > _MAX_MARKS_SHOWN:
        marks.append(f"… {len(judged) - _MAX_MARKS_SHOWN} more")
    policy = f" (policy {answer.policy_applied})" if answer.policy_applied else ""
    summary = f"{met:.4g} of {len(judged)}{policy}: {' '.join(marks)}"
    return f"{reason}; {summary}" if reason else summary


def _mark(score: float | None) -> str:
    if score is None:
        return "?"
    return "✓" if score >= 1.0 else "✗" if score <= 0.0 else f"{score:.2g}"
