"""`adjudge rubrics import` and `export`: rubrics as files.

Import publishes each file as a whole or, with `--skip-bad`, what of it can be read; export reports what a format cannot
hold.

`adjudge rubrics lint` finds problems in rubrics of files or of the store.
"""

import json
from collections import Counter
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import Annotated

import typer

from adjudge_services.cli.options import copy_one_of
from adjudge_services.cli.output import exit_with_error, out
from rubric_store.lint import SIMILARITY, System


def import_rubrics(
    paths: Annotated[list[Path], typer.Argument(help="Files, or folders to search for files.", exists=True)],
    prefix: Annotated[str, typer.Option(help="Prefix of every name, for example team/.")] = "",
    format: Annotated[str | None, typer.Option(help="Format of all files; detected by default.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Read all files but publish nothing.")] = False,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Publish the rubrics of a file that can be read, and count the others.")
    ] = False,
) -> None:
    """Publish every rubric in the given files. Exits with 1 if any file is rejected.

    A rubric gets the name in its file, or else the file's path. Each row of a JSONL, CSV or Parquet file is a rubric,
    named by its id. If a file has any problem, nothing in it is published, except with --skip-bad. The table at the end
    counts the rubrics read: kept as they are, changed where something has no counterpart here, and refused.
    """
    from adjudge_services.cli.rubrics.files_work import (
        TABLE_WIDTH,
        import_table,
        print_problems,
        print_result,
        publish_files,
        read_import,
        rubric_files,
        with_store,
    )
    from rubric_store.formats import FILE_EXTENSIONS

    files = list(rubric_files(paths))
    if not files:
        exit_with_error(
            f"no files to import; in folders only these extensions are read: {', '.join(sorted(FILE_EXTENSIONS))}"
        )
    imported = read_import(files, format, prefix, skip_bad=skip_bad)
    if not dry_run:
        with_store(lambda store: publish_files(store, imported))
    for one in imported:
        print_problems(one)
        print_result(one, dry_run=dry_run)
    out.print(import_table(imported), width=min(out.width, TABLE_WIDTH))
    refused = any(one.file.problems for one in imported)
    if refused and not (skip_bad and any(one.file.rubrics for one in imported)):
        raise typer.Exit(1)


def export(
    references: Annotated[list[str] | None, typer.Argument(help="name, name@3, name@alias or sha256:…")] = None,
    prefix: Annotated[
        str | None, typer.Option(help="Export the newest version of every rubric whose name begins with this.")
    ] = None,
    format: Annotated[
        str, typer.Option(help="yaml, native, healthbench, rar, srar, rgr, grounded, dro or requirement.")
    ] = "yaml",
    to: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Folder for the files; without it a single rubric is printed.", file_okay=False
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
) -> None:
    """Write rubrics as files. Reports what the format cannot hold, and rejects rubrics that it cannot express."""
    from adjudge_services.cli.rubrics.files_work import (
        find_versions,
        print_notes,
        rubric_document,
        save_file,
        with_store,
    )
    from rubric_store import FormatError
    from rubric_store.formats import SUFFIXES, write_rubric
    from rubric_store.formats.reading import check_format

    try:
        known = check_format(format)
    except FormatError as error:
        exit_with_error(str(error))
    if bool(references) == (prefix is not None):
        exit_with_error("give either the rubrics to export or --prefix")
    found = with_store(partial(find_versions, list(references or ()), prefix))
    if not found:
        exit_with_error(f"no rubric's name begins with {prefix!r}")
    if to is None and len(found) != 1:
        exit_with_error(f"{len(found)} rubrics cannot be printed at once; give a folder with --output")
    several = Counter(version.name for version, _ in found)
    failed = 0
    for version, tags in found:
        try:
            written = write_rubric(rubric_document(version, tags), known)
        except FormatError as error:
            failed += 1
            print_notes(version.reference, "[bold red]refused[/]", [str(problem) for problem in error.problems])
            continue
        if to is None:
            typer.echo(written.text, nl=False)
        else:
            name = version.name if several[version.name] == 1 else version.reference
            failed += not save_file(to / f"{name}{SUFFIXES[known]}", version.reference, written, force=force)
        if losses := [str(loss) for loss in written.losses if (loss.criterion, loss.field) != (None, "name")]:
            print_notes(version.reference, f"[yellow]{known} cannot hold[/]", losses)
    if failed:
        raise typer.Exit(1)


def lint_rubrics(
    rubrics: Annotated[
        list[str],
        typer.Argument(
            help="Files or references: name, name@3, sha256:…, or - for standard input.", callback=copy_one_of
        ),
    ],
    system: Annotated[
        System | None,
        typer.Option("--for", help="The paper whose structural rules to check; by default none are."),
    ] = None,
    format: Annotated[str | None, typer.Option(help="Format of the files; detected by default.")] = None,
    similarity_threshold: Annotated[
        float, typer.Option(min=0.01, max=1, help="Similarity in (0, 1] from which two criteria are reported.")
    ] = SIMILARITY,
    answer: Annotated[str | None, typer.Option(help="The final answer, to find criteria that give it away.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 on warnings too.")] = False,
    summary: Annotated[bool, typer.Option("--summary", help="Print only how often each code was found.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per finding, one per line.")] = False,
) -> None:
    """Check rubrics without asking a model. Exits with 1 on an error, with 2 if a rubric cannot be read."""
    from adjudge_services.cli.rubrics.files_work import (
        counts_table,
        print_findings,
        read_linted,
        read_stored,
        with_store,
    )

    files = [one for one in rubrics if Path(one).is_file()]
    stored = [one for one in rubrics if one not in files]
    linted = read_linted(files, format)
    linted += with_store(lambda store: read_stored(store, stored)) if stored else []
    found = [
        (rubric.name, finding) for rubric in linted for finding in rubric.findings(system, similarity_threshold, answer)
    ]
    if as_json:
        for name, finding in found:
            typer.echo(json.dumps({"rubric": name, **asdict(finding)}, ensure_ascii=False))
    elif summary:
        out.print(counts_table([finding for _, finding in found], sum(len(rubric.criteria) for rubric in linted)))
    else:
        print_findings(linted, found)
    severities = {finding.severity for _, finding in found}
    raise typer.Exit(1 if "error" in severities or (strict and "warning" in severities) else 0)
