"""The figures of training runs: compute them from ledger rows, keep them up to date, and read them.

Figures count what was answered: a repeated call counts as it was answered, although the first verdict under its digest
stands. Votes become a verdict as `judge_server.judging.replies` combines them.

They are updated in the transaction that writes their requests, and deleted with a run's last request. Rows are written
in key order and tables in one order, so concurrent writers cannot deadlock.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from itertools import groupby
from math import sqrt
from operator import itemgetter
from typing import Any

from sqlalchemy import ColumnElement, Connection, Row, Select, Table, and_, case, delete, func, or_, select

from rubric_store.database import upsert
from rubric_store.ledger import tables
from rubric_store.ledger.rows import (
    LEFT_OUT,
    UNCERTAIN,
    LedgerRows,
    RequestRow,
    RunReportQuery,
    SignalRow,
    UseRow,
    VerdictRow,
)
from rubric_store.ledger.tables import NO_STEP, criteria, failures, in_steps, of_run, rubrics, runs, signals, steps
from rubric_store.repository import (
    UNKNOWN_CURSOR,
    CursorError,
    from_time_cursor,
    take_page,
    text_from_cursor,
    to_cursor,
    to_time_cursor,
)
from rubric_store.rubrics.tables import rubric_versions
from rubric_store.schema import UTCDateTime
from trainer_client.wire import PinnedRubric
from trainer_client.wire.ledger import CriterionFigures, RunPage, RunReport, RunStep, RunSummary

PASS_THRESHOLD = 0.5
"""The score from which a criterion counts as passed."""

RowKey = tuple[Any, ...]
FigureDeltas = dict[Table, dict[RowKey, Any]]
"""What is added to each table: by key, the figures by column. Those of `runs` are times, all others sums."""

_SPENT = ("judge_calls", "tokens_computed", "tokens_reused", "tokens_written", "seconds")
_response_of, _slot_of = itemgetter(slice(0, 4)), itemgetter(4)


def do_not_rest() -> None:
    """Continue at once; see `SQLLedger`."""


def count_figures(rows: LedgerRows, requests: Collection[RowKey], rest: Callable[[], None]) -> FigureDeltas:
    """The figures that these requests (project, run, request) add."""
    chosen = set(requests)
    chosen_requests = {row[:3]: row for row in rows.requests if row[:3] in chosen}
    added: FigureDeltas = {table: defaultdict(Counter) for table in tables.TABLES}
    for row in chosen_requests.values():
        _add_request(added, row)
    for signal in rows.signals:
        if signal[:3] in chosen:
            sums = added[signals][*_run_step(signal), signal.signal, signal.name]
            for name in SignalRow._fields[6:]:
                sums[name] += getattr(signal, name)
    rubric_by_response = _add_responses(added, rows, chosen_requests)
    verdicts: dict[str, dict[bytes, VerdictRow]] = {}
    for verdict in rows.verdicts:
        verdicts.setdefault(verdict.project_id, {}).setdefault(verdict.digest, verdict)
    judged: dict[RowKey, dict[str, Any]] = defaultdict(lambda: defaultdict(Counter))
    for response, uses in groupby(rows.uses, _response_of):
        rest()
        if (request := chosen_requests.get(response[:3])) is not None:
            by_criterion = judged[*_run_step(request), rubric_by_response[response]]
            _add_verdicts(added, request, by_criterion, uses, verdicts.get(response[0], {}))
    added[criteria] = {
        (*key, criterion): counts for key, found in judged.items() for criterion, counts in found.items()
    }
    return added


def _add_request(added: FigureDeltas, row: RequestRow) -> None:
    moments = added[runs][row[:2]]
    moments["first_at"] = min(moments.get("first_at", row.created_at), row.created_at)
    moments["last_at"] = max(moments.get("last_at", row.created_at), row.created_at)
    figures = added[steps][_step_key(row)]
    figures["requests"] += 1
    for name in _SPENT:
        figures[name] += getattr(row, name)


def _add_responses(
    added: FigureDeltas, rows: LedgerRows, chosen_requests: dict[RowKey, RequestRow]
) -> dict[RowKey, bytes]:
    """Count responses; return the rubric of each."""
    rubric_by_response = {}
    for response in rows.responses:
        row = chosen_requests.get(response[:3])
        if row is None:
            continue
        rubric = rubric_by_response[response[:4]] = response.rubric or b""
        figures = added[steps][_step_key(row)]
        figures["responses"] += 1
        if response.status is not None:
            figures[response.status] += 1
        if response.reward is not None:
            figures["rewards"] += 1
            figures["reward_sum"] += response.reward
            figures["reward_squares"] += response.reward**2
        if response.declared_reward is not None:
            figures["declared_rewards"] += 1
            figures["declared_reward_sum"] += response.declared_reward
        if rubric:
            added[rubrics][*row[:2], rubric]["responses"] += 1
    return rubric_by_response


def _add_verdicts(
    added: FigureDeltas,
    row: RequestRow,
    by_criterion: dict[str, Any],
    uses: Iterator[UseRow],
    verdicts: dict[bytes, VerdictRow],
) -> None:
    """Count the verdicts of one response."""
    figures = added[steps][_step_key(row)]
    slots: Iterable[Sequence[UseRow]] = zip(uses) if row.votes == 1 else map(_votes_of, groupby(uses, _slot_of))
    given = cached = 0
    for votes in slots:
        first = votes[0]
        failure = first.failure
        if failure == LEFT_OUT:
            figures["left_out"] += 1
            continue
        given += 1
        counts = by_criterion[first.criterion]
        counts["verdicts"] += 1
        if failure == UNCERTAIN:
            figures["uncertain"] += 1
            counts["uncertain"] += 1
        elif first.failed or (score := _score(votes, verdicts)) is None:
            kind = next((vote.failure for vote in votes if vote.failure is not None), "engine")
            figures["failed"] += 1
            counts["failed"] += 1
            added[failures][*_run_step(row), kind]["verdicts"] += 1
            continue
        else:
            counts["passed"] += score >= PASS_THRESHOLD
            counts["score_sum"] += score
        cached += first.cached if len(votes) == 1 else all(vote.cached for vote in votes)
    figures["verdicts"] += given
    figures["cached"] += cached


def _votes_of(slot: tuple[int, Iterator[UseRow]]) -> list[UseRow]:
    return [*slot[1]]


def _score(votes: Sequence[UseRow], verdicts: dict[bytes, VerdictRow]) -> float | None:
    """The score of a verdict from its votes; None if all failed."""
    if len(votes) == 1:
        only = verdicts.get(votes[0].digest)
        return None if only is None else only.score
    given = [found for vote in votes if (found := verdicts.get(vote.digest)) is not None]
    if not given:
        return None
    if any(vote.grade is not None for vote in given):
        return sum(vote.score for vote in given) / len(given)
    return float(2 * sum(vote.score == 1.0 for vote in given) > len(votes))


def _run_step(row: RequestRow | SignalRow) -> RowKey:
    return row.project_id, row.run, NO_STEP if row.step is None else row.step


def _step_key(row: RequestRow) -> RowKey:
    return *_run_step(row), row.mode or "", row.protocol, row.model or ""


_STEP = re.compile(rf"{NO_STEP}|[0-9]{{1,18}}")


def _from_step_cursor(cursor: str) -> int:
    """The step that a cursor continues after; raises `CursorError` for an invalid cursor."""
    step = text_from_cursor(cursor)
    if not _STEP.fullmatch(step):
        raise CursorError(UNKNOWN_CURSOR)
    return int(step)


_COUNTS = (
    *("requests", "responses", "scored", "partial", "unscored", "verdicts", "failed", "uncertain", "cached"),
    *("left_out", "judge_calls"),
)
_TOKENS = {
    "prompt_tokens_computed": "tokens_computed",
    "prompt_tokens_reused": "tokens_reused",
    "tokens_written": "tokens_written",
}
_ROUNDING = 1e-12
"""A variance below this share of the squared mean is rounding error."""


def judging_figures(step_rows: Sequence[Row[Any]], failed: Sequence[Row[Any]]) -> dict[str, Any]:
    """The fields of `JudgingFigures` from rows, or sums of rows, of `ledger_run_steps` and `ledger_run_failures`."""
    counts = {name: _sum(step_rows, name) for name in _COUNTS}
    tokens = {field: _sum(step_rows, column) for field, column in _TOKENS.items()}
    return {
        **counts,
        **tokens,
        "mean_reward": _mean(step_rows, "reward"),
        "mean_declared_reward": _mean(step_rows, "declared_reward"),
        "mean_seconds": sum(step_row.seconds for step_row in step_rows) / counts["requests"],
        "failures": {row.kind: int(row.verdicts) for row in failed},
        "modes": distinct_values(step_rows, "mode"),
    }


def criterion_figures(row: Row[Any]) -> CriterionFigures:
    """The figures of a criterion from sums of `ledger_run_criteria`."""
    verdicts, failed, uncertain = int(row.verdicts), int(row.failed), int(row.uncertain)
    given = verdicts - failed - uncertain
    return CriterionFigures(
        criterion=row.criterion,
        verdicts=verdicts,
        failed=failed,
        uncertain=uncertain,
        pass_rate=int(row.passed) / given if given else None,
        mean_score=row.score_sum / given if given else None,
    )


def reward_deviation(step_rows: Sequence[Row[Any]]) -> float | None:
    """The population standard deviation of the rewards; None without rewards."""
    mean = _mean(step_rows, "reward")
    if mean is None:
        return None
    variance = sum(step_row.reward_squares for step_row in step_rows) / _sum(step_rows, "rewards") - mean**2
    return sqrt(variance) if variance > _ROUNDING * mean**2 else 0.0


def distinct_values(rows: Iterable[Row[Any]], name: str) -> tuple[str, ...]:
    """The distinct non-empty values of a column, sorted."""
    return tuple(sorted({value for row in rows if (value := getattr(row, name))}))


def _mean(step_rows: Sequence[Row[Any]], name: str) -> float | None:
    """The mean of rewards, or of declared rewards; None without any."""
    rewards = _sum(step_rows, f"{name}s")
    return sum(getattr(step_row, f"{name}_sum") for step_row in step_rows) / rewards if rewards else None


def _sum(rows: Iterable[Row[Any]], name: str) -> int:
    return sum(int(getattr(row, name)) for row in rows)


_RUBRICS_SHOWN = 20
_JUDGING_COLUMNS = [steps.c[name] for name in ("mode", "protocol", "model")]
_SUMS = [
    func.sum(column).label(column.name) for column in steps.columns if column.name not in steps.primary_key.columns
]
_CRITERION = [
    func.sum(criteria.c[name]).label(name) for name in ("verdicts", "failed", "passed", "score_sum", "uncertain")
]


def run_page(
    connection: Connection, project_id: str, *, text: str = "", after: str | None = None, limit: int = 100
) -> RunPage:
    """A page of a project's runs whose names contain a text, the most recently judged first; raises `CursorError`."""
    listed = select(runs).where(runs.c.project_id == project_id).order_by(runs.c.last_at.desc(), runs.c.run.desc())
    if text:
        listed = listed.where(runs.c.run.icontains(text, autoescape=True))
    if after is not None:
        at, name = from_time_cursor(after)
        listed = listed.where(or_(runs.c.last_at < at, and_(runs.c.last_at == at, runs.c.run < name)))
    rows = connection.execute(listed.limit(limit + 1)).all()
    shown, cursor = take_page(rows, limit, lambda row: to_time_cursor(row.last_at, row.run))
    return RunPage(runs=tuple(_summaries(connection, project_id, shown)), next_cursor=cursor)


