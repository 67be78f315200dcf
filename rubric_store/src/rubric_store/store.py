"""The rubric store: names, immutable versions, and lookups by reference.

Knows the wire's rubrics and the tables. Refuses to know who asks, what a rubric is judged with, or how
the database came to have its schema (`rubric_store.migrations`).
"""

import asyncio
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from time import monotonic
from typing import Any

from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncEngine

from rubric_store import name_queries, queries
from rubric_store.changes import ChangeMixin
from rubric_store.connected import READ_TIMEOUT_S, unknown_actor
from rubric_store.lists import ListMixin
from rubric_store.nearest import nearest_name, nearest_reference, split_reference
from rubric_store.publishing import build_publication, check_name, publish
from rubric_store.remembered import VersionCache
from rubric_store.rows import version_of
from rubric_store.validations import ValidationMixin
from trainer_client.wire import Lineage, RubricContent, RubricVersion, parse_reference

_NEIGHBOURS = 500
_CACHED_FIND_TIMEOUT_S = 1.0
_RETRY_AFTER_S = 1.0


class RubricStore(ListMixin, ChangeMixin, ValidationMixin):
    """Rubrics on SQLite or PostgreSQL, each project apart from the others.

    Args:
        database: `sqlite+aiosqlite:///path`, `postgresql+psycopg://…`, or an engine for one of them. An
            engine that is handed in stays the caller's: `close` leaves it open.
        actor: says who makes the change that is being made, for its audit row.

    Raises:
        DatabaseURLError: the URL is none the store can use.
    """

    def __init__(self, database: str | AsyncEngine, *, actor: Callable[[], str] = unknown_actor) -> None:
        super().__init__(database, actor=actor)
        self._version_cache = VersionCache()
        self._retry_at = 0.0

    async def find(self, project_id: str, reference: str) -> RubricVersion | None:
        """The version that `name`, `name@3`, `name@alias` or `sha256:…` stands for; None if there is none.

        A bare name stands for its newest version in use, or for its newest where all are retired; a digest for the
        oldest in use that has it, or the oldest; and a text that is no reference for nothing. While the database is
        away, or takes longer than a second, `name@3` and digests asked for before stand for what they stood for; it is
        then asked once a second.

        Raises:
            ConnectionError: the database is away, and that is not remembered.
        """
        try:
            parsed = parse_reference(reference)
        except ValueError:
            return None
        cached = self._version_cache.get(project_id, parsed)
        if cached is not None and monotonic() < self._retry_at:
            return cached
        try:
            timeout_s = READ_TIMEOUT_S if cached is None else _CACHED_FIND_TIMEOUT_S
            rows = await self._read(queries.version(project_id, parsed), timeout_s=timeout_s)
        except ConnectionError:
            self._retry_at = monotonic() + _RETRY_AFTER_S
            if cached is None:
                raise
            return cached
        if not rows:
            return None
        found = version_of(rows[0])
        self._version_cache.put(project_id, parsed, found)
        return found

    async def closest(self, project_id: str, reference: str) -> str | None:
        """The existing reference that looks most like this one, for an error message; None if none does.

        Compares with the 500 names on either side in the order of names. Keeps to the version or alias asked for
        where the name has such a one, and to the newest version otherwise. A digest looks like nothing but itself.
        """
        if reference.startswith("sha256:"):
            return None
        name, selector = split_reference(reference)
        rows = await self._read(*name_queries.neighbours(project_id, name, _NEIGHBOURS))
        latest = {row.name: row.latest_version for row in rows}
        found = await asyncio.to_thread(nearest_name, name, latest)
        if found is None:
            return None
        return nearest_reference(found, selector, latest[found], (await self.aliases(project_id, found)).aliases)

    async def publish(
        self,
        project_id: str,
        name: str,
        content: RubricContent,
        *,
        metadata: Mapping[str, Any] | None = None,
        tags: Sequence[str] = (),
        lineage: Lineage | None = None,
        parent: int | None = None,
    ) -> tuple[RubricVersion, bool]:
        """Add a name's next version, or return the one that has these criteria already; True if it was added.

        Publishers of one name take turns, on any number of hosts: versions are 1, 2, 3… without gaps. Metadata,
        lineage and parent of a version that is there already stand.

        Args:
            project_id: whose rubrics.
            name: what the rubric is called.
            content: the criteria.
            metadata: a JSON object to keep with the version, at most 64 KiB.
            tags: added to the name's tags, also where the version is there already.
            lineage: who or what made this version.
            parent: the version of this name that it was made from; the newest unless given.

        Raises:
            ValueError: the name is none a rubric may have, there is no such parent, or what is given beside the
                criteria breaks the rules of `RubricPublication`.
        """
        check_name(name)
        published = build_publication(content, metadata, tags, lineage, parent)
        async with self._begin() as connection:
            return await publish(
                connection, project_id, name, published, partial(self._add_audit_entry, connection, project_id)
            )

    async def ready(self) -> bool:
        """Whether the store can be read: the database answers within five seconds, and has the tables."""
        try:
            await self._read(name_queries.page("", self._engine.dialect.name, limit=1))
        except (SQLAlchemyError, OSError):
            return False
        return True
