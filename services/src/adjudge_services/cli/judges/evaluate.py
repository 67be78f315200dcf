"""`adjudge evaluate`: measure a judge on labelled data, with intervals, calibration and cost."""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from functools import partial
from math import isnan
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.markup import escape
from rich.table import Table

from adjudge_services.cli.groups import FromRequest
from adjudge_services.cli.lazy import OPTIONS_ONLY
from adjudge_services.cli.options import (
    Asking,
    DataArgument,
    JudgeOption,
    MeasuredRows,
    Report,
    Rows,
    UsageError,
    usage_errors,
)
from adjudge_services.cli.output import err, file_name, out, pluralize, print_json, print_metrics, show_progress, warn
from trainer_client.wire import VerdictRequest

if not OPTIONS_ONLY:
    from adjudge_services.cli.judge_choice import open_judge
    from adjudge_services.settings import Settings
    from adjudge_services.store import StartError, open_store
    from judge_server.evaluation.bakeoff import Contender
    from judge_server.evaluation.comparing import RunGroup, labelled_by_judge, run_groups, with_labels
    from judge_server.evaluation.data_sets import read_dataset
    from judge_server.evaluation.html import CHANGES, HEADINGS, format_estimate, html_report
    from judge_server.evaluation.judging import JudgeChoice, Judgement, JudgementLog, Variant, judge_examples
    from judge_server.evaluation.labelled import (
        LABELLED_FIELDS,
        DatasetError,
        Example,
        LabelledResponse,
        half_of,
        sample,
    )
    from judge_server.evaluation.labelling import labelled_groups
    from judge_server.evaluation.metrics import Estimate, Figure
    from judge_server.evaluation.report import FEW_ROWS, Evaluation, Slice
    from judge_server.evaluation.report import evaluate as measure
    from judge_server.evaluation.row_files import parse_columns
    from judge_server.scoring.rubrics import PROJECT_ID
    from rubric_store import SQLLedger
    from rubric_store.ledger.rows import LabelFilter
    from trainer_client import AdjudgeError

_NO_CACHE = "memory://?entries=1"
_DEFAULT_PROTOCOL = ("protocol", "binary")
FIGURE_COLUMNS: tuple[Figure, ...] = ("accuracy", "balanced_accuracy", "kappa", "f1", "auroc", "ece", "brier")

CHANCE = 0.5
"""The balanced accuracy of a coin."""


def evaluate(
    data: DataArgument,
    *,
    judge: JudgeOption = None,
    rows: MeasuredRows,
    options: Annotated[Mapping[str, Any], FromRequest(VerdictRequest, part="judging")],
    sensitivity: Annotated[
        int, typer.Option(min=0, help="Judge N of the responses again with criteria and responses changed.")
    ] = 0,
    report: Report,
    asking: Asking,
) -> None:
    """Measure a judge on labelled data: is it good enough, and what does it cost?

    Reports agreement by task, kind and criterion, calibration, first wrong steps, pairs in both orders, votes,
    sensitivity and cost, each with its 95% interval. An interrupted evaluation continues where it stopped.
    """
    asked = judging_options(options)
    judge, dataset = judge_and_dataset(judge, data)
    labelled_by, examples = load_examples(dataset, rows)
    judgements = judge_dataset(judge, examples, asked, asking, sensitivity=sensitivity)
    evaluation = measure(judgements)
    known = next((one for one in judgements if one.fingerprint), judgements[0])
    heading = {
        "judge": known.model or judge,
        "data set": f"{file_name(Path(dataset))}{'' if rows.half == 'all' else f', half {rows.half}'}",
        "fingerprint": known.fingerprint,
        "asked": ", ".join(f"{name} {value}" for name, value in asked.items()) or "binary, one criterion a call",
        "labels by": labelled_by,
        "examples": f"{len(examples):,}",
        "measured": measured_now(),
    }
    write_report(
        heading,
        {"votes_asked": asked.get("votes", 1), **evaluation.as_json()},
        report,
        show=lambda: show(evaluation, heading),
        page=lambda: html_report(evaluation, heading),
    )
    if evaluation.overall.failed or evaluation.refused:
        raise typer.Exit(1)


