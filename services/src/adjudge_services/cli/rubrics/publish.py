"""`adjudge rubrics publish`: a file becomes the next version of a rubric."""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from adjudge_services.cli.output import exit_with_error, out
from adjudge_services.cli.rubrics.store import with_store
from judge_server.rubrics import PROJECT_ID
from rubric_store import FormatError
from rubric_store.formats import read_document
from trainer_client.wire import Lineage, RubricVersion


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
