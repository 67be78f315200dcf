"""Commands whose modules are imported when they are used: to run them, to show their help or to complete their options.

A command is a function with annotated parameters. It is registered as `module:function`, below `adjudge_services.cli`.
Lists of commands show its docstring, which is read from the module's bytecode without importing the module. Its module
imports what its parameters need and, unless `OPTIONS_ONLY`, what running it needs.
"""

import gc
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from functools import wraps
from importlib import import_module, reload
from importlib.util import find_spec
from inspect import cleandoc
from types import CodeType, FunctionType
from typing import Any, NamedTuple

import typer
from typer.core import TyperCommand, TyperGroup
from typer.main import get_command

from adjudge_services.cli.groups import expand_groups

OPTIONS_ONLY = False
"""Whether modules of commands import only what their options need; set by a process of `adjudge` until it runs one."""

_PACKAGE = "adjudge_services.cli."
_LOGS = "adjudge_services.cli.operating.serving"
"""Its processes write warnings to their log."""

_NAMES = {"str": "TEXT", "int": "INTEGER", "float": "NUMBER", "path": "PATH", "file": "FILE", "directory": "FOLDER"}

_MAX_CHOICES = 24
"""Characters of choices beside an option; longer lists follow its sentence."""


class _Lazy:
    """Declares the parameters of its function, named for the help, once they are needed."""

    callback: Callable[..., Any] | None
    params: list[Any]

    def __init__(self, *, path: str | None = None, **attributes: Any) -> None:
        super().__init__(**attributes)
        self.path = path

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters, named for the help."""
        if self.path is not None and self.callback is None:
            single = typer.Typer(add_completion=False)
            single.command()(expand_groups(_reporting_errors(_load(self.path))))
            declared = get_command(single)
            self.callback, self.params = declared.callback, declared.params
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for one in params:
            _name(one, ctx)
        return params

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The words of the line of usage; required arguments stand without braces."""
        pieces: list[str] = super().collect_usage_pieces(ctx)  # type: ignore[misc]
        return [piece.replace("{", "").replace("}", "") for piece in pieces]


class Command(_Lazy, TyperCommand):
    """A command that is imported when it is used."""


class Group(_Lazy, TyperGroup):
    """A group of commands that are imported when they are used."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """The command of this name, with its help."""
        command = super().get_command(ctx, cmd_name)
        if isinstance(command, Command) and command.path is not None and command.help is None:
            command.help = _read_help(command.path)
        return command


class Commands(NamedTuple):
    """Commands of a group by name, each as `module:function`.

    Attributes:
        help: what the group is for.
        commands: the paths of its functions by name.
        alone: the path of the function that runs if no command is given; if None, the help is shown.
    """

    help: str
    commands: Mapping[str, str]
    alone: str | None = None


def build_commands(panels: Mapping[str, Mapping[str, str | Commands]]) -> dict[str, Any]:
    """Return all commands and groups by name, from those of each panel of the help."""
    return {name: _build(name, declared, panel) for panel, these in panels.items() for name, declared in these.items()}


def _build(name: str, declared: str | Commands, panel: str | None = None) -> Command | Group:
    if isinstance(declared, str):
        return Command(name=name, path=declared, rich_help_panel=panel)
    return Group(
        name=name,
        help=declared.help,
        path=declared.alone,
        commands={name: _build(name, path) for name, path in declared.commands.items()},
        rich_help_panel=panel,
        invoke_without_command=declared.alone is not None,
        no_args_is_help=declared.alone is None,
    )


def _load(path: str) -> Callable[..., None]:
    module, _, name = path.partition(":")
    with paused_garbage_collection():
        function: Callable[..., None] = getattr(import_module(_PACKAGE + module), name)
    return function


def _read_help(path: str) -> str:
    """Return the docstring of a function, with each paragraph in one line, without importing its module."""
    module, _, name = path.partition(":")
    spec = find_spec(_PACKAGE + module)
    code = spec.loader.get_code(spec.name)  # type: ignore[union-attr]
    function = next(one for one in code.co_consts if isinstance(one, CodeType) and one.co_name == name)
    doc = cleandoc(FunctionType(function, {}).__doc__ or "")
    return "\n\n".join(" ".join(paragraph.split()) for paragraph in doc.split("\n\n"))


@contextmanager
def paused_garbage_collection() -> Iterator[None]:
    """Import without the garbage collector: it takes a sixth of the time of large imports, and finds little."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


def _reporting_errors(function: Callable[..., None]) -> Callable[..., None]:
    """Have a function say in one line what is wrong with its settings, its input or what it needs.

    The function of a group takes the `context`; it runs only if no command of the group is given.
    """

    @wraps(function)
    def command(**options: Any) -> None:
        context = options.get("context")
        if context is not None and context.invoked_subcommand is not None:
            return
        from adjudge_services.cli.output import describe_error, exit_with_error, warn
        from adjudge_services.settings import SettingsError, misspelt_variables

        serves = function.__module__ == _LOGS
        if not serves:
            for warning in misspelt_variables(os.environ):
                warn(warning)
        try:
            _complete(function)(**options)
        except (typer.Exit, typer.Abort, typer.BadParameter, BrokenPipeError):
            raise
        except SettingsError as error:
            exit_with_error(str(error), error=error)
        except Exception as error:  # those that are not described are raised again
            description = None if serves else describe_error(error)
            if description is None:
                raise
            exit_with_error(description, error=error)

    return command


def _complete(function: Callable[..., None]) -> Callable[..., None]:
    """Return a function whose module has imported all that it needs."""
    global OPTIONS_ONLY
    if not OPTIONS_ONLY:
        return function
    OPTIONS_ONLY = False
    with paused_garbage_collection():
        completed: Callable[..., None] = getattr(reload(sys.modules[function.__module__]), function.__name__)
    return completed


def _name(parameter: Any, ctx: Any) -> None:
    type_ = parameter.display_type(ctx).strip("<>").removesuffix(" range")
    type_ = type_.removeprefix("list[").removesuffix("]")
    if parameter.param_type_name == "argument":
        parameter.metavar = parameter.metavar or parameter.name.upper()
        parameter.display_type_rich = _no_type
    elif parameter.metavar is not None:
        pass
    elif parameter.is_flag:
        parameter.metavar = ""
    elif "|" not in type_:
        parameter.metavar = _NAMES.get(type_, type_.upper())
    elif len(type_) <= _MAX_CHOICES:
        parameter.metavar = type_
    else:
        *choices, last = type_.split("|")
        parameter.metavar = "CHOICE"
        parameter.help = f"{parameter.help} One of {', '.join(choices)} or {last}."


def _no_type(ctx: Any) -> str:
    return ""
