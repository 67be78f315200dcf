"""`adjudge recompute`: the rewards of a recorded run under another mode, weights or budgets, without asking a judge."""

import asyncio
from collections.abc import Mapping
from contextlib import nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from adjudge_services.cli.groups import FromRequest
from adjudge_services.cli.options import (
    OUTPUT,
    REWARD,
    FirstStepOption,
    LastStepOption,
    LedgerUrlOption,
    RunArgument,
)
from adjudge_services.cli.output import exit_with_error
from trainer_client.wire import RewardRequest, UsedProtocol


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
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the groups here as JSONL.", rich_help_panel=OUTPUT)
    ] = None,
    url: LedgerUrlOption = None,
) -> None:
    """Recompute the rewards of a run from its recorded verdicts, without asking a judge.

    A rule that no option sets is that of each recorded request. Failed verdicts stay failed. Responses that were judged
    twice, for example by a repeated request, appear twice.
    """
    from pydantic import ValidationError

    from adjudge_services.cli.scoring.recompute_work import (
        WEIGHTS,
        recompute_lines,
        show_summary,
        write_events,
    )
    from adjudge_services.settings import Settings
    from adjudge_services.store import StartError
    from judge_server.errors import ServiceError
    from trainer_client import AdjudgeError
    from trainer_client.wire.ledger import RecomputeRequest
    from trainer_client.wire.problems import field_errors

    try:
        request = RecomputeRequest.model_validate(
            {
                "run": run or None,
                "first_step": first_step,
                "last_step": last_step,
                "protocol": protocol,
                **policies,
                "weights": WEIGHTS.validate_json(weights.read_bytes()) if weights else {},
                "budgets": asdict(budgets),
                "reward": rules,
            }
        )
        with output.open("w", encoding="utf-8") if output else nullcontext() as file:
            summary = asyncio.run(write_events(recompute_lines(request, url, Settings()), file))
    except ValidationError as error:
        exit_with_error("; ".join(f"{wrong.field}: {wrong.message}" for wrong in field_errors(error.errors())))
    except (StartError, ServiceError, AdjudgeError, ValueError, OSError) as error:
        exit_with_error(str(error))
    show_summary(summary)
