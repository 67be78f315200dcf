"""`adjudge bakeoff` and `adjudge judges compare`: judges on one labelled data set, or on the responses of one run."""

import asyncio
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from adjudge_services.cli.groups import FromRequest
from adjudge_services.cli.options import (
    Asking,
    DatasetArgument,
    JsonOption,
    MeasuredRows,
    Report,
)
from adjudge_services.cli.output import exit_with_error, file_name
from rubric_store.tenants.rows import DEFAULT_PROJECT
from trainer_client.wire import VerdictRequest


def bakeoff(
    dataset: DatasetArgument,
    *,
    judge: Annotated[
        list[str], typer.Option(help="An engine URL, or the name of a judge of the service at --url; repeat it.")
    ],
    rows: MeasuredRows,
    axes: Annotated[
        Mapping[str, Any], FromRequest(VerdictRequest, part="judging", without=("defences",), repeated=True)
    ],
    cost: Annotated[
        Literal["seconds", "tokens_computed", "tokens_written", "calls"],
        typer.Option(help="The cost of a judgement that the front weighs against quality."),
    ] = "seconds",
    report: Report,
    asking: Asking,
) -> None:
    """Compare judges, and ways of asking them, on labelled data: which is good enough, and what does it cost?

    The contenders are all combinations of the repeated options; the first value of each makes the first contender, with
    which the others are compared. An interrupted bake-off continues where it stopped.
    """
    from adjudge_services.cli.judges.compare_work import combinations, show_bakeoff
    from adjudge_services.cli.judges.evaluate_work import judge_contenders, load_examples, measured_now, write_report
    from adjudge_services.store import StartError
    from judge_server.evaluation.bakeoff import bake_off
    from judge_server.evaluation.html import bakeoff_html
    from judge_server.evaluation.labelled import DatasetError
    from trainer_client import AdjudgeError

    try:
        contenders = combinations(judge, axes)
    except ValueError as error:
        exit_with_error(str(error))
    if len(contenders) < 2:
        exit_with_error(
            "there is one contender, and a bake-off needs two: repeat --judge, --protocol, --criteria-per-call, "
            "--votes or --template, or give --rationale --no-rationale; to measure one judge, use adjudge evaluate"
        )
    try:
        labelled_by, examples = load_examples(dataset, rows)
    except (DatasetError, StartError, AdjudgeError, ValueError, OSError) as error:
        exit_with_error(str(error))
    answered = asyncio.run(judge_contenders(contenders, examples, asking))
    found = bake_off(list(zip(contenders, answered, strict=True)), cost)
    heading = {
        "data set": f"{file_name(Path(dataset))}{'' if rows.half == 'all' else f', half {rows.half}'}",
        "labels by": labelled_by,
        "examples": f"{len(examples):,} of {len({one.row for one in examples}):,} rows",
        "measured": measured_now(),
    }
    write_report(
        heading,
        found.as_json(),
        report,
        show=lambda: show_bakeoff(found, heading),
        page=lambda: bakeoff_html(found, heading),
    )
    if any(one.problem or one.failed or one.refused for one in found.results):
        raise typer.Exit(1)


def compare(
    a: Annotated[str, typer.Argument(help="The judge of today: an engine URL, or a judge's name.", metavar="A")],
    b: Annotated[
        str, typer.Argument(help="The judge of tomorrow; may be the same with another template.", metavar="B")
    ],
    *,
    on: Annotated[str, typer.Option(help="The run whose responses are judged again: run:NAME.", metavar="run:NAME")],
    sample: Annotated[int, typer.Option(min=1, help="Judge at most N groups, the run's first.")] = 50,
    a_template: Annotated[str | None, typer.Option(help="Prompt templates of A.")] = None,
    b_template: Annotated[str | None, typer.Option(help="Prompt templates of B.")] = None,
    a_calibration: Annotated[str | None, typer.Option(help="Stored calibration of A, for an engine URL.")] = None,
    b_calibration: Annotated[str | None, typer.Option(help="Stored calibration of B, for an engine URL.")] = None,
    most_flipped: Annotated[
        float, typer.Option(min=0, max=1, help="Largest share of advantages that may flip; else exit with 1.")
    ] = 0.05,
    as_json: JsonOption = False,
    project: Annotated[str, typer.Option(help="The project of the run.")] = DEFAULT_PROJECT,
    asking: Asking,
) -> None:
    """Judge a sample of a run under two judges, and show how rewards and advantages move.

    An advantage flips if its sign changes, if it vanishes or if it appears. Exits with 1 unless the 95% interval of the
    share of advantages that flip lies below --most-flipped, so that a pipeline can stop a switch that is not shown to
    be harmless. Verdicts of programs are kept as they were recorded.
    """
    from adjudge_services.cli.judges.compare_work import show_comparison
    from adjudge_services.cli.judges.evaluate_work import judge_dataset, judging_options, read_run, write_report
    from adjudge_services.store import StartError
    from judge_server.evaluation.comparing import compare_judges
    from judge_server.evaluation.labelled import DatasetError
    from trainer_client import AdjudgeError

    kind, _, run = on.partition(":")
    if kind != "run":
        exit_with_error(f"--on is {on!r}; write run:NAME")
    try:
        groups = asyncio.run(read_run(run, project, sample))
        responses = [response for group in groups for response in group.responses]
        protocol = groups[0].protocol
        sides = []
        for judge, template, calibration in ((a, a_template, a_calibration), (b, b_template, b_calibration)):
            options = judging_options({"protocol": protocol, "template": template})
            sides.append(
                judge_dataset(
                    judge,
                    responses,
                    options,
                    asking,
                    calibration=calibration,
                )
            )
        found = compare_judges(groups, *sides)
    except (DatasetError, StartError, AdjudgeError, ValueError, OSError) as error:
        exit_with_error(str(error))
    names = [next((one.model for one in side if one.model), "") for side in sides]
    write_report(
        {"run": run, "a": names[0], "b": names[1]},
        found.as_json(),
        Report(as_json=as_json),
        show=lambda: show_comparison(found, f"run {run or '(no run)'}: {names[0]} → {names[1]}", most_flipped),
    )
    if found.exceeds(most_flipped):
        raise typer.Exit(1)
