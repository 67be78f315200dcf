"""`adjudge recompute`: the rewards of a recorded run under another mode, weights or budgets, without asking a judge."""

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import aclosing, nullcontext
from pathlib import Path
from typing import Any, TextIO

from pydantic import TypeAdapter, ValidationError
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from adjudge_services.cli.output import err, exit_with_error, out
from adjudge_services.settings import Settings
from adjudge_services.wiring import StartError, prepare_store
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
    run: str,
    mode: RewardMode | None,
    weights: Path | None,
    suggest: float,
    pitfall: float,
    bonus: float,
    use: VerdictUse | None,
    on_failure: FailurePolicy | None,
    uncertain_band: tuple[float, float] | None,
    on_uncertain: UncertainPolicy | None,
    format_weight: float | None,
    gate_fraction: float | None,
    length_penalty: str | None,
    overlong_penalty: str | None,
    truncation_factor: float | None,
    first_step: int | None,
    last_step: int | None,
    protocol: UsedProtocol | None,
    output: Path | None,
    url: str | None,
) -> None:
    """Run `adjudge recompute`."""
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
