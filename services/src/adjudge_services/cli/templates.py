"""`adjudge templates check | show | list`: prompt templates of one's own.

What a template may hold and must show, `judge_server.prompts.sources` knows; here is only what a terminal needs.
"""

from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape
from rich.table import Table

from adjudge_services.cli.output import give_up, out
from adjudge_services.settings import Settings
from judge_server.prompts.library import TemplateLibrary
from judge_server.prompts.sources import (
    MAY_USE,
    MUST_USE,
    TemplateRefused,
    own_templates,
    read_set,
    read_template,
    templates_in,
)

app = typer.Typer(help="Check, show and list prompt templates.", no_args_is_help=True)


@app.command("check")
def check(folder: Annotated[Path, typer.Argument(help="A set: a folder of templates.")]) -> None:
    """Check a set of templates file by file; exit with 1 if any of them is wrong."""
    failed = False
    try:
        paths = templates_in(folder.resolve())
    except TemplateRefused as error:
        give_up(str(error))
    for path in paths:
        try:
            read_template(path)
        except TemplateRefused as error:
            failed = True
            out.print(f"[bold red]wrong[/]  {escape(str(error))}", highlight=False, soft_wrap=True)
        else:
            out.print(f"[green]ok[/]     {escape(f'{path.parent.name}/{path.name}')}", highlight=False, soft_wrap=True)
    raise typer.Exit(1 if failed else 0)


@app.command("show")
def show(name: Annotated[str | None, typer.Argument(help="For example question.j2.")] = None) -> None:
    """Print the text of one of the judge's own templates, or list them with what each is given."""
    if name is None:
        table = Table("template", "must show", "is also given")
        for known in sorted(MAY_USE):
            must = MUST_USE.get(known, frozenset())
            table.add_row(known, ", ".join(sorted(must)), ", ".join(sorted(MAY_USE[known] - must)))
        out.print(table)
        return
    text = own_templates().get(name)
    if text is None:
        give_up(f"there is no template {name!r}; there are {', '.join(sorted(MAY_USE))}")
    typer.echo(text, nl=not text.endswith("\n"))


@app.command("list")
def list_sets() -> None:
    """List the sets of templates in the folder of ADJUDGE_TEMPLATES_DIR."""
    folder = Settings().templates_dir
    if folder is None or not folder.is_dir():
        what = "not set" if folder is None else f"{folder}, which is no folder"
        give_up(f"ADJUDGE_TEMPLATES_DIR is {what}; have it name a folder of sets")
    table = Table("name", "state", "templates")
    for name in TemplateLibrary(folder).names:
        try:
            table.add_row(name, "[green]ok[/]", ", ".join(read_set(folder / name)))
        except TemplateRefused as error:
            table.add_row(name, "[bold red]wrong[/]", escape(str(error)))
    out.print(table)
