"""Groups of commands whose modules are imported when a command is invoked.

To list a group's commands, for help and completion, takes their names and summaries only. The summary repeats the first
paragraph of the command's own help.
"""

import gc
import inspect
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from importlib import import_module
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command


class CommandSource(NamedTuple):
    """Where a command is defined, as `module:attribute`, and its summary."""

    path: str
    summary: str


def lazy_app(commands: Mapping[str, CommandSource], **options: Any) -> typer.Typer:
    """A `Typer` with these commands or groups by name; `options` are those of `Typer`."""

    class Group(TyperGroup):
        def __init__(self, **attributes: Any) -> None:
            super().__init__(**attributes)
            self.commands.update({name: TyperCommand(name, help=source.summary) for name, source in commands.items()})

        def resolve_command(self, ctx: Any, args: list[str]) -> Any:
            name, _, rest = super().resolve_command(ctx, args)
            return name, None if name is None else load_command(name, commands[name]), rest

    app = typer.Typer(cls=Group, no_args_is_help=True, **options)
    app.callback()(_no_options)
    return app


def load_command(name: str, source: CommandSource) -> TyperCommand | TyperGroup:
    """Import a command, or a group of commands."""
    module, _, attribute = source.path.partition(":")
    with paused_garbage_collection():
        target = getattr(import_module(module), attribute)
    app = typer.Typer()
    if isinstance(target, typer.Typer):
        app.add_typer(target, name=name)
    else:
        app.command(name)(target)
    app.callback()(_no_options)
    _join_help_lines(app)
    group = get_command(app)
    assert isinstance(group, TyperGroup)
    command = group.commands[name]
    assert isinstance(command, TyperCommand | TyperGroup)
    return command


@contextmanager
def paused_garbage_collection() -> Iterator[None]:
    """Import without the garbage collector: it takes a sixth of the time of large imports, and finds little."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _no_options() -> None:
    """Make a group of a `Typer` that has no options of its own."""


def _join_help_lines(commands: typer.Typer) -> None:
    """Join the lines of each paragraph in every command's help; otherwise typer keeps a docstring's line breaks."""
    for command in commands.registered_commands:
        doc = inspect.getdoc(command.callback) or ""
        command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in doc.split("\n\n"))
    for group in commands.registered_groups:
        if group.typer_instance is not None:
            _join_help_lines(group.typer_instance)
