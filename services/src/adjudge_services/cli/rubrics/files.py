"""`adjudge rubrics import` and `export`: rubrics as files.

Import publishes each file as a whole or, with `--skip-bad`, what of it can be read; export reports what a format cannot
hold.

`adjudge rubrics lint` finds problems in rubrics of files or of the store.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path, PurePath
from typing import Annotated, Any, Final, TypeVar

import typer
from rich.markup import escape
from rich.table import Column, Table

from adjudge_services.cli.lazy import OPTIONS_ONLY
from adjudge_services.cli.options import UsageError, copy_standard_input, format_option
from adjudge_services.cli.output import err, exit_with_error, file_name, out, pluralize, print_line, show_progress
from rubric_store.lint import SIMILARITY, System

if not OPTIONS_ONLY:
    from pydantic import JsonValue

    from adjudge_services.store import command_line_user, use_store
    from judge_server.errors import InvalidRequest, UnknownRubric
    from judge_server.generation.validity import published_warnings
    from judge_server.scoring.rubrics import PROJECT_ID, find_rubric
    from rubric_store import FormatError, RubricStore
    from rubric_store.formats import (
        FILE_EXTENSIONS,
        FORMATS,
        FormatProblem,
        NamedRubric,
        RubricCounts,
        RubricDocument,
        RubricFile,
        SerializedRubric,
        fold_problems,
        read_file,
        read_rows,
        write_rubric,
    )
    from rubric_store.formats.table import check_format
    from rubric_store.lint import Finding, Severity, lint
    from trainer_client.wire import Criterion, RubricContent, RubricSummary, RubricVersion
    from trainer_client.wire.problems import findings_url

Result = TypeVar("Result")
_PAGE = 500
MAX_FILE_BYTES: Final = 512 * 2**20
TABLE_WIDTH = 80
_MAX_TABLE_ROWS = 20
_COLOURS: Final[dict[Severity, str]] = {"error": "bold red", "warning": "yellow", "note": "dim"}


def import_rubrics(
    paths: Annotated[list[Path], typer.Argument(help="Files, or folders to search for files.", exists=True)],
    prefix: Annotated[str, typer.Option(help="Prefix of every name, for example team/.")] = "",
    format: Annotated[str | None, format_option("Format of all files; detected by default.")] = None,
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
        str, format_option("yaml, native, healthbench, rar, srar, rgr, grounded, dro or requirement.")
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
    known = check_format(format)
    if bool(references) == (prefix is not None):
        raise UsageError("give either the rubrics to export or --prefix")
    found = with_store(partial(find_versions, list(references or ()), prefix))
    if not found:
        exit_with_error(f"no rubric's name begins with {prefix!r}")
    if to is None and len(found) != 1:
        raise UsageError(f"{len(found)} rubrics cannot be printed at once; give a folder with --output")
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
            failed += not save_file(to / f"{name}{FORMATS[known].suffix}", version.reference, written, force=force)
        if losses := [str(loss) for loss in written.losses if (loss.criterion, loss.field) != (None, "name")]:
            print_notes(version.reference, f"[yellow]{known} cannot hold[/]", losses)
    if failed:
        raise typer.Exit(1)


def lint_rubrics(
    rubrics: Annotated[
        list[str],
        typer.Argument(
            help="Files or references: name, name@3, sha256:…, or - for standard input.", callback=copy_standard_input
        ),
    ],
    system: Annotated[
        System | None,
        typer.Option("--for", help="The paper whose structural rules to check; by default none are."),
    ] = None,
    format: Annotated[str | None, format_option("Format of the files; detected by default.")] = None,
    similarity_threshold: Annotated[
        float, typer.Option(min=0.01, max=1, help="Similarity in (0, 1] from which two criteria are reported.")
    ] = SIMILARITY,
    answer: Annotated[str | None, typer.Option(help="The final answer, to find criteria that give it away.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 on warnings too.")] = False,
    summary: Annotated[bool, typer.Option("--summary", help="Print only how often each code was found.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per finding, one per line.")] = False,
) -> None:
    """Check rubrics without asking a model. Exits with 1 on an error, with 2 if a rubric cannot be read."""
    files = [one for one in rubrics if Path(one).is_file()]
    stored = [one for one in rubrics if one not in files]
    linted = read_linted(files, format)
    try:
        linted += with_store(lambda store: read_stored(store, stored)) if stored else []
    except (UnknownRubric, InvalidRequest) as error:
        named = [one for one in stored if Path(one).suffix.lower() in FILE_EXTENSIONS or Path(one).is_dir()]
        no_file = f". There is no file {' or '.join(named)} either" if named else ""
        exit_with_error(f"{str(error).rstrip('.')}{no_file}", code=2, error=error)
    by_rubric = [(rubric, rubric.findings(system, similarity_threshold, answer)) for rubric in linted]
    found = [finding for _, findings in by_rubric for finding in findings]
    if as_json:
        for rubric, findings in by_rubric:
            for finding in findings:
                typer.echo(json.dumps({"rubric": rubric.name, **asdict(finding)}, ensure_ascii=False))
    elif summary:
        out.print(counts_table(found, sum(len(rubric.criteria) for rubric in linted)))
    else:
        print_findings(by_rubric)
    severities = {finding.severity for finding in found}
    raise typer.Exit(1 if "error" in severities or (strict and "warning" in severities) else 0)


def with_store(work: Callable[[RubricStore], Coroutine[Any, Any, Result]]) -> Result:
    """Run `work` on the rubric store, as the user of the command line."""
    return use_store(partial(RubricStore, actor=command_line_user), work)


async def summaries(
    store: RubricStore, *, prefix: str = "", tag: str | None = None, text: str = "", max_count: int | None = None
) -> tuple[list[RubricSummary], bool]:
    """List up to `max_count` rubrics by name, and return whether there are more."""
    rubrics: list[RubricSummary] = []
    after: str | None = None
    while True:
        limit = _PAGE if max_count is None else min(_PAGE, max_count - len(rubrics))
        page = await store.list(PROJECT_ID, prefix=prefix, tag=tag, text=text, after=after, limit=limit)
        rubrics += page.rubrics
        after = page.next_cursor
        if after is None or len(rubrics) == max_count:
            return rubrics, after is not None


@dataclass
class ImportedFile:
    """The result of one file: what is published of it, and the references published or unchanged.

    `readable` counts the rubrics that can be published with `--skip-bad`.
    """

    path: Path
    file: RubricFile
    readable: int = 0
    published: list[str] = field(default_factory=list)
    unchanged: list[str] = field(default_factory=list)


def rubric_files(paths: Sequence[Path]) -> Iterator[tuple[Path, PurePath]]:
    """Each file once, and its path relative to the given folder, which names are made from."""
    seen = set()
    for path in paths:
        below = sorted(path.rglob("*")) if path.is_dir() else [path]
        for file in below:
            relative = file.relative_to(path) if path.is_dir() else PurePath(file.name)
            wanted = not path.is_dir() or (
                file.suffix.lower() in FILE_EXTENSIONS and not any(p[0] == "." for p in relative.parts)
            )
            if wanted and file.is_file() and file.resolve() not in seen:
                seen.add(file.resolve())
                yield file, relative


def read_import(
    files: Sequence[tuple[Path, PurePath]], format: str | None, prefix: str, *, skip_bad: bool
) -> list[ImportedFile]:
    """Read all files; a rubric whose name another one has is a problem of its file."""
    imported: list[ImportedFile] = []
    first: dict[str, Path] = {}
    for path, relative in files:
        try:
            if path.stat().st_size > MAX_FILE_BYTES:
                raise FormatError([FormatProblem("", f"the file is larger than {MAX_FILE_BYTES >> 20} MiB; split it")])
            read = read_rows(path.read_bytes(), relative, format, prefix)
        except FormatError as error:
            imported.append(ImportedFile(path, RubricFile([], error.problems, 1)))
            continue
        except OSError as error:
            problem = FormatProblem("", f"the file cannot be read: {error.strerror}")
            imported.append(ImportedFile(path, RubricFile([], (problem,), 1)))
            continue
        taken = [rubric for rubric in read.rubrics if rubric.name in first]
        usable = [rubric for rubric in read.rubrics if rubric.name not in first]
        problems = (*read.problems, *(_duplicate_name(rubric, first[rubric.name]) for rubric in taken))
        file = RubricFile(usable, problems, read.refused + len(taken))
        imported.append(ImportedFile(path, file if skip_bad else file.as_whole(), len(usable)))
        first.update({rubric.name: path for rubric in imported[-1].file.rubrics})
    return imported


def _duplicate_name(rubric: NamedRubric, path: Path) -> FormatProblem:
    return FormatProblem("name", f"{path} also names a rubric {rubric.name!r}; rename one", rubric.line)


async def publish_files(store: RubricStore, imported: Sequence[ImportedFile]) -> None:
    """Publish the rubrics of all files, with progress on a terminal."""
    with show_progress() as progress:
        task = progress.add_task("publishing", total=sum(len(one.file.rubrics) for one in imported))
        for one in imported:
            for rubric in one.file.rubrics:
                document = rubric.document
                version, added = await store.publish(
                    PROJECT_ID,
                    rubric.name,
                    document.content,
                    metadata=document.metadata,
                    tags=document.tags,
                    lineage=document.lineage,
                )
                (one.published if added else one.unchanged).append(version.reference)
                progress.advance(task)


def import_table(imported: Sequence[ImportedFile]) -> Table:
    """How many rubrics each file has, and how many of them came in as they are, came in changed, or were refused."""
    table = Table("file", *(Column(name, justify="right") for name in RubricCounts._fields))
    counted = [(escape(str(one.path)), one.file.counts) for one in imported]
    remarkable = [row for row in counted if row[1].refused or row[1].changed]
    rows = counted if len(imported) <= _MAX_TABLE_ROWS else remarkable[:_MAX_TABLE_ROWS]
    if len(imported) > 1:
        sums = map(sum, zip(*(counts for _, counts in counted), strict=True))
        rows = [*rows, (f"[bold]all {len(imported):,} files[/]", RubricCounts(*sums))]
    for name, counts in rows:
        table.add_row(name, *(f"{count:,}" for count in counts))
    return table


def print_result(one: ImportedFile, *, dry_run: bool) -> None:
    """Print in a line what became of a file."""
    if not one.file.rubrics:
        result = "[bold red]refused[/]"
        if one.readable:
            result += f": nothing of it is published; {one.readable:,} of its rubrics can be, with --skip-bad"
    elif dry_run:
        result = "can be published"
    elif len(one.file.rubrics) == 1:
        result = f"[green]published[/] {one.published[0]}" if one.published else f"unchanged: {one.unchanged[0]}"
    else:
        result = f"[green]published[/] {len(one.published):,}, unchanged {len(one.unchanged):,}"
    print_line(f"{escape(str(one.path))}: {result}")


def print_problems(one: ImportedFile) -> None:
    """Print what is wrong, and what is not kept; problems of one kind once."""
    for colour, said, problems in (
        ("red", "", fold_problems(one.file.problems)),
        ("yellow", "changed: ", one.file.changes),
    ):
        for problem in problems:
            where = f"{one.path}:{problem.line}" if problem.line else str(one.path)
            text = f"{problem.place}: {problem.message}" if problem.place else problem.message
            err.print(f"[{colour}]{escape(where)}:[/] {said}{escape(text)}")


async def find_versions(
    references: Sequence[str], prefix: str | None, store: RubricStore
) -> list[tuple[RubricVersion, tuple[str, ...]]]:
    """The versions to export, each with the tags of its name."""
    if prefix is None:
        versions = [await find_rubric(store, PROJECT_ID, reference) for reference in references]
        tags = {one.name: (await store.history(PROJECT_ID, one.name, limit=1)) for one in versions}
        return [(one, history.tags if (history := tags[one.name]) else ()) for one in versions]
    named, _ = await summaries(store, prefix=prefix)
    return [(await find_rubric(store, PROJECT_ID, f"{one.name}@{one.latest_version}"), one.tags) for one in named]


def rubric_document(version: RubricVersion, tags: tuple[str, ...]) -> RubricDocument:
    """A stored version as a document to write."""
    return RubricDocument(
        name=version.name,
        tags=tags,
        metadata=version.metadata or None,
        lineage=version.lineage,
        content=RubricContent(criteria=version.criteria),
    )


def save_file(path: Path, reference: str, written: SerializedRubric, *, force: bool) -> bool:
    """Write a file and print its path; False if the file exists."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with path.open("w" if force else "x", encoding="utf-8", newline="\n") as file:
            file.write(written.text)
    except FileExistsError:
        print_notes(reference, "[bold red]not written[/]", [f"{path} already exists; replace it with --force"])
        return False
    except OSError as error:
        exit_with_error(f"{path} cannot be written: {error.strerror}")
    print_line(escape(f"{reference}  {path}"))
    return True


