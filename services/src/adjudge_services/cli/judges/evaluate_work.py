"""Judge labelled data for the commands that measure judges, and show what was measured."""

import asyncio
import hashlib
import json
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from math import isnan
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.markup import escape
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from adjudge_services.cli.judge_choice import choose_judge
from adjudge_services.cli.options import Asking, MeasuredRows, Report, Rows
from adjudge_services.cli.output import err, out, pluralize, print_metrics, warn
from adjudge_services.cli.scoring.score_file import open_client
from adjudge_services.settings import Settings
from adjudge_services.store import StartError, prepare_store
from judge_server.rubrics import PROJECT_ID
from rubric_store import SQLLedger
from rubric_store.ledger.rows import LabelFilter
from trainer_client import AdjudgeError

if TYPE_CHECKING:  # numpy, which takes long to import
    from collections.abc import AsyncIterator

    from judge_server.evaluation.bakeoff import Contender
    from judge_server.evaluation.comparing import RunGroup
    from judge_server.evaluation.judging import JudgeChoice, Judgement, Variant
    from judge_server.evaluation.labelled import Example
    from judge_server.evaluation.metrics import Figure
    from judge_server.evaluation.report import Evaluation, Slice
    from trainer_client import AsyncClient


_NO_CACHE = "memory://?entries=1"

_DEFAULT_PROTOCOL = ("protocol", "binary")
FIGURE_COLUMNS: "tuple[Figure, ...]" = ("accuracy", "balanced_accuracy", "kappa", "f1", "auroc", "ece", "brier")


def write_report(
    heading: Mapping[str, Any],
    content: Mapping[str, Any],
    wanted: Report,
    *,
    show: Callable[[], None],
    page: Callable[[], str] | None = None,
) -> None:
    """Write a report: its `page` to a file if one is wanted, and JSON or tables to the terminal."""
    if wanted.html is not None and page is not None:
        wanted.html.write_text(page(), encoding="utf-8")
        err.print(f"wrote {wanted.html}", highlight=False)
    if wanted.as_json:
        sys.stdout.write(json.dumps({**heading, **content}, indent=2) + "\n")
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
        ValueError: one of them is missing, or there are too many.
    """
    *first, dataset = data
    return only_judge(judge, first, "give one data set and the judge: adjudge COMMAND DATASET --judge JUDGE"), dataset


def only_judge(judge: str | None, given: Sequence[str], usage: str) -> str:
    """Return the judge of --judge or of the arguments; raises `ValueError` with the usage unless there is one."""
    if len(given) + (judge is not None) != 1:
        raise ValueError(usage)
    return judge or given[0]


def load_examples(dataset: str, rows: Rows, *, fitting: bool = False) -> "tuple[str, Sequence[Example]]":
    """Read the examples of a data set; return who labelled them, and the chosen ones.

    A notice says which columns were not read. For `fitting`, the data set must also be one that may be fitted on, with
    examples in the half that is.

    Raises:
        DatasetError: the data set cannot be read, must not be used for fitting, or no example is left.
        ValueError: a name of a column is invalid.
    """
    from judge_server.evaluation.labelled import (
        LABELLED_FIELDS,
        DatasetError,
        Example,
        half_of,
        read_dataset,
        sample,
    )
    from judge_server.row_files import parse_columns

    half, labels = (rows.half, rows.labels) if isinstance(rows, MeasuredRows) else ("all", None)
    named = parse_columns(rows.column, LABELLED_FIELDS)
    if dataset.startswith("run:"):
        if named:
            raise DatasetError("a run has no columns; leave out --column")
        from judge_server.evaluation.comparing import with_labels

        run = dataset.removeprefix("run:")
        if labels is None:
            labelled_by, examples = asyncio.run(_read_labels(run, PROJECT_ID))
        else:
            groups = asyncio.run(read_run(run, PROJECT_ID, None))
            labelled_by, examples = str(labels), list[Example](with_labels(groups, labels))
    else:
        reader, examples = read_dataset(dataset, named, warn)
        labelled_by = reader.labelled_by
        if (fitting or half == "fit") and reader.measured_only:
            raise DatasetError(f"{dataset} must not be used for fitting; use --half held or --half all")
    is_fitted = not fitting or any(half_of(one.row) == "fit" for one in examples)
    chosen = sample([one for one in examples if half in ("all", half_of(one.row))], rows.limit, rows.longest)
    if not chosen or not is_fitted:
        raise DatasetError(f"no example of {dataset} is left; raise --longest, or use --half all")
    return labelled_by, chosen


async def _read_labels(run: str, project: str) -> "tuple[str, list[Example]]":
    """Read the labels that people gave a run from the database; return who they are, and the labelled responses."""
    from judge_server.evaluation.labelled import DatasetError
    from judge_server.evaluation.labelling import labelled_groups

    settings = Settings()
    await prepare_store(settings)
    ledger = SQLLedger(settings.store_url)
    try:
        found = await labelled_groups(ledger, LabelFilter(project, run))
    finally:
        await ledger.close()
    if found.left_out:
        why = ", ".join(f"{count:,} because {reason}" for reason, count in found.left_out.items())
        err.print(f"left out labelled verdicts: {why}", style="yellow", highlight=False)
    if not found.rows:
        raise DatasetError(
            f"no label of run {run!r} can be used; label verdicts in the console, at /console/labels, or give a file "
            "with --labels"
        )
    return ", ".join(found.people), found.examples()


async def read_run(run: str, project: str, most: int | None) -> "list[RunGroup]":
    """Read groups of a run from the database's ledger, of one protocol: that of the first group."""
    from judge_server.evaluation.comparing import run_groups

    settings = Settings()
    await prepare_store(settings)
    ledger = SQLLedger(settings.store_url)
    try:
        groups = await run_groups(ledger, project, run, most)
    finally:
        await ledger.close()
    return [group for group in groups if group.protocol == groups[0].protocol]


