"""Reads the figures of runs: all of them by activity, and one by step and criterion. Counts no use again."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, Table, and_, func, or_, select

from rubric_store.ledger.runs_cursors import from_run_cursor, from_step_cursor, to_run_cursor, to_step_cursor
from rubric_store.ledger.runs_figures import criterion_figures, distinct_values, judging_figures, reward_deviation
from rubric_store.ledger.runs_tables import NO_STEP, criteria, failures, rubrics, runs, steps
from rubric_store.tables import rubric_versions
from trainer_client.wire import PinnedRubric
from trainer_client.wire.ledger_rows import RunReportQuery
from trainer_client.wire.runs import CriterionFigures, RunPage, RunReport, RunStep, RunSummary

_RUBRICS_SHOWN = 20
_JUDGING_COLUMNS = [steps.c[name] for name in ("mode", "protocol", "model")]
_SUMS = [
    func.sum(column).label(column.name) for column in steps.columns if column.name not in steps.primary_key.columns
]
_CRITERION = [func.sum(criteria.c[name]).label(name) for name in ("verdicts", "failed", "passed", "score_sum")]


def run_page(connection: Connection, project_id: str, after: str | None, limit: int) -> RunPage:
    """A page of a project's runs, the one that was judged for last first; raises `CursorError`."""
    listed = select(runs).where(runs.c.project_id == project_id).order_by(runs.c.last_at.desc(), runs.c.run.desc())
    if after is not None:
        at, name = from_run_cursor(after)
        listed = listed.where(or_(runs.c.last_at < at, and_(runs.c.last_at == at, runs.c.run < name)))
    found = connection.execute(listed.limit(limit + 1)).all()
    shown = found[:limit]
    cursor = to_run_cursor(shown[-1].last_at, shown[-1].run) if len(found) > limit else None
    return RunPage(runs=tuple(_summaries(connection, project_id, shown)), next_cursor=cursor)


def run_report(connection: Connection, view: RunReportQuery) -> RunReport | None:
    """A run with a page of its steps; None where there is no such run. Raises `CursorError`."""
    same = select(runs).where(runs.c.project_id == view.project_id, runs.c.run == view.run)
    summaries = _summaries(connection, view.project_id, connection.execute(same).all())
    if not summaries:
        return None
    figures, count = _most_judged_criteria(connection, view)
    shown, cursor = _steps(connection, view, [each.criterion for each in figures])
    return RunReport(
        run=summaries[0],
        rubrics=tuple(_rubrics(connection, view)),
        criteria=tuple(figures),
        criteria_count=count,
        steps=tuple(shown),
        next_cursor=cursor,
    )


def _summaries(connection: Connection, project_id: str, listed: Sequence[Row[Any]]) -> list[RunSummary]:
    names = [row.run for row in listed]

    def by_run(table: Table, *columns: Any, grouped: Sequence[Any] = ()) -> dict[str, list[Row[Any]]]:
        chosen = select(table.c.run, *grouped, *columns).where(table.c.project_id == project_id, table.c.run.in_(names))
        rows = connection.execute(chosen.group_by(table.c.run, *grouped).order_by(table.c.run, *grouped))
        return _group_by(rows, "run")

    step_rows = by_run(steps, func.max(steps.c.step).label("last_step"), *_SUMS, grouped=_JUDGING_COLUMNS)
    failed = by_run(failures, func.sum(failures.c.verdicts).label("verdicts"), grouped=[failures.c.kind])
    used = by_run(rubrics, func.count().label("rubrics"))
    summaries = []
    for row in listed:
        own = step_rows[row.run]
        last_step = max(step_row.last_step for step_row in own)
        summaries.append(
            RunSummary(
                **judging_figures(own, failed[row.run]),
                run=row.run or None,
                first_at=row.first_at,
                last_at=row.last_at,
                last_step=None if last_step == NO_STEP else last_step,
                protocols=distinct_values(own, "protocol"),
                judges=distinct_values(own, "model"),
                rubrics=used[row.run][0].rubrics if row.run in used else 0,
            )
        )
    return summaries


def _most_judged_criteria(connection: Connection, view: RunReportQuery) -> tuple[list[CriterionFigures], int]:
    """The figures over the whole run of the criteria that are told of, and how many there are."""
    totals = (
        select(criteria.c.criterion, *_CRITERION, func.count().over().label("criteria"))
        .where(*_criteria_filter(view))
        .group_by(criteria.c.criterion)
        .order_by(func.sum(criteria.c.verdicts).desc(), criteria.c.criterion)
        .limit(max(view.criteria, 1))
    )
    rows: Sequence[Any] = connection.execute(totals).all()
    return [criterion_figures(row) for row in rows[: view.criteria]], rows[0].criteria if rows else 0


