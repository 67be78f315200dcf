"""The statements about names: lists and searches, tags and aliases. Nothing here connects or commits."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy import Delete, Insert, Select, delete, select
from sqlalchemy.dialects import postgresql, sqlite
from sqlalchemy.sql.dml import ReturningInsert

from rubric_store.search import has_words
from rubric_store.tables import rubric_aliases, rubric_tags, rubric_words, rubrics
from rubric_store.tables import rubric_versions as versions

_AFTER_ANY_NAME = "\x7f"  # sorts after every character that a rubric's name may hold


def page(
    project_id: str,
    dialect: str,
    *,
    prefix: str = "",
    tag: str | None = None,
    words: Sequence[str] = (),
    after: str | None = None,
    limit: int,
) -> Select[Any]:
    """Names in order with their current versions: all, or those with a prefix, a tag, and criteria of these words.

    The names of a page are found first and limited, and only they are joined with the rest: else a planner may read
    everything that stands before them.
    """
    names = _names(project_id, dialect, tag, words, prefix, after).limit(limit).subquery()
    listed = (rubrics.c.project_id == project_id) & (rubrics.c.name == names.c.name)
    current = (
        (versions.c.project_id == project_id)
        & (versions.c.name == rubrics.c.name)
        & (versions.c.version == rubrics.c.current_version)
    )
    return (
        select(
            rubrics.c.name,
            rubrics.c.current_version.label("latest_version"),
            versions.c.digest,
            versions.c.criteria_count,
            versions.c.created_at,
            versions.c.retired_at.is_not(None).label("retired"),
        )
        .select_from(names)
        .join(rubrics, listed)
        .join(versions, current)
        .order_by(rubrics.c.name)
    )


def _names(
    project_id: str, dialect: str, tag: str | None, words: Sequence[str], prefix: str, after: str | None
) -> Select[Any]:
    """The names themselves, in order. What is asked of them is asked of every table that takes part."""
    tables = [rubric_tags] * (tag is not None) + [rubric_words] * bool(words) or [rubrics]
    first = tables[0]
    names = select(first.c.name).order_by(first.c.name)
    if tag is not None:
        names = names.where(rubric_tags.c.tag == tag)
    if words:
        names = names.where(has_words(dialect, rubric_words.c.words, words))
    for table in tables:
        names = names.where(table.c.project_id == project_id)
        if table is not first:
            names = names.where(table.c.name == first.c.name)
        if prefix:  # a range, not LIKE: literal on both databases
            names = names.where(table.c.name >= prefix, table.c.name < prefix + _AFTER_ANY_NAME)
        if after is not None:
            names = names.where(table.c.name > after)
    return names


def neighbours(project_id: str, name: str, count: int) -> tuple[Select[Any], Select[Any]]:
    """Names with their newest version numbers on either side of a name, itself among them; `count` a side."""
    named = select(rubrics.c.name, rubrics.c.latest_version).where(rubrics.c.project_id == project_id).limit(count)
    return (
        named.where(rubrics.c.name >= name).order_by(rubrics.c.name),
        named.where(rubrics.c.name < name).order_by(rubrics.c.name.desc()),
    )


def tags(project_id: str, names: Sequence[str]) -> Select[Any]:
    """The tags of names, as pairs, sorted by tag."""
    mine = (rubric_tags.c.project_id == project_id, rubric_tags.c.name.in_(names))
    return select(rubric_tags.c.name, rubric_tags.c.tag).where(*mine).order_by(rubric_tags.c.tag)


def add_tags(dialect: str, project_id: str, name: str, added: Sequence[str]) -> ReturningInsert[tuple[str]]:
    """Add tags that a name has not got; gives those that were added."""
    make = postgresql.insert if dialect == "postgresql" else sqlite.insert
    rows = [{"project_id": project_id, "name": name, "tag": tag} for tag in added]
    return make(rubric_tags).values(rows).on_conflict_do_nothing().returning(rubric_tags.c.tag)


def remove_tags(project_id: str, name: str) -> Delete:
    """Take every tag from a name."""
    return delete(rubric_tags).where(rubric_tags.c.project_id == project_id, rubric_tags.c.name == name)


def aliases(project_id: str, names: Sequence[str]) -> Select[Any]:
    """The aliases of names and the versions they stand for, sorted by alias."""
    mine = (rubric_aliases.c.project_id == project_id, rubric_aliases.c.name.in_(names))
    columns = (rubric_aliases.c.name, rubric_aliases.c.alias, rubric_aliases.c.version)
    return select(*columns).where(*mine).order_by(rubric_aliases.c.alias)


def set_alias(dialect: str, project_id: str, name: str, alias: str, version: int) -> Insert:
    """Have an alias of a name stand for a version."""
    make = postgresql.insert if dialect == "postgresql" else sqlite.insert
    add = make(rubric_aliases).values(project_id=project_id, name=name, alias=alias, version=version)
    key = ["project_id", "name", "alias"]
    return add.on_conflict_do_update(index_elements=key, set_={"version": add.excluded.version})


def remove_alias(project_id: str, name: str, alias: str) -> Delete:
    """Take an alias from a name."""
    this = (rubric_aliases.c.project_id == project_id, rubric_aliases.c.name == name, rubric_aliases.c.alias == alias)
    return delete(rubric_aliases).where(*this)