def print_notes(reference: str, what: str, lines: Sequence[str]) -> None:
    """Print lines about a rubric on standard error."""
    err.print(f"{escape(reference)}: {what}")
    for line in lines:
        err.print(f"  {escape(line)}")


@dataclass(frozen=True, slots=True)
class LintedRubric:
    """A rubric's name in the output, its criteria, and what its generator noted in its metadata."""

    name: str
    criteria: tuple[Criterion, ...]
    metadata: Mapping[str, JsonValue]

    def findings(self, system: System | None, similarity_threshold: float, answer: str | None) -> list[Finding]:
        """What lint finds, and after it the generator's warnings."""
        noted = [
            Finding(one.flag, "warning", None, one.problem, one.advice) for one in published_warnings(self.metadata)
        ]
        return [
            *lint(self.criteria, system=system, similarity_threshold=similarity_threshold, answer=answer),
            *noted,
        ]


def read_linted(paths: Sequence[str], format: str | None) -> list[LintedRubric]:
    """Read the rubrics of files."""
    linted: list[LintedRubric] = []
    for path in map(Path, paths):
        shown = file_name(path)
        try:
            read = read_file(path.read_bytes(), PurePath(path.name), format)
        except FormatError as error:
            problems = "\n".join(f"{shown}: {problem}" for problem in fold_problems(error.problems))
            exit_with_error(problems, code=2, error=error)
        except OSError as error:
            exit_with_error(f"{shown} cannot be read: {error.strerror}", code=2)
        lines = Counter(one.line for one in read)
        for one in read:
            place = f"{shown}:{one.line}" if lines[one.line] == 1 else f"{shown}: {one.name}"
            name = place if len(read) > 1 else shown
            linted.append(LintedRubric(name, one.document.content.criteria, one.document.metadata or {}))
    return linted


