"""The statements of the store, each as a function from its parameters; nothing here connects or commits."""

from datetime import datetime
from typing import Any

from sqlalchemy import Insert, Select, Update, insert, select, update
from sqlalchemy.dialects import postgresql, sqlite

from rubric_store.tables import rubric_versions as versions
from rubric_store.tables import rubrics
from trainer_client.wire import Reference, RubricContent

_AFTER_ANY_NAME = "\x7f"  # sorts after every character that a rubric's name may hold


def version(project_id: str, reference: Reference) -> Select[Any]:
    """The version a reference stands for: the newest of a name, that very one, or the oldest of a digest."""
    found = select(
        versions.c.name, versions.c.version, versions.c.digest, versions.c.criteria, versions.c.created_at
    ).where(versions.c.project_id == project_id)
    if reference.digest is not None:
        oldest = (versions.c.created_at, versions.c.name, versions.c.version)
        return found.where(versions.c.digest == reference.digest).order_by(*oldest).limit(1)
    found = found.where(versions.c.name == reference.name)
    if reference.version is not None:
        return found.where(versions.c.version == reference.version)
    return found.order_by(versions.c.version.desc()).limit(1)


def version_with_digest(project_id: str, name: str, digest: str) -> Select[Any]:
    """The version of a name that has a content digest."""
    return version(project_id, Reference(None, None, digest)).where(versions.c.name == name)


def add_name(dialect: str, project_id: str, name: str) -> Insert:
    """Add a name without versions, unless it is there."""
    row = {"project_id": project_id, "name": name, "latest_version": 0}
    make = postgresql.insert if dialect == "postgresql" else sqlite.insert
    return make(rubrics).values(row).on_conflict_do_nothing()


def lock_name(project_id: str, name: str) -> Select[Any]:
    """The newest version number of a name, locked until the transaction ends (SQLite has locked all)."""
    return (
        select(rubrics.c.latest_version)
        .where(rubrics.c.project_id == project_id, rubrics.c.name == name)
        .with_for_update()
    )


def add_version(project_id: str, name: str, number: int, content: RubricContent, at: datetime) -> Insert:
    """Add a version."""
    return insert(versions).values(
        project_id=project_id,
        name=name,
        version=number,
        digest=content.digest,
        criteria=[c.model_dump(mode="json") for c in content.criteria],
        criteria_count=len(content.criteria),
        created_at=at,
    )


def set_latest(project_id: str, name: str, number: int) -> Update:
    """Record the newest version number of a name."""
    return (
        update(rubrics).where(rubrics.c.project_id == project_id, rubrics.c.name == name).values(latest_version=number)
    )


def page(project_id: str, *, prefix: str, after: str | None, limit: int) -> Select[Any]:
    """Names in order with their newest versions. The prefix is a range, not LIKE: literal on both."""
    latest = (versions.c.project_id == rubrics.c.project_id) & (versions.c.name == rubrics.c.name)
    listed = (
        select(
            rubrics.c.name,
            rubrics.c.latest_version,
            versions.c.digest,
            versions.c.criteria_count,
            versions.c.created_at,
        )
        .join(versions, latest & (versions.c.version == rubrics.c.latest_version))
        .where(rubrics.c.project_id == project_id)
        .order_by(rubrics.c.name)
        .limit(limit)
    )
    if prefix:
        listed = listed.where(rubrics.c.name >= prefix, rubrics.c.name < prefix + _AFTER_ANY_NAME)
    return listed if after is None else listed.where(rubrics.c.name > after)


def neighbours(project_id: str, name: str, count: int) -> tuple[Select[Any], Select[Any]]:
    """Names with their newest version numbers on either side of a name, itself among them; `count` a side."""
    named = select(rubrics.c.name, rubrics.c.latest_version).where(rubrics.c.project_id == project_id).limit(count)
    return (
        named.where(rubrics.c.name >= name).order_by(rubrics.c.name),
        named.where(rubrics.c.name < name).order_by(rubrics.c.name.desc()),
    )
