"""The SQL statements that several methods share: versions, names, search and pages. Nothing is executed here.

Search words are the same on both databases: PostgreSQL keeps them as an indexed text search vector, SQLite as text that
it scans. Python decides what a word is: letters, digits and underscores, after NFKC and case folding. In scripts
without spaces between words a word is the text between two other characters, found by its beginning.

`VersionCache` holds versions in memory, so that scoring does not wait for the database each time.
"""

import math
import re
import unicodedata
from collections.abc import Callable, Iterable, Mapping, Sequence
from time import monotonic
from typing import Any, NamedTuple

from sqlalchemy import ARRAY, ColumnElement, Row, Select, Text, and_, bindparam, cast, func, literal, select
from sqlalchemy.dialects.postgresql import TSQUERY

from rubric_store.byte_cache import ByteCache
from rubric_store.rubrics.tables import rubric_aliases, rubric_tags, rubric_words, rubrics
from rubric_store.rubrics.tables import rubric_versions as versions
from trainer_client.wire import Reference, RubricVersion, VersionSummary

_MAX_CACHE_BYTES = 32 * 2**20


REFRESH_AFTER_S = 1.0
"""A version that was read longer ago is read again in the background when it is used from the cache."""


class CachedVersion(NamedTuple):
    """A version, and when it was read, by the cache's clock."""

    version: RubricVersion
    read_at: float


class VersionCache:
    """The most recently used versions, up to 32 MiB. `clock` returns seconds."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._versions: ByteCache[tuple[str, Reference], CachedVersion] = ByteCache(_MAX_CACHE_BYTES)
        self._changed_at = -math.inf

    def put(self, project_id: str, reference: Reference, version: RubricVersion, read_at: float) -> None:
        """Cache the version of a reference, unless the reference may change its meaning."""
        if reference.version is not None or reference.digest is not None:
            self._versions.put((project_id, reference), CachedVersion(version, read_at))

    def get(self, project_id: str, reference: Reference) -> RubricVersion | None:
        """The cached version of a reference; None if there is none."""
        found = self._versions.get((project_id, reference))
        return found.version if found else None

    def age_s(self, project_id: str, reference: Reference) -> float:
        """How long ago the version of a reference was read; infinite if it is not cached or may have changed since."""
        found = self._versions.get((project_id, reference))
        return math.inf if found is None or found.read_at <= self._changed_at else self._clock() - found.read_at

    def expire(self) -> None:
        """Treat all versions as changed, after a retirement."""
        self._changed_at = self._clock()


MAX_WORD_LENGTH = 100
MAX_WORDS_BYTES = 262_144
"""Bytes of words that are indexed per rubric; search does not find later ones."""

MAX_SEARCHED_CHARACTERS = 262_144
"""Characters of a rubric's criteria that are searched for words: finding them takes 15 ms at most."""

_WORD = re.compile(r"\w+")


def words_of(texts: Iterable[str]) -> list[str]:
    """The distinct words of texts, in order of appearance, up to `MAX_WORDS_BYTES`.

    Words after the first `MAX_SEARCHED_CHARACTERS` of all texts together are not looked for.
    """
    words: dict[str, None] = {}
    bytes_left, characters_left = MAX_WORDS_BYTES, MAX_SEARCHED_CHARACTERS
    for text in texts:
        for found in _WORD.findall(unicodedata.normalize("NFKC", text[:characters_left]).casefold()):
            word = found[:MAX_WORD_LENGTH]
            if word in words:
                continue
            bytes_left -= len(word.encode()) + 1
            if bytes_left < 0:
                return list(words)
            words[word] = None
        characters_left -= len(text)
        if characters_left <= 0:
            break
    return list(words)


def words_parameter(dialect: str) -> ColumnElement[object]:
    """The expression that stores a parameter named `words`, whose value `kept_words` makes."""
    if dialect == "postgresql":
        return func.array_to_tsvector(cast(bindparam("words"), ARRAY(Text)))
    return bindparam("words", type_=Text)


