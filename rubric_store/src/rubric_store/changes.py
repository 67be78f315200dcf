"""What changes about a name without a new version: aliases, tags, and which versions are in use.

Every change takes the name's lock, so that it sees what the one before it left, on any number of hosts.
"""

from collections.abc import Sequence
from datetime import UTC, datetime

from pydantic import TypeAdapter, ValidationError
from sqlalchemy.ext.asyncio import AsyncConnection

from rubric_store import name_queries, queries
from rubric_store.connected import BaseRepository
from rubric_store.publishing import store_words
from rubric_store.rows import version_of
from rubric_store.tagging import replace_tags, tags_of
from trainer_client.wire import AliasName, Reference, RubricTags, RubricVersion, TagSet
from trainer_client.wire.problems import field_errors

_ALIAS: TypeAdapter[str] = TypeAdapter(AliasName)


class ChangeMixin(BaseRepository):
    """The part of `RubricStore` that changes what is there."""

    async def move_alias(
        self, project_id: str, name: str, alias: str, version: int, *, expected: int | None
    ) -> tuple[bool, int | None]:
        """Have an alias stand for a version, if it stands for the expected one now.

        Args:
            project_id: whose rubrics.
            name: the rubric.
            alias: what is moved.
            version: what it shall stand for.
            expected: what it stands for now as far as the caller knows; None if there is no such alias yet.

        Returns:
            Whether it stands for `version` now, and what it stands for (None: there is no such alias). An alias that
            stands for `version` already counts as moved, whatever was expected, so that a move may be repeated.

        Raises:
            ValueError: no alias may be called this, or the version is retired.
            LookupError: there is no such rubric or version.
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
            dialect = connection.dialect.name
            await connection.execute(name_queries.set_alias(dialect, project_id, name, alias, version))
            before = None if current is None else (await _version(connection, project_id, name, current)).digest
            await self._add_audit_entry(connection, project_id, "alias.moved", f"{name}@{alias}", before, found.digest)
        return True, version

    async def remove_alias(
        self, project_id: str, name: str, alias: str, *, expected: int | None
    ) -> tuple[bool, int | None]:
        """Take an alias away, if it stands for the expected version now; whether it did, and for what it stood.

        Raises:
            LookupError: there is no such rubric.
        """
        async with self._begin_locked(project_id, name) as connection:
            current = await _alias(connection, project_id, name, alias)
            if current is None or current != expected:
                return False, current
            await connection.execute(name_queries.remove_alias(project_id, name, alias))
            stood_for = await _version(connection, project_id, name, current)
            await self._add_audit_entry(
                connection, project_id, "alias.removed", f"{name}@{alias}", stood_for.digest, None
            )
        return True, current

    async def replace_tags(self, project_id: str, name: str, tags: Sequence[str]) -> RubricTags:
        """Give a rubric these tags in place of those it has.

        Raises:
            ValueError: too many, or one that is none.
            LookupError: there is no such rubric.
        """
        try:
            wanted = TagSet(tags=tuple(tags)).tags
        except ValidationError as error:
            wrong = field_errors(error.errors(include_url=False, include_input=False))[0]
            raise ValueError(f"{wrong.field}: {wrong.message}") from None
        async with self._begin_locked(project_id, name) as connection:
            before = await tags_of(connection, project_id, name)
            await replace_tags(connection, project_id, name, wanted)
            after = await tags_of(connection, project_id, name)
            await self._add_audit_entry(connection, project_id, "tags.changed", name, before or None, after or None)
        return RubricTags(name=name, tags=tuple(sorted(set(wanted))))

    async def retire(self, project_id: str, name: str, version: int, reason: str) -> RubricVersion:
        """Take a version out of use; again: with another reason, as of when it was first.

        Raises:
            LookupError: there is no such version.
        """
        async with self._begin_locked(project_id, name) as connection:
            found = await _version(connection, project_id, name, version)
            at = found.retirement.at if found.retirement else datetime.now(UTC)
            await self._add_audit_entry(
                connection, project_id, "version.retired", found.reference, _reason(found), reason
            )
            return await _set_retirement(connection, project_id, found, at, reason)

    async def restore(self, project_id: str, name: str, version: int) -> RubricVersion:
        """Take a version back into use.

        Raises:
            LookupError: there is no such version.
        """
        async with self._begin_locked(project_id, name) as connection:
            found = await _version(connection, project_id, name, version)
            await self._add_audit_entry(
                connection, project_id, "version.restored", found.reference, _reason(found), None
            )
            return await _set_retirement(connection, project_id, found, None, None)


async def _version(connection: AsyncConnection, project_id: str, name: str, version: int | None) -> RubricVersion:
    row = (await connection.execute(queries.version(project_id, Reference(name, version, None)))).one_or_none()
    if row is None:
        raise LookupError(f"there is no {name}@{version}")
    return version_of(row)


def _reason(version: RubricVersion) -> str | None:
    return version.retirement.reason if version.retirement else None


async def _alias(connection: AsyncConnection, project_id: str, name: str, alias: str) -> int | None:
    rows = await connection.execute(name_queries.aliases(project_id, [name]))
    return {row.alias: row.version for row in rows}.get(alias)


async def _set_retirement(
    connection: AsyncConnection, project_id: str, version: RubricVersion, at: datetime | None, reason: str | None
) -> RubricVersion:
    name = version.name
    before = await _version(connection, project_id, name, None)
    await connection.execute(queries.retire(project_id, name, version.version, at, reason))
    await connection.execute(queries.set_current(project_id, name))
    current = await _version(connection, project_id, name, None)
    if current.version != before.version:
        await store_words(connection, project_id, current)
    return await _version(connection, project_id, name, version.version)


def _check_alias(alias: str) -> None:
    try:
        _ALIAS.validate_python(alias)
    except ValidationError as error:
        problem = error.errors()[0]
        if problem["type"] == "value_error":
            raise ValueError(str(problem["ctx"]["error"])) from None
        raise ValueError(
            f"{alias[:64]!r} is no alias; begin with a lower-case letter, go on with letters, digits, '.', '_' and "
            "'-', at most 64 characters"
        ) from None
