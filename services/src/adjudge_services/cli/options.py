"""Options that several commands share, and the choices that options offer.

The choices repeat those of the API. Importing them from there would load its messages before any help is shown; a test
compares them.

`implemented_by` lets a command import its work when it runs.
"""

import gc
import os
import shutil
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from importlib import import_module
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal, ParamSpec

import typer

P = ParamSpec("P")


def implemented_by(path: str) -> Callable[[Callable[P, None]], Callable[P, None]]:
    """Have a command carried out by a function of another module, written as `module:function`.

    The decorated function has no body. It declares the options of the command, and its docstring is the help. The
    function at `path` has parameters of the same names and types, but for the context. The command of a group runs only
    where no command of the group is given.
    """

    def declare(declaration: Callable[P, None]) -> Callable[P, None]:
        @wraps(declaration)
        def command(*_: P.args, **kwargs: P.kwargs) -> None:
            options = dict(kwargs)
            context: Any = options.pop("context", None)
            if context is None or context.invoked_subcommand is None:
                _carry_out(load(path), options)

        command.__dict__["implemented_by"] = path
        return command

    return declare


def _carry_out(function: Callable[..., None], options: dict[str, Any]) -> None:
    """Call a function; say in one line which setting is wrong if one is."""
    if _SETTINGS not in sys.modules:
        return function(**options)
    from adjudge_services.cli.output import exit_with_error, warn
    from adjudge_services.settings import SettingsError, misspelt_variables

    if function.__module__ != _LOGS:
        for warning in misspelt_variables(os.environ):
            warn(warning)
    try:
        function(**options)
    except SettingsError as error:
        exit_with_error(str(error))


_SETTINGS = "adjudge_services.settings"
_LOGS = "adjudge_services.cli.operating.serving"
"""Its processes write warnings to their log."""


def load(path: str) -> Callable[..., None]:
    """Import a function, written as `module:function`."""
    module, _, name = path.partition(":")
    with paused_garbage_collection():
        function: Callable[..., None] = getattr(import_module(module), name)
    return function


@contextmanager
def paused_garbage_collection() -> Iterator[None]:
    """Import without the garbage collector: it takes a sixth of the time of large imports, and finds little."""
    gc.disable()
    try:
        yield
    finally:
        gc.enable()


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
JudgeOption = Annotated[
    str | None,
    typer.Option(
        "--judge",
        "--engine",
        help="The judge: an engine URL, the name of a judge of the service at --url, or a cascade or panel of URLs as "
        "JSON.",
        metavar="JUDGE",
        rich_help_panel=SERVICE,
    ),
]
ColumnOption = Annotated[
    list[str] | None,
    typer.Option(
        "--column",
        help="Column that holds a field under another name, such as prompt=question; repeat it.",
        metavar="FIELD=COLUMN",
    ),
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


def copy_datasets(context: typer.Context, values: list[str]) -> list[str]:
    """Like `copy_dataset`, for each of several arguments."""
    return [copy_dataset(context, one) for one in values]


def copy_one_of(context: typer.Context, values: list[str]) -> list[str]:
    """Like `copy_standard_input`, for a list of files or names."""
    return [str(copy_standard_input(context, Path(one))) if one == "-" else one for one in values]
