"""`adjudge operations`: submit long-running work to a service, follow it, read its results, cancel and retry it."""

import asyncio
import json
from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated

import typer
from rich.table import Table

from adjudge_services.cli.options import InputsArgument, JsonOption
from adjudge_services.cli.output import exit_with_error, out, print_json

ServiceUrlOption = Annotated[str | None, typer.Option("--url", help="Address of the service; by default ADJUDGE_URL.")]
OperationIdArgument = Annotated[str, typer.Argument(help="The operation's id.", metavar="ID")]


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
    from adjudge_services.cli.operating.operations_work import (
        GROUP_KINDS,
        exit_at_end,
        follow,
        open_client,
        read_options,
    )
    from trainer_client import AdjudgeError

    request = read_options(options) | {"kind": kind}
    request |= {name: value for name, value in (("rubric", rubric), ("run", run)) if value is not None}
    try:
        if file is not None:
            request["groups" if kind in GROUP_KINDS else "inputs"] = file.read_text(encoding="utf-8")
        with open_client(url) as client:
            operation = client.submit(request)
            out.print(operation.id, highlight=False)
            if watch_it:
                exit_at_end(follow(client, operation.id))
    except (AdjudgeError, OSError, UnicodeDecodeError) as error:
        exit_with_error(str(error))


def list_operations(as_json: JsonOption = False, url: ServiceUrlOption = None) -> None:
    """List the newest operations."""
    from adjudge_services.cli.operating.operations_work import open_client
    from trainer_client import AdjudgeError

    table = Table("id", "kind", "state", "done", "failed", "judge calls", "submitted (UTC)")
    try:
        with open_client(url) as client:
            found = list(client.operations())
    except AdjudgeError as error:
        exit_with_error(str(error))
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
    from adjudge_services.cli.operating.operations_work import call_service

    out.print_json(call_service(url, lambda client: client.operation(id_)).model_dump_json())


def watch(id_: OperationIdArgument, url: ServiceUrlOption = None) -> None:
    """Follow an operation until it ends; exit with 1 if it fails or is cancelled."""
    from adjudge_services.cli.operating.operations_work import exit_at_end, follow, open_client
    from trainer_client import AdjudgeError

    try:
        with open_client(url) as client:
            exit_at_end(follow(client, id_))
    except AdjudgeError as error:
        exit_with_error(str(error))


def results(
    id_: OperationIdArgument,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="File for the results; by default standard output.")
    ] = None,
    url: ServiceUrlOption = None,
) -> None:
    """Write an operation's results so far as JSONL, in order of creation."""
    from adjudge_services.cli.operating.operations_work import open_client
    from trainer_client import AdjudgeError

    try:
        with open_client(url) as client:
            lines = (json.dumps(result, ensure_ascii=False) + "\n" for result in client.operation_results(id_))
            if output is None:
                for line in lines:
                    typer.echo(line, nl=False)
            else:
                with output.open("w", encoding="utf-8") as file:
                    file.writelines(lines)
    except (AdjudgeError, OSError) as error:
        exit_with_error(str(error))


def cancel(id_: OperationIdArgument, url: ServiceUrlOption = None) -> None:
    """Cancel an operation; results so far are kept."""
    from adjudge_services.cli.operating.operations_work import call_service, print_state

    print_state(call_service(url, lambda client: client.cancel_operation(id_)))


def retry(id_: OperationIdArgument, url: ServiceUrlOption = None) -> None:
    """Continue an operation that failed or was cancelled."""
    from adjudge_services.cli.operating.operations_work import call_service, print_state

    print_state(call_service(url, lambda client: client.retry_operation(id_)))


def purge() -> None:
    """Delete expired operations from the database. Services and workers also do so every hour."""
    from adjudge_services.settings import Settings
    from adjudge_services.store import StartError, operation_store, prepare_store

    settings = Settings()

    async def delete() -> int:
        await prepare_store(settings)
        store = operation_store(settings)
        try:
            return await store.purge(datetime.now(UTC))
        finally:
            await store.close()

    try:
        deleted = asyncio.run(delete())
    except (StartError, OSError, ValueError) as error:
        exit_with_error(str(error))
    out.print(f"deleted {deleted:,} expired operations", highlight=False)
