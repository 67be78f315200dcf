"""`adjudge runs`: the training runs of the ledger, and the figures of one by step and criterion."""

import asyncio
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Annotated, NoReturn

import typer
from pydantic import TypeAdapter

from adjudge_services.cli.output import exit_with_error, out
from adjudge_services.cli.runs_view import criteria_table, heading, runs_table, steps_table
from adjudge_services.settings import Settings
from adjudge_services.wiring import StartError, prepare_store
from judge_server.errors import ServiceError
from judge_server.rubrics import PROJECT_ID
from rubric_store import SQLLedger
from trainer_client import AdjudgeError, AsyncClient
from trainer_client.wire.ledger_rows import RunReportQuery
from trainer_client.wire.runs import RunReport, RunSummary

_STEPS_A_PAGE = 500
_RUNS: TypeAdapter[list[RunSummary]] = TypeAdapter(list[RunSummary])

app = typer.Typer(invoke_without_command=True)

ServiceUrlOption = Annotated[
    str | None, typer.Option(help="A running service; without it the database is read.", envvar="ADJUDGE_URL")
]
ProjectOption = Annotated[str, typer.Option(help="Whose runs the database is read for; a service goes by the key.")]
JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON rather than a table.")]


@app.callback()
def runs(
    context: typer.Context,
    limit: Annotated[int, typer.Option(min=1, max=500, help="Show at most this many runs.")] = 20,
    as_json: JsonOption = False,
    project: ProjectOption = PROJECT_ID,
    url: ServiceUrlOption = None,
) -> None:
    """List training runs, the one that was judged for last first; `adjudge runs show RUN` tells of one."""
    if context.invoked_subcommand is not None:
        return
    try:
        found = asyncio.run(_list(url, project, limit))
    except (StartError, ServiceError, AdjudgeError, ValueError, OSError) as error:
        exit_with_error(str(error))
    if as_json:
        _print_json(_RUNS.dump_json(found, indent=2))
    elif found:
        out.print(runs_table(found))
    else:
        out.print("The ledger has no runs yet. What is judged with a run's name shows up here.", highlight=False)


@app.command("show")
def show(
    run: Annotated[str, typer.Argument(help="The run, as it was named when it was judged; '' for none.")],
    steps: Annotated[int, typer.Option(min=0, help="Show the last so many steps.")] = 15,
    criteria: Annotated[int, typer.Option(min=0, max=200, help="Show at most this many criteria.")] = 30,
    first_step: Annotated[int | None, typer.Option(min=0, help="The first step of the part.")] = None,
    last_step: Annotated[int | None, typer.Option(min=0, help="The last step of the part.")] = None,
    as_json: JsonOption = False,
    project: ProjectOption = PROJECT_ID,
    url: ServiceUrlOption = None,
) -> None:
    """Show a run's rewards by step, and how often each criterion passed over its steps."""
    view = RunReportQuery(project, run, first_step, last_step, criteria=criteria, limit=_STEPS_A_PAGE)
    try:
        report = asyncio.run(_report(url, view))
    except (StartError, ServiceError, AdjudgeError, ValueError, OSError) as error:
        exit_with_error(str(error))
    if report is None:
        _unknown(run)
    if as_json:
        _print_json(report.model_dump_json(indent=2).encode())
        return
    out.print(heading(report, out.width))
    if steps and report.steps:
        out.print("", steps_table(report.steps, steps))
    if report.criteria:
        out.print("", criteria_table(report, out.width))


async def _list(url: str | None, project: str, limit: int) -> list[RunSummary]:
    if url is not None:
        async with AsyncClient(url) as client:
            found = []
            async for run in client.runs():
                found.append(run)
                if len(found) == limit:
                    break
            return found
    async with _ledger() as ledger:
        return [*(await ledger.runs(project, limit=limit)).runs]


async def _report(url: str | None, view: RunReportQuery) -> RunReport | None:
    """The report with every step of the part; None where there is no such run."""
    if url is not None:
        async with AsyncClient(url) as client:
            return await client.run_report(view.run, first_step=view.first, last_step=view.last, criteria=view.criteria)
    async with _ledger() as ledger:
        report = part = await ledger.run(view)
        steps = [*part.steps] if part else []
        while part is not None and part.next_cursor is not None:
            part = await ledger.run(view._replace(after=part.next_cursor))
            steps += part.steps if part else []
    return report and report.model_copy(update={"steps": tuple(steps), "next_cursor": None})


@asynccontextmanager
async def _ledger() -> AsyncIterator[SQLLedger]:
    settings = Settings()
    await prepare_store(settings)
    ledger = SQLLedger(settings.store_url)
    try:
        yield ledger
    finally:
        await ledger.close()


def _unknown(run: str) -> NoReturn:
    exit_with_error(f"the ledger has nothing of run {run!r}; `adjudge runs` lists the runs there are")


def _print_json(written: bytes) -> None:
    sys.stdout.write(written.decode() + "\n")
