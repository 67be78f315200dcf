"""How the help of commands shows their options and arguments.

typer writes `<int range>` and `<bool>`, breaks long lists of choices anywhere, and puts arguments in braces. Here flags
have no type, other options the names that command lines usually have, and long lists of choices follow the sentence.
"""

from typing import Any

from typer.core import TyperCommand, TyperGroup

_NAMES = {"str": "TEXT", "int": "INTEGER", "float": "NUMBER", "path": "PATH", "file": "FILE", "directory": "FOLDER"}

_MAX_CHOICES = 24
"""Characters of choices beside an option; longer lists follow its sentence."""


class _ShownParameters:
    """Gives options and arguments the names that their help shows."""

    def get_params(self, ctx: Any) -> list[Any]:
        """The parameters, named for the help."""
        params: list[Any] = super().get_params(ctx)  # type: ignore[misc]
        for one in params:
            _name(one, ctx)
        return params

    def collect_usage_pieces(self, ctx: Any) -> list[str]:
        """The words of the line of usage; required arguments stand without braces."""
        pieces: list[str] = super().collect_usage_pieces(ctx)  # type: ignore[misc]
        return [piece.replace("{", "").replace("}", "") for piece in pieces]


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


class Command(_ShownParameters, TyperCommand):
    """A command whose help shows its parameters as above."""


class Group(_ShownParameters, TyperGroup):
    """A group of commands whose help shows its parameters as above."""
