"""`adjudge recompute`: the rewards of a recorded run under another mode, weights or budgets, without asking a judge."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, nullcontext
from pathlib import Path
from typing import Annotated, Any, TextIO

import typer
from pydantic import TypeAdapter, ValidationError
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from adjudge_services.cli.options import (
    ON_FAILURE,
    ON_UNCERTAIN,
    OUTPUT,
    REWARD,
    USE,
    FirstStepOption,
    LastStepOption,
    LedgerUrlOption,
    RunArgument,
    UncertainBandOption,
)
from adjudge_services.cli.output import err, exit_with_error, out
from adjudge_services.settings import Settings
from adjudge_services.store import StartError, prepare_store
from judge_server.errors import ServiceError
from judge_server.rubrics import PROJECT_ID
from judge_server.scoring.recompute import recompute as recomputed
from rubric_store import SQLLedger
from trainer_client import AdjudgeError, AsyncClient
from trainer_client.wire import FailurePolicy, RewardMode, UncertainPolicy, UsedProtocol, VerdictUse
from trainer_client.wire.ledger import (
    RecomputedGroup,
    RecomputeEvent,
    RecomputeRequest,
    RecomputeStart,
    RecomputeSummary,
)
from trainer_client.wire.problems import field_errors

_WEIGHTS: TypeAdapter[dict[str, float]] = TypeAdapter(dict[str, float])


def recompute(
    run: RunArgument,
    mode: Annotated[
        RewardMode | None,
        typer.Option(help="How verdicts become a reward; by default as they did.", rich_help_panel=REWARD),
    ] = None,
    weights: Annotated[
        Path | None,
        typer.Option(
            help="JSON file of weights by criterion id, instead of the rubric's.", exists=True, rich_help_panel=REWARD
        ),
    ] = None,
    suggest: Annotated[
        float, typer.Option(help="Budget that all suggest criteria add to a response's steps.", rich_help_panel=REWARD)
    ] = 0.8,
    pitfall: Annotated[
        float, typer.Option(help="Budget that all pitfalls add to them; negative.", rich_help_panel=REWARD)
    ] = -1.0,
    bonus: Annotated[
        float, typer.Option(help="Budget that all bonus criteria add to them.", rich_help_panel=REWARD)
    ] = 1.0,
    use: Annotated[VerdictUse | None, USE] = None,
    on_failure: Annotated[FailurePolicy | None, ON_FAILURE] = None,
    uncertain_band: UncertainBandOption = None,
    on_uncertain: Annotated[UncertainPolicy | None, ON_UNCERTAIN] = None,
    format_weight: Annotated[
        float | None, typer.Option(help="Weight of the format in mode stepwise.", rich_help_panel=REWARD)
    ] = None,
    gate_fraction: Annotated[
        float | None, typer.Option(help="Share of criteria that mode gate requires.", rich_help_panel=REWARD)
    ] = None,
    length_penalty: Annotated[
        str | None,
        typer.Option(help='JSON, such as {"coefficient": 1e-4, "target_tokens": 2000}.', rich_help_panel=REWARD),
    ] = None,
    overlong_penalty: Annotated[
        str | None,
        typer.Option(help='JSON, such as {"limit_tokens": 4096, "buffer_tokens": 512}.', rich_help_panel=REWARD),
    ] = None,
    truncation_factor: Annotated[
        float | None, typer.Option(help="Factor on the reward of responses that were cut off.", rich_help_panel=REWARD)
    ] = None,
    first_step: FirstStepOption = None,
    last_step: LastStepOption = None,
    protocol: Annotated[UsedProtocol | None, typer.Option(help="Only verdicts of this judging protocol.")] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the groups here as JSONL.", rich_help_panel=OUTPUT)
    ] = None,
    url: LedgerUrlOption = None,
) -> None:
    """Recompute the rewards of a run from its recorded verdicts, without asking a judge.

    A rule that no option sets is that of each recorded request. Failed verdicts stay failed. Responses that were judged
    twice, for example by a repeated request, appear twice.
    """
    try:
        reward = {
            "mode": mode,
            "format_weight": format_weight,
            "gate_fraction": gate_fraction,
            "length_penalty": _json(length_penalty),
            "overlong_penalty": _json(overlong_penalty),
            "truncation_factor": truncation_factor,
            "use": use,
        }
        request = RecomputeRequest.model_validate(
            {
                "run": run or None,
                "first_step": first_step,
                "last_step": last_step,
                "protocol": protocol,
                "on_failure": on_failure,
                "uncertain_band": uncertain_band,
                "on_uncertain": on_uncertain,
                "weights": _WEIGHTS.validate_json(weights.read_bytes()) if weights else {},
                "budgets": {"suggest": suggest, "pitfall": pitfall, "bonus": bonus},
                "reward": {name: value for name, value in reward.items() if value is not None},
            }
        )
        with output.open("w", encoding="utf-8") if output else nullcontext() as file:
            summary = asyncio.run(_write(_lines(request, url, Settings()), file))
    except ValidationError as error:
        exit_with_error("; ".join(f"{wrong.field}: {wrong.message}" for wrong in field_errors(error.errors())))
    except (StartError, ServiceError, AdjudgeError, ValueError, OSError) as error:
        exit_with_error(str(error))
    _show(summary)


async def _lines(request: RecomputeRequest, url: str | None, settings: Settings) -> AsyncIterator[RecomputeEvent]:
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


async def _write(lines: AsyncIterator[RecomputeEvent], file: TextIO | None) -> RecomputeSummary:
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


def _show(summary: RecomputeSummary) -> None:
    table = Table("responses", "scored", "partial", "unscored", "verdicts", "missing", "mean reward")
    mean = "–" if summary.mean_reward is None else f"{summary.mean_reward:.4f}"
    counts = (summary.responses, summary.scored, summary.partial, summary.unscored, summary.verdicts, summary.missing)
    table.add_row(*(f"{count:,}" for count in counts), mean)
    out.print(f"[bold]{summary.run or '(no run)'} · {summary.mode or 'several modes'}[/]", highlight=False)
    out.print(table)


def _json(text: str | None) -> Any:
    return None if text is None else json.loads(text)
