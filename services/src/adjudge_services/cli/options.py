"""Options and arguments that several commands share."""

import errno
import os
import shutil
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal

import typer

SERVICE = "Service and load"
JUDGING = "Judging"
REWARD = "Reward"
OUTPUT = "Output"
"""Panels of the help of commands with many options."""


class UsageError(typer.BadParameter):
    """Options or arguments that cannot be used together, or not so; the command shows its usage, and exits with 2."""

    def format_message(self) -> str:
        """The message as it is, which names the options."""
        return self.message


@contextmanager
def usage_errors() -> Iterator[None]:
    """Raise `UsageError` in place of a `ValueError`, from a function that reads what an option says."""
    try:
        yield
    except ValueError as error:
        raise UsageError(str(error)) from None


def copy_standard_input(context: typer.Context, value: Any) -> Any:
    """Return the path of a file, or for `-` that of a copy of standard input, which is removed with the command.

    A copy, because some commands read their input twice. Texts may also name something else, or end in `:-` after the
    reader of a data set. Whether a `Path` exists is asked here, since typer refuses `-` where a file must exist.
    """
    if value is None or context.resilient_parsing:
        return value
    if isinstance(value, list):
        return [copy_standard_input(context, one) for one in value]
    reader, colon, path = str(value).rpartition(":")
    if path != "-":
        if isinstance(value, Path) and not value.exists():
            raise typer.BadParameter(f"file '{value}' does not exist.")
        return value
    from adjudge_services.cli.output import STDIN

    folder = TemporaryDirectory(prefix="adjudge-")
    context.call_on_close(folder.cleanup)
    file = Path(folder.name, STDIN)
    with file.open("wb") as copy:
        shutil.copyfileobj(sys.stdin.buffer, copy)
    return file if isinstance(value, Path) else f"{reader}{colon}{file}"


def input_argument(help: str, **more: Any) -> Any:
    """An argument for a file that is read; `-` stands for standard input."""
    help = f"{help.removesuffix('.')}, or - for standard input."
    return typer.Argument(help=help, dir_okay=False, callback=copy_standard_input, **more)


def copy_input(context: typer.Context, value: str) -> str:
    """Like `copy_standard_input`, for a file that may also be in an object store (`s3://…`)."""
    return value if "://" in value else str(copy_standard_input(context, Path(value)))


def check_output(context: typer.Context, file: Path | None) -> Path | None:
    """Return a file to write; refuse one that cannot be written, before the work whose results it is for."""
    if file is None or context.resilient_parsing:
        return file
    folder = file.absolute().parent
    if not folder.is_dir():
        problem = errno.ENOENT
    elif file.is_dir():
        problem = errno.EISDIR
    elif not os.access(file if file.exists() else folder, os.W_OK):
        problem = errno.EACCES
    else:
        return file
    raise typer.BadParameter(f"{file} cannot be written: {os.strerror(problem)}")


def keep_input(read: str | Path, *written: Path | None) -> None:
    """Raise `UsageError` if a command would overwrite the file that it reads."""
    for file in written:
        if file is not None and file.exists() and os.path.exists(read) and file.samefile(read):
            raise UsageError(f"{file} is the input, and would be overwritten; name another file")


def _check_format(format: str | None) -> str | None:
    """Return the name of a format of rubrics; refuse one that is unknown."""
    if format is not None:
        from rubric_store.formats.table import FORMATS

        if format not in FORMATS:
            raise typer.BadParameter(f"{format!r} is unknown; use one of {', '.join(FORMATS)}")
    return format


def format_option(help: str) -> Any:
    """The option for the format of rubrics in files."""
    return typer.Option("--format", help=help, callback=_check_format)


def output_option(help: str, **more: Any) -> Any:
    """The option for the file that a command writes."""
    return typer.Option("--output", "-o", help=help, callback=check_output, **more)


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


