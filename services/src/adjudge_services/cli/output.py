"""What every command shares in talking to a person: two consoles, and how to give up."""

from typing import NoReturn

import typer
from rich.console import Console
from rich.markup import escape

out = Console()
err = Console(stderr=True)


def give_up(message: str, *, code: int = 1) -> NoReturn:
    """Say what went wrong on standard error and end."""
    err.print(f"[bold red]error:[/] {escape(message)}", highlight=False, soft_wrap=True)
    raise typer.Exit(code)
