"""The options of the commands that measure responses and show training runs, and their help."""

from enum import StrEnum
from pathlib import Path
from typing import Annotated

import typer

from adjudge_services.cli.options import (
    DEFAULT_PROJECT,
    OUTPUT,
    ConcurrencyOption,
    DeadlineOption,
    JsonOption,
    JudgeOption,
    LedgerUrlOption,
    ProjectOption,
    RewardMode,
    UrlOption,
    implemented_by,
    input_argument,
)

_OF_RUN = "A recorded run"
_LOOPING = "Looping"


class FailOn(StrEnum):
    """From which severity on `adjudge runs monitor` exits with 1."""

    CRITICAL = "critical"
    WARNING = "warning"
    NEVER = "never"


@implemented_by("adjudge_services.cli.measuring.measure:measure")
def measure(
    file: Annotated[Path | None, input_argument("JSONL with a problem per line: prompt, responses, …")] = None,
    run: Annotated[
        str | None, typer.Option(help="Measure this run in the ledger instead of a file.", rich_help_panel=_OF_RUN)
    ] = None,
    step: Annotated[
        int | None, typer.Option(min=0, help="With --run: only this training step.", rich_help_panel=_OF_RUN)
    ] = None,
    texts: Annotated[
        bool,
        typer.Option(
            "--texts",
            help="With --run: also measure looping and diversity, from the texts in the ledger.",
            rich_help_panel=_OF_RUN,
        ),
    ] = False,
    project: Annotated[
        str,
        typer.Option(
            help="With --run: the project, if the database is read; a service uses the key's project.",
            rich_help_panel=_OF_RUN,
        ),
    ] = DEFAULT_PROJECT,
    against: Annotated[
        str | None,
        typer.Option(help="Measure the win rate over another file, or with --run over another run.", metavar="OTHER"),
    ] = None,
    question: Annotated[
        str | None, typer.Option(help="With --against: the question to ask the judge about a pair.")
    ] = None,
    rubric: Annotated[
        str | None, typer.Option(help="A reference (name@3) or a rubric file for rewards, for lines without a rubric.")
    ] = None,
    mode: Annotated[
        RewardMode | None, typer.Option(help="How verdicts become a reward.", show_default="weighted_mean")
    ] = None,
    steps: Annotated[bool, typer.Option("--steps", help="Judge the correctness of each step.")] = False,
    samples: Annotated[
        str, typer.Option("--k", help="Values of k for pass@k and best-of-k, separated by commas.", metavar="K,…")
    ] = "1,2,4,8",
    embeddings: Annotated[
        str | None,
        typer.Option(
            help="Measure semantic distance with an embedding server: openai+http://HOST:PORT/v1?model=NAME.",
            metavar="URL",
        ),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Measure only the first N lines.")] = None,
    max_corrections: Annotated[
        int,
        typer.Option(
            min=0, help="A text with more self-correction phrases counts as looping.", rich_help_panel=_LOOPING
        ),
    ] = 20,
    max_duplicates: Annotated[
        float,
        typer.Option(
            min=0,
            max=1,
            help="A text with a larger share of repeated paragraphs counts as looping.",
            rich_help_panel=_LOOPING,
        ),
    ] = 0.1,
    min_paragraph_words: Annotated[
        int, typer.Option(min=1, help="Words; shorter paragraphs are not compared.", rich_help_panel=_LOOPING)
    ] = 5,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the figures here as JSON.", rich_help_panel=OUTPUT)
    ] = None,
    plot: Annotated[
        Path | None, typer.Option(help="Plot the figures here, as SVG or PNG.", rich_help_panel=OUTPUT)
    ] = None,
    url: UrlOption = None,
    judge: JudgeOption = None,
    concurrency: ConcurrencyOption = 8,
    deadline_s: DeadlineOption = 3600.0,
) -> None:
    """Measure responses: accuracy, pass@k, looping and diversity; with --rubric or --steps also a judge's verdicts.

    With --run, measure the recorded verdicts and rewards of a run, in total and by training step, without a judge. With
    --against, the judge compares the responses with those of another file or run, in both orders.

    Figures without data are left out. Intervals are 95% intervals over problems: Wilson's for shares, bootstrap for
    other figures. Exits with 1 if any line could not be read or judged.
    """


runs_app = typer.Typer(invoke_without_command=True)


@runs_app.callback()
@implemented_by("adjudge_services.cli.measuring.runs:runs")
def runs(
    context: typer.Context,
    limit: Annotated[int, typer.Option(min=1, max=500, help="Show at most this many runs.")] = 20,
    as_json: JsonOption = False,
    project: ProjectOption = DEFAULT_PROJECT,
    url: LedgerUrlOption = None,
) -> None:
    """List training runs, the most recently judged first. `adjudge runs show RUN` shows one."""


@runs_app.command("show")
@implemented_by("adjudge_services.cli.measuring.runs:show")
def runs_show(
    run: Annotated[
        str, typer.Argument(help="The run's name, as given in its requests; '' for requests without a run.")
    ],
    steps: Annotated[int, typer.Option(min=0, help="Number of last steps to show.")] = 15,
    criteria: Annotated[int, typer.Option(min=0, max=200, help="Show at most this many criteria.")] = 30,
    first_step: Annotated[int | None, typer.Option(min=0, help="First step to include.")] = None,
    last_step: Annotated[int | None, typer.Option(min=0, help="Last step to include.")] = None,
    corrected: Annotated[
        bool,
        typer.Option("--corrected", help="Correct pass rates for the judge's error; reads every verdict of the run."),
    ] = False,
    evaluation: Annotated[
        Path | None,
        typer.Option(
            help="Report of `adjudge evaluate --json` with the judge's error, instead of its stored calibration.",
            exists=True,
            dir_okay=False,
        ),
    ] = None,
    as_json: JsonOption = False,
    project: ProjectOption = DEFAULT_PROJECT,
    url: LedgerUrlOption = None,
) -> None:
    """Show a run's rewards by step, and how often each criterion passed over its steps."""


@runs_app.command("monitor")
@implemented_by("adjudge_services.cli.measuring.runs:monitor")
def runs_monitor(
    run: Annotated[str, typer.Argument(help="The run's name, as given in its requests.")],
    until_step: Annotated[
        int | None, typer.Option(min=0, help="Last step to look at; by default the run's last one.")
    ] = None,
    fail_on: Annotated[FailOn, typer.Option(help="Exit with 1 if there is a finding this severe.")] = FailOn.CRITICAL,
    as_json: JsonOption = False,
    project: ProjectOption = DEFAULT_PROJECT,
    url: LedgerUrlOption = None,
) -> None:
    """Show what the monitors find in a run. Exits with 1 on a critical finding."""
