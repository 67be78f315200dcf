"""The command `adjudge`: its commands by name, in the panels of its help."""

from collections.abc import Mapping
from importlib.metadata import version as distribution_version
from typing import Annotated, Any, Final

import typer

from adjudge_services.cli.lazy import Commands, Group, build_commands

PANELS: Final[Mapping[str, Mapping[str, str | Commands]]] = {
    "Start": {
        "serve": "operating.serving:serve",
        "score": "scoring.score:score",
        "demo-run": "scoring.demo_run:demo_run",
        "doctor": "operating.doctor:doctor",
        "models": Commands(
            "Choose a judge model for this machine, fetch models, list them, print their paths.",
            {
                "recommend": "judges.models:recommend",
                "pull": "judges.models:pull",
                "list": "judges.models:list_models",
                "path": "judges.models:path",
            },
        ),
    },
    "Rubrics": {
        "generate": "rubrics.generate:generate",
        "rows": "rubrics.generate:rows",
        "rubrics": Commands(
            "Manage rubrics: publish, find, compare, check, import and export them.",
            {
                "publish": "rubrics.changes:publish",
                "show": "rubrics.show:show",
                "list": "rubrics.show:list_rubrics",
                "search": "rubrics.show:search",
                "history": "rubrics.show:history",
                "diff": "rubrics.show:diff",
                "alias": "rubrics.changes:alias",
                "tag": "rubrics.changes:tag",
                "retire": "rubrics.changes:retire",
                "discriminate": "rubrics.discriminate:discriminate",
                "import": "rubrics.files:import_rubrics",
                "export": "rubrics.files:export",
                "lint": "rubrics.files:lint_rubrics",
                "validate": "rubrics.generate:validate",
            },
        ),
    },
    "Judges": {
        "evaluate": "judges.evaluate:evaluate",
        "bakeoff": "judges.compare:bakeoff",
        "attack": "judges.attack:attack",
        "calibrate": "judges.calibrate:calibrate",
        "cascade": "judges.calibrate:cascade",
        "panel": "judges.calibrate:panel",
        "calibrations": Commands(
            "List, show and select stored calibrations.",
            {"show": "judges.calibrate:show", "alias": "judges.calibrate:alias"},
            alone="judges.calibrate:calibrations",
        ),
        "probe": Commands(
            "Fit a probe: a judge that answers by its hidden states.",
            {"fit": "judges.probe:fit", "show": "judges.probe:show"},
        ),
        "judges": Commands(
            "Compare judges before you switch, let them sleep while a trainer needs memory, change their weights.",
            {
                "compare": "judges.compare:compare",
                "sleep": "judges.served:sleep",
                "wake": "judges.served:wake",
                "weights": "judges.served:weights",
            },
        ),
        "templates": Commands(
            "Check, show and list prompt templates.",
            {
                "check": "judges.templates:check",
                "show": "judges.templates:show",
                "list": "judges.templates:list_sets",
            },
        ),
    },
    "Runs and responses": {
        "measure": "measuring.measure:measure",
        "recompute": "scoring.recompute:recompute",
        "reverify": "measuring.reverify:reverify",
        "export": "scoring.export:export",
        "filter-easy": "scoring.score:filter_easy",
        "runs": Commands(
            "List training runs, the most recently judged first. `adjudge runs show RUN` shows one.",
            {"show": "measuring.runs:show", "monitor": "measuring.runs:monitor", "audit": "measuring.audit:audit"},
            alone="measuring.runs:runs",
        ),
    },
    "Operate": {
        "api": "operating.serving:api",
        "judge": "operating.serving:judge",
        "worker": "operating.serving:worker",
        "plan": "operating.plan:plan",
        "top": "operating.top:top",
        "backup": "operating.database:backup",
        "audit": "operating.projects:audit",
        "migrate": Commands(
            "Upgrade, check or downgrade the database schema.",
            {"check": "operating.database:check", "down": "operating.database:down"},
            alone="operating.database:migrate",
        ),
        "ledger": Commands(
            "Purge the ledger, and handle rows that the database refused.",
            {
                "purge": "operating.database:purge",
                "refused": "operating.database:refused",
                "retry": "operating.database:retry",
            },
        ),
        "keys": Commands(
            "Create, list and revoke API keys.",
            {
                "create": "operating.projects:create_key",
                "list": "operating.projects:list_keys",
                "revoke": "operating.projects:revoke",
            },
        ),
        "projects": Commands(
            "Create projects and set their limits.",
            {
                "create": "operating.projects:create",
                "limits": "operating.projects:limits",
                "list": "operating.projects:list_projects",
            },
        ),
        "operations": Commands(
            "Run long work at a service: bulk scoring, rubric generation and validation, evaluation.",
            {
                "submit": "operating.operations:submit",
                "list": "operating.operations:list_operations",
                "show": "operating.operations:show",
                "watch": "operating.operations:watch",
                "results": "operating.operations:results",
                "cancel": "operating.operations:cancel",
                "retry": "operating.operations:retry",
                "purge": "operating.operations:purge",
            },
        ),
    },
}
"""Every command and group of commands, by the panel of the help that shows it."""


class _Adjudge(Group):
    """The group of all commands."""

    def __init__(self, **attributes: Any) -> None:
        super().__init__(**attributes | {"commands": build_commands(PANELS)})


app = typer.Typer(
    cls=_Adjudge,
    no_args_is_help=True,
    context_settings={"help_option_names": ["-h", "--help"]},
    pretty_exceptions_show_locals=False,  # they include keys and texts
)


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"adjudge {distribution_version('adjudge')}")
        raise typer.Exit


@app.callback()
def _adjudge(
    version: Annotated[
        bool,
        typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version),
    ] = False,
) -> None:
    """Judge responses by rubrics and turn the verdicts into rewards."""
