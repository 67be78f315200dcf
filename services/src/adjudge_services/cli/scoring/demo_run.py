"""`adjudge demo-run`: fill a made-up run in which a criterion is gamed, to look at in the console."""

import asyncio
from collections.abc import Sequence
from urllib.parse import urlencode

from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn

from adjudge_services.cli.output import err, exit_with_error, out
from adjudge_services.demo_run import DEMO_RUNS, PROBLEMS, RESPONSES, STEPS, DemoRun, demo_service, fill
from adjudge_services.settings import Settings
from adjudge_services.wiring import StartError
from judge_server.rubrics import PROJECT_ID
from trainer_client import AdjudgeError
from trainer_client.wire.ledger_rows import RunReportQuery

_ENDS = 10
"""The steps at either end of a run whose mean reward is printed."""


def demo_run() -> None:
    """Run `adjudge demo-run`."""
    settings = Settings()
    if settings.ledger == "off":
        exit_with_error("the ledger is off, so nothing would be kept; set ADJUDGE_LEDGER=all")
    out.print(
        "These runs are made up: a program plays the policy and another one the judge; no model is asked.",
        highlight=False,
        soft_wrap=True,
    )
    try:
        asyncio.run(_fill_missing(settings))
    except (StartError, AdjudgeError, OSError) as error:
        exit_with_error(str(error))
    page = f"{settings.url.rstrip('/')}/console/run?{urlencode({'run': DEMO_RUNS[0].name})}"
    out.print(f"Open {page} in a service on this database; adjudge serve starts one.", highlight=False, soft_wrap=True)


async def _fill_missing(settings: Settings) -> None:
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        async with demo_service(settings) as service:
            for run in DEMO_RUNS:
                if await service.readable_ledger().run(RunReportQuery(PROJECT_ID, run.name, limit=1)) is not None:
                    _say(run, "is already there")
                    continue
                task = progress.add_task(escape(run.name), total=STEPS)
                means = await fill(service, run, lambda task=task: progress.advance(task))  # type: ignore[misc]
                progress.remove_task(task)
                _say(run, _figures(means))


def _figures(means: Sequence[float]) -> str:
    first, last = (sum(part) / len(part) for part in (means[:_ENDS], means[-_ENDS:]))
    responses = STEPS * PROBLEMS * RESPONSES
    return (
        f"{STEPS} steps, {responses:,} responses; mean reward {first:.2f} in the first {_ENDS} steps and {last:.2f} in "
        f"the last {_ENDS}"
    )


def _say(run: DemoRun, what: str) -> None:
    out.print(f"{escape(run.name)}: {what}", highlight=False, soft_wrap=True)
