"""`adjudge bakeoff` and `adjudge judges compare`: judges on one labelled data set, or on the responses of one run."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from itertools import product
from math import isnan
from pathlib import Path
from typing import Annotated, Any, Literal

import typer
from rich.markup import escape

from adjudge_services.cli.groups import FromRequest
from adjudge_services.cli.lazy import OPTIONS_ONLY
from adjudge_services.cli.options import (
    Asking,
    AskingEngines,
    DatasetArgument,
    JsonOption,
    MeasuredRows,
    Report,
    UsageError,
)
from adjudge_services.cli.output import exit_with_error, file_name, out, pluralize, print_line, print_metrics
from rubric_store.tenants.rows import DEFAULT_PROJECT
from trainer_client.wire import VerdictRequest

if not OPTIONS_ONLY:
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
    from judge_server.evaluation.bakeoff import COSTS, BakeOff, Contender, bake_off
    from judge_server.evaluation.comparing import (
        Answers,
        JudgeComparison,
        asked_answers,
        compare_judges,
        judged_by_all,
        recorded_answers,
    )
    from judge_server.evaluation.html import COST_DIGITS, QUALITY_HEADINGS, bakeoff_html, format_estimate, names_of
    from judge_server.evaluation.metrics import UNDEFINED
    from judge_server.evaluation.report import FEW_ROWS
    from judge_server.models.candidates import this_machine
    from trainer_client.wire.options import request_options

_DEFAULT_TEMPLATE = "default"


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
    contenders = combinations(judge, axes)
    if len(contenders) < 2:
        raise UsageError(
            "there is one contender, and a bake-off needs two: repeat --judge, --protocol, --criteria-per-call, "
            "--votes or --template, or give --rationale --no-rationale; to measure one judge, use adjudge evaluate"
        )
    labelled_by, examples = load_examples(dataset, rows)
    rows_used = len({one.row for one in examples})
    answered = asyncio.run(judge_contenders(contenders, examples, asking))
    found = bake_off(list(zip(contenders, answered, strict=True)), cost)
    heading = {
        "data set": f"{file_name(Path(dataset))}{'' if rows.half == 'all' else f', half {rows.half}'}",
        "labels by": labelled_by,
        "examples": f"{pluralize(len(examples), 'example')} from {pluralize(rows_used, 'row')}",
        "measured": measured_now(),
        "machine": str(this_machine()),
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
    a: Annotated[
        str, typer.Argument(help="The judge of today: run:NAME as it was judged, or an engine URL.", metavar="A")
    ],
    b: Annotated[
        str, typer.Argument(help="The judge of tomorrow: run:NAME of adjudge reverify, or an engine URL.", metavar="B")
    ],
    *,
    on: Annotated[
        str | None,
        typer.Option(help="The run whose responses are judged: run:NAME; by default A.", metavar="run:NAME"),
    ] = None,
    sample: Annotated[int, typer.Option(min=1, help="Ask engines about at most N groups, the run's first.")] = 50,
    a_template: Annotated[str | None, typer.Option(help="Prompt templates of A.")] = None,
    b_template: Annotated[str | None, typer.Option(help="Prompt templates of B.")] = None,
    a_calibration: Annotated[str | None, typer.Option(help="Stored calibration of A, for an engine URL.")] = None,
    b_calibration: Annotated[str | None, typer.Option(help="Stored calibration of B, for an engine URL.")] = None,
    most_flipped: Annotated[
        float, typer.Option(min=0, max=1, help="Largest share of advantages that may flip; else exit with 1.")
    ] = 0.05,
    as_json: JsonOption = False,
    project: Annotated[str, typer.Option(help="The project of the run.")] = DEFAULT_PROJECT,
    asking: AskingEngines,
) -> None:
    """Show how rewards and advantages of a run move from one judge to another.

    What a run recorded is compared as it is; nothing is asked. To have a judge of a service judge a run again, use
    adjudge reverify. An engine at a URL is asked in this process, about a sample, and nothing is recorded.

    An advantage flips if its sign changes, if it vanishes or if it appears. Exits with 1 unless the 95% interval of the
    share of advantages that flip lies below --most-flipped, so that a pipeline can stop a switch that is not shown to
    be harmless. Verdicts of programs are kept as they were recorded.
    """
    run = _run_of(a if on is None else on)
    if run is None:
        raise UsageError(f"--on is {on!r}; write run:NAME, or let A be run:NAME")
    sides = ((a, a_template, a_calibration), (b, b_template, b_calibration))
    for side in sides:
        _check_side(run, *side)
    recorded = {judge: name for judge in (a, b) if (name := _run_of(judge)) is not None}
    asks = len(recorded) < len({a, b})
    groups = asyncio.run(read_run(run, project, None if recorded else sample))
    runs = {name: asyncio.run(read_run(name, project, None)) for name in recorded.values() if name != run}
    groups = judged_by_all(groups, list(runs.values()))[: sample if asks else None]
    if not groups:
        exit_with_error(f"no group of run {run!r} was judged whole in the other run too, by the same rubric")
    responses = [response for group in groups for response in group.responses]
    answers: list[Answers] = []
    names = []
    for judge, template, calibration in sides:
        name = recorded.get(judge)
        if name is not None:
            answers.append(recorded_answers(groups, runs.get(name, groups)))
            names.append(name or "(no run)")
            continue
        options = judging_options({"protocol": groups[0].protocol, "template": template})
        judged = judge_dataset(judge, responses, options, Asking(**asdict(asking)), calibration=calibration)
        answers.append(asked_answers(groups, judged))
        names.append(next((one.model for one in judged if one.model), ""))
    found = compare_judges(groups, *answers)
    write_report(
        {"run": run, "a": names[0], "b": names[1]},
        found.as_json(),
        Report(as_json=as_json),
        show=lambda: show_comparison(found, f"run {run or '(no run)'}: {names[0]} → {names[1]}", most_flipped),
    )
    if found.exceeds(most_flipped):
        raise typer.Exit(1)


def _check_side(run: str, judge: str, template: str | None, calibration: str | None) -> None:
    """Exit with the reason if a judge is neither a run nor an engine URL, or if a run is to be judged otherwise."""
    if _run_of(judge) is not None:
        if (template, calibration) != (None, None):
            raise UsageError(f"{judge} is judged already; give adjudge reverify the template, or take an engine URL")
    elif "://" not in judge:
        new = f"{run}/{judge}"
        raise UsageError(
            f"{judge!r} is neither run:NAME nor an engine URL. A service's judge judges the run again by: adjudge "
            f"reverify {run} --verdicts all --judge {judge} --into {new}; then compare run:{run} run:{new}"
        )


def _run_of(judge: str) -> str | None:
    """The run that run:NAME names; None if it is something else."""
    kind, colon, run = judge.partition(":")
    return run if colon and kind == "run" else None


def combinations(judge: Sequence[str], given: Mapping[str, Sequence[Any]]) -> list[Contender]:
    """Return every combination of judges and options, each once; names tell apart what differs."""
    axes = {name: list(dict.fromkeys(values)) for name, values in given.items()}
    defaults = {"template": _DEFAULT_TEMPLATE} | {
        name: option.schema.get("default")
        for name, option in request_options(VerdictRequest).items()
        if name != "template"
    }
    judges = list(dict.fromkeys(judge))
    found = []
    for chosen in product(judges, *axes.values()):
        asked = dict(zip(axes, chosen[1:], strict=True))
        parts = [judge_label(chosen[0])] if len(judges) > 1 else []
        parts += [_describe(name, value) for name, value in asked.items() if len(axes[name]) > 1]
        options = judging_options({name: value for name, value in asked.items() if value != defaults[name]})
        found.append(Contender(", ".join(parts) or judge_label(chosen[0]), chosen[0], options))
    return found


def _describe(name: str, value: Any) -> str:
    if name == "rationale":
        return "reasons first" if value else "no reasons"
    if name == "criteria_per_call":
        return f"{value} a call"
    if name == "votes":
        return f"{value} vote{'s' if value > 1 else ''}"
    if name == "protocol":
        return str(value)
    return f"{'templates' if name == 'template' else name.replace('_', ' ')} {value}"


def show_bakeoff(found: BakeOff, heading: Mapping[str, Any]) -> None:
    """Print the contenders, and which is best."""

    def figures(quality: Mapping[str, Any], cost: Mapping[Any, Any]) -> dict[str, str]:
        shown = {QUALITY_HEADINGS[name]: format_estimate(quality.get(name, UNDEFINED)) for name in names_of(found)}
        costs = {
            name.replace("_", " "): format_estimate(cost.get(name, UNDEFINED), COST_DIGITS[name]) for name in COSTS
        }
        return shown | costs

    cost = found.cost.replace("_", " ")
    out.print(f"[bold]{escape(_best(found))}[/]")
    for one in found.results:
        if one.recommended and len(found.results) > 1:
            out.print(
                f"Recommended: {escape(one.contender.name)}. Of those not shown to be worse than the best, it costs "
                f"the fewest {cost}."
            )
    out.print(f"{heading['data set']}: {heading['examples']}; labels by {heading['labels by']}", markup=False)
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
    out.print(
        f"● no other contender has as much {QUALITY_HEADINGS[found.quality]} for fewer {cost}, or more for as many"
    )
    compared = {one.contender.name: one.differences for one in measured if one.differences is not None}
    if compared:
        out.print(f"minus {escape(measured[0].contender.name)}, over the verdicts that all have:")
        print_metrics(
            {name: {"verdicts": f"{one.n:,}"} | figures(one.quality, one.cost) for name, one in compared.items()}
        )
    if any(0 < one.rows < FEW_ROWS for one in found.results):
        out.print(f"With fewer than {FEW_ROWS} rows, the intervals are too narrow.", style="yellow")
    for one in found.results:
        if one.problem:
            print_line(f"[red]{escape(one.contender.name)}:[/] {escape(one.problem)}")


def _best(found: BakeOff) -> str:
    """Say in a sentence which contender is best, and whether it can be told from the first."""
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


def show_comparison(found: JudgeComparison, title: str, most_flipped: float) -> None:
    """Print how the judges differ."""
    why = found.exceeds(most_flipped)
    if why:
        out.print(f"[bold red]Not shown to be harmless[/]: {escape(why)}.")
    else:
        high = found.advantage_flipped.high
        out.print(f"[bold green]Harmless on this sample[/]: at most {high:.1%} of the advantages change.")
    out.print(f"[bold]{escape(title)}[/]")
    counted = ((found.groups, "group"), (found.responses, "response"), (found.verdicts, "verdict"))
    counts = ", ".join(pluralize(number, noun) for number, noun in counted)
    out.print(f"{counts}; without a reward: {found.unscored_a} → {found.unscored_b}")
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