@dataclass(frozen=True, slots=True)
class Service:
    """The judge that scores responses, and how many at a time."""

    url: Annotated[
        str | None,
        typer.Option(
            help="Address of a running service; by default one is started in this process.",
            envvar="ADJUDGE_URL",
            rich_help_panel=SERVICE,
        ),
    ] = None
    judge: JudgeOption = None
    concurrency: ConcurrencyOption = 8
    deadline_s: DeadlineOption = 3600.0


LedgerUrlOption = Annotated[
    str | None,
    typer.Option(help="Address of a running service; by default the database is read.", envvar="ADJUDGE_URL"),
]
ServiceUrlOption = Annotated[str | None, typer.Option("--url", help="Address of the service; by default ADJUDGE_URL.")]
ProjectOption = Annotated[
    str, typer.Option(help="The project, if the database is read; a service uses the key's project.")
]

JsonOption = Annotated[bool, typer.Option("--json", help="Print JSON instead of tables.")]

RubricOption = Annotated[
    str | None, typer.Option(help="A reference (name@3) or a rubric file, for lines without a rubric.")
]

RubricNameArgument = Annotated[str, typer.Argument(help="The rubric, for example math/quadratics.")]
RunArgument = Annotated[
    str, typer.Argument(help="The run's name, as given in its requests; '' for requests without a run.")
]
FirstStepOption = Annotated[int | None, typer.Option(min=0, help="First step to include.")]
LastStepOption = Annotated[int | None, typer.Option(min=0, help="Last step to include.")]
FiguresOption = Annotated[Path | None, output_option("Write the figures here as JSON.", rich_help_panel=OUTPUT)]

_LABELLED = (
    "Labelled rows (JSONL, CSV, Parquet), READER:PATH, such as llmbar:llmbar.jsonl, run:NAME, verdicts:NAME, or - for "
    "JSONL on standard input."
)
DatasetArgument = Annotated[str, typer.Argument(help=_LABELLED, metavar="DATASET", callback=copy_standard_input)]
DataArgument = Annotated[list[str], typer.Argument(help=_LABELLED, metavar="DATASET", callback=copy_standard_input)]
InputsArgument = Annotated[Path | None, input_argument("JSONL with an input per line.", metavar="INPUT")]
LongestOption = Annotated[int | None, typer.Option(min=1, help="Leave out examples with longer texts, in characters.")]
ProtocolOption = Annotated[
    Literal["binary", "stepwise"], typer.Option(help="Judging protocol.", rich_help_panel=JUDGING)
]


@dataclass(frozen=True, slots=True)
class AskingEngines:
    """How engines are asked about data, and how many examples at a time."""

    fresh: Annotated[
        bool, typer.Option("--fresh", help="Judge everything again, instead of continuing.", rich_help_panel=SERVICE)
    ] = False
    concurrency: ConcurrencyOption = 4
    deadline_s: DeadlineOption = 3600.0


@dataclass(frozen=True, slots=True)
class Asking(AskingEngines):
    """The same, where the judge may be that of a running service."""

    url: Annotated[
        str | None,
        typer.Option(
            help="Address of a running service, for a judge by name.", envvar="ADJUDGE_URL", rich_help_panel=SERVICE
        ),
    ] = None


@dataclass(frozen=True, slots=True)
class Rows:
    """The rows of a labelled data set that are used."""

    column: ColumnOption = None
    limit: Annotated[int | None, typer.Option(min=1, help="Judge at most N examples, chosen by a fixed hash.")] = None
    longest: LongestOption = None


@dataclass(frozen=True, slots=True)
class MeasuredRows(Rows):
    """The rows of a labelled data set that a judge is measured on."""

    labels: Annotated[
        Path | None,
        typer.Option(
            help="For run:NAME: JSONL with group, response and labels; by default, the labels given in the console.",
            exists=True,
            dir_okay=False,
        ),
    ] = None
    half: Annotated[
        Literal["all", "fit", "held"], typer.Option(help="Which half of the rows to use, by a fixed hash.")
    ] = "all"


@dataclass(frozen=True, slots=True)
class Report:
    """How a report is written."""

    html: Annotated[
        Path | None, typer.Option(help="Write the report with plots here, as one HTML file.", callback=check_output)
    ] = None
    as_json: JsonOption = False
