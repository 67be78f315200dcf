"""`adjudge operations`: submit long-running work to a service, follow it, read its results, cancel and retry it."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, TypeVar

import typer
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
from rich.table import Column, Table

from adjudge_services.cli.lazy import OPTIONS_ONLY
from adjudge_services.cli.options import InputsArgument, JsonOption, ServiceUrlOption, UsageError, output_option
from adjudge_services.cli.output import err, out, print_json, show_progress

if not OPTIONS_ONLY:
    from adjudge_services.cli.row_output import RowOutput
    from adjudge_services.settings import Settings
    from adjudge_services.store import use_store
    from rubric_store import SQLOperations
    from trainer_client import Client
    from trainer_client.wire.operations import Operation

T = TypeVar("T")

OperationIdArgument = Annotated[str, typer.Argument(help="The operation's id.", metavar="ID")]

GROUP_KINDS = ("score", "evaluate_judge", "discriminate_rubrics")


def submit(
    kind: Annotated[
        str,
        typer.Argument(help="score, evaluate_judge, discriminate_rubrics, generate_rubrics or validate_rubrics."),
    ],
    file: InputsArgument = None,
    options: Annotated[
        str, typer.Option(help="Other fields of the request, as JSON: rubric, reward, judging, run, generator, …")
    ] = "{}",
    rubric: Annotated[str | None, typer.Option(help="Reference of the rubric.")] = None,
    run: Annotated[str | None, typer.Option(help="Run to account the work to.")] = None,
    watch_it: Annotated[bool, typer.Option("--watch", help="Follow the operation until it ends.")] = False,
    url: ServiceUrlOption = None,
) -> None:
    """Submit an operation and print its id."""
    request = read_options(options) | {"kind": kind}
    request |= {name: value for name, value in (("rubric", rubric), ("run", run)) if value is not None}
    if file is not None:
        request["groups" if kind in GROUP_KINDS else "inputs"] = file.read_text(encoding="utf-8")
    with open_client(url) as client:
        operation = client.submit(request)
        out.print(operation.id)
        if watch_it:
            exit_at_end(follow(client, operation.id))


def list_operations(as_json: JsonOption = False, url: ServiceUrlOption = None) -> None:
    """List the newest operations."""
    table = Table(Column("id", no_wrap=True), "kind", "state", "done", "failed", "judge calls", "submitted (UTC)")
    with open_client(url) as client:
        found = list(client.operations())
    if as_json:
        print_json([one.model_dump(mode="json") for one in found])
        return
    for one in found:
        done = f"{one.progress.done:,} of {one.progress.total or 0:,}"
        row = (one.id, one.kind, one.state, done, f"{one.progress.failed:,}", f"{one.usage.judge_calls:,}")
        table.add_row(*row, f"{one.created_at.astimezone(UTC):%Y-%m-%d %H:%M:%S}")
    out.print(table)


def show(id_: OperationIdArgument, url: ServiceUrlOption = None) -> None:
    """Print an operation and its progress as JSON."""
    out.print_json(call_service(url, lambda client: client.operation(id_)).model_dump_json())


def watch(id_: OperationIdArgument, url: ServiceUrlOption = None) -> None:
    """Follow an operation until it ends; exit with 1 if it fails or is cancelled."""
    with open_client(url) as client:
        exit_at_end(follow(client, id_))


def results(
    id_: OperationIdArgument,
    output: Annotated[Path | None, output_option("File for the results; by default standard output.")] = None,
    url: ServiceUrlOption = None,
) -> None:
    """Write an operation's results so far as JSONL, in order of creation."""
    with open_client(url) as client, RowOutput(output) as rows:
        for result in client.operation_results(id_):
            rows.write(result)


def cancel(id_: OperationIdArgument, url: ServiceUrlOption = None) -> None:
    """Cancel an operation; results so far are kept."""
    print_state(call_service(url, lambda client: client.cancel_operation(id_)))


def retry(id_: OperationIdArgument, url: ServiceUrlOption = None) -> None:
    """Continue an operation that failed or was cancelled."""
    print_state(call_service(url, lambda client: client.retry_operation(id_)))


def purge() -> None:
    """Delete expired operations from the database. Services and workers also do so every hour."""
    deleted = use_store(SQLOperations, lambda store: store.purge(datetime.now(UTC)))
    out.print(f"deleted {deleted:,} expired operations")


def open_client(url: str | None) -> Client:
    """A client of the service."""
    return Client(url or Settings().url)


def call_service(url: str | None, call: Callable[[Client], T]) -> T:
    """Call the service; exit with the reason if that fails."""
    with open_client(url) as client:
        return call(client)


def follow(client: Client, id_: str) -> Operation:
    """Show progress until the operation ends."""
    with show_progress(BarColumn(), MofNCompleteColumn(), TextColumn("{task.fields[about]}", markup=False)) as bar:
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
    err.print(message, markup=False)
    if operation.summary is not None:
        out.print_json(json.dumps(operation.summary))


def read_options(text: str) -> dict[str, Any]:
    """Read `--options`, a JSON object."""
    try:
        options = json.loads(text)
    except ValueError as error:
        raise UsageError(f"--options is not JSON: {error}") from None
    if not isinstance(options, dict):
        raise UsageError('--options: write a JSON object, such as {"reward": {"mode": "stepwise"}}')
    return options
