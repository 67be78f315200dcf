"""`adjudge plan`: how many GPUs a judge needs, from a sample of responses and the rates of an engine."""

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import Mapping, Sequence
from contextlib import AsyncExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import typer
from rich.markup import escape
from rich.table import Table

from adjudge_services.cli.groups import FromRequest
from adjudge_services.cli.lazy import OPTIONS_ONLY
from adjudge_services.cli.options import JsonOption, JudgeOption, RubricOption, UsageError, copy_input
from adjudge_services.cli.output import (
    exit_with_error,
    format_seconds,
    out,
    print_json,
    print_line,
    print_refused_lines,
)
from trainer_client.wire import RewardRequest

if not OPTIONS_ONLY:
    from adjudge_services.cli.judge_choice import with_engine
    from adjudge_services.cli.scoring.score_file import read_groups, read_rubric_argument, split_lines
    from adjudge_services.judges import build_engine, build_judge, load_judge
    from adjudge_services.settings import Settings
    from adjudge_services.store import open_store
    from judge_server.evaluation.capacity import (
        Demand,
        Estimate,
        Layout,
        PrefixCache,
        PromptTokenizer,
        Rates,
        Training,
        Workload,
        count_workload,
        estimate,
        judge_layouts,
        measure_rates,
        plan_sample,
        published_rates,
    )
    from judge_server.evaluation.row_files import RowFile
    from judge_server.judging.plan import ResponsePlan
    from judge_server.judging.results import collect
    from judge_server.ports import Engine
    from judge_server.scheduling.executor import LocalExecutor
    from judge_server.scoring.judge import Judge
    from rubric_store import RubricStore

MEASURED_CALLS = 24
"""How many calls the rates of an engine are fitted to, if the sample has as many."""

CHECK_DEADLINE_S = 3600.0
"""The seconds that judging the sample for `--check` may take. Calls after it fail, and the comparison is wrong."""


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


ROLLOUT_SHARE = 2 / 3
"""The share of a step that generating responses takes, unless `--rollout-s` and `--update-s` say otherwise."""


