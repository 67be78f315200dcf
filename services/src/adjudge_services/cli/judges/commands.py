"""The options of the commands about judges, and their help."""

from pathlib import Path
from typing import Annotated, Literal, get_args

import typer

from adjudge_services.cli.options import (
    DEFAULT_PROJECT,
    JUDGING,
    SERVICE,
    ColumnOption,
    ConcurrencyOption,
    CriteriaPerCallOption,
    DeadlineOption,
    JsonOption,
    JudgeOption,
    JudgingProtocol,
    copy_dataset,
    copy_datasets,
    implemented_by,
)

DEFAULT_MODEL = "qwen2.5-coder-1.5b"

DatasetArgument = Annotated[
    str,
    typer.Argument(
        help="Labelled rows (JSONL, CSV, Parquet), READER:PATH, such as llmbar:llmbar.jsonl, run:NAME, or - for JSONL "
        "on standard input.",
        metavar="DATASET",
        callback=copy_dataset,
    ),
]
DataArgument = Annotated[
    list[str],
    typer.Argument(
        help="Labelled rows (JSONL, CSV, Parquet), READER:PATH, such as llmbar:llmbar.jsonl, run:NAME, or - for JSONL "
        "on standard input.",
        metavar="DATASET",
        callback=copy_datasets,
    ),
]
ServiceOption = Annotated[
    str | None,
    typer.Option(
        help="Address of a running service, for a judge by name.", envvar="ADJUDGE_URL", rich_help_panel=SERVICE
    ),
]
LimitOption = Annotated[int | None, typer.Option(min=1, help="Judge at most N examples, chosen by a fixed hash.")]
LongestOption = Annotated[int | None, typer.Option(min=1, help="Leave out examples with longer texts, in characters.")]
HalfOption = Annotated[
    Literal["all", "fit", "held"], typer.Option(help="Rows to use; `adjudge calibrate` fits on the half fit.")
]
LabelsOption = Annotated[
    Path | None,
    typer.Option(
        help="For run:NAME: JSONL with group, response and labels; by default, the labels given in the console.",
        dir_okay=False,
    ),
]
ProtocolOption = Annotated[
    Literal["binary", "stepwise"], typer.Option(help="Judging protocol.", rich_help_panel=JUDGING)
]
RationaleOption = Annotated[
    bool, typer.Option("--rationale", help="Have the judge write its reasons first.", rich_help_panel=JUDGING)
]
TemplateOption = Annotated[str | None, typer.Option(help="A set of prompt templates.", rich_help_panel=JUDGING)]
HtmlOption = Annotated[Path | None, typer.Option(help="Write the report with plots here, as one HTML file.")]
FreshOption = Annotated[
    bool, typer.Option("--fresh", help="Judge everything again, instead of continuing.", rich_help_panel=SERVICE)
]


@implemented_by("adjudge_services.cli.judges.evaluate:evaluate")
def evaluate(
    data: DataArgument,
    judge: JudgeOption = None,
    column: ColumnOption = None,
    labels: LabelsOption = None,
    half: HalfOption = "all",
    limit: LimitOption = None,
    longest: LongestOption = None,
    protocol: Annotated[
        JudgingProtocol | None, typer.Option(help="Judging protocol; by default binary.", rich_help_panel=JUDGING)
    ] = None,
    criteria_per_call: CriteriaPerCallOption = None,
    rationale: RationaleOption = False,
    votes: Annotated[int, typer.Option(min=1, help="Verdicts to sample per criterion.", rich_help_panel=JUDGING)] = 1,
    template: TemplateOption = None,
    sensitivity: Annotated[
        int, typer.Option(min=0, help="Judge N of the responses again with criteria and responses changed.")
    ] = 0,
    html: HtmlOption = None,
    as_json: JsonOption = False,
    fresh: FreshOption = False,
    url: ServiceOption = None,
    concurrency: ConcurrencyOption = 4,
    deadline_s: DeadlineOption = 3600.0,
) -> None:
    """Measure a judge on labelled data: is it good enough, and what does it cost?

    Reports agreement by task, kind and criterion, calibration, first wrong steps, pairs in both orders, votes,
    sensitivity and cost, each with its 95% interval. An interrupted evaluation continues where it stopped.
    """


def _known_protocols(given: list[str] | None) -> list[str] | None:
    known: tuple[str, ...] = get_args(JudgingProtocol)
    for name in given or ():
        if name not in known:
            raise typer.BadParameter(f"{name!r} is not a protocol; write one of {', '.join(known)}")
    return given


@implemented_by("adjudge_services.cli.judges.compare:bakeoff")
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
    limit: LimitOption = None,
    longest: LongestOption = None,
    html: HtmlOption = None,
    as_json: JsonOption = False,
    fresh: FreshOption = False,
    url: ServiceOption = None,
    concurrency: ConcurrencyOption = 4,
    deadline_s: DeadlineOption = 3600.0,
) -> None:
    """Compare judges, and ways of asking them, on labelled data: which is good enough, and what does it cost?

    The contenders are all combinations of the repeated options; the first value of each makes the first contender, with
    which the others are compared. An interrupted bake-off continues where it stopped.
    """


