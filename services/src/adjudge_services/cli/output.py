"""What every command shares in talking to a person: two consoles, and how to give up."""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import NoReturn

import typer
from rich.console import Console
from rich.markup import escape

_PIPED_WIDTH = 140
"""Columns of a table that no terminal limits, so that names in it are not broken."""


def _console(*, stderr: bool = False) -> Console:
    console = Console(stderr=stderr)
    if not console.is_terminal and "COLUMNS" not in os.environ:
        console.width = _PIPED_WIDTH
    return console


out = _console()
err = _console(stderr=True)


def print_refused_lines(file: Path, refused: Mapping[int, str]) -> None:
    """Name the lines of a file that were refused, and why, on standard error."""
    for number, reason in sorted(refused.items()):
        err.print(f"[red]{file}:{number}:[/] {escape(reason)}", highlight=False, soft_wrap=True)


def exit_with_error(message: str, *, code: int = 1) -> NoReturn:
    """Say what went wrong on standard error and end."""
    err.print(f"[bold red]error:[/] {escape(message)}", highlight=False, soft_wrap=True)
    raise typer.Exit(code)
