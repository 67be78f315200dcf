"""Consoles, progress, JSON and error exits that all commands share."""

import json
import os
import re
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, ProgressColumn, TextColumn, TimeRemainingColumn
from rich.table import Table
from rich.text import Text

from trainer_client.wire.problems import error_url

_PIPED_WIDTH = 180
"""Columns of a table if the output is not a terminal; wide enough not to break names."""


def _console(*, stderr: bool = False) -> Console:
    # `:thumbs_up:` in users' data stays as it is, and a line on standard error stays one
    console = Console(stderr=stderr, emoji=False, highlight=False, soft_wrap=stderr)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _PIPED_WIDTH
    return console


out = _console()
err = _console(stderr=True)


def print_line(line: str | Text, style: str | None = None) -> None:
    """Print a line on standard output that stays one, such as a path."""
    out.print(line, style=style, soft_wrap=True)


def show_progress(*columns: ProgressColumn) -> Progress:
    """Return a display of progress for a terminal, which otherwise shows nothing; by default a bar with time left."""
    shown = columns or (BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    description = TextColumn("{task.description}", markup=False)
    return Progress(description, *shown, console=err, transient=True, disable=not err.is_terminal)


def print_json(value: Any, *, indent: int | None = 2) -> None:
    """Print a value as JSON on standard output, without colours; with an `indent` of None, in one line."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=indent) + "\n")


def print_refused_lines(file: Path, refused: Mapping[int, str]) -> None:
    """Print the refused lines of a file and the reasons on standard error; a reason that several share, once."""
    by_reason: dict[str, list[int]] = {}
    same: dict[str, str] = {}
    for number, reason in sorted(refused.items()):
        shown_reason = same.setdefault(_REQUEST_ID.sub("", reason), reason)
        by_reason.setdefault(shown_reason, []).append(number)
    for reason, (first, *others) in by_reason.items():
        err.print(f"[red]{escape(file_name(file))}:{first}:[/] {escape(reason)}")
        if others:
            shown = ", ".join(map(str, others[:_LINES_SHOWN])) + (", …" if len(others) > _LINES_SHOWN else "")
            err.print(f"  the same on {pluralize(len(others), 'more line')}: {shown}")


_LINES_SHOWN = 10
_REQUEST_ID = re.compile(r",? request req_\w+")


def print_metrics(columns: Mapping[str, Mapping[str, str]]) -> None:
    """Print a table with a metric per row and a column per name; several tables if they are too wide for one."""
    metrics = list(dict.fromkeys(metric for column in columns.values() for metric in column))
    first = max(map(len, metrics), default=0)
    tables: list[list[str]] = [[]]
    left = out.width - first - _EDGES
    for name, column in columns.items():
        needed = max(len(name), *map(len, column.values())) + _BETWEEN
        if tables[-1] and needed > left:
            tables.append([])
            left = out.width - first - _EDGES
        tables[-1].append(name)
        left -= needed
    for place, shown in enumerate(tables):
        if place:
            out.print()
        table = Table("", header_style="bold", show_edge=False)
        for name in shown:
            table.add_column(escape(name), justify="right", overflow="fold")
        for metric in metrics:
            table.add_row(metric, *[columns[name].get(metric, "–") for name in shown])
        out.print(table)


_BETWEEN, _EDGES = 3, 2
"""Characters between two columns of a table, and at both of its edges."""


STDIN = "standard input"
"""Name of the file that holds standard input while a command runs, and what messages call it."""


def file_name(file: Path) -> str:
    """The name of a file in messages."""
    return STDIN if file.name == STDIN else str(file)


def warn(message: str) -> None:
    """Print a warning on standard error."""
    err.print(f"[yellow]warning:[/] {escape(message)}")


def exit_with_error(message: str, *, code: int = 1, error: Exception | None = None) -> NoReturn:
    """Print an error on standard error, and where the documentation explains it, and exit.

    Args:
        message: what is wrong, where, and what to do.
        code: the exit status.
        error: the exception behind it. Without one, the documentation of the exit status is named.
    """
    err.print(f"[bold red]error:[/] {escape(message)}")
    err.print(f"[dim]see {escape(reference_of(error, code))}[/]")
    raise typer.Exit(code)


def reference_of(error: Exception | None, code: int = 1) -> str:
    """Return the address of the documentation about an error, or else about the exit status."""
    own = getattr(error, "code", None)
    section = own if isinstance(own, str) else f"exit-status-{code}"
    return getattr(error, "documentation_url", None) or error_url(section)


def describe_error(error: Exception) -> str | None:
    """Return what to say about an error that a user can cause; None for any other."""
    from pydantic import ValidationError

    from adjudge_services.store import StartError
    from judge_server.errors import EngineStartError, EngineUnavailable, ServiceError
    from trainer_client import AdjudgeError
    from trainer_client.wire.problems import field_errors

    if isinstance(error, ValidationError):
        wrong = field_errors(error.errors())
        return "; ".join(f"{one.field}: {one.message}" if one.field else one.message for one in wrong)
    if isinstance(error, ValueError | OSError | StartError | AdjudgeError | ServiceError):
        return str(error)
    if type(error) is LookupError:
        return str(error.args[0])
    from judge_server.evaluation.fitting.calibrations import MissingExtraError  # with numpy, which takes long to import
    from judge_server.generation.results import MatplotlibMissing
    from judge_server.ledger.spool import QuarantineFull
    from judge_server.models.catalogue import ModelError

    rare = EngineStartError | EngineUnavailable | MissingExtraError | MatplotlibMissing | ModelError | QuarantineFull
    return str(error) if isinstance(error, rare) else None


def format_number(value: float | None, form: str = ".3f") -> str:
    """Format a number; a dash for None."""
    return "–" if value is None else f"{value:{form}}"


def format_share(part: float, whole: float) -> str:
    """Format a share in percent: `<1%` for one above 0 that would round to 0; a dash of nothing."""
    if not whole:
        return "–"
    return "<1%" if 0 < part / whole < 0.005 else f"{part / whole:.0%}"


def format_seconds(seconds: float) -> str:
    """Format a duration: milliseconds below a second, seconds from there on."""
    return f"{seconds * 1000:,.0f} ms" if seconds < 1 else f"{seconds:,.1f} s"


def pluralize(number: int, noun: str, plural: str | None = None) -> str:
    """Format a count: 1 input, 2 inputs; `plural` is for nouns that take no s."""
    return f"{number:,} {noun if number == 1 else plural or f'{noun}s'}"
