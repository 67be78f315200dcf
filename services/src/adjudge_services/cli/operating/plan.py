"""`adjudge plan`: how many GPUs a judge needs, from a sample of responses and the rates of an engine."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from adjudge_services.cli.groups import FromRequest
from adjudge_services.cli.options import (
    JsonOption,
    JudgeOption,
    RubricOption,
    copy_input,
)
from adjudge_services.cli.output import exit_with_error, print_json, print_refused_lines
from trainer_client.wire import RewardRequest


@dataclass(frozen=True, slots=True)
class Load:
    """What training runs ask of the judge."""

    steps_per_hour: Annotated[float, typer.Option(min=0.001, help="Training steps per hour of each run.")] = 60.0
    prompts: Annotated[int, typer.Option(min=1, help="Prompts per step.")] = 8
    group_size: Annotated[
        int | None, typer.Option(min=1, help="Responses per prompt; by default as in the sample.")
    ] = None
    runs: Annotated[int, typer.Option(min=1, help="Training runs at the same time.")] = 1
    judging_s: Annotated[
        float | None,
        typer.Option(min=0.001, help="Seconds that judging may add to a step; by default a tenth of the step."),
    ] = None


@dataclass(frozen=True, slots=True)
class PlannedCascade:
    """A cascade to compare with."""

    small: Annotated[
        str | None, typer.Option(help="Published rates of the small judge of a cascade, to compare with.")
    ] = None
    escalated: Annotated[
        float, typer.Option(min=0, max=1, help="Share of the verdicts that the cascade escalates.")
    ] = 0.3


def plan(
    file: Annotated[
        str,
        typer.Argument(
            help="A sample with a group per row (prompt, responses, …), as JSONL, CSV or Parquet: a path, a URL, or - "
            "for JSONL on standard input.",
            callback=copy_input,
        ),
    ],
    *,
    rubric: RubricOption = None,
    reward: Annotated[Mapping[str, Any], FromRequest(RewardRequest, part="reward")],
    judging: Annotated[Mapping[str, Any], FromRequest(RewardRequest, part="judging")],
    load: Load,
    rates: Annotated[
        str | None,
        typer.Option(help="Published rates to plan with, as MODEL@GPUS; by default the engine is measured."),
    ] = None,
    cascade: PlannedCascade,
    gpu_price: Annotated[
        float | None, typer.Option(min=0, help="Price of a GPU (or machine) per hour, in any currency.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Use only the first N lines.")] = None,
    check: Annotated[
        bool, typer.Option("--check", help="Also judge the sample, and compare that with the prediction.")
    ] = False,
    judge: JudgeOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say how many GPUs a judge needs for a number of training runs.

    Counts the judgements and prompt tokens of a sample with the real prompts and the engine's tokenizer, and prints
    GPUs, time in the queue, cost, and what prefix reuse, the verdict cache, fewer criteria and a cascade change.
    """
    from pydantic import ValidationError

    from adjudge_services.cli.operating.plan_work import (
        Wanted,
        make_plan,
        own_engine,
        plan_json,
        plan_request,
        show_plan,
    )
    from adjudge_services.cli.scoring.score_file import BadLine, GroupLine, read_groups
    from adjudge_services.store import StartError
    from judge_server.errors import EngineStartError, EngineUnavailable, ServiceError
    from judge_server.row_files import RowFile
    from rubric_store import FormatError
    from trainer_client.wire.problems import field_errors

    if check and rates is not None:
        exit_with_error("--check compares with this machine's engine; leave out --rates, so that it is measured")
    try:
        lines = list(read_groups(RowFile(file, limit)))
    except (OSError, ValueError) as error:
        exit_with_error(str(error))
    print_refused_lines(Path(file), {line.number: line.reason for line in lines if isinstance(line, BadLine)})
    groups = [line.group for line in lines if isinstance(line, GroupLine)]
    if not groups:
        exit_with_error("the file has no group to plan with; give one with a prompt and responses in each row")
    try:
        request = plan_request(groups, rubric, reward, judging)
        wanted = Wanted(request, load, rates, cascade, gpu_price, check)
        made = asyncio.run(make_plan(wanted, own_engine(judge)))
    except ValidationError as error:
        exit_with_error("; ".join(f"{wrong.field}: {wrong.message}" for wrong in field_errors(error.errors())))
    except (StartError, EngineStartError, EngineUnavailable, ServiceError, FormatError, ValueError) as error:
        exit_with_error(str(error))
    if as_json:
        print_json(plan_json(made))
    else:
        show_plan(made)
