"""Consoles, JSON and error exits that all commands share."""

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NoReturn

import typer
from rich.console import Console
from rich.markup import escape

from adjudge_services.cli.options import STDIN

_PIPED_WIDTH = 180
"""Columns of a table if the output is not a terminal; wide enough not to break names."""


def _console(*, stderr: bool = False) -> Console:
    console = Console(stderr=stderr, emoji=False)  # `:thumbs_up:` in users' data stays as it is
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _PIPED_WIDTH
    return console


out = _console()
err = _console(stderr=True)


def print_json(value: Any) -> None:
    """Print a value as JSON on standard output, without colours or line breaks of a terminal's width."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=2) + "\n")


def print_refused_lines(file: Path, refused: Mapping[int, str]) -> None:
    """Print the refused lines of a file and the reasons on standard error; a reason that several share, once."""
    by_reason: dict[str, list[int]] = {}
    for number, reason in sorted(refused.items()):
        by_reason.setdefault(reason, []).append(number)
    for reason, (first, *others) in by_reason.items():
        err.print(f"[red]{escape(file_name(file))}:{first}:[/] {escape(reason)}", highlight=False, soft_wrap=True)
        if others:
            shown = ", ".join(map(str, others[:_LINES_SHOWN])) + (", …" if len(others) > _LINES_SHOWN else "")
            err.print(f"  the same on {pluralize(len(others), 'more line')}: {shown}", highlight=False, soft_wrap=True)


_LINES_SHOWN = 10


def file_name(file: Path) -> str:
    """The name of a file in messages."""
    return STDIN if file.name == STDIN else str(file)


def warn(message: str) -> None:
    """Print a warning on standard error."""
    err.print(f"[yellow]warning:[/] {escape(message)}", highlight=False, soft_wrap=True)


def exit_with_error(message: str, *, code: int = 1) -> NoReturn:
    """Print an error on standard error and exit."""
    err.print(f"[bold red]error:[/] {escape(message)}", highlight=False, soft_wrap=True)
    raise typer.Exit(code)


def format_seconds(seconds: float) -> str:
    """Format a duration: milliseconds below a second, seconds from there on."""
    return f"{seconds * 1000:,.0f} ms" if seconds < 1 else f"{seconds:,.1f} s"


def pluralize(number: int, noun: str) -> str:
    """Format a count: 1 input, 2 inputs."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"
