"""What is asked about rubrics beside judging: moves of aliases, tags, retirement, histories and differences.

Checks that what is asked for is there, and says what is wrong in the words of the service; the source keeps it.
"""

from collections.abc import Sequence

from judge_server.errors import AliasMoved, InvalidRequest
from judge_server.ports import RubricSource
from judge_server.rubrics import find_rubric, unknown_rubric
from trainer_client.rubric_diff import diff_versions
from trainer_client.wire import (
    FieldError,
    RubricAlias,
    RubricDiff,
    RubricHistory,
    RubricTags,
    RubricVersion,
    parse_reference,
)


async def move_alias(
    source: RubricSource, project_id: str, name: str, alias: str, version: int, *, expected: int | None
) -> RubricAlias:
    """Have an alias stand for a version; see `RubricSource.move_alias`.

    Raises:
        UnknownRubric: there is no such version.
        InvalidRequest: no alias may be called this, or the version is retired.
        AliasMoved: it stands for another version than expected.
    """
    await find_rubric(source, project_id, f"{name}@{version}")
    try:
        moved, current = await source.move_alias(project_id, name, alias, version, expected=expected)
    except ValueError as error:
        raise _invalid("alias", error) from None
    if not moved:
        raise _alias_moved(name, alias, current)
    return RubricAlias(name=name, alias=alias, version=version)


async def remove_alias(source: RubricSource, project_id: str, name: str, alias: str, *, expected: int) -> None:
    """Take an alias away.

    Raises:
        UnknownRubric: there is no such alias.
        AliasMoved: it stands for another version than expected.
    """
    await alias_of(source, project_id, name, alias)
    removed, current = await source.remove_alias(project_id, name, alias, expected=expected)
    if not removed:
        raise _alias_moved(name, alias, current)


async def alias_of(source: RubricSource, project_id: str, name: str, alias: str) -> RubricAlias:
    """What an alias stands for; raises `UnknownRubric` if there is no such alias."""
    version = (await source.aliases(project_id, name)).aliases.get(alias)
    if version is None:
        raise await unknown_rubric(source, project_id, f"{name}@{alias}")
    return RubricAlias(name=name, alias=alias, version=version)


async def replace_tags(source: RubricSource, project_id: str, name: str, tags: Sequence[str]) -> RubricTags:
    """Give a rubric these tags; raises `UnknownRubric`, or `InvalidRequest` for tags that are none."""
    await find_rubric(source, project_id, name)
    try:
        return await source.replace_tags(project_id, name, tags)
    except ValueError as error:
        raise _invalid("tags", error) from None


async def retire(source: RubricSource, project_id: str, reference: str, reason: str | None) -> RubricVersion:
    """Take the version of a reference `name@3` out of use, or without a reason back into use.

    Raises:
        InvalidRequest: the reference is of another form.
        UnknownRubric: there is no such version.
    """
    found = await find_rubric(source, project_id, reference)
    if parse_reference(reference).version is None:
        raise _invalid("reference", f"{reference!r} may stand for another version tomorrow; write {found.reference!r}")
    if reason is None:
        return await source.restore(project_id, found.name, found.version)
    return await source.retire(project_id, found.name, found.version, reason)


async def history(
    source: RubricSource, project_id: str, name: str, *, after: str | None = None, limit: int = 100
) -> RubricHistory:
    """The versions of a rubric, the newest first; raises `UnknownRubric`, or `InvalidRequest` for the page."""
    try:
        found = await source.history(project_id, name, after=after, limit=limit)
    except ValueError as error:
        raise _invalid("after", error) from None
    if found is None:
        raise await unknown_rubric(source, project_id, name)
    return found


async def difference(source: RubricSource, project_id: str, name: str, before: str, after: str) -> RubricDiff:
    """What differs between two versions of a rubric, each a number or an alias.

    Raises:
        InvalidRequest, UnknownRubric: see `find_rubric`.
    """
    sides = [await find_rubric(source, project_id, f"{name}@{side}") for side in (before, after)]
    return diff_versions(*sides)


def _alias_moved(name: str, alias: str, current: int | None) -> AliasMoved:
    if current is None:
        return AliasMoved(f"{name} has no alias {alias!r} now; create it (over HTTP with If-None-Match: *)", None)
    return AliasMoved(
        f"{name}@{alias} stands for version {current} now, which is not what you expect: somebody moved it. Look at "
        f"that version; if the alias shall still be moved, ask again expecting {current} (over HTTP with If-Match: "
        f'"{current}")',
        current,
    )


def _invalid(field: str, error: ValueError | str) -> InvalidRequest:
    return InvalidRequest(str(error), errors=(FieldError(field=field, message=str(error)),))
