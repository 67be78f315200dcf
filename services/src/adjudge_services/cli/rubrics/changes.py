"""`adjudge rubrics publish`, `alias`, `tag` and `retire`: change the store.

`adjudge rubrics alias`, `tag` and `retire`: what changes about a rubric without a new version.

`adjudge rubrics publish`: a file becomes the next version of a rubric.
"""

from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from adjudge_services.cli.output import exit_with_error, out
from adjudge_services.cli.rubrics.store import with_store
from judge_server import rubrics as changes
from judge_server.rubrics import PROJECT_ID, find_rubric
from rubric_store import FormatError, RubricStore
from rubric_store.formats import read_document
from trainer_client.wire import Lineage, RubricTags, RubricVersion

NameArgument = Annotated[str, typer.Argument(help="For example math/quadratics.")]


def alias(
    name: NameArgument,
    alias: Annotated[str | None, typer.Argument(help="For example production.")] = None,
    version: Annotated[int | None, typer.Argument(min=1, help="What it shall stand for.")] = None,
    expected: Annotated[
        int | None, typer.Option("--from", min=1, help="Only if it stands for this version now.")
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Take the alias away.")] = False,
) -> None:
    """Move an alias to a version, or create it; without a version, show what aliases stand for."""
    if remove and (alias is None or version is not None):
        exit_with_error("--remove takes the name and the alias, and no version")
    if expected is not None and version is None and not remove:
        exit_with_error("--from goes with the version that the alias is moved to, or with --remove")
    if remove and alias is not None:
        before = with_store(partial(_remove, name, alias, expected))
        out.print(f"removed {escape(f'{name}@{alias}')}, which stood for version {before}", highlight=False)
    elif alias is not None and version is not None:
        was = with_store(partial(_move, name, alias, version, expected))
        moved = "" if was is None else f" (was {was})"
        out.print(f"{escape(f'{name}@{alias}')} → {version}{moved}", highlight=False)
    else:
        pointing_aliases = with_store(partial(_aliases, name))
        if alias is not None and alias not in pointing_aliases:
            exit_with_error(f"{name} has no alias {alias!r}; give a version to create it")
        for one, number in pointing_aliases.items():
            if alias in (None, one):
                out.print(f"{escape(f'{name}@{one}')} → {number}", highlight=False)
        if not pointing_aliases:
            out.print("no aliases", style="dim")


def tag(
    name: NameArgument,
    tags: Annotated[list[str] | None, typer.Argument(help="The tags it shall have, in place of those it has.")] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Take all tags away.")] = False,
) -> None:
    """Replace the tags of a rubric; without tags, show those it has."""
    if clear and tags:
        exit_with_error("--clear takes no tags")
    found = with_store(partial(_tags, name, tags or None, clear))
    out.print(escape(", ".join(found.tags)) if found.tags else "[dim]no tags[/]", highlight=False)


def retire(
    reference: Annotated[str, typer.Argument(help="name@3")],
    reason: Annotated[str | None, typer.Argument(help="Why, and what to use instead.")] = None,
    restore: Annotated[bool, typer.Option("--restore", help="Take it back into use.")] = False,
) -> None:
    """Take a version out of use: it stays readable, and judging by it is refused with the reason."""
    if restore == (reason is not None):
        exit_with_error("give the reason for retiring it, or --restore")
    if reason is not None and not reason.strip():
        exit_with_error("the reason is empty; say why, and what to use instead")
    version, current, pointing_aliases = with_store(partial(_retire, reference, reason and reason.strip()))
    done = "back in use" if restore else "retired"
    out.print(f"{done} {escape(version.reference)}", highlight=False)
    if restore:
        return
    if current.retirement:
        out.print(f"[yellow]no version of {escape(version.name)} is in use now[/]", highlight=False)
    else:
        out.print(f"{escape(version.name)} stands for version {current.version}", highlight=False)
    for one in pointing_aliases:
        named = escape(f"{version.name}@{one}")
        out.print(f"[yellow]{named} still stands for it[/] and is refused until it is moved", highlight=False)


async def _aliases(name: str, store: RubricStore) -> dict[str, int]:
    await find_rubric(store, PROJECT_ID, name)
    return (await store.aliases(PROJECT_ID, name)).aliases


async def _move(name: str, alias: str, version: int, expected: int | None, store: RubricStore) -> int | None:
    """What it stood for before."""
    current = (await store.aliases(PROJECT_ID, name)).aliases.get(alias)
    before = current if expected is None else expected
    await changes.move_alias(store, PROJECT_ID, name, alias, version, expected=before)
    return current


async def _remove(name: str, alias: str, expected: int | None, store: RubricStore) -> int:
    current = (await changes.alias_of(store, PROJECT_ID, name, alias)).version
    await changes.remove_alias(store, PROJECT_ID, name, alias, expected=expected or current)
    return current


async def _tags(name: str, tags: list[str] | None, clear: bool, store: RubricStore) -> RubricTags:
    if tags or clear:
        return await changes.replace_tags(store, PROJECT_ID, name, tags or [])
    return RubricTags(name=name, tags=(await changes.history(store, PROJECT_ID, name, limit=1)).tags)


async def _retire(
    reference: str, reason: str | None, store: RubricStore
) -> tuple[RubricVersion, RubricVersion, list[str]]:
    """The version, what the bare name stands for now, and the aliases that stand for the version."""
    version = await changes.retire(store, PROJECT_ID, reference, reason)
    aliases = (await store.aliases(PROJECT_ID, version.name)).aliases
    current = await find_rubric(store, PROJECT_ID, version.name)
    return version, current, [one for one, number in aliases.items() if number == version.version]


def publish(
    name: Annotated[str, typer.Argument(help="For example math/quadratics.")],
    file: Annotated[Path, typer.Argument(help="A rubric in one of the formats.", exists=True, dir_okay=False)],
    format: Annotated[
        str | None,
        typer.Option(
            help="yaml, native, healthbench, rar, srar, rgr, grounded, dro or requirement; recognised unless given."
        ),
    ] = None,
    tags: Annotated[list[str] | None, typer.Option("--tag", help="Add a tag to the name; may be repeated.")] = None,
    metadata: Annotated[
        list[str] | None, typer.Option("--meta", help="Keep KEY=VALUE with the version; may be repeated.")
    ] = None,
    author: Annotated[str | None, typer.Option(help="Who wrote it.")] = None,
    parent: Annotated[
        int | None, typer.Option(min=1, help="The version it was made from; the newest unless given.")
    ] = None,
) -> None:
    """Publish a file as the next version of a rubric; the same criteria again are the version there is.

    Tags, metadata and lineage that stand in the file are kept too. What an option says wins, and --tag adds.
    """
    try:
        document = read_document(file.read_text(encoding="utf-8"), format)
        lineage = document.lineage
        if author is not None:
            lineage = Lineage.model_validate(
                {**(lineage.model_dump(exclude_unset=True) if lineage else {}), "author": author}
            )
    except (FormatError, UnicodeDecodeError, ValueError) as error:
        exit_with_error(f"{file}: {error}")
    kept = {**(document.metadata or {}), **_pairs(metadata or [])}
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
    _print_version(version, added=added, has_extras=bool(kept or lineage or parent))


def _print_version(version: RubricVersion, *, added: bool, has_extras: bool) -> None:
    what = "published" if added else "unchanged:"
    out.print(
        f"{what} {escape(version.reference)}  {version.digest[:19]}…  {len(version.criteria)} criteria",
        highlight=False,
    )
    if version.retirement:
        out.print(f"[yellow]it is retired[/]: {escape(version.retirement.reason)}", highlight=False)
    elif has_extras and not added:
        out.print("its metadata, lineage and parent stand as they were published", style="dim", highlight=False)


def _pairs(given: list[str]) -> dict[str, str]:
    pairs = [text.partition("=") for text in given]
    for key, sign, _ in pairs:
        if not (key and sign):
            exit_with_error(f"--meta takes KEY=VALUE, and this is {key!r}")
    return {key: value for key, _, value in pairs}
