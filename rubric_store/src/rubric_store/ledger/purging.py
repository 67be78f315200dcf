"""Takes runs out of the ledger, and then what nothing refers to any more. Knows how, and refuses to know when.

Requests go some thousand uses at a time, each time in a transaction of its own, so that nobody waits long.
"""

from collections.abc import Callable
from datetime import datetime
from typing import Any

from sqlalchemy import Connection, Delete, Engine, Select, delete, select, union

from rubric_store.ledger.runs_writing import delete_empty_runs
from rubric_store.ledger.tables import rejudgements, requests, responses, texts, uses, verdicts
from rubric_store.ledger.writing import lock_out_writers
from trainer_client.wire.ledger_rows import PurgeCounts

_USES_PER_BATCH = 50_000
_REQUESTS_PER_BATCH = 500


def purge(
    engine: Engine, project_id: str, run: str | None, before: datetime | None, advance: Callable[[int], None]
) -> PurgeCounts:
    """Delete the requests of a run, or those from before a moment, or both's; `advance` is told of uses deleted."""
    wanted = select(requests.c.run, requests.c.request, requests.c.uses).where(requests.c.project_id == project_id)
    if run is not None:
        wanted = wanted.where(requests.c.run == run)
    if before is not None:
        wanted = wanted.where(requests.c.created_at < before)
    purged = PurgeCounts()
    while True:
        with engine.begin() as connection:
            found, deleted = _delete_batch(connection, project_id, wanted)
        if not found:
            break
        purged = purged._replace(requests=purged.requests + found, uses=purged.uses + deleted)
        advance(deleted)
    with engine.begin() as connection:
        deleted_counts = _delete_unreferenced(connection, project_id)
    return purged._replace(verdicts=deleted_counts[0], texts=deleted_counts[1])


def _delete_batch(connection: Connection, project_id: str, wanted: Select[Any]) -> tuple[int, int]:
    """Delete some of the requests that are wanted; how many, and how many uses."""
    by_run: dict[str, list[bytes]] = {}
    batch_uses = found = deleted = 0
    for run, request, count in connection.execute(wanted.limit(_REQUESTS_PER_BATCH)):
        by_run.setdefault(run, []).append(request)
        found += 1
        batch_uses += count
        if batch_uses >= _USES_PER_BATCH:
            break
    for run, chosen in by_run.items():
        for table in (uses, responses, requests):
            result = connection.execute(
                delete(table).where(table.c.project_id == project_id, table.c.run == run, table.c.request.in_(chosen))
            )
            deleted += result.rowcount if table is uses else 0
    return found, deleted


def _delete_unreferenced(connection: Connection, project_id: str) -> tuple[int, int]:
    """Delete verdicts and texts that nothing refers to, and figures of runs that are gone; how many of the first."""
    lock_out_writers(connection)
    delete_empty_runs(connection, project_id)
    used = select(uses.c.digest).where(uses.c.project_id == project_id)
    shown = union(
        *(
            select(responses.c[name]).where(responses.c.project_id == project_id, responses.c[name].is_not(None))
            for name in ("rubric", "prompt", "response", "grounding")
        )
    )
    deleted_counts = [
        connection.execute(_unreferenced(table, project_id, used)).rowcount for table in (verdicts, rejudgements)
    ]
    return deleted_counts[0], connection.execute(_unreferenced(texts, project_id, shown)).rowcount


def _unreferenced(table: Any, project_id: str, referred: Any) -> Delete:
    return delete(table).where(table.c.project_id == project_id, table.c.digest.not_in(referred))
