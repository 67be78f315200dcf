"""`adjudge rubrics`: the rubric store from the command line."""

import typer

from adjudge_services.cli.rubrics import changes, diff, discriminate, files, lint, show, validate

app = typer.Typer(help="Manage rubrics: publish, find, compare, check, import and export them.", no_args_is_help=True)
app.command("publish")(changes.publish)
app.command("show")(show.show)
app.command("list")(show.list_rubrics)
app.command("search")(show.search)
app.command("history")(show.history)
app.command("diff")(diff.diff)
app.command("alias")(changes.alias)
app.command("tag")(changes.tag)
app.command("retire")(changes.retire)
app.command("discriminate")(discriminate.discriminate)
app.command("import")(files.import_rubrics)
app.command("export")(files.export)
app.command("lint")(lint.lint_rubrics)
app.command("validate")(validate.validate)