@implemented_by("adjudge_services.cli.judges.attack:attack")
def attack(
    judges: Annotated[list[str] | None, typer.Argument(help="The judge, as for --judge.", hidden=True)] = None,
    judge: JudgeOption = None,
    rubric: Annotated[
        Path | None,
        typer.Option(help="Your own rubric, in a file; our responses are about other things.", exists=True),
    ] = None,
    data: Annotated[
        str | None, typer.Option(help="Labelled data, as for `adjudge evaluate`; attack its responses.")
    ] = None,
    each_defence: Annotated[
        bool, typer.Option("--each-defence", help="Also measure without defences, with each alone, and with all.")
    ] = False,
    limit: Annotated[
        int | None, typer.Option(min=1, help="Make at most N of the attacks, kinds in turn, chosen by a fixed hash.")
    ] = None,
    targets: Annotated[int, typer.Option(min=1, help="Responses on which each attack is made.")] = 1,
    longest: LongestOption = None,
    template: TemplateOption = None,
    most_added: Annotated[
        float | None,
        typer.Option(min=0, max=1, help="Largest share of false accepts that attacks may add; else exit with 1."),
    ] = None,
    html: HtmlOption = None,
    as_json: JsonOption = False,
    fresh: FreshOption = False,
    url: ServiceOption = None,
    concurrency: ConcurrencyOption = 4,
    deadline_s: DeadlineOption = 3600.0,
) -> None:
    """Attack a judge: how many false accepts do attacks add, and which defences help?

    Each attack is made on responses that fail criteria, and compared with the same responses unattacked. With
    --most-added, exits with 1 unless the 95% interval of what all attacks add lies below it. An interrupted run
    continues where it stopped.
    """


@implemented_by("adjudge_services.cli.judges.calibrate:calibrate")
def calibrate(
    data: DataArgument,
    name: Annotated[str, typer.Option(help="Name under which to store the calibration.")],
    judge: JudgeOption = None,
    column: ColumnOption = None,
    method: Annotated[
        Literal["auto", "temperature", "platt", "beta", "isotonic"],
        typer.Option(help="auto: temperature from 20 labels on, platt from 60, beta from 1,000."),
    ] = "auto",
    threshold: Annotated[
        str, typer.Option(help="Lowest calibrated probability of a yes, or balanced: fitted for balanced accuracy.")
    ] = "0.5",
    uncertain_band: Annotated[
        tuple[float, float] | None,
        typer.Option(metavar="LOW HIGH", help="Calibrated probabilities between which verdicts are uncertain."),
    ] = None,
    limit: LimitOption = None,
    longest: LongestOption = None,
    protocol: ProtocolOption = "binary",
    rationale: RationaleOption = False,
    template: TemplateOption = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Fit and measure, but store nothing.")] = False,
    fresh: FreshOption = False,
    url: ServiceOption = None,
    concurrency: ConcurrencyOption = 4,
    deadline_s: DeadlineOption = 3600.0,
) -> None:
    """Fit a calibration on one half of a data set, measure it on the other, and store it as a new version.

    A service applies it once ADJUDGE_CALIBRATIONS names it. A calibration that makes the Brier score of the other half
    worse is not stored.
    """


calibrations_app = typer.Typer(invoke_without_command=True, help="List, show and select stored calibrations.")


@calibrations_app.callback()
@implemented_by("adjudge_services.cli.judges.calibrate:calibrations")
def calibrations(context: typer.Context, as_json: JsonOption = False) -> None:
    """List the stored calibrations of judges, bands of cascades and error rates of panels, with their aliases."""


@calibrations_app.command("show")
@implemented_by("adjudge_services.cli.judges.calibrate:show")
def calibrations_show(reference: Annotated[str, typer.Argument(help="NAME, NAME@VERSION or NAME@ALIAS.")]) -> None:
    """Print a calibration as JSON: its judge, its maps, its data's digest and what was measured."""


@calibrations_app.command("alias")
@implemented_by("adjudge_services.cli.judges.calibrate:alias")
def calibrations_alias(
    name: Annotated[str, typer.Argument(help="The calibration's name.")],
    alias_name: Annotated[str, typer.Argument(help="The alias, such as live.", metavar="ALIAS")],
    version: Annotated[int, typer.Argument(help="The version to point it at.", min=1)],
) -> None:
    """Point an alias at a version. Running services follow within ten seconds."""


MemberArgument = Annotated[str, typer.Argument(help="An engine URL, or the name of a judge of the service at --url.")]
NameOption = Annotated[str | None, typer.Option(help="Store what was fitted under this name.")]


