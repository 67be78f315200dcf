"""The command `adjudge`, with its subcommands in a module each."""

import inspect

import typer

from adjudge_services.cli import (
    calibrate,
    database,
    doctor,
    evaluate,
    filter_easy,
    generate,
    judges,
    measure,
    models,
    operations,
    projects,
    recompute,
    rubrics,
    runs,
    score,
    serving,
    templates,
    top,
)

app = typer.Typer(
    help="Judge responses by rubrics and turn the verdicts into rewards.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_show_locals=False,  # they include keys and texts
)
app.command("serve")(serving.serve)
app.command("api")(serving.api)
app.command("judge")(serving.judge)
app.command("worker")(serving.worker)
app.command("score")(score.score)
app.command("measure")(measure.measure)
app.command("generate")(generate.generate)
app.command("rows")(generate.rows)
app.command("calibrate")(calibrate.calibrate)
app.command("evaluate")(evaluate.evaluate)
app.command("filter-easy")(filter_easy.filter_easy)
app.command("recompute")(recompute.recompute)
app.command("top")(top.top)
app.command("doctor")(doctor.doctor)
app.add_typer(database.app, name="migrate")
app.command("backup")(database.backup)
app.command("audit")(projects.audit)
app.add_typer(rubrics.app, name="rubrics")
app.add_typer(runs.app, name="runs")
app.add_typer(database.ledger_app, name="ledger")
app.add_typer(projects.keys_app, name="keys")
app.add_typer(projects.app, name="projects")
app.add_typer(calibrate.app, name="calibrations")
app.add_typer(judges.app, name="judges")
app.add_typer(models.app, name="models")
app.add_typer(operations.app, name="operations")
app.add_typer(templates.app, name="templates")


def _join_help_lines(commands: typer.Typer) -> None:
    """Join the lines of each paragraph in every command's help; otherwise typer keeps a docstring's line breaks."""
    for command in commands.registered_commands:
        doc = inspect.getdoc(command.callback) or ""
        command.help = "\n\n".join(" ".join(paragraph.split()) for paragraph in doc.split("\n\n"))
    for group in commands.registered_groups:
        if group.typer_instance is not None:
            _join_help_lines(group.typer_instance)


_join_help_lines(app)
