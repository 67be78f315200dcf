"""`adjudge models`: fetch judge models, list them, print their paths.

Standard output carries only results (a path, the table); progress and errors go to standard error. The models
themselves are the business of `judge_server.models`.
"""

import time
from collections import defaultdict
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.progress import (
    BarColumn,
    Progress,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.table import Table

from adjudge_services.cli.options import JsonOption
from adjudge_services.cli.output import err, exit_with_error, out, print_json, print_line, show_progress
from judge_server.models import (
    DEFAULT,
    DownloadProgress,
    ModelEntry,
    ModelState,
    fetch,
    installed_path,
    model_entries,
    models_dir,
    parse_model_reference,
)
from judge_server.models.candidates import SLOWEST, Candidate, Fit, fits, recommended, this_machine, why_not_on_hub
from judge_server.models.files import format_bytes

_STYLES = {
    ModelState.PRESENT: "green",
    ModelState.PARTIAL: "yellow",
    ModelState.CORRUPT: "bold red",
    ModelState.ABSENT: "dim",
}


class _Display(DownloadProgress):
    """Progress of a download: a bar on a terminal; in a log a line per phase, and one per tenth, five seconds apart."""

    _SECONDS = 5.0

    def __init__(self, bar: Progress) -> None:
        self._bar, self._task = bar, bar.add_task("", total=None, amount="")
        self._last_line_at = time.monotonic()
        self._tenth = 0

    def stage(self, text: str) -> None:
        """Name the phase before the bar, or print it."""
        self._bar.update(self._task, description=text)
        if self._bar.disable:
            self.note(text)

    def note(self, text: str) -> None:
        """Print a line above the bar."""
        err.print(text, markup=False)

    def advance(self, done: int, total: int | None) -> None:
        """Move the bar, or print a line if it is due."""
        amount = f"{done / 1e6:,.0f}" + (f" of {total / 1e6:,.0f} MB" if total else " MB")
        self._bar.update(self._task, completed=done, total=total, amount=amount)
        tenth, now = 10 * done // total if total else 0, time.monotonic()
        due = now - self._last_line_at >= self._SECONDS and not (total and tenth == self._tenth)
        if self._bar.disable and due:
            self._last_line_at, self._tenth = now, tenth
            self.note(f"{format_bytes(done)}{f' of {format_bytes(total)} ({10 * tenth} %)' if total else ''}")


@contextmanager
def _progress_display() -> Iterator[DownloadProgress]:
    """A progress display for standard error: a bar on a terminal, else lines."""
    columns = (TextColumn("{task.fields[amount]}"), TransferSpeedColumn(), TimeRemainingColumn())
    with show_progress(BarColumn(bar_width=None), *columns) as bar:
        yield _Display(bar)


def pull(
    model: Annotated[
        str, typer.Argument(help="A name from the list, hf://owner/repository/file.gguf, or a path.")
    ] = DEFAULT,
    force: Annotated[bool, typer.Option("--force", help="Download the model again even if it is present.")] = False,
    allow_smaller: Annotated[
        bool, typer.Option("--allow-smaller", help="If no source has the model, fetch the next smaller one.")
    ] = False,
) -> None:
    """Fetch a model, resuming an earlier download, and print its path."""
    try:
        with _progress_display() as progress:
            path = fetch(model, progress=progress, force=force, allow_smaller=allow_smaller)
    except KeyboardInterrupt:
        typer.echo("Stopped. Run the same command again to resume.", err=True)
        raise typer.Exit(130) from None
    typer.echo(path)


def list_models(
    check: Annotated[bool, typer.Option("--check", help="Hash every file instead of comparing sizes only.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List the known models and their state on this machine."""
    with err.status("hashing the files") if check else nullcontext():
        entries = model_entries(check=check)
    if as_json:
        print_json([{**asdict(one), "path": str(one.path)} for one in entries])
        return
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("name", "size", "state", "licence", "note"):
        table.add_column(title, justify="right" if title == "size" else "left", no_wrap=title != "note")
    for entry in entries:
        table.add_row(escape(entry.name), format_bytes(entry.size), _state(entry), entry.licence, entry.note)
    out.print(table)
    print_line(f"in {models_dir()}", style="dim")


def recommend(as_json: JsonOption = False) -> None:
    """Say which judge model suits this machine, why, and how to measure it. Asks the hub, and fetches nothing."""
    machine = this_machine()
    with err.status("asking the hub"):
        found = fits(machine, why_not_on_hub)
    chosen = recommended(found)
    if as_json:
        print_json(
            {
                "machine": machine._asdict(),
                "recommended": None if chosen is None else chosen.candidate.engine_url,
                "models": [fit_json(one) for one in found],
            }
        )
        return
    print_line(f"This machine: {machine}.")
    if chosen is None:
        exit_with_error("no known model suits this machine; give an endpoint as the engine, such as openai://…")
    suiting = [fit.candidate for fit in found if not fit.problem]
    show_recommended(chosen)
    show_comparison(chosen.candidate, suiting)
    table = Table(box=None, pad_edge=False, header_style="bold")
    for title in ("model", "engine", "size", "context", "licence", "note"):
        table.add_column(title, justify="right" if title in ("size", "context") else "left", no_wrap=title != "note")
    for own in suiting:
        note = "; ".join(filter(None, (own.note, "" if own.measured else "untested")))
        size = format_bytes(own.size)
        table.add_row(escape(own.name), own.runner, size, f"{own.context:,}", own.licence, escape(note))
    out.print(table)
    left_out: dict[str, list[str]] = defaultdict(list)
    for fit in found:
        if fit.problem:
            left_out[fit.problem].append(f"{fit.candidate.name} in {fit.candidate.runner}")
    for problem, names in left_out.items():
        print_line(f"Left out ({problem}): {', '.join(names)}.", style="dim")


def fit_json(one: Fit) -> dict[str, Any]:
    """A candidate, and how it suits this machine, as JSON."""
    return {
        "name": one.candidate.name,
        "engine": one.candidate.engine_url,
        "runner": one.candidate.runner,
        "bytes": one.candidate.size,
        "context": one.candidate.context,
        "licence": one.candidate.licence,
        "measured": one.candidate.measured or None,
        "template": one.candidate.template or None,
        "problem": one.problem or None,
        "tokens_per_second": one.tokens_per_second,
    }


def show_recommended(chosen: Fit) -> None:
    """Print the recommended model, and the commands that fetch and serve it."""
    one = chosen.candidate
    out.print(f"[bold]Recommended: {escape(one.name)} in {one.runner}.[/]")
    print_line(f"{one.measured or 'Untested here: larger and newer, so probably a better judge than the default'}.")
    if chosen.tokens_per_second is not None:
        print_line(
            f"Estimated speed: {chosen.tokens_per_second:.0f} prompt tokens a second. Below {SLOWEST:.0f}, a smaller "
            "model comes first."
        )
    for command in filter(None, (one.fetch_command, f"adjudge serve --engine {one.engine_url}")):
        print_line(f"  {command}")
    if one.template:
        print_line(f"It expects a form of its own: ask with --template {one.template}.")


def show_comparison(chosen: Candidate, suiting: Sequence[Candidate]) -> None:
    """Print the commands that compare the models that suit this machine."""
    print_line("Before you train, compare the models that suit this machine on labels of your own:")
    for other in suiting:
        if other.fetch_command and other != chosen:
            print_line(f"  {other.fetch_command}")
    together = [own.engine_url for own in suiting if not own.template]
    print_line(" \\\n    ".join(["  adjudge bakeoff labelled.jsonl", *[f"--judge {url}" for url in together]]))
    for own in suiting:
        if own.template:
            compared = f"--template default --template {own.template}"
            print_line(f"  adjudge bakeoff labelled.jsonl --judge {own.engine_url} {compared}")


def path(
    model: Annotated[str, typer.Argument(help="A name from the list, hf://…, or a path.")] = DEFAULT,
) -> None:
    """Print the path of a model; fail if it is not present."""
    target = parse_model_reference(model)
    found = target if isinstance(target, Path) else installed_path(target)
    if found is None or not found.is_file():
        exit_with_error(f"{model} is missing or incomplete. Fetch it: adjudge models pull {model}")
    typer.echo(found)


def _state(entry: ModelEntry) -> str:
    share = f" {100 * entry.done // entry.size} %" if entry.state is ModelState.PARTIAL else ""
    return f"[{_STYLES[entry.state]}]{entry.state}{share}[/]"
