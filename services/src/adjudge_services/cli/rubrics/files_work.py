"""Read and write rubric files and the store for `adjudge rubrics`."""

import asyncio
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path, PurePath
from typing import Any, Final, TypeVar

from pydantic import JsonValue
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Column, Table

from adjudge_services.cli.output import err, exit_with_error, out
from adjudge_services.settings import Settings
from adjudge_services.store import StartError, command_line_user, prepare_store
from judge_server.errors import ServiceError
from judge_server.generation.validity import published_warnings
from judge_server.rubrics import PROJECT_ID, find_rubric
from rubric_store import FormatError, RubricStore
from rubric_store.formats import (
    FILE_EXTENSIONS,
    FormatProblem,
    NamedRubric,
    RubricCounts,
    RubricDocument,
    RubricFile,
    SerializedRubric,
    fold_problems,
    read_file,
    read_rows,
)
from rubric_store.lint import Finding, Severity, System, lint
from trainer_client.wire import Criterion, RubricContent, RubricSummary, RubricVersion

Result = TypeVar("Result")


def with_store(work: Callable[[RubricStore], Coroutine[Any, Any, Result]]) -> Result:
    """Run `work` on the rubric store; on errors print the message and exit with 1."""

    async def run() -> Result:
        settings = Settings()
        await prepare_store(settings)
        store = RubricStore(settings.store_url, actor=command_line_user)
        try:
            return await work(store)
        finally:
            await store.close()

    try:
        return asyncio.run(run())
    except ServiceError as error:
        exit_with_error(error.detail)
    except (StartError, ValueError) as error:
        exit_with_error(str(error))


_PAGE = 500


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


MAX_FILE_BYTES: Final = 512 * 2**20


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
    columns = (TextColumn("publishing"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task("", total=sum(len(one.file.rubrics) for one in imported))
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


TABLE_WIDTH = 80
_MAX_TABLE_ROWS = 20


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
    out.print(f"{escape(str(one.path))}: {result}", highlight=False, soft_wrap=True)


def print_problems(one: ImportedFile) -> None:
    """Print what is wrong, and what is not kept; problems of one kind once."""
    for colour, said, problems in (
        ("red", "", fold_problems(one.file.problems)),
        ("yellow", "changed: ", one.file.changes),
    ):
        for problem in problems:
            where = f"{one.path}:{problem.line}" if problem.line else str(one.path)
            text = f"{problem.place}: {problem.message}" if problem.place else problem.message
            err.print(f"[{colour}]{escape(where)}:[/] {said}{escape(text)}", highlight=False, soft_wrap=True)


async def find_versions(
    references: Sequence[str], prefix: str | None, store: RubricStore
) -> list[tuple[RubricVersion, tuple[str, ...]]]:
    """The versions to export, each with the tags of its name."""
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
    out.print(escape(f"{reference}  {path}"), highlight=False, soft_wrap=True)
    return True


def print_notes(reference: str, what: str, lines: Sequence[str]) -> None:
    """Print lines about a rubric on standard error."""
    err.print(f"{escape(reference)}: {what}", highlight=False, soft_wrap=True)
    for line in lines:
        err.print(f"  {escape(line)}", highlight=False, soft_wrap=True)


_COLOURS: Final[dict[Severity, str]] = {"error": "bold red", "warning": "yellow", "note": "dim"}


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
    for path in paths:
        try:
            read = read_file(Path(path).read_bytes(), PurePath(Path(path).name), format)
        except FormatError as error:
            exit_with_error("\n".join(f"{path}: {problem}" for problem in fold_problems(error.problems)), code=2)
        except OSError as error:
            exit_with_error(f"{path} cannot be read: {error.strerror}", code=2)
        several = len(read) > 1
        linted += [
            LintedRubric(
                f"{path}:{one.line}" if several else path, one.document.content.criteria, one.document.metadata or {}
            )
            for one in read
        ]
    return linted


async def read_stored(store: RubricStore, references: Sequence[str]) -> list[LintedRubric]:
    """Read rubrics of the store."""
    versions = [await find_rubric(store, PROJECT_ID, reference) for reference in references]
    return [LintedRubric(version.reference, version.criteria, version.metadata) for version in versions]


def print_findings(linted: Sequence[LintedRubric], found: Sequence[tuple[str, Finding]]) -> None:
    """Print what lint found in each rubric."""
    for rubric in linted:
        own_findings = [finding for owner, finding in found if owner == rubric.name]
        if not own_findings:
            continue
        out.print(f"[bold]{escape(rubric.name)}[/]", highlight=False, soft_wrap=True)
        words = {criterion.id: criterion.description for criterion in rubric.criteria}
        for finding in own_findings:
            head = f"{finding.severity:<8}{finding.code}  {finding.criterion or '(the rubric)'}"
            out.print(f"  [{_COLOURS[finding.severity]}]{escape(head)}[/]", highlight=False, soft_wrap=True)
            text = " ".join(words.get(finding.criterion or "", "").split())
            if text:
                out.print(f"    {escape(text[:160])}{'…' if len(text) > 160 else ''}", highlight=False, soft_wrap=True)
            out.print(f"    {escape(finding.problem)}; {escape(finding.advice)}", highlight=False, soft_wrap=True)
    totals: Any = Counter(finding.severity for _, finding in found)
    counts = ", ".join(f"{totals[severity]} {severity}{'' if totals[severity] == 1 else 's'}" for severity in _COLOURS)
    out.print(f"{len(linted)} rubric{'' if len(linted) == 1 else 's'}: {counts}", highlight=False, soft_wrap=True)


def counts_table(found: Sequence[Finding], criteria: int) -> Table:
    """A table of the findings by code."""
    table = Table("code", "severity", "findings", "per 100 criteria", title=f"{criteria} criteria")
    severity = {finding.code: finding.severity for finding in found}
    for code, count in Counter(finding.code for finding in found).most_common():
        table.add_row(code, severity[code], str(count), f"{100 * count / criteria:.1f}")
    return table
