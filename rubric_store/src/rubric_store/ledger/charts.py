"""The figures that charts of a run show, by bucket of steps.

Rewards, failures, cost and pass rates come from the sums that are updated as the ledger is written, so they cost as
much for a long run as for a short one. The histogram of rewards and the spread within groups are counted from the
responses of the run: their time grows with the number of responses. Pass rates of a rubric are summed over the latest
runs that used it.

Trainers report shares and means by step that no request tells, such as the share of refined responses.
"""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from math import sqrt
from typing import Any

from sqlalchemy import (
    BigInteger,
    ColumnElement,
    Connection,
    Row,
    Select,
    Subquery,
    Table,
    and_,
    case,
    func,
    literal,
    select,
)

from rubric_store.database import upsert
from rubric_store.ledger.rows import (
    CriterionBucket,
    GroupSpread,
    JudgeUse,
    MeasureBucket,
    RewardBin,
    RubricRate,
    RubricUse,
    RunChartQuery,
    RunCharts,
    StepBucket,
)
from rubric_store.ledger.tables import (
    REQUEST_OF_RESPONSE,
    criteria,
    failures,
    in_steps,
    look_up,
    measures,
    of_run,
    requests,
    responses,
    rubrics,
    runs,
    steps,
)


def set_measures(connection: Connection, project_id: str, run: str, step: int, values: Mapping[str, float]) -> None:
    """Set the measures of a step; those set before under other names stay."""
    if not values:
        return
    rows = [
        {"project_id": project_id, "run": run, "step": step, "name": name, "value": value}
        for name, value in sorted(values.items())
    ]
    connection.execute(upsert(measures, connection), rows)


def measure_buckets(connection: Connection, wanted: RunChartQuery) -> list[MeasureBucket]:
    """The mean of each measure over the steps of a bucket that have it, by name and step."""
    extent = _extent(connection, measures, wanted)
    if extent is None:
        return []
    bucket, step = _bucket(measures, extent), measures.c.step
    rows = connection.execute(
        select(measures.c.name, func.min(step), func.max(step), func.count(), func.avg(measures.c.value))
        .where(*_own(measures, wanted))
        .group_by(measures.c.name, bucket)
        .order_by(measures.c.name, bucket)
    )
    return [MeasureBucket(*row) for row in rows]


_COUNTS = (
    "requests", "responses", "partial", "unscored", "verdicts", "failed", "judge_calls", "tokens_computed",
    "tokens_reused", "tokens_written",
)  # fmt: skip
_RUNS_SEARCHED = 500
_EDGE_DIGITS = 12
"""The edges of bins are rounded to so many digits, so that a reward of 0.15 is in the bin that begins with 0.15."""


def run_curves(
    connection: Connection, project_id: str, names: Sequence[str], buckets: int
) -> dict[str, tuple[float | None, ...]]:
    """The mean reward of each run by bucket of steps; runs without a step are absent."""
    own = [steps.c.project_id == project_id, steps.c.run.in_(names), steps.c.step >= 0]
    limits = select(steps.c.run, func.min(steps.c.step).label("low"), func.max(steps.c.step).label("high"))
    extent = limits.where(*own).group_by(steps.c.run).subquery()
    width = (extent.c.high - extent.c.low) // _number(buckets) + _number(1)
    bucket = (steps.c.step - extent.c.low) // width
    sums = (
        select(steps.c.run, bucket.label("bucket"), func.sum(steps.c.reward_sum), func.sum(steps.c.rewards))
        .join(extent, extent.c.run == steps.c.run)
        .where(*own)
        .group_by(steps.c.run, bucket)
        .order_by(steps.c.run, bucket)
    )
    curves: dict[str, list[float | None]] = defaultdict(list)
    for run, _, total, count in connection.execute(sums):
        curves[run].append(total / int(count) if count else None)
    return {run: tuple(curve) for run, curve in curves.items()}


def run_charts(connection: Connection, wanted: RunChartQuery) -> RunCharts:
    """What the charts of a run show."""
    extent = _extent(connection, steps, wanted)
    spreads, limits = _spreads(connection, wanted, extent) if wanted.distribution else ({}, None)
    found = {} if extent is None else _step_buckets(connection, wanted, extent, spreads)
    passed = [] if extent is None else _criterion_buckets(connection, wanted, extent, list(found))
    return RunCharts(
        tuple(found.values()),
        tuple(passed),
        tuple(_bins(connection, wanted, limits)) if limits is not None else (),
        tuple(_judges(connection, wanted)) if wanted.distribution else (),
        tuple(measure_buckets(connection, wanted)),
    )


_Extent = tuple[int, int]
"""The first step of the selection, and the number of step numbers in a bucket."""


