"""`adjudge generate` and `adjudge rows`: have a model write rubrics, and turn them into training rows.

The output folder of a run has operations of its own, so that a stopped run is continued from the folder of its results.
The progress display is a bar, or occasional lines if standard error is not a terminal.

`adjudge rubrics validate` has a judge check each criterion for validity, and stores its verdicts.
"""

import asyncio
from pathlib import Path
from typing import Annotated

import typer
from rich.markup import escape

from adjudge_services.cli.options import InputsArgument
from adjudge_services.cli.output import err, exit_with_error, out


def generate(
    kind: Annotated[str | None, typer.Argument(help="A generator; see --list.")] = None,
    file: InputsArgument = None,
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
    from adjudge_services.cli.rubrics.generate_work import (
        INTERRUPTED,
        generate_rubrics,
        generators_table,
        read_parameters,
        report_and_exit,
    )
    from adjudge_services.settings import Settings
    from adjudge_services.store import StartError
    from judge_server.errors import EngineStartError
    from judge_server.operations.generation_run import GenerationSettings

    if show_list:
        out.print(generators_table())
        return
    if kind is None or file is None or output is None:
        exit_with_error(
            "give a generator, inputs and a folder for results: adjudge generate KIND INPUT.jsonl --output DIR", code=2
        )
    settings = Settings(engine_url=engine) if engine else Settings()
    try:
        request = GenerationSettings(
            kind, file, read_parameters(assignments or []), publish, prefix, limit, concurrency, templates
        )
        progress, problem = asyncio.run(generate_rubrics(settings, request, output))
    except KeyboardInterrupt:
        err.print(
            f"[yellow]stopped;[/] results so far are in {escape(str(output))}. Run the same command again to continue",
            highlight=False,
            soft_wrap=True,
        )
        raise typer.Exit(INTERRUPTED) from None
    except (StartError, EngineStartError, OSError, ValueError) as error:
        exit_with_error(str(error))
    report_and_exit(progress, problem, output)


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
    from judge_server.generation.results import write_rows

    try:
        counts = write_rows(run, output, inline=inline, messages=messages)
    except (OSError, ValueError) as error:
        exit_with_error(str(error))
    summary = ", ".join(f"{count} {split}" for split, count in counts.items())
    out.print(f"{summary} rows in {escape(str(output))}", highlight=False, soft_wrap=True)


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
    from adjudge_services.cli.rubrics.generate_work import INTERRUPTED, print_report, validate_rubrics
    from adjudge_services.settings import Settings
    from adjudge_services.store import StartError
    from judge_server.errors import EngineStartError, ServiceError

    if bool(references) == (prefix is not None):
        exit_with_error("give either the rubrics to judge or --prefix")
    settings = Settings(engine_url=engine) if engine else Settings()
    try:
        judged = asyncio.run(validate_rubrics(settings, references or [], prefix))
    except KeyboardInterrupt:
        err.print(
            "[yellow]stopped;[/] verdicts so far are kept. Run the same command again to continue", highlight=False
        )
        raise typer.Exit(INTERRUPTED) from None
    except ServiceError as error:
        exit_with_error(error.detail)
    except (StartError, EngineStartError, OSError, ValueError) as error:
        exit_with_error(str(error))
    print_report(judged.operation, judged.found, judged.unjudged, summary=summary)
    if judged.operation.state != "done" or judged.operation.progress.failed or (judged.unjudged and references):
        raise typer.Exit(1)
