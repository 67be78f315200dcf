"""`adjudge bakeoff` and `adjudge judges compare`: judges on one labelled data set, or on the responses of one run."""

import asyncio
from collections.abc import Mapping, Sequence
from itertools import product
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, get_args

import typer
from rich.markup import escape

from adjudge_services.cli.judge_choice import judge_label
from adjudge_services.cli.judges.evaluate import (
    judge_contenders,
    judge_dataset,
    judging_options,
    load_examples,
    measured_now,
    read_run,
    write_report,
)
from adjudge_services.cli.options import (
    JUDGING,
    ColumnOption,
    ConcurrencyOption,
    DatasetArgument,
    DeadlineOption,
    ExampleLimitOption,
    FreshOption,
    HalfOption,
    HtmlOption,
    JsonOption,
    JudgeServiceOption,
    LabelsOption,
    LongestOption,
)
from adjudge_services.cli.output import exit_with_error, file_name, out, print_metrics
from adjudge_services.store import StartError
from rubric_store.tenants.rows import DEFAULT_PROJECT
from trainer_client import AdjudgeError
from trainer_client.wire import JudgingProtocol

if TYPE_CHECKING:
    from judge_server.evaluation.bakeoff import BakeOff, Contender
    from judge_server.evaluation.comparing import JudgeComparison


_DEFAULT_TEMPLATE = "default"


def _known_protocols(given: list[str] | None) -> list[str] | None:
    known: tuple[str, ...] = get_args(JudgingProtocol)
    for name in given or ():
        if name not in known:
            raise typer.BadParameter(f"{name!r} is not a protocol; write one of {', '.join(known)}")
    return given


def bakeoff(
    dataset: DatasetArgument,
    judge: Annotated[
        list[str], typer.Option(help="An engine URL, or the name of a judge of the service at --url; repeat it.")
    ],
    column: ColumnOption = None,
    protocol: Annotated[
        list[str] | None,
        typer.Option(
            help="Judging protocol, by default binary; repeat it.", callback=_known_protocols, rich_help_panel=JUDGING
        ),
    ] = None,
    criteria_per_call: Annotated[
        list[str] | None,
        typer.Option(help="Criteria per judge call; repeat it.", metavar="N|all", rich_help_panel=JUDGING),
    ] = None,
    rationale: Annotated[
        list[bool] | None,
        typer.Option(
            "--rationale/--no-rationale",
            help="Reasons before the verdict; give both to compare.",
            rich_help_panel=JUDGING,
        ),
    ] = None,
    votes: Annotated[
        list[int] | None,
        typer.Option(min=1, help="Verdicts to sample per criterion; repeat it.", rich_help_panel=JUDGING),
    ] = None,
    template: Annotated[
        list[str] | None,
        typer.Option(help="A set of prompt templates, or default; repeat it.", rich_help_panel=JUDGING),
    ] = None,
    cost: Annotated[
        Literal["seconds", "tokens_computed", "tokens_written", "calls"],
        typer.Option(help="The cost of a judgement that the front weighs against quality."),
    ] = "seconds",
    labels: LabelsOption = None,
    half: HalfOption = "all",
    limit: ExampleLimitOption = None,
    longest: LongestOption = None,
    html: HtmlOption = None,
    as_json: JsonOption = False,
    fresh: FreshOption = False,
    url: JudgeServiceOption = None,
    concurrency: ConcurrencyOption = 4,
    deadline_s: DeadlineOption = 3600.0,
) -> None:
    """Compare judges, and ways of asking them, on labelled data: which is good enough, and what does it cost?

    The contenders are all combinations of the repeated options; the first value of each makes the first contender, with
    which the others are compared. An interrupted bake-off continues where it stopped.
    """
    from judge_server.evaluation.bakeoff import bake_off
    from judge_server.evaluation.html import bakeoff_html
    from judge_server.evaluation.labelled import DatasetError

    try:
        contenders = combinations(
            judge=judge,
            protocol=protocol,
            criteria_per_call=criteria_per_call,
            rationale=rationale,
            votes=votes,
            template=template,
        )
    except ValueError as error:
        exit_with_error(str(error))
    if len(contenders) < 2:
        exit_with_error(
            "there is one contender, and a bake-off needs two: repeat --judge, --protocol, --criteria-per-call, "
            "--votes or --template, or give --rationale --no-rationale; to measure one judge, use adjudge evaluate"
        )
    try:
        labelled_by, examples = load_examples(dataset, half, limit, longest, labels, column)
    except (DatasetError, StartError, AdjudgeError, ValueError, OSError) as error:
        exit_with_error(str(error))
    answered = asyncio.run(
        judge_contenders(contenders, examples, url=url, fresh=fresh, concurrency=concurrency, deadline_s=deadline_s)
    )
    found = bake_off(list(zip(contenders, answered, strict=True)), cost)
    heading = {
        "data set": f"{file_name(Path(dataset))}{'' if half == 'all' else f', half {half}'}",
        "labels by": labelled_by,
        "examples": f"{len(examples):,} of {len({one.row for one in examples}):,} rows",
        "measured": measured_now(),
    }
    write_report(
        heading,
        found.as_json(),
        as_json=as_json,
        show=lambda: _show(found, heading),
        html=html,
        page=lambda: bakeoff_html(found, heading),
    )
    if any(one.problem or one.failed or one.refused for one in found.results):
        raise typer.Exit(1)


