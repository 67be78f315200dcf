"""`adjudge rubrics discriminate`: check whether a rubric tells good responses from bad ones, before training on it."""

import asyncio
import json
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Annotated, Any

import typer

from adjudge_services.cli.groups import FromRequest
from adjudge_services.cli.options import (
    FiguresOption,
    RubricOption,
    Service,
    input_argument,
)
from adjudge_services.cli.output import exit_with_error, file_name, print_refused_lines
from trainer_client.wire import RewardOptions, RewardRequest


def discriminate(
    file: Annotated[
        Path,
        input_argument("JSONL with a prompt per line and its good and bad responses."),
    ],
    *,
    rubric: RubricOption = None,
    options: Annotated[Mapping[str, Any], FromRequest(RewardRequest, without=("judge", "deadline_s"))],
    limit: Annotated[int | None, typer.Option(min=1, help="Judge only the first N lines.")] = None,
    at_least: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="Exit with 1 if good responses rank above bad ones less often than this share."
        ),
    ] = None,
    output: FiguresOption = None,
    service: Service,
) -> None:
    """Judge responses known to be good or bad, and report how well the rubric tells them apart.

    A line has a prompt, `good` and `bad` (a response or a list of responses), and optionally other fields of a group.
    """
    from adjudge_services.cli.judge_choice import choose_judge
    from adjudge_services.cli.rubrics.discriminate_work import judge_pairs, print_report
    from adjudge_services.cli.scoring.score_file import BadLine, PairLine, read_pairs, read_rubric_argument
    from adjudge_services.settings import Settings
    from adjudge_services.store import StartError
    from judge_server.measuring.separation import count_rubrics, separation
    from rubric_store import FormatError
    from trainer_client import AdjudgeError

    lines = list(read_pairs(file, limit))
    refused = {line.number: line.reason for line in lines if isinstance(line, BadLine)}
    pairs = [line for line in lines if isinstance(line, PairLine)]
    if rubric is None:
        without = [line.number for line in pairs if line.group.rubric is None]
        refused |= dict.fromkeys(without, "has no rubric; add one to the line, or give one for all lines with --rubric")
        pairs = [line for line in pairs if line.group.rubric is not None]
    if not pairs:
        print_refused_lines(file, refused)
        exit_with_error(f"{file_name(file)} has no lines that can be judged")
    try:
        chosen = choose_judge(service.judge, service.url, Settings())
        asked = {"mode": RewardOptions().mode, **options, "deadline_s": service.deadline_s, "judge": chosen.name}
        shared = read_rubric_argument(rubric) if rubric else None
        labelled, scored = asyncio.run(judge_pairs(chosen, pairs, shared, asked, service.concurrency))
    except (StartError, FormatError, AdjudgeError, ValueError) as error:
        exit_with_error(str(error))
    found = separation(labelled)
    if output is not None:
        output.write_text(json.dumps(asdict(found), indent=2) + "\n", encoding="utf-8")
    print_report(found, count_rubrics(labelled), f"{file.name} · {asked['mode']} · {scored.judge}")
    refused |= scored.refused
    print_refused_lines(file, refused)
    if found.ordered is None:
        exit_with_error("nothing can be compared: no prompt has both a good and a bad response with a reward")
    if at_least is not None and found.ordered < at_least:
        exit_with_error(f"good ranks above bad {found.ordered:.2f} of the time, which is less than {at_least:g}")
    if refused:
        raise typer.Exit(1)
