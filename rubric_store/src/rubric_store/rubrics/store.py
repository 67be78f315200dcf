"""`RubricStore`: names, immutable versions, aliases, tags, lists, and lookup by reference.

Every change to a name takes the name's lock, so on any number of hosts it sees the result of the change before it.

While the database is unavailable, `find` answers from `VersionCache`, for references whose meaning never changes: a
name@version and a digest. Whether such a version was retired in the meantime is unknown until the database is back.
"""

import asyncio
import re
from collections import Counter, defaultdict
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import UTC, datetime
from functools import partial
from itertools import pairwise
from time import monotonic
from typing import Any

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import delete, func, select, text, update
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine

from rubric_store.database import unwritable_files, upsert
from rubric_store.repository import (
    READ_TIMEOUT_S,
    UNKNOWN_CURSOR,
    CursorError,
    take_page,
    text_from_cursor,
    to_cursor,
    unknown_actor,
)
from rubric_store.rubrics import queries
from rubric_store.rubrics.publishing import (
    LARGE_CHARACTERS,
    PreparedPublication,
    ValidationMixin,
    add_tags,
    build_publication,
    check_name,
    publish,
    store_words,
    tags_of,
)
from rubric_store.rubrics.queries import (
    REFRESH_AFTER_S,
    VERSION_COLUMNS,
    VersionCache,
    summary_of,
    version_of,
    words_of,
)
from rubric_store.rubrics.rows import criteria_characters
from rubric_store.rubrics.tables import rubric_aliases, rubric_tags, rubrics
from rubric_store.rubrics.tables import rubric_versions as versions
from trainer_client.wire import (
    AliasName,
    Lineage,
    Reference,
    RubricAliases,
    RubricContent,
    RubricHistory,
    RubricName,
    RubricPage,
    RubricSummary,
    RubricTags,
    RubricVersion,
    TagSet,
    parse_reference,
)
from trainer_client.wire.names import ALIAS_PATTERN, ALLOWED
from trainer_client.wire.problems import field_errors

_ALIAS: TypeAdapter[str] = TypeAdapter(AliasName)


async def _version(connection: AsyncConnection, project_id: str, name: str, version: int | None) -> RubricVersion:
    row = (await connection.execute(queries.version(project_id, Reference(name, version, None)))).one_or_none()
    if row is None:
        raise LookupError(f"there is no {name}@{version}")
    return version_of(row)


def _reason(version: RubricVersion) -> str | None:
    return version.retirement.reason if version.retirement else None


async def _alias(connection: AsyncConnection, project_id: str, name: str, alias: str) -> int | None:
    rows = await connection.execute(queries.aliases(project_id, [name]))
    return {row.alias: row.version for row in rows}.get(alias)


async def _set_retirement(
    connection: AsyncConnection, project_id: str, version: RubricVersion, at: datetime | None, reason: str | None
) -> RubricVersion:
    name = version.name
    before = await _version(connection, project_id, name, None)
    mine = {"project_id": project_id, "name": name}
    retired = update(versions).filter_by(**mine, version=version.version)
    await connection.execute(retired.values(retired_at=at, retired_reason=reason))
    in_use = select(func.max(versions.c.version)).filter_by(**mine, retired_at=None).scalar_subquery()
    newest = func.coalesce(in_use, rubrics.c.latest_version)
    await connection.execute(update(rubrics).filter_by(**mine).values(current_version=newest))
    current = await _version(connection, project_id, name, None)
    if current.version != before.version:
        await store_words(connection, project_id, name, words_of(one.description for one in current.criteria))
    return await _version(connection, project_id, name, version.version)


def _check_alias(alias: str) -> None:
    try:
        _ALIAS.validate_python(alias)
    except ValidationError as error:
        problem = error.errors()[0]
        if problem["type"] == "value_error":
            raise ValueError(str(problem["ctx"]["error"])) from None
        raise ValueError(f"{alias[:64]!r} is not a valid alias; {ALLOWED[ALIAS_PATTERN]}") from None


_NUMBER = re.compile(r"[1-9][0-9]{0,8}")
_NAME_CHARACTERS = re.compile(r"[a-z0-9._/-]*")
_Tags = defaultdict[str, list[str]]
_Aliases = defaultdict[str, dict[str, int]]


