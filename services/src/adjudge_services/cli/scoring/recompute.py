"""`adjudge recompute`: the rewards of a recorded run under another mode, weights or budgets, without asking a judge."""

import asyncio
from contextlib import nullcontext
from pathlib import Path
from typing import Annotated

import typer

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
from adjudge_services.cli.output import exit_with_error
from trainer_client.wire import FailurePolicy, RewardMode, UncertainPolicy, UsedProtocol, VerdictUse


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
    from pydantic import ValidationError

    from adjudge_services.cli.scoring.recompute_work import (
        WEIGHTS,
        option_json,
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
        reward = {
            "mode": mode,
            "format_weight": format_weight,
            "gate_fraction": gate_fraction,
            "length_penalty": option_json(length_penalty),
            "overlong_penalty": option_json(overlong_penalty),
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
                "weights": WEIGHTS.validate_json(weights.read_bytes()) if weights else {},
                "budgets": {"suggest": suggest, "pitfall": pitfall, "bonus": bonus},
                "reward": {name: value for name, value in reward.items() if value is not None},
            }
        )
        with output.open("w", encoding="utf-8") if output else nullcontext() as file:
            summary = asyncio.run(write_events(recompute_lines(request, url, Settings()), file))
    except ValidationError as error:
        exit_with_error("; ".join(f"{wrong.field}: {wrong.message}" for wrong in field_errors(error.errors())))
    except (StartError, ServiceError, AdjudgeError, ValueError, OSError) as error:
        exit_with_error(str(error))
    show_summary(summary)
