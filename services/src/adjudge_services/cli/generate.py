"""`adjudge generate`: rubrics written by a model, from a JSONL file of inputs."""

import asyncio
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import JsonValue as Json
from pydantic import TypeAdapter, ValidationError
from rich.markup import escape

from adjudge_services.cli.generate_progress import show_progress
from adjudge_services.cli.generate_report import generators_table, report, statistics_table
from adjudge_services.cli.generate_run import GenerationRun, open_generation_run
from adjudge_services.cli.output import err, exit_with_error, out
from adjudge_services.settings import Settings
from adjudge_services.wiring import StartError
from judge_server.errors import EngineStartError
from judge_server.generation.results import read_statistics
from trainer_client.wire.operations import Operation

_JSON: TypeAdapter[Json] = TypeAdapter(Json)
INTERRUPTED = 130


def generate(
    kind: Annotated[str | None, typer.Argument(help="A generator; --list shows them.")] = None,
    file: Annotated[
        Path | None, typer.Argument(help="JSONL, an input a line.", metavar="INPUT", exists=True, dir_okay=False)
    ] = None,
    output: Annotated[
        Path | None, typer.Option("--out", help="A folder for the results; a run goes on from what is there.")
    ] = None,
    engine: Annotated[str | None, typer.Option(help="Engine URL of the model that writes.")] = None,
    assignments: Annotated[
        list[str] | None, typer.Option("--set", help="A parameter of the generator.", metavar="NAME=VALUE")
    ] = None,
    limit: Annotated[int | None, typer.Option(min=1, help="Only the first N lines.")] = None,
    concurrency: Annotated[int | None, typer.Option(min=1, help="Inputs in work at a time.")] = None,
    templates: Annotated[
        Path | None,
        typer.Option(help="A folder of prompt templates that replace the generator's.", exists=True, file_okay=False),
    ] = None,
    publish: Annotated[bool, typer.Option("--publish/--no-publish", help="Whether rubrics go into the store.")] = True,
    prefix: Annotated[str, typer.Option(help="What the rubrics' names begin with, for example team/math/.")] = "",
    show_list: Annotated[bool, typer.Option("--list", help="Show the generators and what they take.")] = False,
) -> None:
    """Have a model write a rubric for every input, and publish those that pass.

    A run that was stopped goes on when the same command is given again. Exits with 1 if any line could not be read or
    was left undone.
    """
    if show_list:
        out.print(generators_table())
        return
    if kind is None or file is None or output is None:
        exit_with_error(
            "say which generator, which inputs and where to: adjudge generate KIND INPUT.jsonl --out DIR", code=2
        )
    settings = Settings(engine_url=engine) if engine else Settings()
    try:
        request = {
            "generator": kind,
            "input": str(file.resolve()),
            "out": str(output.resolve()),
            "parameters": _parameters(assignments or []),
            "publish": publish,
            "prefix": prefix,
            "limit": limit,
            "concurrency": concurrency,
            **({} if templates is None else {"templates": str(templates.resolve())}),
        }
        operation = asyncio.run(_generate(settings, request, output))
    except KeyboardInterrupt:
        err.print(
            f"[yellow]stopped;[/] what was made is in {escape(str(output))}. Give the same command again to go on",
            highlight=False,
            soft_wrap=True,
        )
        raise typer.Exit(INTERRUPTED) from None
    except (StartError, EngineStartError, OSError, ValueError) as error:
        exit_with_error(str(error))
    _report_and_exit(operation, output)


async def _generate(settings: Settings, request: dict[str, Any], output: Path) -> Operation:
    async with open_generation_run(settings, output) as generation:
        with show_progress(generation.operations) as shown:
            operation = await _begin_operation(generation, request)
            return await shown.follow(operation)


async def _begin_operation(generation: GenerationRun, request: dict[str, Any]) -> Operation:
    """The operation for a request: the one that a stopped run left, or a new one."""
    await generation.start_engine()
    return await generation.begin(request)


def _report_and_exit(operation: Operation, output: Path) -> None:
    statistics = read_statistics(output) if operation.state == "done" else None
    if statistics is not None and statistics.inputs:
        out.print(statistics_table(statistics))
    good = report(operation, output)
    if operation.state != "done" or not good:
        raise typer.Exit(1)


def _parameters(assignments: list[str]) -> dict[str, Json]:
    parameters: dict[str, Json] = {}
    for pair in assignments:
        name, separator, text = pair.partition("=")
        if not separator or not name:
            raise ValueError(f"--set {pair}: write NAME=VALUE")
        try:
            parameters[name] = _JSON.validate_json(text)
        except ValidationError:
            parameters[name] = text
    return parameters