async def read_stored(store: RubricStore, references: Sequence[str]) -> list[LintedRubric]:
    """Read rubrics of the store."""
    versions = [await find_rubric(store, PROJECT_ID, reference) for reference in references]
    return [LintedRubric(version.reference, version.criteria, version.metadata) for version in versions]


def print_findings(by_rubric: Sequence[tuple[LintedRubric, Sequence[Finding]]]) -> None:
    """Print what lint found in each rubric."""
    for rubric, findings in by_rubric:
        if not findings:
            continue
        print_line(f"[bold]{escape(rubric.name)}[/]")
        words = {criterion.id: criterion.description for criterion in rubric.criteria}
        for finding in findings:
            head = f"{finding.severity:<8}{finding.code}  {finding.criterion or '(the rubric)'}"
            print_line(f"  [{_COLOURS[finding.severity]}]{escape(head)}[/]")
            text = " ".join(words.get(finding.criterion or "", "").split())
            if text:
                print_line(f"    {escape(text[:160])}{'…' if len(text) > 160 else ''}")
            print_line(f"    {escape(finding.problem)}; {escape(finding.advice)}")
    totals: Any = Counter(finding.severity for _, findings in by_rubric for finding in findings)
    counts = ", ".join(f"{totals[severity]} {severity}{'' if totals[severity] == 1 else 's'}" for severity in _COLOURS)
    print_line(f"{pluralize(len(by_rubric), 'rubric')}: {counts}")
    if totals:
        print_line(f"what each means: {findings_url()}", style="dim")


def counts_table(found: Sequence[Finding], criteria: int) -> Table:
    """A table of the findings by code."""
    table = Table("code", "severity", "findings", "per 100 criteria", title=f"{criteria} criteria")
    severity = {finding.code: finding.severity for finding in found}
    for code, count in Counter(finding.code for finding in found).most_common():
        table.add_row(code, severity[code], str(count), f"{100 * count / criteria:.1f}")
    return table
