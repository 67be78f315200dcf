"""`adjudge rubrics lint`: find problems in rubrics, in files or in the store."""

import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path, PurePath
from typing import Any, Final

import typer
from rich.markup import escape
from rich.table import Table

from adjudge_services.cli.output import exit_with_error, out
from adjudge_services.cli.rubrics.store import with_store
from judge_server.rubrics import PROJECT_ID, find_rubric
from rubric_store import FormatError, RubricStore
from rubric_store.formats import read_file
from rubric_store.lint import Finding, Severity, System, lint
from trainer_client.wire import Criterion

_COLOURS: Final[dict[Severity, str]] = {"error": "bold red", "warning": "yellow", "note": "dim"}
NamedCriteria = tuple[str, tuple[Criterion, ...]]
"""A rubric's name in the output, and its criteria."""


def lint_rubrics(
    rubrics: list[str],
    system: System | None,
    format: str | None,
    similarity_threshold: float,
    answer: str | None,
    strict: bool,
    summary: bool,
    as_json: bool,
) -> None:
    """Run `adjudge rubrics lint`."""
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
