"""Invariants of the database after a soak: the ledger against the trainers' answers, operations against their inputs.

An answered request is in the ledger exactly once, complete, with the rewards of the answer. A killed api may lose the
answers of the last second before the kill. A request that was retried is recorded separately under its own id.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import psycopg

from benchmarks.soak.bulk import FinishedOperation
from benchmarks.soak.expected_answers import AnswerComparison, ExpectedAnswer, compare_answers, right
from benchmarks.soak.workload import VERDICTS
from trainer_client.wire import GroupRewards

SPOOL_S = 1.0
"""The ledger may lose answers from this many seconds before a kill."""


class InvariantReport(NamedTuple):
    """Figures, and violations of the invariants as text."""

    figures: dict[str, int]
    violations: list[str]


def ledger(database: str, lines: Sequence[Mapping[str, Any]], kills: Sequence[float]) -> InvariantReport:
    """Compare the ledger with the answers; `kills` are the times at which apis were killed."""
    with psycopg.connect(database) as connection:
        recorded = _recorded_requests(connection)
        rejudged = _one(connection, "SELECT count(*) FROM ledger_rejudgements")
        uses = _one(connection, "SELECT count(*) FROM ledger_uses")
        declared = _one(connection, "SELECT coalesce(sum(uses), 0) FROM ledger_requests")
        counted = _one(connection, "SELECT coalesce(sum(verdicts), 0) FROM ledger_run_steps")
        tokens = _one(connection, "SELECT coalesce(sum(tokens_computed), 0) FROM ledger_requests")
        budgeted = _one(connection, "SELECT coalesce(sum(tokens), 0) FROM project_usage")
    lost, violations = 0, []
    if rejudged:
        violations.append(f"{rejudged} calls have a second verdict that differs from the first")
    if uses != declared:
        violations.append(f"the ledger has {uses} uses, but its requests had {declared}")
    if counted != uses:
        violations.append(f"the runs' figures count {counted} verdicts, but the ledger has {uses}")
    for line in lines:
        times = recorded.get(line["request_id"], [])
        if not times and any(0 <= kill - line["ended"] <= SPOOL_S for kill in kills):
            lost += 1
        elif len(times) != 1:
            violations.append(
                f"request {line['request_id']} is in the ledger {len(times)} times, ended {line['ended']:.2f}"
            )
        elif times[0] != (VERDICTS, line["rewards"]):
            violations.append(f"request {line['request_id']} is in the ledger with {times[0]}")
    answered = len({line["request_id"] for line in lines})
    figures = {"requests answered": answered, "lost with a killed api": lost, "uses": uses}
    return InvariantReport(figures | {"tokens": tokens, "tokens counted for budgets": budgeted}, violations)


def operations(
    database: str, ended: Sequence[FinishedOperation], known: Mapping[int, ExpectedAnswer], *, lost_calls: int = 0
) -> InvariantReport:
    """Compare operations with the expected answers, and their billed usage with the work they did.

    `lost_calls` is the maximum number of calls in flight at judges when these went away. Such calls are repeated, and
    are billed twice.
    """
    violations: list[str] = []
    retried = results = repeated_calls = 0
    lines: list[dict[str, Any]] = []
    with psycopg.connect(database) as connection:
        attempts = {
            row[0]: row[1:]
            for row in connection.execute(
                "SELECT operation_id, sum(inputs), sum(inputs * attempts) FROM operation_chunks GROUP BY operation_id"
            )
        }
        unfinished = _one(connection, "SELECT count(*) FROM operations WHERE state <> 'done'")
    for submitted, operation, own_results in ended:
        name, subjects = operation.id, submitted.subjects
        if operation.state != "done":
            violations.append(f"{name} is {operation.state}: {operation.progress.done} done, {operation.problem}")
        if sorted(result["index"] for result in own_results) != list(range(len(subjects))):
            violations.append(f"{name} has {len(own_results)} results for {len(subjects)} groups, or duplicates")
        lines += [_line(subjects[result["index"]], result) for result in own_results]
        seen, broke = submitted.seen, submitted.broke
        if broke or not seen or seen != sorted(set(seen)) or seen[-1] != operation.revision:
            violations.append(
                f"the events of {name} showed the revisions {seen}, not up to {operation.revision}: {broke}"
            )
        inputs, tried = attempts[name]
        usage = operation.usage
        billed = usage.judge_calls + usage.cached + usage.joined
        due = VERDICTS * len(subjects)
        retried += int(tried - inputs)
        repeated_calls += max(0, billed - VERDICTS * int(tried))
        if billed < due - usage.failed:
            violations.append(f"{name} was billed {billed} verdicts, but {due} are due")
        results += len(own_results)
    if repeated_calls > lost_calls:
        violations.append(
            f"{repeated_calls} verdicts were billed beyond the attempts, but judges lost at most {lost_calls} calls"
        )
    comparison: AnswerComparison = compare_answers(lines, known)
    figures = {
        "operations": len(ended),
        "results": results,
        "results with a failure": sum(bool(line["failures"]) for line in lines),
        "groups retried": retried,
        "billed calls lost with a judge": repeated_calls,
        "operations not done": unfinished,
    }
    return InvariantReport(figures, violations + comparison.violations)


def _line(subject: int, result: Mapping[str, Any]) -> dict[str, Any]:
    group = GroupRewards.model_validate({key: result[key] for key in result if key not in ("index", "fingerprint")})
    failed = [v.failure.kind for r in group.responses for v in r.verdicts if v.failure is not None]
    return {"subject": subject, "failures": {kind: failed.count(kind) for kind in failed}, **right(group)._asdict()}


def _recorded_requests(connection: psycopg.Connection[Any]) -> dict[str, list[tuple[int, list[float | None]]]]:
    """Return, for each request id, the number of uses and the rewards of each record."""
    recorded: dict[str, list[tuple[int, list[float | None]]]] = {}
    rows = connection.execute(
        "SELECT request_id, (SELECT count(*) FROM ledger_uses u WHERE (u.project_id, u.run, u.request) = "
        "(q.project_id, q.run, q.request)), (SELECT array_agg(reward ORDER BY place) FROM ledger_responses r "
        "WHERE (r.project_id, r.run, r.request) = (q.project_id, q.run, q.request)) FROM ledger_requests q "
        "WHERE run <> 'bulk'"
    )
    for request_id, uses, rewards in rows:
        recorded.setdefault(request_id, []).append((uses, rewards))
    return recorded


def _one(connection: psycopg.Connection[Any], query: str) -> int:
    row = connection.execute(query).fetchone()  # type: ignore[call-overload]
    assert row is not None
    return int(row[0])
