"""`adjudge rubrics publish`, `alias`, `tag` and `retire`: change the store."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from adjudge_services.cli.lazy import OPTIONS_ONLY
from adjudge_services.cli.options import RubricNameArgument, UsageError, format_option, input_argument
from adjudge_services.cli.output import exit_with_error, file_name, out, pluralize, warn

if not OPTIONS_ONLY:
    from adjudge_services.cli.rubrics.files import with_store
    from judge_server.scoring import rubrics as changes
    from judge_server.scoring.rubrics import PROJECT_ID, find_rubric
    from rubric_store import FormatError, RubricStore
    from rubric_store.formats import fold_problems, read_document
    from trainer_client.wire import Lineage, RubricTags, RubricVersion


def alias(
    name: RubricNameArgument,
    alias: Annotated[str | None, typer.Argument(help="The alias, for example production.")] = None,
    version: Annotated[int | None, typer.Argument(min=1, help="The version that it shall point to.")] = None,
    expected: Annotated[
        int | None, typer.Option("--from", min=1, help="Change it only if it points to this version now.")
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the alias.")] = False,
) -> None:
    """Point an alias to a version; without a version, show the versions that aliases point to."""
    if remove and (alias is None or version is not None):
        raise UsageError("--remove takes the name and the alias, and no version")
    if expected is not None and version is None and not remove:
        raise UsageError("--from needs a version to move the alias to, or --remove")
    if remove and alias is not None:
        before = with_store(partial(remove_alias, name, alias, expected))
        out.print(f"removed {escape(f'{name}@{alias}')}, which pointed to version {before}")
    elif alias is not None and version is not None:
        was = with_store(partial(move_alias, name, alias, version, expected))
        moved = "" if was is None else f" (was {was})"
        out.print(f"{escape(f'{name}@{alias}')} → {version}{moved}")
    else:
        pointing_aliases = with_store(partial(read_aliases, name))
        if alias is not None and alias not in pointing_aliases:
            exit_with_error(f"{name} has no alias {alias!r}; give a version to create it")
        for one, number in pointing_aliases.items():
            if alias in (None, one):
                out.print(f"{escape(f'{name}@{one}')} → {number}")
        if not pointing_aliases:
            out.print("no aliases", style="dim")


def tag(
    name: RubricNameArgument,
    tags: Annotated[list[str] | None, typer.Argument(help="The new tags, which replace the existing ones.")] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Remove all tags.")] = False,
) -> None:
    """Replace the tags of a rubric; without tags, show them."""
    if clear and tags:
        raise UsageError("--clear takes no tags")
    found = with_store(partial(change_tags, name, tags or None, clear))
    out.print(escape(", ".join(found.tags)) if found.tags else "[dim]no tags[/]")


def retire(
    reference: Annotated[str, typer.Argument(help="The version, for example math/quadratics@3.")],
    reason: Annotated[str | None, typer.Argument(help="Why, and what to use instead.")] = None,
    restore: Annotated[bool, typer.Option("--restore", help="Bring the version back into use.")] = False,
) -> None:
    """Retire a version: it stays readable, but judging by it is rejected with the reason."""
    if restore == (reason is not None):
        raise UsageError("give either a reason for retiring the version or --restore")
    if reason is not None and not reason.strip():
        raise UsageError("the reason is empty; say why the version is retired, and what to use instead")
    version, current, pointing_aliases = with_store(partial(retire_version, reference, reason and reason.strip()))
    change = "restored" if restore else "retired"
    out.print(f"{change} {escape(version.reference)}")
    if restore:
        return
    if current.retirement:
        out.print(f"[yellow]no version of {escape(version.name)} is in use now[/]")
    else:
        out.print(f"{escape(version.name)} now means version {current.version}")
    for one in pointing_aliases:
        named = escape(f"{version.name}@{one}")
        out.print(f"[yellow]{named} still points to it[/] and is rejected until it is moved")


def publish(
    name: RubricNameArgument,
    file: Annotated[Path, input_argument("The rubric, in one of the formats.")],
    format: Annotated[
        str | None,
        format_option(
            "yaml, native, healthbench, rar, srar, rgr, grounded, dro, requirement, paperbench, questions, "
            "frontierscience, prometheus, levels, promptfoo or geval; detected by default."
        ),
    ] = None,
    tags: Annotated[list[str] | None, typer.Option("--tag", help="Add a tag to the name; may be repeated.")] = None,
    metadata: Annotated[
        list[str] | None, typer.Option("--meta", help="Store KEY=VALUE with the version; may be repeated.")
    ] = None,
    author: Annotated[str | None, typer.Option(help="Who wrote the version.")] = None,
    parent: Annotated[
        int | None, typer.Option(min=1, help="The version it was made from; by default the newest.")
    ] = None,
) -> None:
    """Publish a file as the next version of a rubric. Criteria that are published already make no new version.

    Tags, metadata and lineage in the file are stored too. Options override them, and --tag adds to them.
    """
    try:
        document = read_document(file.read_bytes(), format)
    except FormatError as error:
        exit_with_error(f"{file_name(file)}: {error}", error=error)
    lineage = document.lineage
    if author is not None:
        known = lineage.model_dump(exclude_unset=True) if lineage else {}
        lineage = Lineage.model_validate({**known, "author": author})
    for change in fold_problems(document.changes):
        warn(f"{file_name(file)}: changed: {change}")
    kept = {**(document.metadata or {}), **read_pairs(metadata or [])}
    version, added = with_store(
        lambda store: store.publish(
            PROJECT_ID,
            name,
            document.content,
            metadata=kept,
            tags=[*document.tags, *(tags or [])],
            lineage=lineage,
            parent=parent,
        )
    )
    print_version(version, added=added, has_extras=bool(kept or lineage or parent))


async def read_aliases(name: str, store: RubricStore) -> dict[str, int]:
    """The aliases of a rubric."""
    await find_rubric(store, PROJECT_ID, name)
    return (await store.aliases(PROJECT_ID, name)).aliases


async def move_alias(name: str, alias: str, version: int, expected: int | None, store: RubricStore) -> int | None:
    """Move the alias; return the version that it pointed to before."""
    current = (await store.aliases(PROJECT_ID, name)).aliases.get(alias)
    before = current if expected is None else expected
    await changes.move_alias(store, PROJECT_ID, name, alias, version, expected=before)
    return current


async def remove_alias(name: str, alias: str, expected: int | None, store: RubricStore) -> int:
    """Remove an alias; return the version that it pointed to."""
    current = (await changes.alias_of(store, PROJECT_ID, name, alias)).version
    await changes.remove_alias(store, PROJECT_ID, name, alias, expected=expected or current)
    return current


async def change_tags(name: str, tags: list[str] | None, clear: bool, store: RubricStore) -> RubricTags:
    """Replace the tags if any are given, or all are to go; return them."""
    if tags or clear:
        return await changes.replace_tags(store, PROJECT_ID, name, tags or [])
    return RubricTags(name=name, tags=(await changes.history(store, PROJECT_ID, name, limit=1)).tags)


async def retire_version(
    reference: str, reason: str | None, store: RubricStore
) -> tuple[RubricVersion, RubricVersion, list[str]]:
    """Retire or restore a version; return it, the name's current version, and the aliases that point to it."""
    version = await changes.retire(store, PROJECT_ID, reference, reason)
    aliases = (await store.aliases(PROJECT_ID, version.name)).aliases
    current = await find_rubric(store, PROJECT_ID, version.name)
    return version, current, [one for one, number in aliases.items() if number == version.version]


def print_version(version: RubricVersion, *, added: bool, has_extras: bool) -> None:
    """Print what became of a published version."""
    what = "published" if added else "unchanged:"
    criteria = pluralize(len(version.criteria), "criterion", "criteria")
    out.print(f"{what} {escape(version.reference)}  {version.digest[:19]}…  {criteria}")
    if version.retirement:
        out.print(f"[yellow]this version is retired[/]: {escape(version.retirement.reason)}")
    elif has_extras and not added:
        out.print("its metadata, lineage and parent stay as they were published", style="dim")


def read_pairs(given: list[str]) -> dict[str, str]:
    """Read pairs that are written as KEY=VALUE."""
    pairs = [text.partition("=") for text in given]
    for key, sign, _ in pairs:
        if not (key and sign):
            raise UsageError(f"--meta takes KEY=VALUE, not {key!r}")
    return {key: value for key, _, value in pairs}
