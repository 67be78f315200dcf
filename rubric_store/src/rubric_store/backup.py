"""Copy a SQLite database, and check that what a database holds is whole.

A copy of a SQLite database as it was at one moment, while others go on writing. Knows no table.

PostgreSQL has tools of its own for this.

Whether what a database holds is whole, as after a restore: every rubric as its digest says, no request in part.

Blocks; reads everything once. Refuses to know how a database was brought to where it is, and mends nothing.
"""

import os
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import Connection, Select, and_, func, select

from rubric_store.database import SQLITE, blocking_connection, read_url
from rubric_store.ledger.tables import requests, uses, verdicts
from rubric_store.rubrics.tables import rubric_versions as versions
from trainer_client.wire import Criterion
from trainer_client.wire.criteria import content_digest


def copy_sqlite(url: str, to: Path) -> int:
    """Write a copy to a file that is not there yet, for its owner only, whole or not at all; its size in bytes. Blocks.

    Raises:
        DatabaseURLError: the store cannot use this URL.
        ValueError: it names no SQLite file, or one that is not there.
        FileExistsError: there is a file of that name.
        sqlite3.Error, OSError: it could not be read or written.
    """
    parsed = read_url(url)
    if parsed.drivername != SQLITE or parsed.database is None:
        raise ValueError("only a SQLite file is copied like this; PostgreSQL has pg_dump, see docs/backup.md")
    if not Path(parsed.database).is_file():
        raise ValueError(f"there is no database {parsed.database} yet")
    if to.exists():
        raise FileExistsError(f"{to} is there already; name a new file")
    begun = to.with_name(f"{to.name}.{os.getpid()}.part")
    try:
        begun.touch(mode=0o600)
        with closing(sqlite3.connect(f"{Path(parsed.database).absolute().as_uri()}?mode=ro", uri=True)) as database:
            database.execute("VACUUM INTO ?", (str(begun),))
        with begun.open("rb") as written:
            os.fsync(written.fileno())
        to.hardlink_to(begun)
    finally:
        begun.unlink(missing_ok=True)
    return to.stat().st_size


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