def combinations(judge: Sequence[str], **given: Sequence[Any] | None) -> "list[Contender]":
    """Return every combination of judges and options, each once; names tell apart what differs."""
    from judge_server.evaluation.bakeoff import Contender

    axes = {name: list(dict.fromkeys(values or [None])) for name, values in given.items()}
    judges = list(dict.fromkeys(judge))
    found = []
    for chosen in product(judges, *axes.values()):
        asked = dict(zip(axes, chosen[1:], strict=True))
        parts = [judge_label(chosen[0])] if len(judges) > 1 else []
        parts += [_describe(name, value) for name, value in asked.items() if len(axes[name]) > 1]
        options = judging_options(
            protocol=asked["protocol"],
            criteria_per_call=asked["criteria_per_call"],
            rationale=asked["rationale"] or None,
            votes=asked["votes"] if asked["votes"] != 1 else None,
            template=asked["template"] if asked["template"] != _DEFAULT_TEMPLATE else None,
        )
        found.append(Contender(", ".join(parts) or judge_label(chosen[0]), chosen[0], options))
    return found


def _describe(name: str, value: Any) -> str:
    if name == "rationale":
        return "reasons first" if value else "no reasons"
    if name == "criteria_per_call":
        return f"{value} a call"
    if name == "votes":
        return f"{value} vote{'s' if value > 1 else ''}"
    return f"templates {value}" if name == "template" else str(value)


def _show(found: "BakeOff", heading: Mapping[str, Any]) -> None:
    from judge_server.evaluation.bakeoff import COSTS
    from judge_server.evaluation.html import COST_DIGITS, QUALITY_HEADINGS, format_estimate, names_of
    from judge_server.evaluation.metrics import UNDEFINED
    from judge_server.evaluation.report import FEW_ROWS

    def figures(quality: Mapping[str, Any], cost: Mapping[Any, Any]) -> dict[str, str]:
        shown = {QUALITY_HEADINGS[name]: format_estimate(quality.get(name, UNDEFINED)) for name in names_of(found)}
        costs = {
            name.replace("_", " "): format_estimate(cost.get(name, UNDEFINED), COST_DIGITS[name]) for name in COSTS
        }
        return shown | costs

    out.print(f"[bold]{escape(_best(found))}[/]", highlight=False)
    out.print(f"{heading['data set']}: {heading['examples']}; labels by {heading['labels by']}", highlight=False)
    measured = [one for one in found.results if not one.problem]
    print_metrics(
        {
            f"{one.contender.name}{' ●' if one.on_front else ''}": {"verdicts": f"{one.n:,}"}
            | ({"failed": f"{one.failed:,}"} if one.failed else {})
            | ({"refused": f"{one.refused:,}"} if one.refused else {})
            | figures(one.quality, one.cost)
            for one in measured
        }
    )
    cost = found.cost.replace("_", " ")
    out.print(
        f"● no other contender has as much {QUALITY_HEADINGS[found.quality]} for fewer {cost}, or more for as many"
    )
    compared = {one.contender.name: one.differences for one in measured if one.differences is not None}
    if compared:
        out.print(f"minus {escape(measured[0].contender.name)}, over the verdicts that all have:", highlight=False)
        print_metrics(
            {name: {"verdicts": f"{one.n:,}"} | figures(one.quality, one.cost) for name, one in compared.items()}
        )
    if any(0 < one.rows < FEW_ROWS for one in found.results):
        out.print(f"With fewer than {FEW_ROWS} rows, the intervals are too narrow.", style="yellow")
    for one in found.results:
        if one.problem:
            out.print(f"[red]{escape(one.contender.name)}:[/] {escape(one.problem)}", highlight=False, soft_wrap=True)


