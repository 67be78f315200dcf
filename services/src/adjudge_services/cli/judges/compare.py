"""`adjudge judges`: how a run's rewards would have moved under another judge, before anyone switches."""

import asyncio
import json
import sys
from typing import TYPE_CHECKING, Annotated

import typer
from rich.table import Table

from adjudge_services.cli.judges.evaluate import FreshOption, ServiceOption, judge_dataset, judging_options, read_run
from adjudge_services.cli.output import exit_with_error, out
from adjudge_services.cli.scoring.score_file import ConcurrencyOption, DeadlineOption
from adjudge_services.wiring import StartError
from judge_server.rubrics import PROJECT_ID
from trainer_client import AdjudgeError

if TYPE_CHECKING:
    from judge_server.evaluation.comparing import JudgeComparison

app = typer.Typer(help="Compare judges before you switch.", no_args_is_help=True)


@app.callback()
def judges() -> None:
    """Compare judges before you switch."""


@app.command("compare")
def compare(
    a: Annotated[str, typer.Argument(help="The judge of today: an engine URL, or a judge's name.", metavar="A")],
    b: Annotated[
        str, typer.Argument(help="The judge of tomorrow; may be the same with another template.", metavar="B")
    ],
    on: Annotated[str, typer.Option(help="The run whose responses are judged again: run:NAME.", metavar="run:NAME")],
    sample: Annotated[int, typer.Option(min=1, help="Judge at most N groups, the run's first.")] = 50,
    a_template: Annotated[str | None, typer.Option(help="Prompt templates of A.")] = None,
    b_template: Annotated[str | None, typer.Option(help="Prompt templates of B.")] = None,
    a_calibration: Annotated[str | None, typer.Option(help="Stored calibration of A, for an engine URL.")] = None,
    b_calibration: Annotated[str | None, typer.Option(help="Stored calibration of B, for an engine URL.")] = None,
    most_flipped: Annotated[
        float, typer.Option(min=0, max=1, help="Largest share of advantages that may change sign; else exit with 1.")
    ] = 0.05,
    as_json: Annotated[bool, typer.Option("--json", help="Print JSON instead of a table.")] = False,
    project: Annotated[str, typer.Option(help="The project of the run.")] = PROJECT_ID,
    fresh: FreshOption = False,
    url: ServiceOption = None,
    concurrency: ConcurrencyOption = 4,
    deadline_s: DeadlineOption = 3600.0,
) -> None:
    """Judge a sample of a run under two judges, and show how rewards and advantages move.

    Exits with 1 unless the 95% interval of the share of advantages that change sign lies below --most-flipped, so that
    a pipeline can stop a switch that is not shown to be harmless.
    """
    from judge_server.evaluation.comparing import compare_judges
    from judge_server.evaluation.labelled import DatasetError

    kind, _, run = on.partition(":")
    if kind != "run":
        exit_with_error(f"--on is {on!r}; write run:NAME")
    try:
        groups = asyncio.run(read_run(run, project, sample))
        responses = [response for group in groups for response in group.responses]
        protocol = groups[0].protocol
        sides = []
        for judge, template, calibration in ((a, a_template, a_calibration), (b, b_template, b_calibration)):
            options = judging_options(protocol=protocol, template=template)
            sides.append(
                judge_dataset(
                    judge,
                    responses,
                    options,
                    url=url,
                    fresh=fresh,
                    concurrency=concurrency,
                    deadline_s=deadline_s,
                    calibration=calibration,
                )
            )
        found = compare_judges(groups, *sides)
    except (DatasetError, StartError, AdjudgeError, ValueError, OSError) as error:
        exit_with_error(str(error))
    names = [next((one.model for one in side if one.model), "") for side in sides]
    if as_json:
        sys.stdout.write(json.dumps({"run": run, "a": names[0], "b": names[1], **found.as_json()}, indent=2) + "\n")
    else:
        _show(found, f"run {run or '(no run)'}: {names[0]} → {names[1]}")
    if not found.advantage_flipped.high <= most_flipped:
        raise typer.Exit(1)


def _show(found: "JudgeComparison", title: str) -> None:
    from judge_server.evaluation.html import format_estimate

    out.print(f"[bold]{title}[/]", highlight=False)
    counts = f"{found.groups} groups, {found.responses} responses, {found.verdicts} verdicts"
    out.print(f"{counts}; without a reward: {found.unscored_a} → {found.unscored_b}", highlight=False)
    table = Table("", "value [95% interval]", header_style="bold")
    for name, value in (
        ("verdicts that turn", found.turned),
        ("mean reward, before", found.reward_a),
        ("mean reward, after", found.reward_b),
        ("shift of the reward", found.reward_shift),
        ("rank correlation of rewards", found.reward_correlation),
        ("distance of advantages", found.advantage_distance),
        ("advantages that change sign", found.advantage_flipped),
        ("groups with another best response", found.best_changed),
    ):
        table.add_row(name, format_estimate(value, 3))
    for name, (turned, n) in list(found.by_criterion.items())[:10]:
        table.add_row(f"criterion {name}, n={n}: verdicts that turn", format_estimate(turned, 3))
    out.print(table)
