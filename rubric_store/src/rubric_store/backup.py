"""Back up a SQLite database, and check the integrity of any database.

`copy_sqlite` copies a SQLite database as of one moment while other processes write to it; PostgreSQL has pg_dump.
`check_integrity` reads everything once, as after a restore, and repairs nothing. Both block.
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
    """Copy a SQLite database to a new file, readable by its owner only, and return its size in bytes. Atomic; blocks.

    Raises:
        DatabaseURLError: the store cannot use this URL.
        ValueError: the URL is not of a SQLite file, or the file does not exist.
        FileExistsError: the target exists.
        sqlite3.Error, OSError: the database could not be read, or the copy not written.
    """
    parsed = read_url(url)
    if parsed.drivername != SQLITE or parsed.database is None:
        raise ValueError(
            "only a SQLite file can be copied; for PostgreSQL use pg_dump, see docs/how-to/back-up-and-restore.md"
        )
    if not Path(parsed.database).is_file():
        raise ValueError(f"the database {parsed.database} does not exist")
    if to.exists():
        raise FileExistsError(f"{to} already exists; name a new file")
    partial = to.with_name(f"{to.name}.{os.getpid()}.part")
    try:
        partial.touch(mode=0o600)
        with closing(sqlite3.connect(f"{Path(parsed.database).absolute().as_uri()}?mode=ro", uri=True)) as database:
            database.execute("VACUUM INTO ?", (str(partial),))
        with partial.open("rb") as copy:
            os.fsync(copy.fileno())
        to.hardlink_to(partial)
    finally:
        partial.unlink(missing_ok=True)
    return to.stat().st_size


_BATCH_SIZE = 500
_MAX_PROBLEMS = 20

_CRITERIA = TypeAdapter(tuple[Criterion, ...])


class IntegrityReport(NamedTuple):
    """How many versions and requests were read, how many problems were found, and the first twenty of them."""

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
    """Versions whose criteria do not match their digest."""
    problems = []
    rows = connection.execution_options(yield_per=_BATCH_SIZE).execute(
        select(versions.c.project_id, versions.c.name, versions.c.version, versions.c.digest, versions.c.criteria)
    )
    for row in rows:
        try:
            matches = content_digest(_CRITERIA.validate_python(row.criteria)) == row.digest
        except ValidationError:
            matches = False
        if not matches:
            problems.append(f"rubric {row.name}@{row.version} of project {row.project_id} does not match its digest")
    return problems


def _incomplete_requests(connection: Connection) -> list[str]:
    """Recorded requests with fewer or more uses than they made."""
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
    """Runs with uses whose verdict is missing."""
    same = and_(verdicts.c.project_id == uses.c.project_id, verdicts.c.digest == uses.c.digest)
    found: Select[Any] = (
        select(uses.c.project_id, uses.c.run, func.count().label("uses"))
        .join_from(uses, verdicts, same, isouter=True)
        .where(uses.c.failure.is_(None), verdicts.c.digest.is_(None))
        .group_by(uses.c.project_id, uses.c.run)
    )
    return [
        f"run {row.run} of project {row.project_id} has {row.uses} uses without a verdict"
        for row in connection.execute(found)
    ]
