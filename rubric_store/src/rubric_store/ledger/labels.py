"""Labels of verdicts: what people say of them, and the verdicts that may be labelled next."""

from collections.abc import Iterable, Mapping
from datetime import UTC, datetime
from itertools import groupby
from typing import Any

from sqlalchemy import Connection, Select, delete, func, select

from rubric_store.database import upsert
from rubric_store.ledger.reading import to_record
from rubric_store.ledger.rows import LabelCount, LabelFilter, LabelledUse, LabelRow, RecentFilter, UseRecord, VerdictKey
from rubric_store.ledger.tables import (
    JUDGED_USES,
    in_steps,
    labels,
    look_up,
    of_run,
    requests,
    responses,
    uses,
    verdicts,
)

_MOST_REQUESTS = 1000
_KEY = ("project_id", "run", "request", "place", "slot")


def set_label(
    connection: Connection, project_id: str, verdict: VerdictKey, labeller: str, met: bool | None
) -> LabelRow | None:
    """Set a person's label of a verdict, or remove it if `met` is None.

    Returns the new label, or the removed one; None if there was none to remove. Raises `LookupError` for an unknown
    verdict.
    """
    here = {"project_id": project_id, **verdict._asdict()}
    found = select(uses.c.criterion).filter_by(**here, vote=0)
    criterion = connection.execute(found).scalar_one_or_none()
    if criterion is None:
        raise LookupError(f"the ledger has no such verdict in run {verdict.run!r}; it may have been purged")
    if met is None:
        gone = delete(labels).filter_by(**here, labeller=labeller).returning(*labels.c)
        removed = connection.execute(gone).one_or_none()
        return None if removed is None else LabelRow(*removed)
    row = LabelRow(project_id, *verdict, labeller, criterion, met, datetime.now(UTC))
    connection.execute(upsert(labels, connection), row._asdict())
    return row


def set_labels(connection: Connection, project_id: str, given: Mapping[VerdictKey, bool | None], labeller: str) -> int:
    """Set or remove a person's labels of several verdicts, all or none; return how many were removed.

    Raises as `set_label` does.
    """
    removed = 0
    for verdict, met in sorted(given.items(), key=lambda one: one[0]):  # so that two writers cannot deadlock
        label = set_label(connection, project_id, verdict, labeller, met)
        removed += met is None and label is not None
    return removed


def labels_of(connection: Connection, wanted: LabelFilter) -> list[LabelRow]:
    """The labels of a run that match a filter, by verdict and person."""
    chosen = _filter(select(labels), wanted).order_by(
        labels.c.request, labels.c.place, labels.c.slot, labels.c.labeller
    )
    return [LabelRow(*row) for row in connection.execute(chosen)]


def label_counts(connection: Connection, project_id: str) -> list[LabelCount]:
    """How many labels each person gave in each run, the most recently labelled run and person first."""
    last = func.max(labels.c.at)
    counted = select(labels.c.run, labels.c.labeller, func.count(), last).where(labels.c.project_id == project_id)
    grouped = counted.group_by(labels.c.run, labels.c.labeller).order_by(last.desc(), labels.c.run, labels.c.labeller)
    return [LabelCount(*row) for row in connection.execute(grouped)]


def labelled_uses(connection: Connection, wanted: LabelFilter) -> list[LabelledUse]:
    """The labelled verdicts of a run that match a filter, oldest first, each with its labels and all its votes."""
    given = {
        verdict: list(rows) for verdict, rows in groupby(labels_of(connection, wanted), key=lambda row: row.verdict)
    }
    keys = _filter(select(*[labels.c[name] for name in _KEY]), wanted).distinct().subquery()
    found = _records(connection, _judged().join(keys, look_up(uses, keys, *_KEY)))
    return [LabelledUse(use, given[_key(use)]) for use in found]


def recent_uses(connection: Connection, wanted: RecentFilter) -> list[UseRecord]:
    """The verdicts of judges that did not fail in the latest requests that match a filter, with all their votes."""
    listed = select(requests.c.request, requests.c.uses).where(
        *of_run(requests, wanted), *in_steps(requests, wanted), requests.c.fingerprint.is_not(None)
    )
    chosen, total = [], 0
    for request, count in connection.execute(listed.order_by(requests.c.request.desc()).limit(_MOST_REQUESTS)):
        chosen.append(request)
        total += count
        if total >= wanted.uses:
            break
    if not chosen:
        return []
    judged = _judged().where(
        *of_run(uses, wanted), uses.c.request.in_(chosen), uses.c.method == "judge", ~uses.c.failed
    )
    if wanted.criterion is not None:
        judged = judged.where(uses.c.criterion == wanted.criterion)
    return _records(connection, judged)


def _judged() -> Select[Any]:
    return (
        select(requests, responses, uses, verdicts)
        .select_from(JUDGED_USES)
        .order_by(uses.c.request, uses.c.place, uses.c.slot, uses.c.vote)
    )


def _records(connection: Connection, judged: Select[Any]) -> list[UseRecord]:
    """The verdicts of rows that are ordered by verdict and vote."""
    votes: Iterable[UseRecord] = (to_record(tuple(row)) for row in connection.execute(judged))
    found = []
    for _, same in groupby(votes, key=_key):
        first, *rest = same
        found.append(first._replace(votes=[first.votes[0], *(one.votes[0] for one in rest)]))
    return found


def _key(use: UseRecord) -> VerdictKey:
    row = use.votes[0][0]
    return VerdictKey(row.run, row.request, row.place, row.slot)


def _filter(statement: Select[Any], wanted: LabelFilter) -> Select[Any]:
    statement = statement.where(*of_run(labels, wanted))
    if wanted.requests:
        statement = statement.where(labels.c.request.in_(wanted.requests))
    return statement if wanted.labeller is None else statement.where(labels.c.labeller == wanted.labeller)
