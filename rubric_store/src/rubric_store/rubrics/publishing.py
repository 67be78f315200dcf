"""Publish a version and change its tags, inside a transaction that the caller opens and ends.

If anything fails here, the caller's rollback leaves nothing behind.

`ValidationMixin` stores the verdicts of validity judges on published versions. Rows are added and never changed.
"""

from collections.abc import AsyncIterator, Awaitable, Callable, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any

from pydantic import TypeAdapter, ValidationError
from sqlalchemy import func, insert, select, update
from sqlalchemy.ext.asyncio import AsyncConnection

from rubric_store.database import SerializedList, insert_into, upsert
from rubric_store.repository import BaseRepository
from rubric_store.rubrics import queries
from rubric_store.rubrics.queries import kept_words, version_of, words_of, words_parameter
from rubric_store.rubrics.rows import CriterionValidity, RubricValidation
from rubric_store.rubrics.tables import rubric_tags, rubric_versions, rubric_words, rubrics
from rubric_store.rubrics.tables import rubric_validations as passes
from trainer_client.wire import Lineage, NewRubricName, Reference, RubricContent, RubricPublication, RubricVersion
from trainer_client.wire.names import ALLOWED, RUBRIC_NAME_PATTERN
from trainer_client.wire.problems import field_errors
from trainer_client.wire.rubrics import MAX_TAGS

_COLUMNS = [passes.c[name] for name in RubricValidation.model_fields]


class LockedNames(BaseRepository):
    """Transactions that change a name."""

    @asynccontextmanager
    async def _begin_locked(self, project_id: str, name: str) -> AsyncIterator[AsyncConnection]:
        """Open a transaction that holds the lock of an existing name; raises `LookupError` for an unknown name."""
        async with self._begin() as connection:
            if (await connection.execute(queries.lock_name(project_id, name))).one_or_none() is None:
                raise LookupError(f"there is no rubric {name!r}")
            yield connection


class ValidationMixin(LockedNames):
    """The part of `RubricStore` that stores validity verdicts."""

    async def add_validation(
        self,
        project_id: str,
        name: str,
        version: int,
        *,
        judge: str,
        model: str,
        template_digest: str,
        items: Sequence[CriterionValidity],
    ) -> RubricValidation:
        """Store one more pass over a version's criteria.

        Raises:
            LookupError: the version does not exist.
            ValueError: the items are not the version's criteria in their order.
        """
        async with self._begin_locked(project_id, name) as connection:
            result = await connection.execute(queries.version(project_id, Reference(name, version, None)))
            row = result.one_or_none()
            if row is None:
                raise LookupError(f"there is no {name}@{version}")
            if [item.criterion for item in items] != [criterion["id"] for criterion in row.criteria]:
                raise ValueError(f"the items must be the criteria of {name}@{version}, each once and in their order")
            last = select(func.coalesce(func.max(passes.c.pass_number), 0))
            last = last.filter_by(project_id=project_id, name=name, version=version)
            number = (await connection.execute(last)).scalar_one() + 1
            validation = RubricValidation(
                name=name,
                version=version,
                judge=judge,
                model=model,
                template_digest=template_digest,
                created_at=datetime.now(UTC),
                items=tuple(items),
            )
            values = {**dict(validation), "items": [item.model_dump(mode="json") for item in validation.items]}
            await connection.execute(insert(passes).values(project_id=project_id, pass_number=number, **values))
        return validation

    async def validations(self, project_id: str, name: str, version: int) -> tuple[RubricValidation, ...]:
        """The newest pass of each judge over a version, newest first; empty if the version does not exist."""
        of_version = {"project_id": project_id, "name": name, "version": version}
        newest = select(func.max(passes.c.pass_number)).filter_by(**of_version).group_by(passes.c.judge)
        shown = select(*_COLUMNS).filter_by(**of_version).where(passes.c.pass_number.in_(newest))
        rows = await self._read(shown.order_by(passes.c.pass_number.desc()))
        return tuple([RubricValidation.model_validate(dict(row._mapping)) for row in rows])


_NAME: TypeAdapter[str] = TypeAdapter(NewRubricName)
_NAME_SHOWN = 100

AuditWriter = Callable[[str, str, str | None, str | None], Awaitable[None]]
"""Adds an audit entry: action, subject, value before, value after."""


def check_name(name: str) -> None:
    """Raise `ValueError` for an invalid rubric name."""
    try:
        _NAME.validate_python(name)
    except ValidationError as error:
        problem = error.errors()[0]
        reserved = problem["type"] == "value_error"
        why = str(problem["ctx"]["error"]) if reserved else ALLOWED[RUBRIC_NAME_PATTERN]
        shown = name if len(name) <= _NAME_SHOWN else f"{name[:_NAME_SHOWN]}… ({len(name)} characters)"
        raise ValueError(f"{shown!r} cannot name a rubric; {why}") from None


