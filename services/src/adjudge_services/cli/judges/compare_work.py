"""Contenders of `adjudge bakeoff`, and the tables of both comparisons."""

from collections.abc import Mapping, Sequence
from itertools import product
from math import isnan
from typing import TYPE_CHECKING, Any

from rich.markup import escape

from adjudge_services.cli.judge_choice import judge_label
from adjudge_services.cli.judges.evaluate_work import judging_options
from adjudge_services.cli.output import out, print_metrics
from trainer_client.wire import VerdictRequest
from trainer_client.wire.options import request_options

if TYPE_CHECKING:
    from judge_server.evaluation.bakeoff import BakeOff, Contender
    from judge_server.evaluation.comparing import JudgeComparison


_DEFAULT_TEMPLATE = "default"


def combinations(judge: Sequence[str], given: Mapping[str, Sequence[Any]]) -> "list[Contender]":
    """Return every combination of judges and options, each once; names tell apart what differs."""
    from judge_server.evaluation.bakeoff import Contender

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


def show_bakeoff(found: "BakeOff", heading: Mapping[str, Any]) -> None:
    """Print the contenders, and which is best."""
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


def show_comparison(found: "JudgeComparison", title: str, most_flipped: float) -> None:
    """Print how the judges differ."""
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
