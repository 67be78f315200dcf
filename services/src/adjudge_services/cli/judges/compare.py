"""`adjudge judges`: how a run's rewards would have moved under another judge, before anyone switches."""

import asyncio
from typing import TYPE_CHECKING

import typer
from rich.table import Table

from adjudge_services.cli.judges.evaluate import judge_dataset, judging_options, read_run, write_report
from adjudge_services.cli.output import exit_with_error, out
from adjudge_services.wiring import StartError
from trainer_client import AdjudgeError

if TYPE_CHECKING:
    from judge_server.evaluation.comparing import JudgeComparison


def compare(
    a: str,
    b: str,
    on: str,
    sample: int,
    a_template: str | None,
    b_template: str | None,
    a_calibration: str | None,
    b_calibration: str | None,
    most_flipped: float,
    as_json: bool,
    project: str,
    fresh: bool,
    url: str | None,
    concurrency: int,
    deadline_s: float,
) -> None:
    """Run `adjudge judges compare`."""
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
    write_report(
        {"run": run, "a": names[0], "b": names[1]},
        found.as_json(),
        as_json=as_json,
        show=lambda: _show(found, f"run {run or '(no run)'}: {names[0]} → {names[1]}"),
    )
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
