"""Read what monitors look at: sums of a run's steps and signals, and the verdicts on its control set.

Everything but the control set is read from sums, so a run of a million verdicts is read as fast as a short one.
"""

from collections.abc import Sequence
from datetime import datetime, timedelta

from sqlalchemy import Connection, func, select

from rubric_store.ledger.rows import ControlVerdict, MonitoredRun, MonitorQuery, SignalSums, StepRequest, StepSums
from rubric_store.ledger.tables import JUDGED_USES, of_run, requests, responses, runs, signals, steps, uses, verdicts
from trainer_client.wire.rewards import CONTROL_SUFFIX, GOLD_SUFFIX

_SUMMED = ("responses", "unscored", "rewards", "reward_sum", "reward_squares")
_MAX_CONTROL_VERDICTS = 20_000
_RECENT_STEPS = 200
_MAX_STEP_REQUESTS = 10_000


def monitored_run(connection: Connection, query: MonitorQuery) -> MonitoredRun:
    """Read the selected steps of a run; no steps if the run does not exist or names none."""
    listed = select(steps.c.step).distinct().where(*of_run(steps, query), steps.c.step >= 0)
    if query.until is not None:
        listed = listed.where(steps.c.step <= query.until)
    first = connection.execute(listed.order_by(steps.c.step).limit(query.first)).scalars()
    last = connection.execute(listed.order_by(steps.c.step.desc()).limit(query.last)).scalars()
    numbers = sorted({*first, *last})
    if not numbers:
        return MonitoredRun((), (), (), ())
    return MonitoredRun(
        _steps(connection, query, numbers),
        _signals(connection, query, numbers),
        _signals(connection, query._replace(run=query.run + GOLD_SUFFIX), numbers),
        _control(connection, query._replace(run=query.run + CONTROL_SUFFIX)),
    )


def criterion_groups(
    connection: Connection, project_id: str, run: str, before: int, groups: int
) -> dict[str, tuple[float, float]]:
    """Read in how many of its last groups before a step all responses met each criterion, and how many these are."""
    newer = func.sum(signals.c.pairs).over(partition_by=signals.c.name, order_by=signals.c.step.desc())
    recent = (
        select(signals.c.name, signals.c.pairs, signals.c.x, (newer - signals.c.pairs).label("newer"))
        .filter_by(project_id=project_id, run=run, signal="criterion")
        .where(signals.c.step < before, signals.c.step >= before - _RECENT_STEPS)
        .subquery()
    )
    sums = (
        select(recent.c.name, func.sum(recent.c.x).label("met"), func.sum(recent.c.pairs).label("groups"))
        .where(recent.c.newer < groups)
        .group_by(recent.c.name)
        .order_by(recent.c.name)
    )
    return {row.name: (float(row.met), float(row.groups)) for row in connection.execute(sums)}


def step_requests(connection: Connection, since: datetime) -> list[StepRequest]:
    """Read the requests answered since a time, of all projects and runs, that name a run and a step; the newest first.

    If there are very many, only the newest are read.
    """
    projects = select(runs.c.project_id).distinct().where(runs.c.last_at >= since)
    columns = [requests.c[name] for name in ("project_id", "run", "step", "created_at", "seconds", "judge_calls")]
    newest = (
        select(*columns)
        .where(requests.c.project_id.in_(projects), requests.c.created_at >= since)
        .where(requests.c.step >= 0, requests.c.run != "")
        .order_by(requests.c.created_at.desc())
        .limit(_MAX_STEP_REQUESTS)
    )
    return [
        StepRequest(row.project_id, row.run, row.step, row.created_at - timedelta(seconds=row.seconds), row.judge_calls)
        for row in connection.execute(newest)
    ]


def _steps(connection: Connection, query: MonitorQuery, numbers: Sequence[int]) -> list[StepSums]:
    sums = [func.sum(steps.c[name]).label(name) for name in _SUMMED]
    rows = (
        select(steps.c.step, *sums)
        .where(*of_run(steps, query), steps.c.step.in_(numbers))
        .group_by(steps.c.step)
        .order_by(steps.c.step)
    )
    return [
        StepSums(row.step, int(row.responses), int(row.unscored), int(row.rewards), row.reward_sum, row.reward_squares)
        for row in connection.execute(rows)
    ]


def _signals(connection: Connection, query: MonitorQuery, numbers: Sequence[int]) -> list[SignalSums]:
    columns = [signals.c[name] for name in SignalSums._fields]
    rows = (
        select(*columns)
        .where(*of_run(signals, query), signals.c.step.in_(numbers))
        .order_by(signals.c.step, signals.c.signal, signals.c.name)
    )
    return [SignalSums(*row) for row in connection.execute(rows)]


def _control(connection: Connection, query: MonitorQuery) -> list[ControlVerdict]:
    """Read the control set's newest verdicts, a vote each, and those of its first request, which they compare with."""
    listed = select(requests.c.request, requests.c.uses).where(*of_run(requests, query))
    if query.until is not None:
        listed = listed.where(requests.c.step <= query.until)
    chosen: list[bytes] = []
    total = 0
    for request, count in connection.execute(listed.order_by(requests.c.request.desc())):
        total += count
        if chosen and total > _MAX_CONTROL_VERDICTS:
            break
        chosen.append(request)
    if not chosen:
        return []
    rows = (
        select(
            requests.c.request,
            requests.c.step,
            requests.c.fingerprint,
            responses.c.group_id,
            responses.c.response,
            uses.c.criterion,
            verdicts.c.score,
        )
        .select_from(JUDGED_USES)
        .where(*of_run(uses, query), uses.c.vote == 0, uses.c.request >= chosen[-1])
        .order_by(uses.c.request, uses.c.place, uses.c.slot)
    )
    known = {*chosen}
    return [ControlVerdict(*row) for row in connection.execute(rows) if row.request in known]
