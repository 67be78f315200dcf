"""Options that several commands share, and the choices that options offer.

The choices repeat those of the API. Importing them from there would load its messages before any help is shown; a test
compares them.
"""

import shutil
import sys
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

import typer

JudgingProtocol = Literal["binary", "stepwise", "graded", "checklist", "likert"]
ReasoningPart = Literal["strip", "keep", "only"]
RewardMode = Literal[
    "weighted_mean",
    "factual_override",
    "points",
    "clipped_points",
    "absolute_points",
    "partial_credit",
    "stepwise",
    "graded_mean",
    "likert",
    "outcome",
    "gate",
    "ranking",
]
FailurePolicy = Literal["null", "error", "zero", "zero_unparseable", "skip"]
UncertainPolicy = Literal["null", "error", "zero", "skip"]
RankingSchedule = Literal["all_pairs", "swiss", "pivot"]
StepRule = Literal["headings", "turns", "paragraphs", "given"]
UsedProtocol = Literal["binary", "stepwise", "graded", "checklist", "likert", "comparison"]
VerdictUse = Literal["verdict", "probability"]

DEFAULT_PROJECT = "default"

SERVICE = "Service and load"
JUDGING = "Judging"
REWARD = "Reward"
OUTPUT = "Output"
"""Panels of the help of commands with many options."""

UrlOption = Annotated[
    str | None,
    typer.Option(
        help="Address of a running service; by default one is started in this process.",
        envvar="ADJUDGE_URL",
        rich_help_panel=SERVICE,
    ),
]
EngineOption = Annotated[
    str | None,
    typer.Option(help="Engine URL, if the service is started in this process.", rich_help_panel=SERVICE),
]
ConcurrencyOption = Annotated[int, typer.Option(min=1, help="Responses to judge at a time.", rich_help_panel=SERVICE)]
DeadlineOption = Annotated[
    float, typer.Option(help="Seconds that one response may take, including its wait.", rich_help_panel=SERVICE)
]

LedgerUrlOption = Annotated[
    str | None,
    typer.Option(help="Address of a running service; by default the database is read.", envvar="ADJUDGE_URL"),
]
ProjectOption = Annotated[
    str, typer.Option(help="The project, if the database is read; a service uses the key's project.")
]

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]

CriteriaPerCallOption = Annotated[
    str | None,
    typer.Option(help="Criteria per judge call: a number, or all.", metavar="N|all", rich_help_panel=JUDGING),
]
RubricOption = Annotated[
    str | None, typer.Option(help="A reference (name@3) or a rubric file, for lines without a rubric.")
]
ModeOption = Annotated[RewardMode, typer.Option(help="How verdicts become a reward.", rich_help_panel=REWARD)]

STDIN = "standard input"
"""Name of the file that holds standard input while a command runs, and what messages call it."""


def copy_standard_input(context: typer.Context, value: Path | None) -> Path | None:
    """Return the path of a file, or for `-` that of a copy of standard input, which is removed with the command.

    A copy, because some commands read their input twice. Whether a file exists is asked here, since typer refuses `-`
    where a file must exist.
    """
    if value is None or context.resilient_parsing:
        return value
    if str(value) != "-":
        if not value.exists():
            raise typer.BadParameter(f"file '{value}' does not exist.")
        return value
    folder = TemporaryDirectory(prefix="adjudge-")
    context.call_on_close(folder.cleanup)
    file = Path(folder.name, STDIN)
    with file.open("wb") as copy:
        shutil.copyfileobj(sys.stdin.buffer, copy)
    return file


def input_argument(help: str, **more: Any) -> Any:
    """An argument for a file that is read; `-` stands for standard input."""
    help = f"{help.removesuffix('.')}, or - for standard input."
    return typer.Argument(help=help, dir_okay=False, callback=copy_standard_input, **more)


def copy_input(context: typer.Context, value: str) -> str:
    """Like `copy_standard_input`, for a file that may also be in an object store (`s3://…`)."""
    return value if "://" in value else str(copy_standard_input(context, Path(value)))


def copy_dataset(context: typer.Context, value: str) -> str:
    """Like `copy_standard_input`, for a data set that is written as PATH or READER:PATH."""
    reader, colon, path = value.rpartition(":")
    return f"{reader}{colon}{copy_standard_input(context, Path(path))}" if path == "-" else value


def copy_one_of(context: typer.Context, values: list[str]) -> list[str]:
    """Like `copy_standard_input`, for a list of files or names."""
    return [str(copy_standard_input(context, Path(one))) if one == "-" else one for one in values]
