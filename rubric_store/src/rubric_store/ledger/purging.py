"""Purge the ledger: requests of a run, or older than a time, and then the verdicts and texts that only they used.

Each transaction deletes some thousand uses, so that no other transaction waits long. In the same transaction,
PostgreSQL looks up by index which verdicts and texts of the batch are still used, so a purge costs what it deletes,
however large the ledger is. SQLite has no such indexes, which would make its file much larger: after the last batch, it
compares all verdicts and texts of the project with those that are used.
"""

from collections.abc import Callable, Iterable
from datetime import datetime
from typing import Any

from sqlalchemy import (
    ARRAY,
    ColumnElement,
    Connection,
    Delete,
    Engine,
    LargeBinary,
    Select,
    Table,
    and_,
    any_,
    delete,
    false,
    func,
    literal,
    select,
    tuple_,
    union,
)

from rubric_store.ledger.rows import TEXTS, PurgeCounts
from rubric_store.ledger.runs import delete_empty_runs
from rubric_store.ledger.tables import labels, rejudgements, requests, responses, texts, uses, verdicts
from rubric_store.ledger.writing import lock_out_writers

_USES_PER_BATCH = 50_000
_DIGESTS_PER_STATEMENT = 10_000

REQUESTS_PER_BATCH = 500
"""How many requests a transaction deletes at most."""

_TEXT_COLUMNS = [responses.c[name] for name in TEXTS]


def purge(
    engine: Engine,
    project_id: str,
    run: str | None,
    before: datetime | None,
    advance: Callable[[int], None],
    requests_per_batch: int,
) -> PurgeCounts:
    """Delete the requests of a run, older than a time, or both; `advance` gets the number of uses deleted per batch."""
    wanted = select(requests.c.run, requests.c.request, requests.c.uses).where(requests.c.project_id == project_id)
    if run is not None:
        wanted = wanted.where(requests.c.run == run)
    if before is not None:
        wanted = wanted.where(requests.c.created_at < before)
    purged = PurgeCounts()
    while True:
        with engine.begin() as connection:
            batch = _delete_batch(connection, project_id, wanted.limit(requests_per_batch))
        if not batch.requests:
            break
        purged = _add(purged, batch)
        advance(batch.uses)
    with engine.begin() as connection:
        lock_out_writers(connection)
        delete_empty_runs(connection, project_id)
        if connection.dialect.name != "postgresql":
            purged = _add(purged, _sweep(connection, project_id))
    return purged


def _add(one: PurgeCounts, other: PurgeCounts) -> PurgeCounts:
    return PurgeCounts(*[a + b for a, b in zip(one, other, strict=True)])


def _delete_batch(connection: Connection, project_id: str, wanted: Select[Any]) -> PurgeCounts:
    """Delete wanted requests, as many as fit, with their labels; on PostgreSQL also what only they used."""
    server = connection.dialect.name == "postgresql"
    if server:
        lock_out_writers(connection)
    by_run: dict[str, list[bytes]] = {}
    batch_uses = batch_requests = 0
    for run, request, count in connection.execute(wanted):
        by_run.setdefault(run, []).append(request)
        batch_requests += 1
        batch_uses += count
        if batch_uses >= _USES_PER_BATCH:
            break
    judged: set[bytes] = set()
    shown: set[bytes] = set()
    deleted = dict.fromkeys((uses, labels, responses, requests), 0)
    for run, chosen in by_run.items():
        for table in deleted:
            gone = delete(table).where(
                table.c.project_id == project_id, table.c.run == run, table.c.request.in_(chosen)
            )
            if server and table is uses:
                found = connection.execute(gone.returning(uses.c.digest)).scalars().all()
                deleted[uses] += len(found)
                judged.update(found)
            elif server and table is responses:
                for row in connection.execute(gone.returning(*_TEXT_COLUMNS)):
                    shown.update(digest for digest in row if digest is not None)
            else:
                deleted[table] += connection.execute(gone).rowcount
    counts = PurgeCounts(batch_requests, deleted[uses], labels=deleted[labels])
    if not server:
        return counts
    unused = [_delete_unused(connection, table, project_id, judged) for table in (verdicts, rejudgements)]
    return counts._replace(verdicts=unused[0], texts=_delete_unused(connection, texts, project_id, shown))


def _delete_unused(connection: Connection, table: Table, project_id: str, digests: Iterable[bytes]) -> int:
    """Delete those of some verdicts or texts that nothing uses any more; return how many."""
    columns = _TEXT_COLUMNS if table is texts else [uses.c.digest]
    unused = [~_used(column, table) for column in columns]
    ordered = sorted(digests)
    deleted = 0
    for start in range(0, len(ordered), _DIGESTS_PER_STATEMENT):
        part = literal(ordered[start : start + _DIGESTS_PER_STATEMENT], ARRAY(LargeBinary))
        chosen = delete(table).where(table.c.project_id == project_id, table.c.digest == any_(part), *unused)
        deleted += connection.execute(chosen).rowcount
    return deleted


def _used(column: Any, table: Table) -> ColumnElement[bool]:
    """Whether a use or response of the same project names the digest of a row.

    For a use, the project is compared as an expression, so that the planner finds uses by their digest: by the primary
    key, which begins with the project, it would read the whole project for each digest. For a column of texts, this
    compares the first entry of the index that is not before the row's own. A rubric's digest is that of most rows, so
    with an equality the planner would expect any row to match, and read all of them for each digest that is not there.
    """
    project = column.table.c.project_id
    if column is uses.c.digest:
        return select(column).where(project + "" == table.c.project_id, column == table.c.digest).exists()
    first = (
        select(and_(column == table.c.digest, project == table.c.project_id))
        .where(tuple_(column, project) >= tuple_(table.c.digest, table.c.project_id))
        .order_by(column, project)
        .limit(1)
        .correlate(table)
    )
    return func.coalesce(first.scalar_subquery(), false())


def _sweep(connection: Connection, project_id: str) -> PurgeCounts:
    """Delete all unused verdicts and texts of a project."""
    used = select(uses.c.digest).where(uses.c.project_id == project_id)
    used_texts = union(
        *(select(column).where(responses.c.project_id == project_id, column.is_not(None)) for column in _TEXT_COLUMNS)
    )
    unused = [connection.execute(_unreferenced(table, project_id, used)).rowcount for table in (verdicts, rejudgements)]
    return PurgeCounts(
        verdicts=unused[0], texts=connection.execute(_unreferenced(texts, project_id, used_texts)).rowcount
    )


def _unreferenced(table: Table, project_id: str, used: Any) -> Delete:
    return delete(table).where(table.c.project_id == project_id, table.c.digest.not_in(used))