def write_report(
    heading: Mapping[str, Any],
    content: Mapping[str, Any],
    wanted: Report,
    *,
    show: Callable[[], None],
    page: Callable[[], str] | None = None,
    indent: int | None = 2,
) -> None:
    """Write a report: its `page` to a file if one is wanted, and JSON or tables to the terminal."""
    if wanted.html is not None and page is not None:
        wanted.html.write_text(page(), encoding="utf-8")
        err.print(f"wrote {wanted.html}", markup=False)
    if wanted.as_json:
        print_json({**heading, **content}, indent=indent)
    else:
        show()


def measured_now() -> str:
    """Return the time for a report's heading."""
    return f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC"


def judging_options(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the judging options that were given and are not the default."""
    return {name: value for name, value in given.items() if value is not None and (name, value) != _DEFAULT_PROTOCOL}


def judge_and_dataset(judge: str | None, data: Sequence[str]) -> tuple[str, str]:
    """Return the judge and the data set of a command; before --judge, the judge was the first of two arguments.

    Raises:
        UsageError: one of them is missing, or there are too many.
    """
    *first, dataset = data
    return only_judge(judge, first, "give one data set and the judge: adjudge COMMAND DATASET --judge JUDGE"), dataset


def only_judge(judge: str | None, given: Sequence[str], usage: str) -> str:
    """Return the judge of --judge or of the arguments; raises `UsageError` with the usage unless there is one."""
    if len(given) + (judge is not None) != 1:
        raise UsageError(usage)
    return judge or given[0]


def load_examples(dataset: str, rows: Rows, *, fitting: bool = False) -> tuple[str, Sequence[Example]]:
    """Read the examples of a data set; return who labelled them, and the chosen ones.

    A notice says which columns were not read. For `fitting`, the data set must also be one that may be fitted on, with
    examples in the half that is.

    Raises:
        DatasetError: the data set cannot be read, or no example is left.
        UsageError: an option does not suit the data set, or names a column that rows do not have.
    """
    half, labels = (rows.half, rows.labels) if isinstance(rows, MeasuredRows) else ("all", None)
    with usage_errors():
        named = parse_columns(rows.column, LABELLED_FIELDS)
    kind, colon, run = dataset.partition(":")
    if colon and kind in ("run", "verdicts"):
        if named:
            raise UsageError("a run has no columns; leave out --column")
        if kind == "verdicts" and labels is not None:
            raise UsageError("verdicts:NAME has the judge's verdicts as labels; leave out --labels, or take run:NAME")
        if kind == "verdicts":
            labelled_by = f"the judge of the run {run!r}"
            examples = list[Example](labelled_by_judge(asyncio.run(read_run(run, PROJECT_ID, None))))
        elif labels is None:
            labelled_by, examples = asyncio.run(_read_labels(run))
        else:
            groups = asyncio.run(read_run(run, PROJECT_ID, None))
            labelled_by, examples = str(labels), list[Example](with_labels(groups, labels))
    else:
        if labels is not None:
            raise UsageError("--labels is for run:NAME; the rows of a file have labels of their own")
        reader, examples = read_dataset(dataset, named, warn)
        labelled_by = reader.labelled_by
        if (fitting or half == "fit") and reader.measured_only:
            raise UsageError(f"{dataset} must not be used for fitting; use --half held or --half all")
    chosen = sample([one for one in examples if half in ("all", half_of(one.row))], rows.limit, rows.longest)
    if not chosen:
        raise DatasetError(f"no example of {dataset} is left; raise --longest, or use --half all")
    return labelled_by, chosen


async def _read_labels(run: str) -> tuple[str, list[Example]]:
    """Read the labels that people gave a run from the database; return who they are, and the labelled responses."""
    async with open_store(SQLLedger) as ledger:
        found = await labelled_groups(ledger, LabelFilter(PROJECT_ID, run))
    if found.left_out:
        why = ", ".join(f"{count:,} because {reason}" for reason, count in found.left_out.items())
        err.print(f"left out labelled verdicts: {why}", style="yellow", markup=False)
    if not found.rows:
        raise DatasetError(
            f"no label of run {run!r} can be used; label verdicts in the console, at /console/labels, or give a file "
            "with --labels"
        )
    return ", ".join(found.people), found.examples()


async def read_run(run: str, project: str, most: int | None) -> list[RunGroup]:
    """Read groups of a run from the database's ledger, of one protocol: that of the first group."""
    async with open_store(SQLLedger) as ledger:
        groups = await run_groups(ledger, project, run, most)
    return [group for group in groups if group.protocol == groups[0].protocol]


def judge_dataset(
    judge: str,
    examples: Sequence[Example],
    options: Mapping[str, Any],
    asking: Asking,
    *,
    sensitivity: int = 0,
    calibration: str | None = None,
) -> list[Judgement]:
    """Judge examples with an engine or with a service's judge by name; show progress on a terminal.

    `calibration` is a stored calibration for an engine URL.
    """
    choice = JudgeChoice(_name_at_service(judge), options)
    responses = [one for one in examples if isinstance(one, LabelledResponse)]
    variants: list[Variant] = ["paraphrase", "length"]
    if choice.asks_together:
        variants.append("order")
    work: list[tuple[Example, Variant]] = [(one, "") for one in examples]
    work += [(one, variant) for one in sample(responses, sensitivity) for variant in variants] if sensitivity else []
    if calibration is not None and "://" not in judge:
        raise UsageError(f"{judge} is a service's judge, whose calibration that service's settings name")

    async def ask() -> list[Judgement]:
        with show_progress() as progress:
            task = progress.add_task("loading the judge", total=None)
            async with open_judging(judge, asking, Settings.with_options(calibrations=calibration)) as judged:
                progress.update(task, description="judging", total=len(work))
                return await judged(work, choice, advance=lambda: progress.advance(task))

    return asyncio.run(ask())


def _name_at_service(judge: str) -> str:
    """The name by which a service is asked for a judge; an engine URL is the default judge of one in this process."""
    return "default" if "://" in judge else judge


async def judge_contenders(
    contenders: Sequence[Contender],
    examples: Sequence[Example],
    asking: Asking,
    *,
    share_verdicts: bool = False,
) -> list[Sequence[Judgement] | str]:
    """Judge the examples with every contender, judge by judge; a contender that cannot be judged gets the reason.

    With `share_verdicts`, contenders that ask the same answer from each other's verdicts. That makes the later ones
    free, so their costs must not be compared then.
    """
    settings = Settings()
    if not share_verdicts:
        settings = settings.model_copy(update={"cache_url": _NO_CACHE})
    answered: dict[int, Sequence[Judgement] | str] = {}
    work: list[tuple[Example, Variant]] = [(one, "") for one in examples]
    with show_progress() as progress:
        task = progress.add_task("judging", total=len(contenders) * len(examples))
        for judge in dict.fromkeys(one.judge for one in contenders):
            own = {number: one for number, one in enumerate(contenders) if one.judge == judge}
            try:
                async with open_judging(judge, asking, settings) as judged:
                    for number, one in own.items():
                        progress.update(task, description=one.name)
                        choice = JudgeChoice(_name_at_service(judge), one.options)
                        try:
                            answered[number] = await judged(work, choice, advance=lambda: progress.advance(task))
                        except (AdjudgeError, OSError) as error:
                            answered[number] = str(error)
            except (StartError, AdjudgeError, ValueError, OSError) as error:
                answered |= dict.fromkeys(own.keys() - answered.keys(), str(error))
    return [answered[number] for number in range(len(contenders))]


@asynccontextmanager
async def open_judging(
    judge: str, asking: Asking, settings: Settings
) -> AsyncIterator[Callable[..., Awaitable[list[Judgement]]]]:
    """Yield `judge_examples` for a service that has the judge, with the log of what it answered.

    For an engine URL, a service starts in this process. It does not record what it judges, so that labelled data stays
    where it is.
    """
    where = judge if "://" in judge else f"{asking.url or settings.url} {judge}"
    file = settings.data_dir / "evaluations" / f"{hashlib.sha256(where.encode()).hexdigest()[:16]}.jsonl"
    if asking.fresh:
        file.unlink(missing_ok=True)
    log, ours = JudgementLog(file), settings.model_copy(update={"ledger": "off"})
    async with open_judge(judge, asking.url, ours) as (client, _):
        yield partial(judge_examples, client, log=log, concurrency=asking.concurrency, deadline_s=asking.deadline_s)


def show(evaluation: Evaluation, heading: Mapping[str, Any]) -> None:
    """Print a report as tables."""
    whole = evaluation.overall
    if whole.n or whole.failed or whole.uncertain:
        out.print(f"[bold]{escape(_answer(whole))}[/]")
    out.print(f"{escape(heading['judge'])} on {escape(heading['data set'])}: {heading['asked']}")
    out.print(f"{heading['fingerprint'][:19]}…; labels by {heading['labels by']}", markup=False)
    if whole.n or whole.failed or whole.uncertain:
        counts = {"verdicts": whole.n, "rows": whole.rows, "failed": whole.failed, "uncertain": whole.uncertain}
        figures = {HEADINGS[name]: format_estimate(whole.figures[name]) for name in FIGURE_COLUMNS}
        print_metrics({"all": {name: f"{count:,}" for name, count in counts.items() if count} | figures})
    if len(evaluation.agreement) > 1:
        table = Table("part", header_style="bold")
        for name in ("n", HEADINGS["balanced_accuracy"], HEADINGS["auroc"]):
            table.add_column(name, justify="right", no_wrap=True)
        for one in evaluation.agreement[1:]:
            shown = [format_estimate(one.figures[name]) for name in ("balanced_accuracy", "auroc")]
            missing = f", {one.failed + one.uncertain:,} without" if one.failed + one.uncertain else ""
            table.add_row(escape(f"{one.by} {one.name or '(none)'}"), f"{one.n:,}{missing}", *shown)
        out.print(table)
    for divided in evaluation.calibration_within:
        out.print(
            f"ECE within each {divided.by}: {format_estimate(divided.ece)}; {divided.by_chance:.2f} if every "
            f"probability were right ({divided.n:,} verdicts of {divided.parts})"
        )
    if 0 < whole.rows < FEW_ROWS:
        out.print(f"Only {pluralize(whole.rows, 'row')}: the intervals are too narrow.", style="yellow")
    for title, part in (
        ("labels between 0 and 1", evaluation.grades),
        ("first wrong step", evaluation.steps),
        ("pairs", evaluation.pairs),
        ("votes", evaluation.votes),
        *((CHANGES[one.variant], one) for one in evaluation.sensitivity),
        ("cost of a judgement", evaluation.cost),
    ):
        if part is not None:
            out.print(f"[bold]{title}[/]: {_sentence(part)}")
    if evaluation.length_bias is not None:
        found = format_estimate(evaluation.length_bias)
        out.print(f"[bold]length[/]: correlation of length and excess of the probability {found}")
    for why, number in evaluation.refused.items():
        err.print(f"[red]{number} refused:[/] {escape(why)}")


def _answer(whole: Slice) -> str:
    """Say in a sentence whether the judge is better than chance."""
    found = whole.figures["balanced_accuracy"]
    rows = pluralize(whole.rows, "row")
    if not whole.n:
        return "No verdict has a score, so nothing was measured."
    if isnan(found.value):
        return f"All labels on {rows} are the same, so no judge can be told from chance."
    measured = f"balanced accuracy {format_estimate(found)} on {rows}, where chance is 0.5."
    if found.low > CHANCE:
        return f"Better than chance: {measured}"
    return f"{'Worse than' if found.high < CHANCE else 'Not distinguishable from'} chance: {measured}"


def _sentence(part: Any) -> str:
    return ", ".join(
        f"{name.replace('_', ' ')} {format_estimate(value) if isinstance(value, Estimate) else value}"
        for name, value in part._asdict().items()
        if name != "variant"
    )