def run_report(connection: Connection, view: RunReportQuery) -> RunReport | None:
    """A run with a page of its steps; None if the run does not exist. Raises `CursorError`."""
    same = select(runs).where(*of_run(runs, view))
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
    """The figures of the most judged criteria over the whole run, and how many criteria there are."""
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
        part = chosen.where(*of_run(table, view), table.c.step.between(min(numbers), max(numbers)))
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


def _page_of_steps(connection: Connection, view: RunReportQuery) -> tuple[Sequence[int], str | None]:
    at = steps.c.step
    numbers = select(at).distinct().where(*of_run(steps, view), *in_steps(steps, view))
    if view.after is not None:
        before = _from_step_cursor(view.after)
        numbers = numbers.where(at < before if view.newest_first else at > before)
    ordered = numbers.order_by(at.desc() if view.newest_first else at)
    rows = connection.execute(ordered.limit(view.limit + 1)).scalars().all()
    return take_page(rows, view.limit, lambda number: to_cursor(str(number)))


def _rubrics(connection: Connection, view: RunReportQuery) -> list[PinnedRubric]:
    """The most used rubrics, each named by the newest version with its content."""
    used = (
        select(rubrics.c.rubric)
        .where(*of_run(rubrics, view))
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
    chosen = of_run(criteria, view)
    if view.rubric is not None:
        chosen.append(criteria.c.rubric == view.rubric)
    if view.criterion_ids:
        chosen.append(criteria.c.criterion.in_(view.criterion_ids))
    return chosen


def _group_by(rows: Iterable[Row[Any]], name: str) -> dict[Any, list[Row[Any]]]:
    groups: dict[Any, list[Row[Any]]] = defaultdict(list)
    for row in rows:
        groups[getattr(row, name)].append(row)
    return groups


def add_figures(
    connection: Connection, rows: LedgerRows, requests: Collection[RowKey], rest: Callable[[], None] = do_not_rest
) -> None:
    """Add these requests (project, run, request) to the figures of their runs."""
    added = count_figures(rows, requests, rest)
    for table in tables.TABLES:
        if added[table]:
            _upsert(connection, table, added[table])


def delete_empty_runs(connection: Connection, project_id: str) -> None:
    """Delete the figures of runs that have no requests left in the ledger."""
    same = (tables.requests.c.project_id == project_id, tables.requests.c.run == tables.runs.c.run)
    left = select(tables.requests.c.request).where(*same).exists()
    empty = select(tables.runs.c.run).where(tables.runs.c.project_id == project_id, ~left)
    names = list(connection.execute(empty).scalars())
    for table in (*tables.TABLES, tables.measures):
        for name in names:
            connection.execute(delete(table).filter_by(project_id=project_id, run=name))


def _upsert(connection: Connection, table: Table, figures_by_key: dict[RowKey, Any]) -> None:
    keys = [column.name for column in table.primary_key]
    nothing = dict.fromkeys([column.name for column in table.c if not column.primary_key], 0)
    rows = [
        {**dict(zip(keys, key, strict=True)), **nothing, **values} for key, values in sorted(figures_by_key.items())
    ]
    connection.execute(upsert(table, connection, _merged_value), rows)


def _merged_value(before: ColumnElement[Any], more: ColumnElement[Any]) -> ColumnElement[Any]:
    if isinstance(before.type, UTCDateTime):
        earlier = before.name == "first_at"
        return case((more < before if earlier else more > before, more), else_=before)
    return before + more
