"""`adjudge recompute`: the rewards of a recorded run under another mode, weights or budgets, without asking a judge."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from adjudge_services.cli.groups import FromRequest
from adjudge_services.cli.lazy import OPTIONS_ONLY
from adjudge_services.cli.options import (
    OUTPUT,
    REWARD,
    FirstStepOption,
    LastStepOption,
    LedgerUrlOption,
    RunArgument,
    output_option,
)
from adjudge_services.cli.output import out, show_progress
from trainer_client.wire import RewardRequest, UsedProtocol

if not OPTIONS_ONLY:
    from pydantic import TypeAdapter

    from adjudge_services.cli.row_output import RowOutput
    from adjudge_services.store import open_store
    from judge_server.scoring.recompute import recompute as recomputed
    from judge_server.scoring.rubrics import PROJECT_ID
    from rubric_store import SQLLedger
    from trainer_client import AsyncClient
    from trainer_client.wire.ledger import (
        RecomputedGroup,
        RecomputeEvent,
        RecomputeRequest,
        RecomputeStart,
        RecomputeSummary,
    )


@dataclass(frozen=True, slots=True)
class Budgets:
    """What all criteria of a kind add to a response's steps."""

    suggest: Annotated[
        float, typer.Option(help="Budget that all suggest criteria add to a response's steps.", rich_help_panel=REWARD)
    ] = 0.8
    pitfall: Annotated[
        float, typer.Option(help="Budget that all pitfalls add to them; negative.", rich_help_panel=REWARD)
    ] = -1.0
    bonus: Annotated[
        float, typer.Option(help="Budget that all bonus criteria add to them.", rich_help_panel=REWARD)
    ] = 1.0


def recompute(
    run: RunArgument,
    *,
    rules: Annotated[
        Mapping[str, Any],
        FromRequest(RewardRequest, part="reward", without=("schedule", "rounds"), defaults=False),
    ],
    policies: Annotated[
        Mapping[str, Any],
        FromRequest(RewardRequest, only=("on_failure", "uncertain_band", "on_uncertain"), defaults=False),
    ],
    weights: Annotated[
        Path | None,
        typer.Option(
            help="JSON file of weights by criterion id, instead of the rubric's.", exists=True, rich_help_panel=REWARD
        ),
    ] = None,
    budgets: Budgets,
    first_step: FirstStepOption = None,
    last_step: LastStepOption = None,
    protocol: Annotated[UsedProtocol | None, typer.Option(help="Only verdicts of this judging protocol.")] = None,
    output: Annotated[Path | None, output_option("Write the groups here as JSONL.", rich_help_panel=OUTPUT)] = None,
    url: LedgerUrlOption = None,
) -> None:
    """Recompute the rewards of a run from its recorded verdicts, without asking a judge.

    A rule that no option sets is that of each recorded request. Failed verdicts stay failed. Responses that were judged
    twice, for example by a repeated request, appear twice.
    """
    request = RecomputeRequest.model_validate(
        {
            "run": run or None,
            "first_step": first_step,
            "last_step": last_step,
            "protocol": protocol,
            **policies,
            "weights": TypeAdapter(dict[str, float]).validate_json(weights.read_bytes()) if weights else {},
            "budgets": asdict(budgets),
            "reward": rules,
        }
    )
    with RowOutput(output) if output else nullcontext() as rows:
        summary = asyncio.run(write_events(recompute_lines(request, url), rows))
    show_summary(summary)


async def recompute_lines(request: RecomputeRequest, url: str | None) -> AsyncIterator[RecomputeEvent]:
    """Recompute rewards at a service, or from the database."""
    if url is not None:
        async with AsyncClient(url) as client:
            async for line in client.recompute(request.run or "", **_rules(request)):
                yield line
        return
    async with (
        open_store(SQLLedger) as ledger,
        aclosing(recomputed(ledger, request, project_id=PROJECT_ID)) as parts,
    ):
        async for part in parts:
            match part:
                case RecomputeStart():
                    yield RecomputeEvent(start=part)
                case RecomputedGroup():
                    yield RecomputeEvent(group=part)
                case RecomputeSummary():
                    yield RecomputeEvent(summary=part)


def _rules(request: RecomputeRequest) -> Any:
    chosen = request.model_dump(exclude={"run", "reward"}, exclude_defaults=True)
    rules = {name: getattr(request, name) for name in chosen}
    return rules | request.reward.model_dump(exclude_unset=True)


async def write_events(lines: AsyncIterator[RecomputeEvent], rows: RowOutput | None) -> RecomputeSummary:
    """Write the groups; return the summary."""
    with show_progress() as progress:
        task = progress.add_task("recomputing rewards", total=None)
        summary, request_id = None, ""
        async for line in lines:
            if line.start is not None:
                progress.update(task, total=line.start.requests)
            if line.group is not None:
                if rows is not None:
                    rows.write(line.group.model_dump(mode="json"))
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
    out.print(f"{summary.run or '(no run)'} · {summary.mode or 'several modes'}", style="bold", markup=False)
    out.print(table)