_MAX_LIMIT = 500
_NAME: TypeAdapter[str] = TypeAdapter(RubricName)


def _check_limit(limit: int, what: str) -> None:
    if not 1 <= limit <= _MAX_LIMIT:
        raise ValueError(f"a page holds 1 to {_MAX_LIMIT} {what}, not {limit}; follow next_cursor for more")


def _name_from_cursor(cursor: str) -> str:
    try:
        return _NAME.validate_python(text_from_cursor(cursor))
    except ValidationError:
        raise CursorError(UNKNOWN_CURSOR) from None


_NOT_IN_NAMES = re.compile(r"[^a-z0-9._/-]")
_NAME_LENGTH = 200
_ALIAS_LENGTH = 64


def split_reference(reference: str) -> tuple[str, str]:
    """Split a reference into a name, reduced to the characters that names have, and its selector."""
    name, _, rest = reference.partition("@")
    return _NOT_IN_NAMES.sub("-", name.lower())[:_NAME_LENGTH], rest


_MIN_SIMILARITY = 0.5


def most_similar(text: str, known: Iterable[str]) -> str | None:
    """The known text that shares the most pairs of characters with this one; None if none shares half of them.

    Similarity is 2 |shared| / (|pairs of one| + |pairs of the other|), in time linear in the texts.
    """
    own = _pairs(text)
    best, nearest = _MIN_SIMILARITY, None
    for one in known:
        pairs = _pairs(one)
        similarity = 2 * (own & pairs).total() / (own.total() + pairs.total())
        if similarity >= best and (similarity > best or nearest is None):
            best, nearest = similarity, one
    return nearest


def _pairs(text: str) -> Counter[str]:
    """The pairs of characters that follow each other, with the text's beginning and end."""
    return Counter(map("".join, pairwise(f"\0{text}\0")))


def nearest_reference(name: str, selector: str, latest: int, aliases: Mapping[str, int]) -> str:
    """A reference to an existing name: to the version or alias nearest to the selector, else to the bare name."""
    if _NUMBER.fullmatch(selector):
        return f"{name}@{min(int(selector), latest)}"
    alias = most_similar(selector.lower()[:_ALIAS_LENGTH], aliases) if selector else None
    return f"{name}@{alias}" if alias else name


RunLarge = Callable[[Callable[[], PreparedPublication]], Awaitable[PreparedPublication]]
"""Calls a function in a thread, as `asyncio.to_thread` does."""

_NEIGHBOURS = 500
_CACHED_FIND_TIMEOUT_S = 1.0
_RETRY_AFTER_S = 1.0


