"""What trainers report of a run by step: shares and means that no request tells, such as refined responses."""

from collections.abc import Mapping
from typing import Any

from sqlalchemy import BigInteger, Connection, func, literal, select
from sqlalchemy.dialects import postgresql, sqlite

from rubric_store.ledger.tables import measures
from trainer_client.wire.ledger_rows import MeasureBucket, RunChartQuery

_KEY = ("project_id", "run", "step", "name")


def set_measures(connection: Connection, project_id: str, run: str, step: int, values: Mapping[str, float]) -> None:
    """Set the measures of a step; those set before under other names stay."""
    if not values:
        return
    make = postgresql.insert if connection.dialect.name == "postgresql" else sqlite.insert
    added = make(measures).on_conflict_do_update(
        index_elements=list(_KEY), set_={"value": make(measures).excluded.value}
    )
    rows = [
        {"project_id": project_id, "run": run, "step": step, "name": name, "value": value}
        for name, value in sorted(values.items())
    ]
    connection.execute(added, rows)


def measure_buckets(connection: Connection, wanted: RunChartQuery) -> list[MeasureBucket]:
    """The mean of each measure over the steps of a bucket that have it, by name and step."""
    own: list[Any] = [measures.c.project_id == wanted.project_id, measures.c.run == wanted.run]
    own += [measures.c.step >= wanted.first] if wanted.first is not None else []
    own += [measures.c.step <= wanted.last] if wanted.last is not None else []
    first, last = connection.execute(select(func.min(measures.c.step), func.max(measures.c.step)).where(*own)).one()
    if first is None:
        return []
    width = literal((last - first) // wanted.buckets + 1, BigInteger, literal_execute=True)
    bucket = (measures.c.step - literal(first, BigInteger, literal_execute=True)) // width
    step = measures.c.step
    rows = connection.execute(
        select(measures.c.name, func.min(step), func.max(step), func.count(), func.avg(measures.c.value))
        .where(*own)
        .group_by(measures.c.name, bucket)
        .order_by(measures.c.name, bucket)
    )
    return [MeasureBucket(*row) for row in rows]