@implemented_by("adjudge_services.cli.judges.calibrate:cascade")
def cascade(
    small: MemberArgument,
    large: MemberArgument,
    dataset: DatasetArgument,
    column: ColumnOption = None,
    error: Annotated[
        float, typer.Option(min=0.001, max=0.5, help="Wanted rate of verdicts that differ from the large judge's.")
    ] = 0.05,
    name: NameOption = None,
    limit: LimitOption = None,
    longest: LongestOption = None,
    protocol: ProtocolOption = "binary",
    rationale: RationaleOption = False,
    template: TemplateOption = None,
    html: HtmlOption = None,
    as_json: JsonOption = False,
    fresh: FreshOption = False,
    url: ServiceOption = None,
    concurrency: ConcurrencyOption = 4,
    deadline_s: DeadlineOption = 3600.0,
) -> None:
    """Fit the band in which a cascade asks its large judge, and show its agreement against its cost.

    The band is fitted on one half of the data set for a wanted rate of changed verdicts, and measured on the other.
    With --name it is stored as a new version, which a cascade's "band" names in the settings.
    """


@implemented_by("adjudge_services.cli.judges.calibrate:panel")
def panel(
    dataset: DatasetArgument,
    judge: Annotated[
        list[str], typer.Option(help="Repeat: an engine URL, or the name of a judge of the service at --url.")
    ],
    column: ColumnOption = None,
    name: NameOption = None,
    without_labels: Annotated[
        bool, typer.Option("--without-labels", help="Fit on the verdicts alone; labels only measure.")
    ] = False,
    limit: LimitOption = None,
    longest: LongestOption = None,
    protocol: ProtocolOption = "binary",
    rationale: RationaleOption = False,
    template: TemplateOption = None,
    as_json: JsonOption = False,
    fresh: FreshOption = False,
    url: ServiceOption = None,
    concurrency: ConcurrencyOption = 4,
    deadline_s: DeadlineOption = 3600.0,
) -> None:
    """Fit the error rates of a panel's judges by Dawid and Skene's model, and compare ways of combining them.

    The rates are fitted on one half of the data set, and measured on the other beside equal weights and each judge
    alone. With --name they are stored as a new version, which a panel's "dawid_skene" names in the settings.
    """


judges_app = typer.Typer(help="Compare judges before you switch.", no_args_is_help=True)


@judges_app.callback()
def judges() -> None:
    """Compare judges before you switch."""


@judges_app.command("compare")
@implemented_by("adjudge_services.cli.judges.compare:compare")
def judges_compare(
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
    url: ServiceOption = None,
    concurrency: ConcurrencyOption = 4,
    deadline_s: DeadlineOption = 3600.0,
) -> None:
    """Judge a sample of a run under two judges, and show how rewards and advantages move.

    An advantage flips if its sign changes, if it vanishes or if it appears. Exits with 1 unless the 95% interval of the
    share of advantages that flip lies below --most-flipped, so that a pipeline can stop a switch that is not shown to
    be harmless. Verdicts of programs are kept as they were recorded.
    """


models_app = typer.Typer(name="models", help="Fetch judge models, list them, print their paths.", no_args_is_help=True)


@models_app.command("pull")
@implemented_by("adjudge_services.cli.judges.models:pull")
def models_pull(
    model: Annotated[
        str, typer.Argument(help="A name from the list, hf://owner/repository/file.gguf, or a path.")
    ] = DEFAULT_MODEL,
    force: Annotated[bool, typer.Option("--force", help="Download the model again even if it is present.")] = False,
    allow_smaller: Annotated[
        bool, typer.Option("--allow-smaller", help="If no source has the model, fetch the next smaller one.")
    ] = False,
) -> None:
    """Fetch a model, resuming an earlier download, and print its path."""


@models_app.command("list")
@implemented_by("adjudge_services.cli.judges.models:list_models")
def models_list(
    check: Annotated[bool, typer.Option("--check", help="Hash every file instead of comparing sizes only.")] = False,
    as_json: JsonOption = False,
) -> None:
    """List the known models and their state on this machine."""


@models_app.command("path")
@implemented_by("adjudge_services.cli.judges.models:path")
def models_path(
    model: Annotated[str, typer.Argument(help="A name from the list, hf://…, or a path.")] = DEFAULT_MODEL,
) -> None:
    """Print the path of a model; fail if it is not present."""


templates_app = typer.Typer(help="Check, show and list prompt templates.", no_args_is_help=True)


@templates_app.command("check")
@implemented_by("adjudge_services.cli.judges.templates:check")
def templates_check(folder: Annotated[Path, typer.Argument(help="A template set: a folder of templates.")]) -> None:
    """Check a template set file by file, including set.toml. Exits with 1 if any file is invalid."""


@templates_app.command("show")
@implemented_by("adjudge_services.cli.judges.templates:show")
def templates_show(
    name: Annotated[str | None, typer.Argument(help="A template's file name, for example question.j2.")] = None,
    set_name: Annotated[
        str | None, typer.Option("--set", help="A built-in set instead of the default, such as rgr.")
    ] = None,
) -> None:
    """Print a built-in template, or list the templates with their variables."""


@templates_app.command("list")
@implemented_by("adjudge_services.cli.judges.templates:list_sets")
def templates_list(as_json: JsonOption = False) -> None:
    """List the template sets that requests can name: the built-in ones, and those in ADJUDGE_TEMPLATES_DIR."""
