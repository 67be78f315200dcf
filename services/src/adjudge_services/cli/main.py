"""The command `adjudge`: its subcommands by name, in the panels of its help.

The help shows options and arguments in one style for all of them.
"""

import inspect
from collections.abc import Callable, Mapping
from importlib.metadata import version as distribution_version
from typing import Annotated, Any, Final

import typer
from typer.core import TyperCommand, TyperGroup

from adjudge_services.cli.judges import commands as judges
from adjudge_services.cli.measuring import commands as measuring
from adjudge_services.cli.operating import commands as operating
from adjudge_services.cli.rubrics import commands as rubrics
from adjudge_services.cli.scoring import commands as scoring

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


PANELS: Final[Mapping[str, Mapping[str, Callable[..., None] | typer.Typer]]] = {
    "Start": {
        "serve": operating.serve,
        "score": scoring.score,
        "demo-run": scoring.demo_run,
        "doctor": operating.doctor,
        "models": judges.models_app,
    },
    "Rubrics": {
        "generate": rubrics.generate,
        "rows": rubrics.rows,
        "rubrics": rubrics.rubrics_app,
    },
    "Judges": {
        "evaluate": judges.evaluate,
        "bakeoff": judges.bakeoff,
        "attack": judges.attack,
        "calibrate": judges.calibrate,
        "cascade": judges.cascade,
        "panel": judges.panel,
        "calibrations": judges.calibrations_app,
        "judges": judges.judges_app,
        "templates": judges.templates_app,
    },
    "Runs and responses": {
        "measure": measuring.measure,
        "recompute": scoring.recompute,
        "filter-easy": scoring.filter_easy,
        "runs": measuring.runs_app,
    },
    "Operate": {
        "api": operating.api,
        "judge": operating.judge,
        "worker": operating.worker,
        "plan": operating.plan,
        "top": operating.top,
        "backup": operating.backup,
        "audit": operating.audit,
        "migrate": operating.migrate_app,
        "ledger": operating.ledger_app,
        "keys": operating.keys_app,
        "projects": operating.projects_app,
        "operations": operating.operations_app,
    },
}
"""Every command and group of commands, by the panel of the help that shows it."""


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"adjudge {distribution_version('adjudge')}")
        raise typer.Exit


def _build_app() -> typer.Typer:
    app = typer.Typer(
        help="Judge responses by rubrics and turn the verdicts into rewards.",
        no_args_is_help=True,
        context_settings={"help_option_names": ["-h", "--help"]},
        pretty_exceptions_show_locals=False,  # they include keys and texts
    )
    app.callback()(_adjudge)
    for panel, commands in PANELS.items():
        for name, command in commands.items():
            if isinstance(command, typer.Typer):
                app.add_typer(command, name=name, rich_help_panel=panel)
            else:
                app.command(name, rich_help_panel=panel)(command)
    app.info.cls = Group
    _finish(app)
    return app


def _adjudge(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version),
    ] = False,
) -> None:
    """Judge responses by rubrics and turn the verdicts into rewards."""


def _finish(commands: typer.Typer) -> None:
    """Set the classes of commands, and join the lines of each paragraph of their help, which typer leaves broken."""
    for command in commands.registered_commands:
        command.cls = Command
        doc = inspect.getdoc(command.callback) or ""
        command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in doc.split("\n\n"))
    for group in commands.registered_groups:
        group.cls = Group
        if group.typer_instance is not None:
            _finish(group.typer_instance)


app = _build_app()