def judge_dataset(
    judge: str,
    examples: "Sequence[Example]",
    options: Mapping[str, Any],
    asking: Asking,
    *,
    sensitivity: int = 0,
    calibration: str | None = None,
) -> "list[Judgement]":
    """Judge examples with an engine or with a service's judge by name; show progress on a terminal.

    `calibration` is a stored calibration for an engine URL.
    """
    from judge_server.evaluation.judging import JudgeChoice, JudgementLog
    from judge_server.evaluation.labelled import LabelledResponse, sample

    named = "://" not in judge
    choice = JudgeChoice(judge if named else "default", options)
    responses = [one for one in examples if isinstance(one, LabelledResponse)]
    variants: list[Variant] = ["paraphrase", "length"]
    if choice.asks_together:
        variants.append("order")
    work: list[tuple[Example, Variant]] = [(one, "") for one in examples]
    work += [(one, variant) for one in sample(responses, sensitivity) for variant in variants] if sensitivity else []
    settings = Settings.with_options(calibrations=calibration)
    if calibration is not None and named:
        raise ValueError(f"{judge} is a service's judge, whose calibration that service's settings name")
    file = log_file(settings, judge if not named else f"{asking.url or settings.url} {judge}")
    if asking.fresh:
        file.unlink(missing_ok=True)
    return asyncio.run(_judge(judge, settings, work, choice, JudgementLog(file), asking))


def log_file(settings: Settings, judge: str) -> Path:
    """Return the file that keeps what a judge answered."""
    return settings.data_dir / "evaluations" / f"{hashlib.sha256(judge.encode()).hexdigest()[:16]}.jsonl"


async def _judge(
    judge: str,
    settings: Settings,
    work: "Sequence[tuple[Example, Variant]]",
    choice: "JudgeChoice",
    log: Any,
    asking: Asking,
) -> "list[Judgement]":
    from judge_server.evaluation.judging import judge_examples

    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task("loading the judge", total=None)
        async with judge_client(judge, asking.url, settings) as client:
            progress.update(task, description="judging", total=len(work))
            return await judge_examples(
                client,
                work,
                choice,
                log,
                concurrency=asking.concurrency,
                deadline_s=asking.deadline_s,
                advance=lambda: progress.advance(task),
            )


async def judge_contenders(
    contenders: "Sequence[Contender]",
    examples: "Sequence[Example]",
    asking: Asking,
    *,
    share_verdicts: bool = False,
) -> "list[Sequence[Judgement] | str]":
    """Judge the examples with every contender, judge by judge; a contender that cannot be judged gets the reason.

    With `share_verdicts`, contenders that ask the same answer from each other's verdicts. That makes the later ones
    free, so their costs must not be compared then.
    """
    from judge_server.evaluation.judging import JudgeChoice, JudgementLog, judge_examples

    settings = Settings()
    if not share_verdicts:
        settings = settings.model_copy(update={"cache_url": _NO_CACHE})
    by_judge: dict[str, list[int]] = {}
    for number, contender in enumerate(contenders):
        by_judge.setdefault(contender.judge, []).append(number)
    answered: dict[int, Sequence[Judgement] | str] = {}
    columns = (TextColumn("{task.description}", markup=False), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=err, transient=True, disable=not err.is_terminal) as progress:
        task = progress.add_task("judging", total=len(contenders) * len(examples))
        for judge, own in by_judge.items():
            named = "://" not in judge
            file = log_file(settings, judge if not named else f"{asking.url or settings.url} {judge}")
            if asking.fresh:
                file.unlink(missing_ok=True)
            log = JudgementLog(file)
            try:
                async with judge_client(judge, asking.url, settings) as client:
                    for number in own:
                        progress.update(task, description=contenders[number].name)
                        try:
                            answered[number] = await judge_examples(
                                client,
                                [(one, "") for one in examples],
                                JudgeChoice(judge if named else "default", contenders[number].options),
                                log,
                                concurrency=asking.concurrency,
                                deadline_s=asking.deadline_s,
                                advance=lambda: progress.advance(task),
                            )
                        except (AdjudgeError, OSError) as error:
                            answered[number] = str(error)
            except (StartError, AdjudgeError, ValueError, OSError) as error:
                for number in own:
                    answered.setdefault(number, str(error))
    return [answered[number] for number in range(len(contenders))]


