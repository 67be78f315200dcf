"""`adjudge`: one command, its subcommands each in a file of its own."""

import typer

from adjudge_services.cli import doctor, migrate, models, rubrics, score, serve, templates

app = typer.Typer(
    help="Adjudge judges responses by rubrics and rewards them.", no_args_is_help=True, add_completion=False
)
app.command("serve")(serve.serve)
app.command("score")(score.score)
app.command("doctor")(doctor.doctor)
app.command("migrate")(migrate.migrate)
app.add_typer(rubrics.app, name="rubrics")
app.add_typer(models.app, name="models")
app.add_typer(templates.app, name="templates")
