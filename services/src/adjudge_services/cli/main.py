"""The command `adjudge`: its subcommands by name, in the panels of its help."""

import inspect
from collections.abc import Callable, Mapping
from typing import Final

import typer

from adjudge_services.cli.judges import commands as judges
from adjudge_services.cli.measuring import commands as measuring
from adjudge_services.cli.operating import commands as operating
from adjudge_services.cli.rubrics import commands as rubrics
from adjudge_services.cli.scoring import commands as scoring

PANELS: Final[Mapping[str, Mapping[str, Callable[..., None] | typer.Typer]]] = {
    "Start": {
        "serve": operating.serve,
        "score": scoring.score,
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


def _build_app() -> typer.Typer:
    app = typer.Typer(
        help="Judge responses by rubrics and turn the verdicts into rewards.",
        no_args_is_help=True,
        pretty_exceptions_show_locals=False,  # they include keys and texts
    )
    app.callback()(_no_options)
    for panel, commands in PANELS.items():
        for name, command in commands.items():
            if isinstance(command, typer.Typer):
                app.add_typer(command, name=name, rich_help_panel=panel)
            else:
                app.command(name, rich_help_panel=panel)(command)
    _join_help_lines(app)
    return app


def _no_options() -> None:
    """Judge responses by rubrics and turn the verdicts into rewards."""


def _join_help_lines(commands: typer.Typer) -> None:
    """Join the lines of each paragraph in every command's help; otherwise typer keeps a docstring's line breaks."""
    for command in commands.registered_commands:
        doc = inspect.getdoc(command.callback) or ""
        command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in doc.split("\n\n"))
    for group in commands.registered_groups:
        if group.typer_instance is not None:
            _join_help_lines(group.typer_instance)


app = _build_app()