@asynccontextmanager
async def judge_client(judge: str, url: str | None, settings: Settings) -> "AsyncIterator[AsyncClient]":
    """Open a client of the service that has the judge: of one in this process for an engine URL.

    A service in this process does not record what it judges, so that labelled data stays where it is.
    """
    chosen = choose_judge(judge, url, settings.model_copy(update={"ledger": "off"}))
    async with open_client(chosen.url, chosen.settings) as client:
        yield client


def show(evaluation: "Evaluation", heading: Mapping[str, Any]) -> None:
    """Print a report as tables."""
    from judge_server.evaluation.html import CHANGES, HEADINGS, format_estimate
    from judge_server.evaluation.report import FEW_ROWS

    whole = evaluation.overall
    if whole.n or whole.failed or whole.uncertain:
        out.print(f"[bold]{escape(_answer(whole))}[/]", highlight=False)
    out.print(f"{escape(heading['judge'])} on {escape(heading['data set'])}: {heading['asked']}", highlight=False)
    out.print(f"{heading['fingerprint'][:19]}…; labels by {heading['labels by']}", highlight=False)
    if whole.n or whole.failed or whole.uncertain:
        counts = {"verdicts": whole.n, "rows": whole.rows, "failed": whole.failed, "uncertain": whole.uncertain}
        figures = {HEADINGS[name]: format_estimate(whole.figures[name]) for name in FIGURE_COLUMNS}
        print_metrics({"all": {name: f"{count:,}" for name, count in counts.items() if count} | figures})
    if len(evaluation.slices) > 1:
        table = Table("part", header_style="bold")
        for name in ("n", HEADINGS["balanced_accuracy"], HEADINGS["auroc"]):
            table.add_column(name, justify="right", no_wrap=True)
        for one in evaluation.slices[1:]:
            shown = [format_estimate(one.figures[name]) for name in ("balanced_accuracy", "auroc")]
            missing = f", {one.failed + one.uncertain:,} without" if one.failed + one.uncertain else ""
            table.add_row(escape(f"{one.by} {one.name or '(none)'}"), f"{one.n:,}{missing}", *shown)
        out.print(table)
    if 0 < whole.rows < FEW_ROWS:
        out.print(f"Only {whole.rows} rows: the intervals are too narrow.", style="yellow")
    for title, part in (
        ("labels between 0 and 1", evaluation.grades),
        ("first wrong step", evaluation.steps),
        ("pairs", evaluation.pairs),
        ("votes", evaluation.votes),
        *((CHANGES[one.variant], one) for one in evaluation.sensitivity),
        ("cost of a judgement", evaluation.cost),
    ):
        if part is not None:
            out.print(f"[bold]{title}[/]: {_sentence(part)}", highlight=False)
    if evaluation.length is not None:
        found = format_estimate(evaluation.length)
        out.print(f"[bold]length[/]: correlation of length and excess of the probability {found}", highlight=False)
    for why, number in evaluation.refused.items():
        err.print(f"[red]{number} refused:[/] {why}", highlight=False)


def _answer(whole: "Slice") -> str:
    """Say in a sentence whether the judge is better than chance."""
    from judge_server.evaluation.html import format_estimate

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


CHANCE = 0.5
"""The balanced accuracy of a coin."""


def _sentence(part: Any) -> str:
    from judge_server.evaluation.html import format_estimate
    from judge_server.evaluation.metrics import Estimate

    return ", ".join(
        f"{name.replace('_', ' ')} {format_estimate(value) if isinstance(value, Estimate) else value}"
        for name, value in part._asdict().items()
        if name != "variant"
    )