class RubricStore(ValidationMixin):
    """Rubrics on SQLite or PostgreSQL, separate for each project.

    Args:
        database: `sqlite+aiosqlite:///path`, `postgresql+psycopg://…`, or an engine for one of them. An engine that
            is passed in stays the caller's: `close` leaves it open.
        actor: returns who makes the current change, for the audit log.
        run_large: calls a function that computes for milliseconds, away from the event loop.
        clock: returns seconds, for the age of cached versions.

    Raises:
        DatabaseURLError: the store cannot use the URL.
    """

    def __init__(
        self,
        database: str | AsyncEngine,
        *,
        actor: Callable[[], str] = unknown_actor,
        run_large: RunLarge = asyncio.to_thread,
        clock: Callable[[], float] = monotonic,
    ) -> None:
        super().__init__(database, actor=actor)
        self._run_large = run_large
        self._clock = clock
        self._version_cache = VersionCache(clock)
        self._retry_at = 0.0
        self._refreshing: dict[tuple[str, str], asyncio.Task[None]] = {}

    async def close(self) -> None:
        """Stop reading in the background, and close the connections, unless the engine was passed in."""
        for task in list(self._refreshing.values()):
            task.cancel()
        await asyncio.gather(*self._refreshing.values(), return_exceptions=True)
        await super().close()

    async def find(self, project_id: str, reference: str, *, max_age_s: float = 0.0) -> RubricVersion | None:
        """Resolve `name`, `name@3`, `name@alias` or `sha256:…` to a version; None if there is none.

        A bare name resolves to its newest version in use, or to its newest version if all are retired. A digest
        resolves to its oldest version in use, or to its oldest version. An invalid reference resolves to None.

        What `name@3` and digests refer to may come from a cache if it was read at most `max_age_s` ago; then it is read
        again in the background. A retirement by this store takes effect at once. While the database is unavailable or
        slower than a second, they come from the cache at any age, and the database is tried once a second.

        Raises:
            ConnectionError: the database is unavailable, and the reference is not cached.
        """
        try:
            parsed = parse_reference(reference)
        except ValueError:
            return None
        cached, age_s = self._version_cache.get(project_id, parsed), self._version_cache.age_s(project_id, parsed)
        if cached is not None and (age_s < max_age_s or self._clock() < self._retry_at):
            if age_s >= REFRESH_AFTER_S:
                self._refresh(project_id, reference)
            return cached
        read_at = self._clock()
        try:
            timeout_s = READ_TIMEOUT_S if cached is None else _CACHED_FIND_TIMEOUT_S
            rows = await self._read(queries.version(project_id, parsed), timeout_s=timeout_s)
        except ConnectionError:
            self._retry_at = self._clock() + _RETRY_AFTER_S
            if cached is None:
                raise
            return cached
        if not rows:
            return None
        found = version_of(rows[0])
        self._version_cache.put(project_id, parsed, found, read_at)
        return found

    def _refresh(self, project_id: str, reference: str) -> None:
        """Read a cached version again in the background, unless that is under way or the database is unavailable."""
        key = project_id, reference
        if key in self._refreshing or self._clock() < self._retry_at:
            return

        async def refresh() -> None:
            with suppress(ConnectionError):
                await self.find(project_id, reference)

        task = self._refreshing[key] = asyncio.create_task(refresh())
        task.add_done_callback(lambda _: self._refreshing.pop(key, None))

    async def closest(self, project_id: str, reference: str) -> str | None:
        """The existing reference most similar to this one, for an error message; None if none is similar.

        Compares with the 500 names on either side in sort order. Keeps the version or alias asked for if the name has
        it, else refers to the nearest version. Nothing is similar to a digest.
        """
        if reference.startswith("sha256:"):
            return None
        name, selector = split_reference(reference)
        named = select(rubrics.c.name, rubrics.c.latest_version).where(rubrics.c.project_id == project_id)
        named = named.limit(_NEIGHBOURS)
        rows = await self._read(
            named.where(rubrics.c.name >= name).order_by(rubrics.c.name),
            named.where(rubrics.c.name < name).order_by(rubrics.c.name.desc()),
        )
        latest = {row.name: row.latest_version for row in rows}
        found = await asyncio.to_thread(most_similar, name, latest)
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
        """Add a name's next version, or return the existing one with the same criteria; True if it was added.

        Concurrent publishers of one name, on any number of hosts, run one after another: versions are 1, 2, 3…
        without gaps. An existing version keeps its metadata, lineage and parent.

        Args:
            project_id: the project of the rubrics.
            name: the rubric's name.
            content: the criteria.
            metadata: a JSON object to store with the version, at most 64 KiB.
            tags: added to the name's tags, even if the version exists already.
            lineage: who or what made this version.
            parent: the version of this name that it was made from; by default the newest.

        Raises:
            ValueError: the name is invalid, the parent does not exist, or another argument breaks the rules of
                `RubricPublication`.
        """
        check_name(name)
        published = build_publication(content, metadata, tags, lineage, parent)
        prepare = partial(PreparedPublication.of, published)
        large = criteria_characters(published.criteria) > LARGE_CHARACTERS
        prepared = await self._run_large(prepare) if large else prepare()
        async with self._begin() as connection:
            return await publish(
                connection, project_id, name, prepared, partial(self._add_audit_entry, connection, project_id)
            )

    async def ready(self) -> bool:
        """Whether the store can be used: the database answers within five seconds, has the tables and is writable."""
        try:
            async with self._connect() as connection:
                await connection.execute(queries.page("", self._engine.dialect.name, limit=1))
                if self._engine.dialect.name == "postgresql":
                    read_only = await connection.scalar(text("SELECT current_setting('transaction_read_only')"))
                    return bool(read_only == "off")
        except (SQLAlchemyError, OSError):
            return False
        return not unwritable_files(self._engine.url)

    async def move_alias(
        self, project_id: str, name: str, alias: str, version: int, *, expected: int | None
    ) -> tuple[bool, int | None]:
        """Point an alias to a version, if it points to the expected one now.

        Args:
            project_id: the project of the rubrics.
            name: the rubric.
            alias: the alias.
            version: the version that it shall point to.
            expected: the version that it points to now, or None if the alias does not exist.

        Returns:
            Whether the alias now points to `version`, and what it points to (None: it does not exist). An alias that
            already points to `version` counts as moved whatever was expected, so a move may be repeated.

        Raises:
            ValueError: the alias's name is invalid, or the version is retired.
            LookupError: the rubric or the version does not exist.
        """
        _check_alias(alias)
        async with self._begin_locked(project_id, name) as connection:
            found = await _version(connection, project_id, name, version)
            current = await _alias(connection, project_id, name, alias)
            if current == version:
                return True, version
            if current != expected:
                return False, current
            if found.retirement is not None:
                raise ValueError(f"{found.reference} is retired ({found.retirement.reason}); restore it first")
            row = {"project_id": project_id, "name": name, "alias": alias, "version": version}
            await connection.execute(upsert(rubric_aliases, connection), row)
            before = None if current is None else (await _version(connection, project_id, name, current)).digest
            await self._add_audit_entry(connection, project_id, "alias.moved", f"{name}@{alias}", before, found.digest)
        return True, version

    async def remove_alias(
        self, project_id: str, name: str, alias: str, *, expected: int | None
    ) -> tuple[bool, int | None]:
        """Remove an alias if it points to the expected version; return whether it did, and what it pointed to.

        Raises:
            LookupError: the rubric does not exist.
        """
        async with self._begin_locked(project_id, name) as connection:
            current = await _alias(connection, project_id, name, alias)
            if current is None or current != expected:
                return False, current
            await connection.execute(delete(rubric_aliases).filter_by(project_id=project_id, name=name, alias=alias))
            removed = await _version(connection, project_id, name, current)
            await self._add_audit_entry(
                connection, project_id, "alias.removed", f"{name}@{alias}", removed.digest, None
            )
        return True, current

    async def replace_tags(self, project_id: str, name: str, tags: Sequence[str]) -> RubricTags:
        """Replace the tags of a rubric.

        Raises:
            ValueError: too many tags, or an invalid one.
            LookupError: the rubric does not exist.
        """
        try:
            wanted = TagSet(tags=tuple(tags)).tags
        except ValidationError as error:
            wrong = field_errors(error.errors(include_url=False, include_input=False))[0]
            raise ValueError(f"{wrong.field}: {wrong.message}") from None
        async with self._begin_locked(project_id, name) as connection:
            before = await tags_of(connection, project_id, name)
            await connection.execute(delete(rubric_tags).filter_by(project_id=project_id, name=name))
            await add_tags(connection, project_id, name, wanted)
            after = await tags_of(connection, project_id, name)
            await self._add_audit_entry(connection, project_id, "tags.changed", name, before or None, after or None)
        return RubricTags(name=name, tags=tuple(sorted(set(wanted))))

    async def retire(self, project_id: str, name: str, version: int, reason: str) -> RubricVersion:
        """Retire a version. Retiring it again replaces the reason and keeps the time.

        Raises:
            LookupError: the version does not exist.
        """
        async with self._begin_locked(project_id, name) as connection:
            found = await _version(connection, project_id, name, version)
            at = found.retirement.at if found.retirement else datetime.now(UTC)
            await self._add_audit_entry(
                connection, project_id, "version.retired", found.reference, _reason(found), reason
            )
            retired = await _set_retirement(connection, project_id, found, at, reason)
        self._version_cache.expire()
        return retired

    async def restore(self, project_id: str, name: str, version: int) -> RubricVersion:
        """Bring a retired version back into use.

        Raises:
            LookupError: the version does not exist.
        """
        async with self._begin_locked(project_id, name) as connection:
            found = await _version(connection, project_id, name, version)
            await self._add_audit_entry(
                connection, project_id, "version.restored", found.reference, _reason(found), None
            )
            restored = await _set_retirement(connection, project_id, found, None, None)
        self._version_cache.expire()
        return restored

    async def list(
        self,
        project_id: str,
        *,
        prefix: str = "",
        tag: str | None = None,
        text: str = "",
        after: str | None = None,
        limit: int = 100,
    ) -> RubricPage:
        """List rubrics by name in code point order, each with its current version.

        Args:
            project_id: the project of the rubrics.
            prefix: only names that begin with this text, taken literally.
            tag: only rubrics that have this tag.
            text: only rubrics whose criteria together contain, for each word of this text, a word that begins with
                it, ignoring case; see `rubric_store.rubrics.queries`. A text without words finds nothing.
            after: the `next_cursor` of the previous page; None for the first page.
            limit: rubrics per page, 1 to 500.

        Raises:
            CursorError: the cursor is invalid.
            ValueError: the limit is out of range.
        """
        _check_limit(limit, "rubrics")
        name = None if after is None else _name_from_cursor(after)
        words = words_of([text])
        if not _NAME_CHARACTERS.fullmatch(prefix) or (text and not words) or "\0" in (tag or ""):
            return RubricPage(rubrics=())
        page = queries.page(
            project_id, self._engine.dialect.name, prefix=prefix, tag=tag, words=words, after=name, limit=limit + 1
        )
        rows, cursor = take_page(await self._read(page), limit, lambda row: to_cursor(row.name))
        tags, aliases = await self._labels(project_id, [row.name for row in rows])
        summaries = [
            RubricSummary(**row._mapping, tags=tuple(tags[row.name]), aliases=aliases[row.name]) for row in rows
        ]
        return RubricPage(rubrics=tuple(summaries), next_cursor=cursor)

    async def history(
        self, project_id: str, name: str, *, after: str | None = None, limit: int = 100
    ) -> RubricHistory | None:
        """List the versions of a rubric, newest first; None if the rubric does not exist.

        Args:
            project_id: the project of the rubrics.
            name: the rubric.
            after: the `next_cursor` of the previous page; None for the first page.
            limit: versions per page, 1 to 500.

        Raises:
            CursorError: the cursor is invalid.
            ValueError: the limit is out of range.
        """
        _check_limit(limit, "versions")
        listed = select(*VERSION_COLUMNS, versions.c.criteria_count).filter_by(project_id=project_id, name=name)
        if after is not None:
            number = text_from_cursor(after)
            if not _NUMBER.fullmatch(number):
                raise CursorError(UNKNOWN_CURSOR)
            listed = listed.where(versions.c.version < int(number))
        found = await self._read(listed.order_by(versions.c.version.desc()).limit(limit + 1))
        rows, cursor = take_page(found, limit, lambda row: to_cursor(str(row.version)))
        if not rows and after is not None:
            raise CursorError(UNKNOWN_CURSOR)
        if not rows:
            return None
        tags, aliases = await self._labels(project_id, [name])
        return RubricHistory(
            name=name,
            tags=tuple(tags[name]),
            versions=tuple([summary_of(row, aliases[name]) for row in rows]),
            next_cursor=cursor,
        )

    async def aliases(self, project_id: str, name: str) -> RubricAliases:
        """The aliases of a rubric; empty if the rubric does not exist."""
        _, aliases = await self._labels(project_id, [name])
        return RubricAliases(name=name, aliases=aliases[name])

    async def _labels(self, project_id: str, names: Sequence[str]) -> tuple[_Tags, _Aliases]:
        """The tags and the aliases of names, by name."""
        tags: _Tags = defaultdict(list)
        aliases: _Aliases = defaultdict(dict)
        async with self._connect() as connection:
            for row in await connection.execute(queries.tags(project_id, names)):
                tags[row.name].append(row.tag)
            for row in await connection.execute(queries.aliases(project_id, names)):
                aliases[row.name][row.alias] = row.version
        return tags, aliases
