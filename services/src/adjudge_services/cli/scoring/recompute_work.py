"""Recompute rewards for `adjudge recompute`."""

from collections.abc import AsyncIterator
from contextlib import aclosing
from typing import Any, TextIO

from pydantic import TypeAdapter
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from adjudge_services.cli.output import err, out
from adjudge_services.settings import Settings
from adjudge_services.store import prepare_store
from judge_server.rubrics import PROJECT_ID
from judge_server.scoring.recompute import recompute as recomputed
from rubric_store import SQLLedger
from trainer_client import AsyncClient
from trainer_client.wire.ledger import (
    RecomputedGroup,
    RecomputeEvent,
    RecomputeRequest,
    RecomputeStart,
    RecomputeSummary,
)

WEIGHTS: TypeAdapter[dict[str, float]] = TypeAdapter(dict[str, float])


async def recompute_lines(
    request: RecomputeRequest, url: str | None, settings: Settings
) -> AsyncIterator[RecomputeEvent]:
    """Recompute rewards at a service, or from the database."""
    if url is not None:
        async with AsyncClient(url) as client:
            async for line in client.recompute(request.run or "", **_rules(request)):
                yield line
        return
    await prepare_store(settings)
    ledger = SQLLedger(settings.store_url)
    try:
        async with aclosing(recomputed(ledger, request, project_id=PROJECT_ID)) as parts:
            async for part in parts:
                match part:
                    case RecomputeStart():
                        yield RecomputeEvent(start=part)
                    case RecomputedGroup():
                        yield RecomputeEvent(group=part)
                    case RecomputeSummary():
                        yield RecomputeEvent(summary=part)
    finally:
        await ledger.close()


def _rules(request: RecomputeRequest) -> Any:
    chosen = request.model_dump(exclude={"run", "reward"}, exclude_defaults=True)
    rules = {name: getattr(request, name) for name in chosen}
    return rules | request.reward.model_dump(exclude_unset=True)


async def write_events(lines: AsyncIterator[RecomputeEvent], file: TextIO | None) -> RecomputeSummary:
    """Write the groups to a file; return the summary."""
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task("recomputing rewards", total=None)
        summary, request_id = None, ""
        async for line in lines:
            if line.start is not None:
                progress.update(task, total=line.start.requests)
            if line.group is not None:
                if file is not None:
                    file.write(line.group.model_dump_json() + "\n")
                progress.advance(task, line.group.request_id != request_id)
                request_id = line.group.request_id
            summary = line.summary or summary
    if summary is None:
        raise ValueError("the service's answer was incomplete: it has no summary; try again")
    return summary


def show_summary(summary: RecomputeSummary) -> None:
    """Print the summary."""
    table = Table("responses", "scored", "partial", "unscored", "verdicts", "missing", "mean reward")
    mean = "–" if summary.mean_reward is None else f"{summary.mean_reward:.4f}"
    counts = (summary.responses, summary.scored, summary.partial, summary.unscored, summary.verdicts, summary.missing)
    table.add_row(*(f"{count:,}" for count in counts), mean)
    out.print(f"[bold]{summary.run or '(no run)'} · {summary.mode or 'several modes'}[/]", highlight=False)
    out.print(table)
