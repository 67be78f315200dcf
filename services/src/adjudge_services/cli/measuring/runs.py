"""`adjudge runs`: training runs in the ledger, by step and criterion, and what the monitors find in them."""

import asyncio
import json
from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from adjudge_services.cli.options import (
    FirstStepOption,
    JsonOption,
    LastStepOption,
    LedgerUrlOption,
    ProjectOption,
    RunArgument,
)
from adjudge_services.cli.output import exit_with_error, out
from rubric_store.tenants.rows import DEFAULT_PROJECT


class FailOn(StrEnum):
    """From which severity on `adjudge runs monitor` exits with 1."""

    CRITICAL = "critical"
    WARNING = "warning"
    NEVER = "never"


def runs(
    context: typer.Context,
    limit: Annotated[int, typer.Option(min=1, max=500, help="Show at most this many runs.")] = 20,
    as_json: JsonOption = False,
    project: ProjectOption = DEFAULT_PROJECT,
    url: LedgerUrlOption = None,
) -> None:
    """List training runs, the most recently judged first. `adjudge runs show RUN` shows one."""
    from adjudge_services.cli.measuring.runs_work import RUNS, list_runs, print_json, runs_table
    from adjudge_services.store import StartError
    from judge_server.errors import ServiceError
    from trainer_client import AdjudgeError

    try:
        found = asyncio.run(list_runs(url, project, limit))
    except (StartError, ServiceError, AdjudgeError, ValueError, OSError) as error:
        exit_with_error(str(error))
    if as_json:
        print_json(RUNS.dump_json(found, indent=2))
    elif found:
        out.print(runs_table(found))
    else:
        out.print("The ledger has no runs yet. Requests that name a run appear here.", highlight=False)


def show(
    run: RunArgument,
    steps: Annotated[int, typer.Option(min=0, help="Number of last steps to show.")] = 15,
    criteria: Annotated[int, typer.Option(min=0, max=200, help="Show at most this many criteria.")] = 30,
    first_step: FirstStepOption = None,
    last_step: LastStepOption = None,
    corrected: Annotated[
        bool,
        typer.Option("--corrected", help="Correct pass rates for the judge's error; reads every verdict of the run."),
    ] = False,
    evaluation: Annotated[
        Path | None,
        typer.Option(
            help="Report of `adjudge evaluate --json` with the judge's error, instead of its stored calibration.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    as_json: JsonOption = False,
    project: ProjectOption = DEFAULT_PROJECT,
    url: LedgerUrlOption = None,
) -> None:
    """Show a run's rewards by step, and how often each criterion passed over its steps."""
    from adjudge_services.cli.measuring.runs_work import (
        STEPS_A_PAGE,
        corrected_rates,
        correction_note,
        criteria_table,
        exit_unknown,
        heading,
        print_json,
        read_report,
        steps_table,
    )
    from adjudge_services.store import StartError
    from judge_server.errors import ServiceError
    from rubric_store.ledger.rows import RunRange, RunReportQuery
    from trainer_client import AdjudgeError

    view = RunReportQuery(project, run, first_step, last_step, criteria=criteria, limit=STEPS_A_PAGE)
    part = RunRange(project, run, first_step, last_step)
    wanted = corrected or evaluation is not None
    try:
        report = asyncio.run(read_report(url, view))
        rates = asyncio.run(corrected_rates(url, part, evaluation)) if wanted and report is not None else None
    except (StartError, ServiceError, AdjudgeError, ValueError, OSError) as error:
        exit_with_error(str(error))
    if report is None:
        exit_unknown(run)
    if as_json:
        content = report.model_dump_json(indent=2)
        if rates is not None:
            content = json.dumps({**json.loads(content), "corrected": rates.model_dump(mode="json")}, indent=2)
        print_json(content.encode())
        return
    out.print(heading(report, out.width))
    if steps and report.steps:
        out.print("", steps_table(report.steps, steps))
    if report.criteria:
        out.print("", criteria_table(report, out.width, rates))
    if rates is not None:
        out.print(correction_note(rates), highlight=False, markup=False)


def monitor(
    run: Annotated[str, typer.Argument(help="The run's name, as given in its requests.")],
    until_step: Annotated[
        int | None, typer.Option(min=0, help="Last step to look at; by default the run's last one.")
    ] = None,
    fail_on: Annotated[FailOn, typer.Option(help="Exit with 1 if there is a finding this severe.")] = FailOn.CRITICAL,
    as_json: JsonOption = False,
    project: ProjectOption = DEFAULT_PROJECT,
    url: LedgerUrlOption = None,
) -> None:
    """Show what the monitors find in a run. Exits with 1 on a critical finding."""
    from adjudge_services.cli.measuring.runs_work import monitor_view, print_json, read_monitors
    from adjudge_services.store import StartError
    from judge_server.errors import ServiceError
    from trainer_client import AdjudgeError
    from trainer_client.errors import NotFound

    try:
        report = asyncio.run(read_monitors(url, project, run, until_step))
    except NotFound:
        report = None
    except (StartError, ServiceError, AdjudgeError, ValueError, OSError) as error:
        exit_with_error(str(error))
    if report is None:
        exit_with_error(f"the ledger has no step of run {run!r}; `adjudge runs` lists the runs")
    if as_json:
        print_json(report.model_dump_json(indent=2).encode())
    else:
        out.print(monitor_view(report), highlight=False)
    failing = {FailOn.CRITICAL: {"critical"}, FailOn.WARNING: {"critical", "warning"}, FailOn.NEVER: set[str]()}
    if any(finding.severity in failing[fail_on] for finding in report.findings):
        raise typer.Exit(1)
