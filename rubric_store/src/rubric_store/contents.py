"""Whether what a database holds is whole, as after a restore: every rubric as its digest says, no request in part.

Blocks; reads everything once. Refuses to know how a database was brought to where it is, and mends nothing.
"""

from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import Connection, Select, and_, func, select

from rubric_store.blocking import blocking_connection
from rubric_store.ledger.tables import requests, uses, verdicts
from rubric_store.tables import rubric_versions as versions
from trainer_client.wire import Criterion
from trainer_client.wire.criteria import content_digest

_BATCH_SIZE = 500
_MAX_PROBLEMS = 20

_CRITERIA = TypeAdapter(tuple[Criterion, ...])


class IntegrityReport(NamedTuple):
    """What was looked at, how much is wrong, and the first twenty of it in words."""

    versions: int
    requests: int
    problem_count: int
    problems: tuple[str, ...]


def check_integrity(url: str) -> IntegrityReport:
    """Compare every rubric version with its digest, and every recorded request with its uses and their verdicts.

    Raises:
        DatabaseURLError: the store cannot use this URL.
    """
    with blocking_connection(url, writes=False) as connection:
        names = connection.execute(select(func.count()).select_from(versions)).scalar_one()
        recorded = connection.execute(select(func.count()).select_from(requests)).scalar_one()
        problems = [*_digest_mismatches(connection), *_incomplete_requests(connection), *_missing_verdicts(connection)]
    return IntegrityReport(names, recorded, len(problems), tuple(problems[:_MAX_PROBLEMS]))


def _digest_mismatches(connection: Connection) -> list[str]:
    """The versions whose criteria are not those that their digest was made of."""
    problems = []
    rows = connection.execution_options(yield_per=_BATCH_SIZE).execute(
        select(versions.c.project_id, versions.c.name, versions.c.version, versions.c.digest, versions.c.criteria)
    )
    for row in rows:
        try:
            right = content_digest(_CRITERIA.validate_python(row.criteria)) == row.digest
        except ValidationError:
            right = False
        if not right:
            problems.append(f"rubric {row.name}@{row.version} of project {row.project_id} is not what its digest says")
    return problems


def _incomplete_requests(connection: Connection) -> list[str]:
    """The recorded requests that do not have as many uses as they made."""
    same = and_(
        uses.c.project_id == requests.c.project_id, uses.c.run == requests.c.run, uses.c.request == requests.c.request
    )
    keys = (requests.c.project_id, requests.c.run, requests.c.request_id)
    found = (
        select(*keys, requests.c.uses, func.count(uses.c.slot).label("kept"))
        .join_from(requests, uses, same, isouter=True)
        .group_by(*requests.primary_key.columns, requests.c.request_id, requests.c.uses)
        .having(func.count(uses.c.slot) != requests.c.uses)
    )
    return [
        f"request {row.request_id} of run {row.run} in project {row.project_id} has {row.kept} of {row.uses} uses"
        for row in connection.execute(found)
    ]


def _missing_verdicts(connection: Connection) -> list[str]:
    """The runs with uses whose verdict is not there."""
    same = and_(verdicts.c.project_id == uses.c.project_id, verdicts.c.digest == uses.c.digest)
    found: Select[Any] = (
        select(uses.c.project_id, uses.c.run, func.count().label("uses"))
        .join_from(uses, verdicts, same, isouter=True)
        .where(uses.c.failure.is_(None), verdicts.c.digest.is_(None))
        .group_by(uses.c.project_id, uses.c.run)
    )
    return [
        f"run {row.run} of project {row.project_id} has {row.uses} uses without their verdict"
        for row in connection.execute(found)
    ]
