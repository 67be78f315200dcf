"""`adjudge rubrics export`: versions out of the store, as files in any format, with what each cannot hold."""

from collections import Counter
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from adjudge_services.cli.output import err, exit_with_error, out
from adjudge_services.cli.rubrics.store import with_store
from judge_server.rubrics import PROJECT_ID, find_rubric
from rubric_store import FormatError, RubricStore
from rubric_store.formats import SUFFIXES, RubricDocument, SerializedRubric, write_rubric
from rubric_store.formats.reading import check_format
from trainer_client.wire import RubricContent, RubricVersion

_PAGE = 500


def export(
    references: Annotated[list[str] | None, typer.Argument(help="name, name@3, name@alias or sha256:…")] = None,
    prefix: Annotated[
        str | None, typer.Option(help="The newest version of every rubric whose name begins with this.")
    ] = None,
    format: Annotated[
        str, typer.Option(help="yaml, native, healthbench, rar, srar, rgr, grounded, dro or requirement.")
    ] = "yaml",
    to: Annotated[
        Path | None, typer.Option("--out", "-o", help="A folder; without it one rubric is printed.", file_okay=False)
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace files that are there already.")] = False,
) -> None:
    """Write rubrics as files; what the format cannot hold is said, and a rubric it cannot hold at all is refused."""
    try:
        known = check_format(format)
    except FormatError as error:
        exit_with_error(str(error))
    if bool(references) == (prefix is not None):
        exit_with_error("name the rubrics to export, or give --prefix; one of the two")
    found = with_store(partial(_find, list(references or ()), prefix))
    if not found:
        exit_with_error(f"no rubric's name begins with {prefix!r}")
    if to is None and len(found) != 1:
        exit_with_error(f"{len(found)} rubrics need a folder; give --out")
    several = Counter(version.name for version, _ in found)
    failed = 0
    for version, tags in found:
        try:
            written = write_rubric(_document(version, tags), known)
        except FormatError as error:
            failed += 1
            _print_notes(version.reference, "[bold red]refused[/]", [str(problem) for problem in error.problems])
            continue
        if to is None:
            typer.echo(written.text, nl=False)
        else:
            name = version.name if several[version.name] == 1 else version.reference
            failed += not _save(to / f"{name}{SUFFIXES[known]}", version.reference, written, force=force)
        if losses := [str(loss) for loss in written.losses if (loss.criterion, loss.field) != (None, "name")]:
            _print_notes(version.reference, f"[yellow]{known} cannot hold[/]", losses)
    if failed:
        raise typer.Exit(1)


async def _find(
    references: Sequence[str], prefix: str | None, store: RubricStore
) -> list[tuple[RubricVersion, tuple[str, ...]]]:
    """The versions, each with the tags of its name."""
    if prefix is None:
        versions = [await find_rubric(store, PROJECT_ID, reference) for reference in references]
        tags = {one.name: (await store.history(PROJECT_ID, one.name, limit=1)) for one in versions}
        return [(one, history.tags if (history := tags[one.name]) else ()) for one in versions]
    found = []
    after: str | None = None
    while True:
        page = await store.list(PROJECT_ID, prefix=prefix, after=after, limit=_PAGE)
        for row in page.rubrics:
            reference = f"{row.name}@{row.latest_version}"
            found.append((await find_rubric(store, PROJECT_ID, reference), row.tags))
        after = page.next_cursor
        if after is None:
            return found


def _document(version: RubricVersion, tags: tuple[str, ...]) -> RubricDocument:
    return RubricDocument(
        name=version.name,
        tags=tags,
        metadata=version.metadata or None,
        lineage=version.lineage,
        content=RubricContent(criteria=version.criteria),
    )


def _save(path: Path, reference: str, written: SerializedRubric, *, force: bool) -> bool:
    """Write a file, and say so; False where it is there already."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w" if force else "x", encoding="utf-8", newline="\n") as file:
            file.write(written.text)
    except FileExistsError:
        _print_notes(reference, "[bold red]not written[/]", [f"{path} is there already; --force replaces it"])
        return False
    except OSError as error:
        exit_with_error(f"{path} cannot be written: {error.strerror}")
    out.print(escape(f"{reference}  {path}"), highlight=False, soft_wrap=True)
    return True


def _print_notes(reference: str, what: str, lines: Sequence[str]) -> None:
    err.print(f"{escape(reference)}: {what}", highlight=False, soft_wrap=True)
    for line in lines:
        err.print(f"  {escape(line)}", highlight=False, soft_wrap=True)