def _steps(
    connection: Connection, view: RunReportQuery, criterion_ids: Sequence[str]
) -> tuple[list[RunStep], str | None]:
    numbers, cursor = _page_of_steps(connection, view)
    if not numbers:
        return [], None

    def by_step(table: Table, chosen: Select[Any]) -> dict[int, list[Row[Any]]]:
        part = chosen.where(table.c.project_id == view.project_id, table.c.run == view.run)
        part = part.where(table.c.step.between(min(numbers), max(numbers)))
        return _group_by(connection.execute(part), "step")

    step_rows = by_step(steps, select(steps).order_by(*_JUDGING_COLUMNS))
    failed = by_step(failures, select(failures).order_by(failures.c.kind))
    judged: dict[int, list[Row[Any]]] = defaultdict(list)
    if criterion_ids:
        columns = (criteria.c.step, criteria.c.criterion)
        sums = select(*columns, *_CRITERION).where(*_criteria_filter(view), criteria.c.criterion.in_(criterion_ids))
        judged = by_step(criteria, sums.group_by(*columns))
    place = {name: number for number, name in enumerate(criterion_ids)}
    shown = [
        RunStep(
            **judging_figures(step_rows[number], failed[number]),
            step=None if number == NO_STEP else number,
            std_reward=reward_deviation(step_rows[number]),
            criteria=tuple(
                [criterion_figures(row) for row in sorted(judged[number], key=lambda r: place[r.criterion])]
            ),
        )
        for number in numbers
    ]
    return shown, cursor


def _page_of_steps(connection: Connection, view: RunReportQuery) -> tuple[list[int], str | None]:
    at = steps.c.step
    numbers = select(at).distinct().where(steps.c.project_id == view.project_id, steps.c.run == view.run)
    if (view.first, view.last) != (None, None):
        numbers = numbers.where(at >= max(view.first or 0, 0))
    if view.last is not None:
        numbers = numbers.where(at <= view.last)
    if view.after is not None:
        before = from_step_cursor(view.after)
        numbers = numbers.where(at < before if view.newest_first else at > before)
    ordered = numbers.order_by(at.desc() if view.newest_first else at)
    found = list(connection.execute(ordered.limit(view.limit + 1)).scalars())
    shown = found[: view.limit]
    return shown, to_step_cursor(shown[-1]) if len(found) > len(shown) else None


def _rubrics(connection: Connection, view: RunReportQuery) -> list[PinnedRubric]:
    """The rubrics that judged most responses, each by the newest version that has its content."""
    used = (
        select(rubrics.c.rubric)
        .where(rubrics.c.project_id == view.project_id, rubrics.c.run == view.run)
        .order_by(rubrics.c.responses.desc(), rubrics.c.rubric)
        .limit(_RUBRICS_SHOWN)
    )
    digests = [f"sha256:{digest.hex()}" for digest in connection.execute(used).scalars()]
    versions = (
        select(rubric_versions.c.digest, rubric_versions.c.name, rubric_versions.c.version)
        .where(rubric_versions.c.project_id == view.project_id, rubric_versions.c.digest.in_(digests))
        .order_by(rubric_versions.c.created_at, rubric_versions.c.name)
    )
    published = {row.digest: row for row in connection.execute(versions)}
    return [
        PinnedRubric(digest=digest, name=known.name, version=known.version)
        if (known := published.get(digest)) is not None
        else PinnedRubric(digest=digest)
        for digest in digests
    ]


def _criteria_filter(view: RunReportQuery) -> list[ColumnElement[bool]]:
    chosen = [criteria.c.project_id == view.project_id, criteria.c.run == view.run]
    if view.rubric is not None:
        chosen.append(criteria.c.rubric == view.rubric)
    if view.criterion_ids:
        chosen.append(criteria.c.criterion.in_(view.criterion_ids))
    return chosen


def _group_by(rows: Iterable[Row[Any]], name: str) -> dict[Any, list[Row[Any]]]:
    found: dict[Any, list[Row[Any]]] = defaultdict(list)
    for row in rows:
        found[getattr(row, name)].append(row)
    return found
