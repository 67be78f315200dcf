"""`adjudge templates`: check, show and list prompt templates.

The rules for templates are in `judge_server.judging.prompts.library`.
"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from adjudge_services.cli.lazy import OPTIONS_ONLY
from adjudge_services.cli.options import JsonOption, UsageError
from adjudge_services.cli.output import exit_with_error, out, print_json, print_line

if not OPTIONS_ONLY:
    from adjudge_services.settings import Settings
    from judge_server.judging.prompts.library import (
        ALLOWED_VARIABLES,
        REQUIRED_VARIABLES,
        SET_FILE,
        InvalidTemplate,
        TemplateLibrary,
        builtin_sets,
        builtin_templates,
        list_templates,
        load_set,
        read_declaration,
        read_template,
    )


def check(folder: Annotated[Path, typer.Argument(help="A template set: a folder of templates.")]) -> None:
    """Check a template set file by file, including set.toml. Exits with 1 if any file is invalid."""
    failed = False
    folder = folder.resolve()
    paths = list_templates(folder)
    declared = folder / SET_FILE
    for path in [*paths, declared] if declared.exists() else paths:
        try:
            if path == declared:
                read_declaration(folder)
            else:
                read_template(path)
        except InvalidTemplate as error:
            failed = True
            print_line(f"[bold red]wrong[/]  {escape(str(error))}")
        else:
            print_line(f"[green]ok[/]     {escape(f'{path.parent.name}/{path.name}')}")
    raise typer.Exit(1 if failed else 0)


def show(
    name: Annotated[str | None, typer.Argument(help="A template's file name, for example question.j2.")] = None,
    set_name: Annotated[
        str | None, typer.Option("--set", help="A built-in set instead of the default, such as rgr.")
    ] = None,
) -> None:
    """Print a built-in template, or list the templates with their variables."""
    if set_name is not None:
        _show_of_set(set_name, name)
        return
    if name is None:
        table = Table("template", "required variables", "optional variables")
        for known in sorted(ALLOWED_VARIABLES):
            required = REQUIRED_VARIABLES.get(known, frozenset())
            table.add_row(known, ", ".join(sorted(required)), ", ".join(sorted(ALLOWED_VARIABLES[known] - required)))
        out.print(table)
        return
    text = builtin_templates().get(name)
    if text is None:
        raise UsageError(f"there is no template {name!r}; use one of {', '.join(sorted(ALLOWED_VARIABLES))}")
    typer.echo(text, nl=not text.endswith("\n"))


def _show_of_set(set_name: str, name: str | None) -> None:
    """Print a file of a built-in set, or the names of its files."""
    shipped = builtin_sets()
    if set_name not in shipped:
        raise UsageError(f"there is no built-in set {set_name!r}; use one of {', '.join(sorted(shipped))}")
    paths = {path.name: path for path in shipped[set_name].iterdir()}
    if name is not None and name not in paths:
        raise UsageError(f"the set {set_name!r} has no {name!r}; it has {', '.join(sorted(paths))}")
    typer.echo("\n".join(sorted(paths)) if name is None else paths[name].read_text(encoding="utf-8"), nl=name is None)


def list_sets(as_json: JsonOption = False) -> None:
    """List the template sets that requests can name: the built-in ones, and those in ADJUDGE_TEMPLATES_DIR."""
    folder = Settings().templates_dir
    if folder is not None and not folder.is_dir():
        exit_with_error(
            f"ADJUDGE_TEMPLATES_DIR is {folder}, which is not a folder; set it to a folder of template sets"
        )
    shipped = builtin_sets()
    table = Table("name", "source", "state", "templates")
    found: list[dict[str, Any]] = []
    for name, path in sorted(TemplateLibrary(folder).folders.items()):
        source = (
            "built-in" if path == shipped.get(name) else "yours, overrides built-in" if name in shipped else "yours"
        )
        try:
            templates = list(load_set(path).templates)
            found.append({"name": name, "source": source, "problem": None, "templates": templates})
            table.add_row(name, source, "[green]ok[/]", ", ".join(templates))
        except InvalidTemplate as error:
            found.append({"name": name, "source": source, "problem": str(error), "templates": []})
            table.add_row(name, source, "[bold red]wrong[/]", escape(str(error)))
    if as_json:
        print_json(found)
    else:
        out.print(table)
