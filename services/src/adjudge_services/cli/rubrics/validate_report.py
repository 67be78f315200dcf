"""What a validity judge found, for a terminal: criterion by criterion, by kind, and in one line."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from rich.console import Console
from rich.markup import escape
from rich.table import Table

from adjudge_services.cli.generate_progress import duration
from adjudge_services.cli.generate_report import pluralize
from adjudge_services.cli.output import err, out
from judge_server.generation.validity import ItemValidity, published_validity, question_of, rates_by_kind
from judge_server.ports import Operation
from trainer_client.wire import RubricVersion
from trainer_client.wire.validations import CriterionValidity, RubricValidation

_PIPED_WIDTH = 160
_MAX_UNJUDGED_SHOWN = 10
_VALIDITY_LABELS: Final[Mapping[bool | None, str]] = {
    True: "[green]valid[/]",
    False: "[bold red]not valid[/]",
    None: "[yellow]not judged[/]",
}


def print_report(
    operation: Operation,
    found: Sequence[tuple[RubricVersion, Sequence[ItemValidity]]],
    left: Sequence[RubricVersion],
    *,
    summary: bool,
) -> None:
    """Print the verdicts, unless only a summary is wanted, and the rates; say on standard error what was left."""
    console = out if out.is_terminal else Console(width=_PIPED_WIDTH)
    if not summary:
        for version, items in found:
            console.print(_criteria_table(version, items))
    rates = rates_by_kind(item for _, items in found for item in items)
    if rates:
        console.print(_rates_table(rates, pluralize(len(found), "rubric")))
    if operation.state != "done":
        _print(f"[bold red]error:[/] {escape(operation.problem or f'the pass was {operation.state}')}")
    for version in left[:_MAX_UNJUDGED_SHOWN]:
        _print(f"[red]not judged:[/] {escape(_why_unjudged(version))}")
    if len(left) > _MAX_UNJUDGED_SHOWN:
        _print(f"… and {len(left) - _MAX_UNJUDGED_SHOWN} more that were not judged")
    _print(_totals(operation, len(found), len(left)))


def validity_line(version: RubricVersion, kept: Sequence[RubricValidation]) -> str | None:
    """The newest validity of a version: of the passes kept since, or what it was published with; None without any."""
    items: Sequence[CriterionValidity | ItemValidity]
    if kept:
        items, model, at = kept[0].items, kept[0].model, kept[0].created_at
    elif (published := published_validity(version)) is not None:
        (model, items), at = published, version.created_at
    else:
        return None
    criteria = len(version.criteria)
    valid, invalid = (sum(item.valid is verdict for item in items) for verdict in (True, False))
    parts = [f"{valid} of {criteria} criteria valid"]
    if invalid:
        parts.append(f"{invalid} not")
    if unjudged := criteria - valid - invalid:
        parts.append(f"{unjudged} not judged")
    by = f"; by {model}" if model else ""
    return f"{', '.join(parts)}{by}, {at:%Y-%m-%d %H:%M} UTC"


def _criteria_table(version: RubricVersion, items: Sequence[ItemValidity]) -> Table:
    table = Table("id", "kind", "valid", "criterion", "reason", title=escape(version.reference), title_justify="left")
    table.columns[0].overflow = "fold"
    descriptions = {criterion.id: criterion.description for criterion in version.criteria}
    for item in items:
        table.add_row(
            escape(item.id), item.kind, _VALIDITY_LABELS[item.valid], escape(descriptions[item.id]), escape(item.reason)
        )
    return table


def _rates_table(rates: Mapping[str, Mapping[str, Any]], title: str) -> Table:
    table = Table("kind", "criteria", "valid", "not valid", "not judged", "rate", title=title, title_justify="left")
    for column in table.columns[1:]:
        column.justify = "right"
    for kind, rate in rates.items():
        _add_rate(table, kind, rate)
    if len(rates) > 1:
        table.add_section()
        counts = {name: sum(rate[name] for rate in rates.values()) for name in ("items", *_COUNTS)}
        judged = counts["valid"] + counts["invalid"]
        _add_rate(table, "all", {**counts, "rate": counts["valid"] / judged if judged else None})
    return table


_COUNTS: Final = ("valid", "invalid", "unjudged")


def _add_rate(table: Table, kind: str, rate: Mapping[str, Any]) -> None:
    share = "–" if rate["rate"] is None else f"{rate['rate']:.0%}"
    table.add_row(kind, str(rate["items"]), *(str(rate[name]) for name in _COUNTS), share)


def _why_unjudged(version: RubricVersion) -> str:
    try:
        question_of(version)
    except ValueError as error:
        return str(error)
    return f"the engine gave no answer about {version.reference}; give the same command again to go on"


def _totals(operation: Operation, found: int, left: int) -> str:
    progress = operation.progress
    parts = [f"{pluralize(found, 'rubric')} judged"]
    if progress.known:
        parts.append(f"{progress.known} of them before")
    if left:
        parts.append(f"{left} not judged")
    read = progress.tokens_computed + progress.tokens_reused
    return (
        f"{', '.join(parts)}; {pluralize(progress.calls, 'call')}, {read:,} tokens read "
        f"({progress.tokens_reused:,} reused), {progress.tokens_written:,} written; {duration(progress.seconds)}"
    )


def _print(text: str) -> None:
    err.print(text, highlight=False, soft_wrap=True)
