"""Commands whose work is imported when they run.

The `commands` module of each folder declares options and their help, and imports nothing but typer. So help, completion
and mistakes in options are answered without loading a database driver or a web framework.
"""

import gc
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from importlib import import_module
from typing import Any, ParamSpec

P = ParamSpec("P")


def implemented_by(path: str) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Have a command carried out by a function of another module, written as `module:function`.

    The decorated function has no body. It declares the options of the command, and its docstring is the help. The
    function at `path` has parameters of the same names and types, but for the context. The command of a group runs only
    where no command of the group is given.
    """

    def declare(declaration: Callable[P, None]) -> Callable[P, None]:
        @wraps(declaration)
        def command(*_: P.args, **kwargs: P.kwargs) -> None:
            options = dict(kwargs)
            context: Any = options.pop("context", None)
            if context is None or context.invoked_subcommand is None:
                _carry_out(load(path), options)

        command.__dict__["implemented_by"] = path
        return command

    return declare


def _carry_out(function: Callable[..., None], options: dict[str, Any]) -> None:
    """Call a function; say in one line which setting is wrong if one is."""
    if _SETTINGS not in sys.modules:
        return function(**options)
    from adjudge_services.cli.output import exit_with_error, warn
    from adjudge_services.settings import SettingsError, misspelt_variables

    if function.__module__ != _LOGS:
        for warning in misspelt_variables(os.environ):
            warn(warning)
    try:
        function(**options)
    except SettingsError as error:
        exit_with_error(str(error))


_SETTINGS = "adjudge_services.settings"
_LOGS = "adjudge_services.cli.operating.serving"
"""Its processes write warnings to their log."""


def load(path: str) -> Callable[..., None]:
    """Import a function, written as `module:function`."""
    module, _, name = path.partition(":")
    with paused_garbage_collection():
        function: Callable[..., None] = getattr(import_module(module), name)
    return function


@contextmanager
def paused_garbage_collection() -> Iterator[None]:
    """Import without the garbage collector: it takes a sixth of the time of large imports, and finds little."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()
