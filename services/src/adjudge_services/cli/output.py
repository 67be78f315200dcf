"""Consoles and error exits that all commands share."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import typer
from rich.console import Console
from rich.markup import escape

_PIPED_WIDTH = 140
"""Columns of a table if the output is not a terminal; wide enough not to break names."""


def _console(*, stderr: bool = False) -> Console:
    console = Console(stderr=stderr)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _PIPED_WIDTH
    return console


out = _console()
err = _console(stderr=True)


def print_refused_lines(file: Path, refused: Mapping[int, str]) -> None:
    """Print the refused lines of a file and the reasons on standard error."""
    for number, reason in sorted(refused.items()):
        err.print(f"[red]{file}:{number}:[/] {escape(reason)}", highlight=False, soft_wrap=True)


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
