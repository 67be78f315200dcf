"""The options of the commands that make rubrics and manage them, and their help."""

from pathlib import Path
from typing import Annotated, Literal

import typer

from adjudge_services.cli.options import (
    OUTPUT,
    ConcurrencyOption,
    DeadlineOption,
    JsonOption,
    JudgeOption,
    JudgingProtocol,
    ModeOption,
    RubricOption,
    UrlOption,
    copy_one_of,
    implemented_by,
    input_argument,
)

PaperSystem = Literal["rgr", "srar", "grounded", "dro", "ruscarl"]

rubrics_app = typer.Typer(
    help="Manage rubrics: publish, find, compare, check, import and export them.", no_args_is_help=True
)


@rubrics_app.callback()
def rubrics() -> None:
    """Manage rubrics: publish, find, compare, check, import and export them."""


@implemented_by("adjudge_services.cli.rubrics.generate:generate")
def generate(
    kind: Annotated[str | None, typer.Argument(help="A generator; see --list.")] = None,
    file: Annotated[Path | None, input_argument("JSONL with an input per line.", metavar="INPUT")] = None,
    output: Annotated[
        Path | None,
        typer.Option("--output", "-o", help="Folder for the results; an unfinished run in it is continued."),
    ] = None,
    engine: Annotated[str | None, typer.Option(help="Engine URL of the model that writes the rubrics.")] = None,
    assignments: Annotated[
        list[str] | None,
        typer.Option("--set", help="A parameter of the generator; may be repeated.", metavar="NAME=VALUE"),
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Read only the first N lines.")] = None,
    concurrency: Annotated[int | None, typer.Option(min=1, help="Inputs to process at a time.")] = None,
    templates: Annotated[
        Path | None,
        typer.Option(help="Folder of prompt templates that replace the generator's.", exists=True, file_okay=False),
    ] = None,
    publish: Annotated[
        bool, typer.Option("--publish/--no-publish", help="Whether to publish the rubrics to the store.")
    ] = True,
    prefix: Annotated[str, typer.Option(help="Prefix of the rubrics' names, for example team/math/.")] = "",
    show_list: Annotated[
        bool, typer.Option("--list", help="List the generators with their inputs and parameters, and exit.")
    ] = False,
) -> None:
    """Have a model write a rubric for every input, and publish the rubrics that pass the checks.

    To continue a stopped run, give the same command again. Exits with 1 if any line could not be read or processed.
    """


@implemented_by("adjudge_services.cli.rubrics.generate:rows")
def rows(
    run: Annotated[
        Path, typer.Argument(help="The --output folder of an `adjudge generate` run.", exists=True, file_okay=False)
    ],
    output: Annotated[
        Path, typer.Option("--output", "-o", help="Folder for train.jsonl, validation.jsonl and test.jsonl.")
    ],
    inline: Annotated[
        bool, typer.Option("--inline", help="Put the criteria into the rows instead of the published reference.")
    ] = False,
    messages: Annotated[
        bool, typer.Option("--messages", help="Write prompts as chat messages instead of text.")
    ] = False,
) -> None:
    """Write a run's splits as rows for a trainer: prompt, rubric, grounding, ground_truth and reference_answer."""


NameArgument = Annotated[str, typer.Argument(help="The rubric, for example math/quadratics.")]
LimitOption = Annotated[int, typer.Option("--limit", min=1, help="Maximum number to show.")]
TagOption = Annotated[str | None, typer.Option(help="Only rubrics that have this tag.")]


@rubrics_app.command("publish")
@implemented_by("adjudge_services.cli.rubrics.changes:publish")
def publish(
    name: NameArgument,
    file: Annotated[Path, input_argument("The rubric, in one of the formats.")],
    format: Annotated[
        str | None,
        typer.Option(
            help="yaml, native, healthbench, rar, srar, rgr, grounded, dro, requirement, paperbench, questions, "
            "frontierscience, prometheus, levels, promptfoo or geval; detected by default."
        ),
    ] = None,
    tags: Annotated[list[str] | None, typer.Option("--tag", help="Add a tag to the name; may be repeated.")] = None,
    metadata: Annotated[
        list[str] | None, typer.Option("--meta", help="Store KEY=VALUE with the version; may be repeated.")
    ] = None,
    author: Annotated[str | None, typer.Option(help="Who wrote the version.")] = None,
    parent: Annotated[
        int | None, typer.Option(min=1, help="The version it was made from; by default the newest.")
    ] = None,
) -> None:
    """Publish a file as the next version of a rubric. Criteria that are published already make no new version.

    Tags, metadata and lineage in the file are stored too. Options override them, and --tag adds to them.
    """


@rubrics_app.command("show")
@implemented_by("adjudge_services.cli.rubrics.show:show")
def show(
    reference: Annotated[str, typer.Argument(help="name, name@3, name@alias or sha256:…")], as_json: JsonOption = False
) -> None:
    """Show a version: its origin, whether it is in use, and its criteria."""


@rubrics_app.command("list")
@implemented_by("adjudge_services.cli.rubrics.show:list_rubrics")
def list_rubrics(
    prefix: Annotated[str, typer.Argument(help="Only rubrics whose name begins with this.")] = "",
    tag: TagOption = None,
    max_count: LimitOption = 1_000,
    as_json: JsonOption = False,
) -> None:
    """List rubrics by name, each with its current version."""


@rubrics_app.command("search")
@implemented_by("adjudge_services.cli.rubrics.show:search")
def search(
    words: Annotated[list[str], typer.Argument(help="Words, or beginnings of words, that the criteria must contain.")],
    prefix: Annotated[str, typer.Option(help="Only rubrics whose name begins with this.")] = "",
    tag: TagOption = None,
    max_count: LimitOption = 1_000,
    as_json: JsonOption = False,
) -> None:
    """List the rubrics whose criteria contain all of the given words, ignoring case."""


@rubrics_app.command("history")
@implemented_by("adjudge_services.cli.rubrics.show:history")
def history(
    name: NameArgument,
    max_count: LimitOption = 100,
    as_json: JsonOption = False,
) -> None:
    """List the versions of a rubric, newest first."""


@rubrics_app.command("diff")
@implemented_by("adjudge_services.cli.rubrics.show:diff")
def diff(
    versions: Annotated[
        list[str],
        typer.Argument(
            metavar="NAME@FROM [NAME@TO]",
            help="Two versions by number or alias, such as team/math@1 team/math@2; by default the second is the "
            "latest. The name can also stand before them: team/math 1 2.",
        ),
    ],
    as_json: JsonOption = False,
) -> None:
    """Show which criteria were added, removed, reworded, reweighted, otherwise changed or moved."""


@rubrics_app.command("alias")
@implemented_by("adjudge_services.cli.rubrics.changes:alias")
def alias(
    name: NameArgument,
    alias: Annotated[str | None, typer.Argument(help="The alias, for example production.")] = None,
    version: Annotated[int | None, typer.Argument(min=1, help="The version that it shall point to.")] = None,
    expected: Annotated[
        int | None, typer.Option("--from", min=1, help="Change it only if it points to this version now.")
    ] = None,
    remove: Annotated[bool, typer.Option("--remove", help="Remove the alias.")] = False,
) -> None:
    """Point an alias to a version; without a version, show the versions that aliases point to."""


@rubrics_app.command("tag")
@implemented_by("adjudge_services.cli.rubrics.changes:tag")
def tag(
    name: NameArgument,
    tags: Annotated[list[str] | None, typer.Argument(help="The new tags, which replace the existing ones.")] = None,
    clear: Annotated[bool, typer.Option("--clear", help="Remove all tags.")] = False,
) -> None:
    """Replace the tags of a rubric; without tags, show them."""


@rubrics_app.command("retire")
@implemented_by("adjudge_services.cli.rubrics.changes:retire")
def retire(
    reference: Annotated[str, typer.Argument(help="The version, for example math/quadratics@3.")],
    reason: Annotated[str | None, typer.Argument(help="Why, and what to use instead.")] = None,
    restore: Annotated[bool, typer.Option("--restore", help="Bring the version back into use.")] = False,
) -> None:
    """Retire a version: it stays readable, but judging by it is rejected with the reason."""


@rubrics_app.command("discriminate")
@implemented_by("adjudge_services.cli.rubrics.discriminate:discriminate")
def discriminate(
    file: Annotated[
        Path,
        input_argument("JSONL with a prompt per line and its good and bad responses."),
    ],
    rubric: RubricOption = None,
    mode: ModeOption = "weighted_mean",
    protocol: Annotated[
        JudgingProtocol | None, typer.Option(help="Judging protocol; by default the mode's own.")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Judge only the first N lines.")] = None,
    at_least: Annotated[
        float | None,
        typer.Option(
            min=0, max=1, help="Exit with 1 if good responses rank above bad ones less often than this share."
        ),
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--output", "-o", help="Write the figures here as JSON.", rich_help_panel=OUTPUT)
    ] = None,
    url: UrlOption = None,
    judge: JudgeOption = None,
    concurrency: ConcurrencyOption = 8,
    deadline_s: DeadlineOption = 3600.0,
) -> None:
    """Judge responses known to be good or bad, and report how well the rubric tells them apart.

    A line has a prompt, `good` and `bad` (a response or a list of responses), and optionally other fields of a group.
    """


@rubrics_app.command("import")
@implemented_by("adjudge_services.cli.rubrics.files:import_rubrics")
def import_rubrics(
    paths: Annotated[list[Path], typer.Argument(help="Files, or folders to search for files.", exists=True)],
    prefix: Annotated[str, typer.Option(help="Prefix of every name, for example team/.")] = "",
    format: Annotated[str | None, typer.Option(help="Format of all files; detected by default.")] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Read all files but publish nothing.")] = False,
    skip_bad: Annotated[
        bool, typer.Option("--skip-bad", help="Publish the rubrics of a file that can be read, and count the others.")
    ] = False,
) -> None:
    """Publish every rubric in the given files. Exits with 1 if any file is rejected.

    A rubric gets the name in its file, or else the file's path. Each row of a JSONL, CSV or Parquet file is a rubric,
    named by its id. If a file has any problem, nothing in it is published, except with --skip-bad. The table at the end
    counts the rubrics read: kept as they are, changed where something has no counterpart here, and refused.
    """


@rubrics_app.command("export")
@implemented_by("adjudge_services.cli.rubrics.files:export")
def export(
    references: Annotated[list[str] | None, typer.Argument(help="name, name@3, name@alias or sha256:…")] = None,
    prefix: Annotated[
        str | None, typer.Option(help="Export the newest version of every rubric whose name begins with this.")
    ] = None,
    format: Annotated[
        str, typer.Option(help="yaml, native, healthbench, rar, srar, rgr, grounded, dro or requirement.")
    ] = "yaml",
    to: Annotated[
        Path | None,
        typer.Option(
            "--output", "-o", help="Folder for the files; without it a single rubric is printed.", file_okay=False
        ),
    ] = None,
    force: Annotated[bool, typer.Option("--force", help="Replace existing files.")] = False,
) -> None:
    """Write rubrics as files. Reports what the format cannot hold, and rejects rubrics that it cannot express."""


@rubrics_app.command("lint")
@implemented_by("adjudge_services.cli.rubrics.files:lint_rubrics")
def lint_rubrics(
    rubrics: Annotated[
        list[str],
        typer.Argument(
            help="Files or references: name, name@3, sha256:…, or - for standard input.", callback=copy_one_of
        ),
    ],
    system: Annotated[
        PaperSystem | None,
        typer.Option("--for", help="The paper whose structural rules to check; by default none are."),
    ] = None,
    format: Annotated[str | None, typer.Option(help="Format of the files; detected by default.")] = None,
    similarity_threshold: Annotated[
        float, typer.Option(min=0.01, max=1, help="Similarity in (0, 1] from which two criteria are reported.")
    ] = 0.75,
    answer: Annotated[str | None, typer.Option(help="The final answer, to find criteria that give it away.")] = None,
    strict: Annotated[bool, typer.Option("--strict", help="Exit with 1 on warnings too.")] = False,
    summary: Annotated[bool, typer.Option("--summary", help="Print only how often each code was found.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object per finding, one per line.")] = False,
) -> None:
    """Check rubrics without asking a model. Exits with 1 on an error, with 2 if a rubric cannot be read."""


@rubrics_app.command("validate")
@implemented_by("adjudge_services.cli.rubrics.generate:validate")
def validate(
    references: Annotated[list[str] | None, typer.Argument(help="name, name@3, name@alias or sha256:…")] = None,
    prefix: Annotated[
        str | None, typer.Option(help="Judge the newest version of every rubric whose name begins with this.")
    ] = None,
    engine: Annotated[str | None, typer.Option(help="Engine URL of the model that judges.")] = None,
    summary: Annotated[bool, typer.Option("--summary", help="Print only the rates by kind.")] = False,
) -> None:
    """Have a model judge whether criteria are true, about their question and of the right kind; store its verdicts.

    A version that the same model has judged with the same template is not judged again. Exits with 1 if a rubric that
    was named was not judged, or the model failed on one.
    """
