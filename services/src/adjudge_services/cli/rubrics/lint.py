"""`adjudge rubrics lint`: find problems in rubrics, in files or in the store."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path, PurePath
from typing import Annotated, Any, Final

import typer
from rich.markup import escape
from rich.table import Table

from adjudge_services.cli.output import exit_with_error, out
from adjudge_services.cli.rubrics.store import with_store
from judge_server.rubrics import PROJECT_ID, find_rubric
from rubric_store import FormatError, RubricStore
from rubric_store.formats import read_file
from rubric_store.lint import SIMILARITY, Finding, Severity, System, lint
from trainer_client.wire import Criterion

_COLOURS: Final[dict[Severity, str]] = {"error": "bold red", "warning": "yellow", "note": "dim"}
NamedCriteria = tuple[str, tuple[Criterion, ...]]
"""A rubric's name in the output, and its criteria."""


def lint_rubrics(
    rubrics: Annotated[list[str], typer.Argument(help="Files or references: name, name@3, sha256:…")],
    system: Annotated[
        System | None,
        typer.Option(
            "--for", help="The paper whose structural rules to check; by default the one the rubric looks like."
        ),
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
    files = [one for one in rubrics if Path(one).is_file()]
    stored = [one for one in rubrics if one not in files]
    linted = _read_files(files, format)
    linted += with_store(lambda store: _read_store(store, stored)) if stored else []
    found = [
        (name, finding)
        for name, criteria in linted
        for finding in lint(criteria, system=system, similarity_threshold=similarity_threshold, answer=answer)
    ]
    if as_json:
        for name, finding in found:
            typer.echo(json.dumps({"rubric": name, **asdict(finding)}, ensure_ascii=False))
    elif summary:
        out.print(_counts([finding for _, finding in found], sum(len(criteria) for _, criteria in linted)))
    else:
        _print(linted, found)
    severities = {finding.severity for _, finding in found}
    raise typer.Exit(1 if "error" in severities or (strict and "warning" in severities) else 0)


def _read_files(paths: Sequence[str], format: str | None) -> list[NamedCriteria]:
    linted: list[NamedCriteria] = []
    for path in paths:
        try:
            read = read_file(Path(path).read_bytes(), PurePath(Path(path).name), format)
        except FormatError as error:
            exit_with_error("\n".join(f"{path}: {problem}" for problem in error.problems), code=2)
        except OSError as error:
            exit_with_error(f"{path} cannot be read: {error.strerror}", code=2)
        several = len(read) > 1
        linted += [(f"{path}:{one.line}" if several else path, one.document.content.criteria) for one in read]
    return linted


async def _read_store(store: RubricStore, references: Sequence[str]) -> list[NamedCriteria]:
    versions = [await find_rubric(store, PROJECT_ID, reference) for reference in references]
    return [(version.reference, version.criteria) for version in versions]


def _print(linted: Sequence[NamedCriteria], found: Sequence[tuple[str, Finding]]) -> None:
    for name, criteria in linted:
        own_findings = [finding for owner, finding in found if owner == name]
        if not own_findings:
            continue
        out.print(f"[bold]{escape(name)}[/]", highlight=False, soft_wrap=True)
        words = {criterion.id: criterion.description for criterion in criteria}
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


def _counts(found: Sequence[Finding], criteria: int) -> Table:
    table = Table("code", "severity", "findings", "per 100 criteria", title=f"{criteria} criteria")
    severity = {finding.code: finding.severity for finding in found}
    for code, count in Counter(finding.code for finding in found).most_common():
        table.add_row(code, severity[code], str(count), f"{100 * count / criteria:.1f}")
    return table