def kept_words(dialect: str, words: list[str]) -> object:
    """The value of `words_parameter` for some words."""
    return words if dialect == "postgresql" else "".join(f" {word}" for word in words)


def has_words(dialect: str, column: ColumnElement[Any], words: Sequence[str]) -> ColumnElement[bool]:
    """A condition: for each of these words a stored word begins with it."""
    if dialect == "postgresql":
        # Words contain neither quotes nor backslashes, so the query needs no escaping.
        query = " & ".join(f"'{word}':*" for word in words)
        return column.op("@@", is_comparison=True)(cast(literal(query, Text), TSQUERY))
    return and_(*[func.instr(column, f" {word}") > 0 for word in words])


VERSION_COLUMNS = (
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
    """The version of a reference: a name's current version, a numbered version, an alias's, or a digest's.

    A digest resolves to its oldest version in use, or its oldest version if none is in use.
    """
    statement = select(*VERSION_COLUMNS, versions.c.criteria).where(versions.c.project_id == project_id)
    if reference.digest is not None:
        oldest = (versions.c.retired_at.is_not(None), versions.c.created_at, versions.c.name, versions.c.version)
        return statement.where(versions.c.digest == reference.digest).order_by(*oldest).limit(1)
    statement = statement.where(versions.c.name == reference.name)
    if reference.version is not None:
        return statement.where(versions.c.version == reference.version)
    if reference.alias is not None:
        pointed = select(rubric_aliases.c.version).filter_by(
            project_id=project_id, name=reference.name, alias=reference.alias
        )
        return statement.where(versions.c.version == pointed.scalar_subquery())
    current = select(rubrics.c.current_version).filter_by(project_id=project_id, name=reference.name)
    return statement.where(versions.c.version == current.scalar_subquery())


def lock_name(project_id: str, name: str) -> Select[Any]:
    """The latest version number of a name, locking its row until the transaction ends (SQLite locks the database)."""
    return select(rubrics.c.latest_version).filter_by(project_id=project_id, name=name).with_for_update()


_AFTER_ANY_NAME = "\x7f"  # sorts after every character of a rubric's name


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
    """A page of names in order with their current versions, filtered by prefix, tag and words of the criteria.

    A subquery finds and limits the names before the joins; otherwise a planner may read everything before the page.
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
    """The names of a page, in order. Every joined table gets every condition on the name."""
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


def tags(project_id: str, names: Sequence[str]) -> Select[Any]:
    """Pairs of name and tag, sorted by tag."""
    mine = (rubric_tags.c.project_id == project_id, rubric_tags.c.name.in_(names))
    return select(rubric_tags.c.name, rubric_tags.c.tag).where(*mine).order_by(rubric_tags.c.tag)


def aliases(project_id: str, names: Sequence[str]) -> Select[Any]:
    """The aliases of names and the versions they point to, sorted by alias."""
    mine = (rubric_aliases.c.project_id == project_id, rubric_aliases.c.name.in_(names))
    columns = (rubric_aliases.c.name, rubric_aliases.c.alias, rubric_aliases.c.version)
    return select(*columns).where(*mine).order_by(rubric_aliases.c.alias)


def version_of(row: Row[Any]) -> RubricVersion:
    """Convert a row to a version with its criteria."""
    return RubricVersion.model_validate(_fields(row))


def summary_of(row: Row[Any], aliases: Mapping[str, int]) -> VersionSummary:
    """Convert a row to a version without its criteria, with those of its name's aliases that point to it."""
    pointing_aliases = [alias for alias, version in aliases.items() if version == row.version]
    return VersionSummary.model_validate({**_fields(row), "aliases": tuple(pointing_aliases)})


def _fields(row: Row[Any]) -> dict[str, Any]:
    fields = dict(row._mapping)
    at, reason = fields.pop("retired_at"), fields.pop("retired_reason")
    return {**fields, "retirement": None if at is None else {"at": at, "reason": reason}}
