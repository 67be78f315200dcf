"""The commands of `adjudge` by path, as in `("rubrics", "lint")`, and their parameters."""

from collections.abc import Iterator
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from adjudge_services.cli.main import app


def commands() -> dict[tuple[str, ...], TyperCommand | TyperGroup]:
    """Return every command, and every command group that can be run without a subcommand, by path."""
    return {
        path: command
        for path, command in _below(get_command(app), ())
        if isinstance(command, TyperCommand) or command.invoke_without_command
    }


def parameters(command: TyperCommand | TyperGroup) -> list[Any]:
    """Return the options and arguments of a command; this imports its module."""
    return list(command.get_params(typer.Context(command)))


def _below(command: object, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], TyperCommand | TyperGroup]]:
    assert isinstance(command, TyperCommand | TyperGroup)
    if path:
        yield path, command
    if isinstance(command, TyperGroup):
        context = typer.Context(command)
        for name in command.list_commands(context):
            yield from _below(command.get_command(context, name), (*path, name))