@dataclass(frozen=True, slots=True)
class Trainer:
    """The trainer of each run, whose GPUs the judge may share."""

    gpus: Annotated[
        int | None, typer.Option(min=1, help="GPUs of each run's trainer; compares where the judge may run.")
    ] = None
    rollout_s: Annotated[
        float | None,
        typer.Option(min=0, help="Seconds of a step's rollouts; with --update-s, in place of --steps-per-hour."),
    ] = None
    update_s: Annotated[float | None, typer.Option(min=0, help="Seconds of the rest of a step, without judging.")] = (
        None
    )
    wake_s: Annotated[
        float, typer.Option(min=0, help="Seconds to wake a judge on the trainer's GPUs and put it to sleep again.")
    ] = 10.0
    judge_memory: Annotated[
        float,
        typer.Option(min=0, max=0.99, help="Share of the rollouts' GPU memory that a judge takes if it stays awake."),
    ] = 0.2


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
    trainer: Trainer,
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
    With --gpus, compares a judge on its own GPUs with one that shares the trainer's, awake or asleep between batches.
    """
    if (trainer.rollout_s is None) != (trainer.update_s is None):
        raise UsageError("give both --rollout-s and --update-s, or neither: together they are a step without judging")
    if check and rates is not None:
        raise UsageError("--check compares with this machine's engine; leave out --rates, so that it is measured")
    lines, refused = split_lines(read_groups(RowFile(file, limit)))
    print_refused_lines(Path(file), refused)
    groups = [line.group for line in lines]
    if not groups:
        exit_with_error("the file has no group to plan with; give one with a prompt and responses in each row")
    fields = {} if rubric is None else {"rubric": read_rubric_argument(rubric)}
    request = RewardRequest.model_validate({"groups": groups, "reward": reward, "judging": judging, **fields})
    wanted = Wanted(request, _paced(load, trainer), trainer, rates, cascade, gpu_price, check)
    made = asyncio.run(make_plan(wanted, own_engine(judge)))
    if as_json:
        print_json(plan_json(made))
    else:
        show_plan(made)


def _paced(load: Load, trainer: Trainer) -> Load:
    """Return the load with the pace that the seconds of a step give, if they are given."""
    if trainer.rollout_s is None or trainer.update_s is None:
        return load
    if not trainer.rollout_s + trainer.update_s:
        raise UsageError("--rollout-s and --update-s are both 0; a step takes some time without judging")
    return replace(load, steps_per_hour=3600 / (trainer.rollout_s + trainer.update_s))


class Saving(NamedTuple):
    """A way to ask for the same rewards, and the seconds that one replica works on a response then."""

    name: str
    seconds: float


class Checked(NamedTuple):
    """What was predicted of the sample, and what judging it took."""

    predicted_computed: int
    computed: int
    predicted_s: float
    seconds: float


class Plan(NamedTuple):
    """All that the command says."""

    judge: str
    workload: Workload
    rates: Rates
    demand: Demand
    estimate: Estimate
    savings: list[tuple[Saving, Estimate]]
    price: float | None
    checked: Checked | None
    training: Training | None = None
    layouts: Sequence[Layout] = ()


class Wanted(NamedTuple):
    """What the command was asked."""

    request: RewardRequest
    load: Load
    trainer: Trainer
    rates: str | None
    cascade: PlannedCascade
    price: float | None
    check: bool


def own_engine(judge: str | None) -> Settings:
    """Return the settings of the engine to plan with, which runs in this process."""
    if judge is not None and ("://" not in judge or judge.startswith("{")):
        raise UsageError(f"--judge {judge}: this command runs the engine here; give one engine URL")
    return Settings() if judge is None else with_engine(judge, Settings())


async def make_plan(wanted: Wanted, settings: Settings) -> Plan:
    """Count the sample, measure or look up the rates, and estimate."""
    own = settings.model_copy(update={"cache_url": "memory://"})
    engine = build_engine(own)
    tokenizer = _tokenizer(engine, own.engine_url)
    request = wanted.request
    responses = sum(len(group.responses) for group in request.groups)
    async with AsyncExitStack() as closing:
        store = await closing.enter_async_context(open_store(RubricStore, own))
        judge = build_judge(LocalExecutor(engine, rules=own.queue_rules), own)
        closing.push_async_callback(judge.close)
        await load_judge(judge, lambda _: None)
        plans = await plan_sample(judge, store, request)
        cache: PrefixCache = "slot" if wanted.rates is None else "blocks"
        checked = None
        work = await count_workload(tokenizer, plans, cache, responses=responses)
        if wanted.rates is None:
            measured = _some(plans)
            rates = await measure_rates(engine, judge.identity.model, measured)
            if wanted.check:
                batch = measured[-1].batch
                previous = await tokenizer.prompt_tokens(batch, batch.calls[-1])
                checked = await _check(judge, tokenizer, plans, rates, responses, previous)
        else:
            rates = published_rates(wanted.rates)
        half = await plan_sample(judge, store, request, criteria_share=0.5)
        fewer = await count_workload(tokenizer, half, cache, responses=responses)
        name = judge.identity.model
    size = wanted.load.group_size or max(1, round(responses / len(request.groups)))
    interval = 3600 / wanted.load.steps_per_hour
    demand = Demand(
        wanted.load.runs, wanted.load.steps_per_hour, wanted.load.prompts * size, wanted.load.judging_s or interval / 10
    )
    each = rates.seconds(work.computed, work.written) / responses
    found = estimate(demand, each, rates.gpus)
    savings = [(one, estimate(demand, one.seconds, rates.gpus)) for one in _savings(wanted, work, fewer, rates)]
    training = _training(wanted)
    layouts = [] if training is None else judge_layouts(demand, training, each, rates.gpus, found)
    return Plan(name, work, rates, demand, found, savings, wanted.price, checked, training, layouts)


def _training(wanted: Wanted) -> Training | None:
    """Return what the layouts need to know of a run; None if they are not asked for."""
    given = wanted.trainer
    if given.gpus is None:
        return None
    interval = 3600 / wanted.load.steps_per_hour
    rollout_s = ROLLOUT_SHARE * interval if given.rollout_s is None else given.rollout_s
    update_s = interval - rollout_s if given.update_s is None else given.update_s
    return Training(given.gpus, rollout_s, update_s, given.wake_s, given.judge_memory)


def _tokenizer(engine: Engine, url: str) -> PromptTokenizer:
    if not isinstance(engine, PromptTokenizer):
        raise ValueError(
            f"the engine {url} does not tell the tokens of a prompt; plan with --judge llamacpp://MODEL, of a model "
            "with the tokenizer of your judge, and give the judge's --rates"
        )
    return engine


def _some(plans: Sequence[ResponsePlan]) -> list[ResponsePlan]:
    """Return plans from all over the sample, which may be ordered by length, with about `MEASURED_CALLS` calls."""
    asked = [plan for plan in plans if plan.batch.calls]
    if not asked:
        raise ValueError("no criterion of the sample needs the judge: programs decide all of them")
    wanted = min(len(asked), math.ceil(MEASURED_CALLS * len(asked) / sum(len(plan.batch.calls) for plan in asked)))
    return [asked[number * len(asked) // wanted] for number in range(wanted)]


async def _check(
    judge: Judge,
    tokenizer: PromptTokenizer,
    plans: Sequence[ResponsePlan],
    rates: Rates,
    responses: int,
    previous: Sequence[int],
) -> Checked:
    """Judge the sample, and compare what it took with what is predicted from the state that the engine is in."""
    predicted = await count_workload(tokenizer, plans, "slot", responses=responses, previous=previous)
    began = time.perf_counter()
    outcomes = await collect(judge.judge(plans, asyncio.get_running_loop().time() + CHECK_DEADLINE_S))
    seconds = time.perf_counter() - began
    predicted_s = rates.seconds(predicted.computed, predicted.written)
    return Checked(predicted.computed, outcomes.costs.tokens_computed, predicted_s, seconds)


def _savings(wanted: Wanted, work: Workload, fewer: Workload, rates: Rates) -> list[Saving]:
    each = rates.seconds(work.computed, work.written) / work.responses
    made = len(work.calls)
    found = [
        Saving("no prefix reuse", rates.seconds(work.prompt_tokens, work.written) / work.responses),
        Saving("no verdict cache", each * (made + work.repeated) / made),
        Saving("half of the criteria", rates.seconds(fewer.computed, fewer.written) / work.responses),
    ]
    if wanted.cascade.small is not None:
        small = published_rates(wanted.cascade.small)
        gpu_seconds = small.seconds(work.computed, work.written) / work.responses * small.gpus / max(1, rates.gpus)
        name = f"cascade after {small.name}, {wanted.cascade.escalated:.0%} escalated"
        found.append(Saving(name, gpu_seconds + wanted.cascade.escalated * each))
    return found


def plan_json(made: Plan) -> dict[str, Any]:
    """The plan as JSON."""
    work, per_hour = made.workload, _judgements_per_hour(made)
    return {
        "judge": made.judge,
        "sample": {
            "responses": work.responses,
            "judgements": work.judgements,
            "by_program": work.by_program,
            "calls": len(work.calls),
            "repeated": work.repeated,
            "prompt_tokens": work.prompt_tokens,
            "prompt_tokens_computed": work.computed,
            "tokens_written": work.written,
        },
        "rates": made.rates._asdict(),
        "demand": made.demand._asdict(),
        "judgements_per_hour": per_hour,
        "estimate": made.estimate._asdict() | _cost(made, made.estimate),
        "alternatives": [
            {"name": one.name, "seconds_per_response": one.seconds} | found._asdict() | _cost(made, found)
            for one, found in made.savings
        ],
        "training": None if made.training is None else made.training._asdict(),
        "layouts": [layout._asdict() for layout in made.layouts],
        "check": None if made.checked is None else made.checked._asdict(),
    }


def _judgements_per_hour(made: Plan) -> float:
    demand, work = made.demand, made.workload
    return demand.runs * demand.steps_per_hour * demand.responses * work.judgements / work.responses


def _cost(made: Plan, found: Estimate) -> dict[str, float | None]:
    if made.price is None:
        return {"cost_per_hour": None, "cost_per_million_judgements": None}
    hour = made.price * (found.gpus or found.replicas)
    return {"cost_per_hour": hour, "cost_per_million_judgements": hour / _judgements_per_hour(made) * 1e6}


def show_plan(made: Plan) -> None:
    """Print the plan as a table."""
    work, rates, demand, found = made.workload, made.rates, made.demand, made.estimate
    table = Table(show_header=False, title=escape(f"{made.judge}, rates of {rates.name}"), title_justify="left")
    for name, value in (
        ("sample", f"{work.responses:,} responses, {work.judgements:,} judgements, {work.by_program:,} by programs"),
        ("judge calls", f"{len(work.calls):,}, and {work.repeated:,} repeated ones that are not made"),
        ("prompt tokens", f"{work.prompt_tokens:,}; {work.computed:,} of them computed, the others reused"),
        ("rates", f"{1 / rates.prefill_s:,.0f} prompt tokens/s, {_per_second(rates.decode_s)} written tokens/s"),
        ("", rates.source),
        ("demand", f"{demand.runs:,} runs of {demand.steps_per_hour:g} steps/h with {demand.responses:,} responses"),
        ("", f"{_judgements_per_hour(made):,.0f} judgements/h; judging a step may take {demand.judging_s:,.1f} s"),
        ("GPUs" if rates.gpus else "machines like this", f"{found.gpus or found.replicas:,}, {found.busy:.0%} busy"),
        ("a step", f"{format_seconds(found.alone_s)} of judging and {format_seconds(found.queued_s)} in the queue"),
    ):
        table.add_row(name, escape(value))
    out.print(table)
    rows = Table(title="what changes it", title_justify="left", header_style="bold")
    headings = ["", "s per response", "GPUs" if rates.gpus else "machines", "busy", "a step"]
    for heading in [*headings, *(["per hour", "per million judgements"] if made.price is not None else [])]:
        rows.add_column(heading, justify="left" if not heading else "right")
    planned = Saving("as planned", rates.seconds(work.computed, work.written) / work.responses)
    for one, other in [(planned, found), *made.savings]:
        costs = [f"{cost:,.2f}" for cost in _cost(made, other).values() if cost is not None]
        step = format_seconds(other.alone_s + other.queued_s)
        counted = f"{other.gpus or other.replicas:,}"
        rows.add_row(one.name, f"{one.seconds:.4f}", counted, f"{other.busy:.0%}", step, *costs)
    out.print(rows)
    if made.training is not None:
        _show_layouts(made, made.training)
    if made.checked is not None:
        _show_check(made.checked)


def _show_layouts(made: Plan, training: Training) -> None:
    rows = Table(title="where the judge runs, the fewest GPU hours first", title_justify="left", header_style="bold")
    rows.add_column("judge", min_width=len("dedicated"))
    for heading in ("GPUs", "rollouts", "wake", "judging", "update", "a step", "GPU h/step"):
        rows.add_column(heading, justify="right")
    for one in made.layouts:
        seconds = [one.rollout_s, one.wake_s, one.judging_s, training.update_s, one.step_s]
        shown = [format_seconds(each) if each else "–" for each in seconds]
        rows.add_row(one.name, f"{one.gpus:,}", *shown, f"{one.gpu_hours_per_step:.4f}")
    out.print(rows)
    if not made.rates.gpus:
        print_line("the rates are those of a CPU; give --rates for a judge on the trainer's GPUs")
    elif len(made.layouts) == 1:
        print_line(
            f"the judge cannot share the trainer's GPUs: it needs {made.rates.gpus}, and a trainer has {training.gpus}"
        )


def _per_second(seconds: float) -> str:
    return f"{1 / seconds:,.0f}" if seconds else "any number of"


def _show_check(checked: Checked) -> None:
    error = checked.predicted_s / checked.seconds - 1
    print_line(
        f"judged for real: {checked.computed:,} prompt tokens computed ({checked.predicted_computed:,} predicted) in "
        f"{checked.seconds:.1f} s ({checked.predicted_s:.1f} s predicted, {error:+.0%})"
    )
