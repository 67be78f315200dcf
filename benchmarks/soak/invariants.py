"""What the database holds when all is over: the ledger against what trainers were told, operations against what is due.

A request that was answered is in the ledger once, whole, with the rewards that were answered. An api that is killed may
lose what it answered in the second before. A request that was sent again is there again, under an id of its own.
"""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import psycopg

from benchmarks.soak.bulk import FinishedOperation
from benchmarks.soak.expected_answers import AnswerComparison, ExpectedAnswer, compare_answers, right
from benchmarks.soak.workload import VERDICTS
from trainer_client.wire import GroupRewards

SPOOL_S = 1.0
"""What a kill may cost the ledger: answers of the second before it."""


class InvariantReport(NamedTuple):
    """What was found: how many of each, and what is wrong, in words."""

    figures: dict[str, int]
    violations: list[str]


def ledger(database: str, lines: Sequence[Mapping[str, Any]], kills: Sequence[float]) -> InvariantReport:
    """Compare the ledger with answers; `kills` are the times at which apis were killed."""
    with psycopg.connect(database) as connection:
        kept = _kept(connection)
        rejudged = _one(connection, "SELECT count(*) FROM ledger_rejudgements")
        uses = _one(connection, "SELECT count(*) FROM ledger_uses")
        said = _one(connection, "SELECT coalesce(sum(uses), 0) FROM ledger_requests")
        counted = _one(connection, "SELECT coalesce(sum(verdicts), 0) FROM ledger_run_steps")
        tokens = _one(connection, "SELECT coalesce(sum(tokens_computed), 0) FROM ledger_requests")
        budgeted = _one(connection, "SELECT coalesce(sum(tokens), 0) FROM project_usage")
    lost, violations = 0, []
    if rejudged:
        violations.append(f"{rejudged} calls have a second verdict that differs from the first")
    if uses != said:
        violations.append(f"the ledger holds {uses} uses, of requests that had {said}")
    if counted != uses:
        violations.append(f"the figures of the runs say {counted} verdicts, and the ledger holds {uses}")
    for line in lines:
        times = kept.get(line["request_id"], [])
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
    """Compare operations with what is right, and what they were billed with what they did.

    `lost_calls` is how many calls at most were at judges when these went away: they are made again, and were made.
    """
    violations: list[str] = []
    again = results = made_again = 0
    lines: list[dict[str, Any]] = []
    with psycopg.connect(database) as connection:
        attempts = {
            row[0]: row[1:]
            for row in connection.execute(
                "SELECT operation_id, sum(inputs), sum(inputs * attempts) FROM operation_chunks GROUP BY operation_id"
            )
        }
        unfinished = _one(connection, "SELECT count(*) FROM operations WHERE state <> 'done'")
    for submitted, operation, found in ended:
        name, subjects = operation.id, submitted.subjects
        if operation.state != "done":
            violations.append(f"{name} is {operation.state}: {operation.progress.done} done, {operation.problem}")
        if sorted(result["index"] for result in found) != list(range(len(subjects))):
            violations.append(f"{name} has {len(found)} results for {len(subjects)} groups, or some of them twice")
        lines += [_line(subjects[result["index"]], result) for result in found]
        seen, broke = submitted.seen, submitted.broke
        if broke or not seen or seen != sorted(set(seen)) or seen[-1] != operation.revision:
            violations.append(f"{name} was followed through {seen} to {operation.revision}: {broke}")
        inputs, tried = attempts[name]
        usage = operation.usage
        billed = usage.judge_calls + usage.cached + usage.joined
        due = VERDICTS * len(subjects)
        again += int(tried - inputs)
        made_again += max(0, billed - VERDICTS * int(tried))
        if billed < due - usage.failed:
            violations.append(f"{name} was billed {billed} verdicts, and {due} are due")
        results += len(found)
    if made_again > lost_calls:
        violations.append(
            f"{made_again} verdicts were billed beyond those tried; judges that went away had {lost_calls}"
        )
    about: AnswerComparison = compare_answers(lines, known)
    figures = {
        "operations": len(ended),
        "results": results,
        "results with a failure": sum(bool(line["failures"]) for line in lines),
        "groups tried again": again,
        "calls billed that a judge took along": made_again,
        "operations not done": unfinished,
    }
    return InvariantReport(figures, violations + about.violations)


def _line(subject: int, result: Mapping[str, Any]) -> dict[str, Any]:
    group = GroupRewards.model_validate({key: result[key] for key in result if key not in ("index", "fingerprint")})
    failed = [v.failure.kind for r in group.responses for v in r.verdicts if v.failure is not None]
    return {"subject": subject, "failures": {kind: failed.count(kind) for kind in failed}, **right(group)._asdict()}


def _kept(connection: psycopg.Connection[Any]) -> dict[str, list[tuple[int, list[float | None]]]]:
    """By request id: how many uses each time, and the rewards."""
    found: dict[str, list[tuple[int, list[float | None]]]] = {}
    rows = connection.execute(
        "SELECT request_id, (SELECT count(*) FROM ledger_uses u WHERE (u.project_id, u.run, u.request) = "
        "(q.project_id, q.run, q.request)), (SELECT array_agg(reward ORDER BY place) FROM ledger_responses r "
        "WHERE (r.project_id, r.run, r.request) = (q.project_id, q.run, q.request)) FROM ledger_requests q "
        "WHERE run <> 'bulk'"
    )
    for request_id, uses, rewards in rows:
        found.setdefault(request_id, []).append((uses, rewards))
    return found


def _one(connection: psycopg.Connection[Any], query: str) -> int:
    row = connection.execute(query).fetchone()  # type: ignore[call-overload]
    assert row is not None
    return int(row[0])