def _best(found: "BakeOff") -> str:
    """Say in a sentence which contender is best, and whether it can be told from the first."""
    from judge_server.evaluation.html import QUALITY_HEADINGS, format_estimate
    from judge_server.evaluation.metrics import UNDEFINED

    measured = [one for one in found.results if not isnan(one.quality.get(found.quality, UNDEFINED).value)]
    if not measured:
        return "No contender could be measured."
    best = max(measured, key=lambda one: one.quality[found.quality].value)
    quality = f"{QUALITY_HEADINGS[found.quality]} {format_estimate(best.quality[found.quality])}"
    said = f"Best: {best.contender.name}, {quality}"
    if best.differences is None:
        return f"{said}."
    moved = best.differences.quality.get(found.quality, UNDEFINED)
    told = "better than" if moved.low > 0 else "not distinguishable from"
    return f"{said}; {told} {measured[0].contender.name} ({format_estimate(moved)})."


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
        float, typer.Option(min=0, max=1, help="Largest share of advantages that may flip; else exit with 1.")
    ] = 0.05,
    as_json: JsonOption = False,
    project: Annotated[str, typer.Option(help="The project of the run.")] = DEFAULT_PROJECT,
    fresh: FreshOption = False,
    url: JudgeServiceOption = None,
    concurrency: ConcurrencyOption = 4,
    deadline_s: DeadlineOption = 3600.0,
) -> None:
    """Judge a sample of a run under two judges, and show how rewards and advantages move.

    An advantage flips if its sign changes, if it vanishes or if it appears. Exits with 1 unless the 95% interval of the
    share of advantages that flip lies below --most-flipped, so that a pipeline can stop a switch that is not shown to
    be harmless. Verdicts of programs are kept as they were recorded.
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
    write_report(
        {"run": run, "a": names[0], "b": names[1]},
        found.as_json(),
        as_json=as_json,
        show=lambda: _show_comparison(found, f"run {run or '(no run)'}: {names[0]} → {names[1]}", most_flipped),
    )
    if found.exceeds(most_flipped):
        raise typer.Exit(1)


def _show_comparison(found: "JudgeComparison", title: str, most_flipped: float) -> None:
    from judge_server.evaluation.html import format_estimate

    why = found.exceeds(most_flipped)
    if why:
        out.print(f"[bold red]Not shown to be harmless[/]: {escape(why)}.", highlight=False)
    else:
        high = found.advantage_flipped.high
        out.print(
            f"[bold green]Harmless on this sample[/]: at most {high:.1%} of the advantages change.", highlight=False
        )
    out.print(f"[bold]{escape(title)}[/]", highlight=False)
    counts = f"{found.groups} groups, {found.responses} responses, {found.verdicts} verdicts"
    out.print(f"{counts}; without a reward: {found.unscored_a} → {found.unscored_b}", highlight=False)
    figures = (
        ("advantages that change sign, vanish or appear", found.advantage_flipped),
        ("groups whose rewards are all equal only after", found.spread_lost),
        ("groups whose rewards were all equal only before", found.spread_gained),
        ("groups with another best response", found.best_changed),
        ("verdicts that turn", found.turned),
        ("mean reward, before", found.reward_a),
        ("mean reward, after", found.reward_b),
        ("shift of the reward", found.reward_shift),
        ("rank correlation of rewards", found.reward_correlation),
        ("distance of advantages", found.advantage_distance),
        *(
            (f"criterion {escape(name)}, n={n}: verdicts that turn", turned)
            for name, (turned, n) in list(found.by_criterion.items())[:10]
        ),
    )
    print_metrics({"value [95% interval]": {name: format_estimate(value, 3) for name, value in figures}})
