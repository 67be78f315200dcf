"""The statements about versions, each as a function from its parameters; nothing here connects or commits."""

from datetime import datetime
from typing import Any

from sqlalchemy import Insert, Select, Update, func, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.dml import ReturningInsert

from rubric_store.search import words_parameter
from rubric_store.tables import rubric_aliases, rubric_words, rubrics
from rubric_store.tables import rubric_versions as versions
from trainer_client.wire import Reference, RubricVersion

_VERSION_COLUMNS = (
    versions.c.name,
    versions.c.version,
    versions.c.digest,
    versions.c.created_at,
    versions.c.parent,
    versions.c.metadata,
    versions.c.lineage,
    versions.c.retired_at,
    versions.c.retired_reason,
)


def version(project_id: str, reference: Reference) -> Select[Any]:
    """The version a reference stands for: a name's current one, that very one, an alias's, or a digest's.

    Of the versions that have a digest it is the oldest in use, or the oldest where none is in use.
    """
    found = select(*_VERSION_COLUMNS, versions.c.criteria).where(versions.c.project_id == project_id)
    if reference.digest is not None:
        oldest = (versions.c.retired_at.is_not(None), versions.c.created_at, versions.c.name, versions.c.version)
        return found.where(versions.c.digest == reference.digest).order_by(*oldest).limit(1)
    found = found.where(versions.c.name == reference.name)
    if reference.version is not None:
        return found.where(versions.c.version == reference.version)
    if reference.alias is not None:
        pointed = select(rubric_aliases.c.version).where(
            rubric_aliases.c.project_id == project_id,
            rubric_aliases.c.name == reference.name,
            rubric_aliases.c.alias == reference.alias,
        )
        return found.where(versions.c.version == pointed.scalar_subquery())
    current = select(rubrics.c.current_version).where(
        rubrics.c.project_id == project_id, rubrics.c.name == reference.name
    )
    return found.where(versions.c.version == current.scalar_subquery())


def version_with_digest(project_id: str, name: str, digest: str) -> Select[Any]:
    """The version of a name that has a content digest."""
    return version(project_id, Reference(None, None, digest)).where(versions.c.name == name)


def history(project_id: str, name: str, *, before: int | None, limit: int) -> Select[Any]:
    """The versions of a name without their criteria, newest first, from below a number on."""
    listed = (
        select(*_VERSION_COLUMNS, versions.c.criteria_count)
        .where(versions.c.project_id == project_id, versions.c.name == name)
        .order_by(versions.c.version.desc())
        .limit(limit)
    )
    return listed if before is None else listed.where(versions.c.version < before)


def add_name(dialect: str, project_id: str, name: str) -> ReturningInsert[tuple[str]]:
    """Add a name without versions, unless it is there; gives the name if it was added."""
    row = {"project_id": project_id, "name": name, "latest_version": 0, "current_version": 0}
    make = postgresql.insert if dialect == "postgresql" else sqlite.insert
    return make(rubrics).values(row).on_conflict_do_nothing().returning(rubrics.c.name)


def lock_name(project_id: str, name: str) -> Select[Any]:
    """The newest version number of a name, locked until the transaction ends (SQLite has locked all)."""
    return (
        select(rubrics.c.latest_version)
        .where(rubrics.c.project_id == project_id, rubrics.c.name == name)
        .with_for_update()
    )


def add_version(project_id: str, added: RubricVersion) -> Insert:
    """Add a version."""
    return insert(versions).values(
        project_id=project_id,
        name=added.name,
        version=added.version,
        digest=added.digest,
        criteria=[c.model_dump(mode="json") for c in added.criteria],
        criteria_count=len(added.criteria),
        created_at=added.created_at,
        parent=added.parent,
        metadata=added.metadata,
        lineage=None if added.lineage is None else added.lineage.model_dump(mode="json", exclude_unset=True),
    )


def set_latest(project_id: str, name: str, number: int) -> Update:
    """Record the newest version number of a name, which its bare name stands for now."""
    mine = (rubrics.c.project_id == project_id, rubrics.c.name == name)
    return update(rubrics).where(*mine).values(latest_version=number, current_version=number)


def set_words(dialect: str, project_id: str, name: str) -> Insert:
    """Keep the words of a name; they are the parameter `words`."""
    make = postgresql.insert if dialect == "postgresql" else sqlite.insert
    add = make(rubric_words).values(project_id=project_id, name=name, words=words_parameter(dialect))
    return add.on_conflict_do_update(index_elements=["project_id", "name"], set_={"words": add.excluded.words})


def retire(project_id: str, name: str, number: int, at: datetime | None, reason: str | None) -> Update:
    """Take a version out of use, or with None and None back into it."""
    this = (versions.c.project_id == project_id, versions.c.name == name, versions.c.version == number)
    return update(versions).where(*this).values(retired_at=at, retired_reason=reason)


def set_current(project_id: str, name: str) -> Update:
    """Have a bare name stand for its newest version in use, or for its newest where none is in use."""
    mine = (versions.c.project_id == project_id, versions.c.name == name)
    in_use = select(func.max(versions.c.version)).where(*mine, versions.c.retired_at.is_(None)).scalar_subquery()
    return (
        update(rubrics)
        .where(rubrics.c.project_id == project_id, rubrics.c.name == name)
        .values(current_version=func.coalesce(in_use, rubrics.c.latest_version))
    )