def build_publication(
    content: RubricContent,
    metadata: Mapping[str, Any] | None,
    tags: Sequence[str],
    lineage: Lineage | None,
    parent: int | None,
) -> RubricPublication:
    """Build the publication; raises `ValueError` with every field that breaks the rules of `RubricPublication`."""
    extra = {"metadata": metadata, "tags": tuple(tags), "lineage": lineage, "parent": parent}
    try:
        return RubricPublication.model_validate({"criteria": content.criteria, **extra})
    except ValidationError as error:
        wrong = field_errors(error.errors(include_url=False, include_input=False))
        raise ValueError("; ".join(f"{e.field}: {e.message}" for e in wrong)) from None


LARGE_CHARACTERS = 2**16
"""A publication whose criteria take more work than that many characters is prepared by `run_large` of `RubricStore`."""


@dataclass(frozen=True, slots=True)
class PreparedPublication:
    """A publication with what is computed from its criteria: their digest, their JSON and the words of the index."""

    published: RubricPublication
    digest: str
    criteria: SerializedList
    words: list[str]

    @classmethod
    def of(cls, published: RubricPublication) -> "PreparedPublication":
        """Prepare a publication, letting other threads run between its criteria."""
        criteria = published.criteria
        return cls(
            published,
            published.digest,
            SerializedList(one.model_dump(mode="json") for one in criteria),
            words_of(one.description for one in criteria),
        )


async def publish(
    connection: AsyncConnection, project_id: str, name: str, prepared: PreparedPublication, write_audit: AuditWriter
) -> tuple[RubricVersion, bool]:
    """Add a name's next version, or return the existing one with the same criteria; True if it was added."""
    published, digest = prepared.published, prepared.digest
    latest = await _lock(connection, project_id, name)
    if published.tags:
        before = await tags_of(connection, project_id, name)
        await add_tags(connection, project_id, name, published.tags)
        await write_audit("tags.changed", name, before or None, await tags_of(connection, project_id, name))
    if latest:
        of_digest = queries.version(project_id, Reference(None, None, digest))
        same = await connection.execute(of_digest.where(rubric_versions.c.name == name))
        if row := same.one_or_none():
            return version_of(row), False
    _check_parent(name, published.parent, latest)
    added = RubricVersion(
        name=name,
        version=latest + 1,
        digest=digest,
        criteria=published.criteria,
        created_at=datetime.now(UTC),
        parent=published.parent or latest or None,
        metadata=published.metadata or {},
        lineage=published.lineage,
    )
    row = {
        **added.model_dump(include={"name", "version", "digest", "created_at", "parent", "metadata"}),
        "project_id": project_id,
        "criteria": prepared.criteria,
        "criteria_count": len(prepared.criteria),
        "lineage": None if added.lineage is None else added.lineage.model_dump(mode="json", exclude_unset=True),
    }
    await connection.execute(insert(rubric_versions).values(row))
    latest_now = update(rubrics).filter_by(project_id=project_id, name=name)
    await connection.execute(latest_now.values(latest_version=added.version, current_version=added.version))
    await store_words(connection, project_id, name, prepared.words)
    await write_audit("version.published", added.reference, None, added.digest)
    return added, True


async def _lock(connection: AsyncConnection, project_id: str, name: str) -> int:
    """Lock a name, creating it if needed, and return its latest version number, 0 for none."""
    lock = queries.lock_name(project_id, name)
    latest: int | None = (await connection.execute(lock)).scalar_one_or_none()
    if latest is not None:
        return latest
    row = {"project_id": project_id, "name": name, "latest_version": 0, "current_version": 0}
    added = insert_into(rubrics, connection).values(row).on_conflict_do_nothing().returning(rubrics.c.name)
    if (await connection.execute(added)).one_or_none():
        return 0
    return int((await connection.execute(lock)).scalar_one())  # another publisher created it in between


async def store_words(connection: AsyncConnection, project_id: str, name: str, words: list[str]) -> None:
    """Index a name by these words, replacing those of any other version."""
    dialect = connection.dialect.name
    added = upsert(rubric_words, connection).values(project_id=project_id, name=name, words=words_parameter(dialect))
    await connection.execute(added, {"words": kept_words(dialect, words)})


def _check_parent(name: str, parent: int | None, latest: int) -> None:
    if parent is not None and parent > latest:
        existing = f"its versions are 1 to {latest}" if latest else "it has no version yet"
        raise ValueError(f"parent: there is no {name}@{parent} to descend from; {existing}")


async def add_tags(connection: AsyncConnection, project_id: str, name: str, tags: Iterable[str]) -> None:
    """Add tags to a name; raises `ValueError` if it would have too many."""
    rows = [{"project_id": project_id, "name": name, "tag": tag} for tag in sorted(set(tags))]
    added = insert_into(rubric_tags, connection).values(rows).on_conflict_do_nothing().returning(rubric_tags.c.tag)
    if not rows or not (await connection.execute(added)).all():
        return
    count = len((await connection.execute(queries.tags(project_id, [name]))).all())
    if count > MAX_TAGS:
        raise ValueError(f"tags: {name} would have {count} tags; a rubric has at most {MAX_TAGS}, so replace them")


async def tags_of(connection: AsyncConnection, project_id: str, name: str) -> str:
    """The tags of a name, sorted and joined by spaces; empty if it has none."""
    return " ".join([row.tag for row in await connection.execute(queries.tags(project_id, [name]))])
