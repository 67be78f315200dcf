"""The commands of `adjudge` by path, as in `("rubrics", "lint")`."""

from collections.abc import Iterator

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


def _below(command: object, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], TyperCommand | TyperGroup]]:
    assert isinstance(command, TyperCommand | TyperGroup)
    if path:
        yield path, command
    if isinstance(command, TyperGroup):
        for name, one in command.commands.items():
            yield from _below(one, (*path, name))
