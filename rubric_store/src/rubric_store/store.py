"""The rubric store: names, immutable versions, and lookups by reference.

Knows the wire's rubrics and the two tables. Refuses to know who asks, what a rubric is judged with, or how
the database came to have its schema (`rubric_store.migrations`).
"""

import asyncio
import difflib
import re
from datetime import UTC, datetime
from typing import Any

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import Row, Select
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from rubric_store import queries
from rubric_store.database import WRITES, open_engine, prepare
from rubric_store.paging import check_limit, from_cursor, to_cursor
from trainer_client.wire import (
    RubricContent,
    RubricName,
    RubricPage,
    RubricSummary,
    RubricVersion,
    parse_reference,
)

_NAME: TypeAdapter[str] = TypeAdapter(RubricName)
_NOT_IN_NAMES = re.compile(r"[^a-z0-9._/-]")
_NAME_LENGTH = 200
_NEIGHBOURS = 500
_READY_WITHIN_S = 5.0


class RubricStore:
    """Rubrics on SQLite or PostgreSQL, each project apart from the others.

    Args:
        database: `sqlite+aiosqlite:///path`, `postgresql+psycopg://…`, or an engine for one of them. An
            engine that is handed in stays the caller's: `close` leaves it open.

    Raises:
        DatabaseURLError: the URL is none the store can use.
    """

    def __init__(self, database: str | AsyncEngine) -> None:
        self._owns_engine = isinstance(database, str)
        self._engine = open_engine(database) if isinstance(database, str) else database
        prepare(self._engine.sync_engine)
        self._writer = self._engine.execution_options(**{WRITES: True})

    async def find(self, project_id: str, reference: str) -> RubricVersion | None:
        """The version that `name`, `name@3` or `sha256:…` stands for; None if there is none.

        A bare name stands for its newest version, a digest for the oldest that has it, and a text that is no
        reference for nothing.
        """
        try:
            parsed = parse_reference(reference)
        except ValueError:
            return None
        rows = await self._read(queries.version(project_id, parsed))
        return _version(rows[0]) if rows else None

    async def closest(self, project_id: str, reference: str) -> str | None:
        """The existing reference that looks most like this one, for an error message; None if none does.

        Compares with the 500 names on either side in the order of names. Keeps to the version asked for where
        the name has it, and to the newest otherwise. A digest looks like nothing but itself.
        """
        if reference.startswith("sha256:"):
            return None
        name, version = _nearest_name(reference)
        after, before = queries.neighbours(project_id, name, _NEIGHBOURS)
        latest = {row.name: row.latest_version for row in [*await self._read(after), *await self._read(before)]}
        matches = await asyncio.to_thread(difflib.get_close_matches, name, latest, 1)
        if not matches:
            return None
        return matches[0] if version is None else f"{matches[0]}@{min(version, latest[matches[0]])}"

    async def publish(self, project_id: str, name: str, content: RubricContent) -> tuple[RubricVersion, bool]:
        """Add a name's next version, or return the one that has this content already; True if it was added.

        Publishers of one name take turns, on any number of hosts: versions are 1, 2, 3… without gaps.

        Raises:
            ValueError: the name is none a rubric may have.
        """
        _check_name(name)
        async with self._writer.begin() as connection:
            await connection.execute(queries.add_name(connection.dialect.name, project_id, name))
            latest: int = (await connection.execute(queries.lock_name(project_id, name))).scalar_one()
            same = await connection.execute(queries.version_with_digest(project_id, name, content.digest))
            if row := same.one_or_none():
                return _version(row), False
            now = datetime.now(UTC)
            await connection.execute(queries.add_version(project_id, name, latest + 1, content, now))
            await connection.execute(queries.set_latest(project_id, name, latest + 1))
        added = RubricVersion(
            name=name, version=latest + 1, digest=content.digest, criteria=content.criteria, created_at=now
        )
        return added, True

    async def list(
        self, project_id: str, *, prefix: str = "", after: str | None = None, limit: int = 100
    ) -> RubricPage:
        """Rubrics by name in code point order, the newest version of each.

        Args:
            project_id: whose rubrics.
            prefix: only names that begin with this text, taken literally.
            after: the `next_cursor` of the page before; None for the first page.
            limit: rubrics a page, 1 to 500.

        Raises:
            CursorError: no page gave this cursor out.
            ValueError: the limit is out of range.
        """
        check_limit(limit)
        name = None if after is None else from_cursor(after)
        if _NOT_IN_NAMES.search(prefix):
            return RubricPage(rubrics=())
        rows = await self._read(queries.page(project_id, prefix=prefix, after=name, limit=limit + 1))
        summaries = tuple(RubricSummary.model_validate(row._mapping) for row in rows[:limit])
        return RubricPage(rubrics=summaries, next_cursor=to_cursor(rows[limit - 1].name) if rows[limit:] else None)

    async def ready(self) -> bool:
        """Whether the store can be read: the database answers within five seconds, and has the tables."""
        try:
            async with asyncio.timeout(_READY_WITHIN_S):
                await self._read(queries.page("", prefix="", after=None, limit=1))
        except (SQLAlchemyError, OSError):
            return False
        return True

    async def close(self) -> None:
        """Close the store's connections, unless its engine was handed in."""
        if self._owns_engine:
            await self._engine.dispose()

    async def _read(self, statement: Select[Any]) -> tuple[Row[Any], ...]:
        async with self._engine.connect() as connection:
            return tuple(await connection.execute(statement))


def _version(row: Row[Any]) -> RubricVersion:
    return RubricVersion.model_validate(row._mapping)


def _check_name(name: str) -> None:
    try:
        _NAME.validate_python(name)
    except ValidationError:
        raise ValueError(
            f"{name[:_NAME_LENGTH]!r} cannot name a rubric; use lower-case letters, digits, '.', '_' and "
            f"'-', in parts set apart by '/', at most {_NAME_LENGTH} characters"
        ) from None


def _nearest_name(reference: str) -> tuple[str, int | None]:
    """The name a reference may have meant, in the characters names have, and the version it asks for."""
    name, _, version = reference.partition("@")
    number = int(version) if re.fullmatch(r"[1-9][0-9]{0,8}", version) else None
    return _NOT_IN_NAMES.sub("-", name.lower())[:_NAME_LENGTH], number
