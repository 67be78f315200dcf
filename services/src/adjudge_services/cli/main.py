"""`adjudge`: one command, its subcommands each in a file of its own."""

import typer

from adjudge_services.cli import (
    doctor,
    generate,
    ledger,
    migrate,
    models,
    recompute,
    rubrics,
    score,
    serve,
    templates,
    top,
)

app = typer.Typer(
    help="Adjudge judges responses by rubrics and rewards them.", no_args_is_help=True, add_completion=False
)
app.command("serve")(serve.serve)
app.command("score")(score.score)
app.command("generate")(generate.generate)
app.command("recompute")(recompute.recompute)
app.command("top")(top.top)
app.command("doctor")(doctor.doctor)
app.command("migrate")(migrate.migrate)
app.add_typer(rubrics.app, name="rubrics")
app.add_typer(ledger.app, name="ledger")
app.add_typer(models.app, name="models")
app.add_typer(templates.app, name="templates")