def rubric_use(connection: Connection, project_id: str, digests: Sequence[bytes], limit: int) -> RubricUse:
    """The latest `limit` runs that used one of some rubrics, and the verdicts in them by rubric and criterion.

    Only the latest `_RUNS_SEARCHED` runs of the project are searched, so that the time is bounded.
    """
    latest = (
        select(runs.c.run, runs.c.last_at)
        .where(runs.c.project_id == project_id)
        .order_by(runs.c.last_at.desc(), runs.c.run)
        .limit(_RUNS_SEARCHED)
        .subquery()
    )
    used = select(rubrics.c.run).where(
        rubrics.c.project_id == project_id, rubrics.c.run == latest.c.run, rubrics.c.rubric.in_(digests)
    )
    found = select(latest.c.run).where(used.exists()).order_by(latest.c.last_at.desc(), latest.c.run).limit(limit)
    names = [row[0] for row in connection.execute(found)]
    sums = [func.sum(criteria.c[name]) for name in ("verdicts", "failed", "passed", "uncertain")]
    rows = connection.execute(
        select(criteria.c.rubric, criteria.c.criterion, *sums)
        .where(criteria.c.project_id == project_id, criteria.c.run.in_(names), criteria.c.rubric.in_(digests))
        .group_by(criteria.c.rubric, criteria.c.criterion)
        .order_by(criteria.c.rubric, criteria.c.criterion)
    )
    rates = [RubricRate(bytes(rubric), name, *(int(count) for count in counts)) for rubric, name, *counts in rows]
    return RubricUse(tuple(names), tuple(rates))


