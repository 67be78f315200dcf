"""Call the service for `adjudge operations`, and show what it answers."""

import json
from typing import Any

import typer
from pydantic import ValidationError
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from adjudge_services.cli.output import err, exit_with_error, out
from adjudge_services.settings import Settings
from trainer_client import AdjudgeError, Client
from trainer_client.wire.operations import Operation

GROUP_KINDS = ("score", "evaluate_judge", "discriminate_rubrics")


def open_client(url: str | None) -> Client:
    """A client of the service."""
    try:
        return Client(url or Settings().url)
    except (ValueError, ValidationError) as error:
        exit_with_error(str(error))


def call_service(url: str | None, call: Any) -> Operation:
    """Call the service; exit with the reason if that fails."""
    try:
        with open_client(url) as client:
            operation: Operation = call(client)
            return operation
    except AdjudgeError as error:
        exit_with_error(str(error))


def follow(client: Client, id_: str) -> Operation:
    """Show progress until the operation ends."""
    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[about]}", markup=False),
    )
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as bar:
        task = bar.add_task("queued", total=None, about="")
        for operation in client.follow(id_):
            progress = operation.progress
            about = f"{operation.usage.judge_calls:,} judge calls"
            if operation.problem:
                about += f" · {operation.problem[:100]}"
            bar.update(task, description=operation.state, completed=progress.done, total=progress.total, about=about)
    return operation


def exit_at_end(operation: Operation) -> None:
    """Print how the operation ended; exit with 1 unless it is done."""
    print_state(operation)
    if operation.state != "done":
        raise typer.Exit(1)


def print_state(operation: Operation) -> None:
    """Print the state of an operation."""
    progress = operation.progress
    message = f"{operation.id}: {operation.state}, {progress.done:,} of {progress.total or 0:,} done"
    if progress.failed:
        message += f", {progress.failed:,} failed"
    if operation.problem:
        message += f". {operation.problem}"
    err.print(message, markup=False, highlight=False, soft_wrap=True)
    if operation.summary is not None:
        out.print_json(json.dumps(operation.summary))


def read_options(text: str) -> dict[str, Any]:
    """Read `--options`, a JSON object."""
    try:
        options = json.loads(text)
    except ValueError as error:
        exit_with_error(f"--options is not JSON: {error}")
    if not isinstance(options, dict):
        exit_with_error('--options: write a JSON object, such as {"reward": {"mode": "stepwise"}}')
    return options