def _extent(connection: Connection, table: Table, wanted: RunChartQuery) -> _Extent | None:
    """None if no step is selected."""
    extremes = select(func.min(table.c.step), func.max(table.c.step))
    first, last = connection.execute(extremes.where(*_own(table, wanted), table.c.step >= 0)).one()
    return None if first is None else (first, (last - first) // wanted.buckets + 1)


def _own(table: Any, wanted: RunChartQuery) -> list[ColumnElement[bool]]:
    return [*of_run(table, wanted), *in_steps(table, wanted)]


def _bucket(table: Any, extent: _Extent) -> ColumnElement[int]:
    first, width = extent
    bucket: ColumnElement[int] = (table.c.step - _number(first)) // _number(width)
    return bucket


def _number(value: int) -> ColumnElement[int]:
    """A number in the text of the statement: PostgreSQL takes equal expressions with parameters for different ones."""
    return literal(value, BigInteger, literal_execute=True)


def _step_buckets(
    connection: Connection, wanted: RunChartQuery, extent: _Extent, spreads: dict[int | None, GroupSpread]
) -> dict[int, StepBucket]:
    at = _bucket(steps, extent).label("bucket")
    means = ("rewards", "reward_sum", "declared_rewards", "declared_reward_sum")
    sums = [func.sum(steps.c[name]).label(name) for name in (*_COUNTS, *means)]
    extremes = [func.min(steps.c.step).label("first"), func.max(steps.c.step).label("last")]
    rows = connection.execute(
        select(at, *extremes, *sums).where(*_own(steps, wanted), steps.c.step >= 0).group_by(at).order_by(at)
    ).all()
    kinds: dict[int, dict[str, int]] = defaultdict(dict)
    of_failure = _bucket(failures, extent).label("bucket")
    for bucket, kind, count in connection.execute(
        select(of_failure, failures.c.kind, func.sum(failures.c.verdicts))
        .where(*_own(failures, wanted), failures.c.step >= 0)
        .group_by(of_failure, failures.c.kind)
        .order_by(of_failure, failures.c.kind)
    ):
        kinds[bucket][kind] = int(count)
    return {row.bucket: _step_bucket(row, kinds.get(row.bucket, {}), spreads.get(row.bucket)) for row in rows}


def _step_bucket(row: Row[Any], kinds: dict[str, int], spread: GroupSpread | None) -> StepBucket:
    counts = {name: int(getattr(row, name)) for name in _COUNTS}
    mean = row.reward_sum / int(row.rewards) if row.rewards else None
    declared = row.declared_reward_sum / int(row.declared_rewards) if row.declared_rewards else None
    return StepBucket(
        first=row.first,
        last=row.last,
        mean_reward=mean,
        failures=kinds,
        spread=spread,
        mean_declared_reward=declared,
        **counts,
    )


def _criterion_buckets(
    connection: Connection, wanted: RunChartQuery, extent: _Extent, numbers: Sequence[int]
) -> list[CriterionBucket]:
    """The pass rates; `numbers` are those of the buckets that have requests."""
    at = _bucket(criteria, extent).label("bucket")
    place = {number: index for index, number in enumerate(numbers)}
    sums = [func.sum(criteria.c[name]) for name in ("verdicts", "failed", "passed", "uncertain")]
    rows = connection.execute(
        select(criteria.c.criterion, at, *sums)
        .where(*_own(criteria, wanted), criteria.c.step >= 0, criteria.c.criterion.in_(wanted.criterion_ids))
        .group_by(criteria.c.criterion, at)
        .order_by(criteria.c.criterion, at)
    )
    return [CriterionBucket(name, place[bucket], *(int(count) for count in counts)) for name, bucket, *counts in rows]


def _of_selection(statement: Select[Any], wanted: RunChartQuery) -> Select[Any]:
    """Restrict a statement over responses to those selected, joined with requests if it needs their steps."""
    chosen = statement.select_from(responses).where(*of_run(responses, wanted))
    if (wanted.first, wanted.last) == (None, None):
        return chosen
    return chosen.join(requests, REQUEST_OF_RESPONSE).where(*in_steps(requests, wanted))


def _spreads(
    connection: Connection, wanted: RunChartQuery, extent: _Extent | None
) -> tuple[dict[int | None, GroupSpread], tuple[float, float] | None]:
    """The spread within groups by bucket, and the lowest and highest reward; None without rewards."""
    reward = responses.c.reward
    figures = (
        func.count(reward).label("n"),
        func.sum(reward).label("total"),
        func.sum(reward * reward).label("squares"),
        func.min(reward).label("low"),
        func.max(reward).label("high"),
    )
    key = [responses.c[name] for name in ("project_id", "run", "request")]
    summed = (
        _of_selection(select(*key, *figures), wanted)
        .where(reward.is_not(None))
        .group_by(*key, responses.c.group_id)
        .subquery()
    )
    same = look_up(requests, summed, "project_id", "run", "request")
    groups: Subquery = select(requests.c.step, summed).join(requests, same).subquery()
    n, flat = groups.c.n, groups.c.low == groups.c.high
    variation = groups.c.squares - groups.c.total * groups.c.total / n
    several = n >= 2
    at = _bucket(groups, extent).label("bucket") if extent is not None else groups.c.step.label("bucket")
    rows = connection.execute(
        select(
            at,
            func.min(groups.c.low).label("low"),
            func.max(groups.c.high).label("high"),
            func.sum(case((several, 1), else_=0)).label("groups"),
            func.sum(case((and_(several, flat), 1), else_=0)).label("flat"),
            func.sum(case((and_(several, ~flat), variation), else_=0.0)).label("variation"),
            func.sum(case((several, n), else_=0)).label("rewards"),
        ).group_by(at)
    ).all()
    spreads = {
        row.bucket: GroupSpread(int(row.groups), int(row.flat), sqrt(max(0.0, row.variation) / int(row.rewards)))
        for row in rows
        if row.groups
    }
    return spreads, (min(row.low for row in rows), max(row.high for row in rows)) if rows else None


def _bins(connection: Connection, wanted: RunChartQuery, limits: tuple[float, float]) -> list[RewardBin]:
    edges = _edges(*limits, wanted.bins)
    chosen = _of_selection(select(responses.c.reward), wanted)
    rewards = chosen.where(responses.c.reward.is_not(None)).subquery()
    binned = select(_bin_of(rewards.c.reward, edges, 0, wanted.bins).label("bin")).subquery()
    counted = select(binned.c.bin, func.count()).group_by(binned.c.bin)
    counts = {row[0]: row[1] for row in connection.execute(counted)}
    return [RewardBin(edges[i], edges[i + 1], counts.get(i, 0)) for i in range(wanted.bins)]


def _edges(low: float, high: float, bins: int) -> list[float]:
    """The edges of the bins: over [0, 1] or [-1, 1] if all rewards are in it, otherwise from the lowest to the highest.

    Edges are rounded, except that the outer ones still include all rewards.
    """
    if low >= -1 and high <= 1:
        low, high = (0.0 if low >= 0 else -1.0), 1.0
    elif low == high:
        high = low + max(1.0, abs(low))
    inner = [round(low + (high - low) * i / bins, _EDGE_DIGITS) for i in range(1, bins)]
    return [low, *inner, high]


def _bin_of(reward: ColumnElement[float | None], edges: Sequence[float], first: int, end: int) -> ColumnElement[int]:
    """The bin of a reward among those from `first` to before `end`, found by halves."""
    if end - first == 1:
        return literal(first)
    middle = (first + end) // 2
    return case(
        (reward < edges[middle], _bin_of(reward, edges, first, middle)), else_=_bin_of(reward, edges, middle, end)
    )


def _judges(connection: Connection, wanted: RunChartQuery) -> list[JudgeUse]:
    judged = [requests.c[name] for name in ("fingerprint", "model", "protocol", "mode", "votes")]
    counted = select(*judged, func.count(), func.min(requests.c.step), func.max(requests.c.step))
    rows = connection.execute(counted.where(*_own(requests, wanted)).group_by(*judged).order_by(func.count().desc()))
    return [JudgeUse._make(row) for row in rows]
