"""Generating rubrics as an operation: its request, and a run of it that begins or goes on in its folder."""

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import Field, JsonValue, PositiveInt, ValidationError

from judge_server.generation.folder import RUBRICS_FILE, RunFolder
from judge_server.generation.generator import Generator
from judge_server.generation.registry import check_parameters, generator_of
from judge_server.generation.results import write_results
from judge_server.generation.runner import GeneratorRun, GeneratorRunSettings, Publisher
from judge_server.generation.tally import RunCounts
from judge_server.generation.wording import read_templates
from judge_server.generation.writer import Writer
from judge_server.operations.job import JobContext
from judge_server.ports import RubricSource
from trainer_client.wire import RubricContent, RubricVersion
from trainer_client.wire.base import RequestModel
from trainer_client.wire.lineage import Lineage
from trainer_client.wire.problems import field_errors


class GenerateRequest(RequestModel):
    """A request to generate rubrics.

    Attributes:
        generator: the kind of generator.
        templates: a folder there with prompt templates that replace the generator's own.
        input: a JSONL file on the machine that runs it.
        out: the folder for the results; the operation's own unless given.
        parameters: what the generator is told.
        publish: whether the rubrics go into the store.
        prefix: what their names begin with.
        limit: how many lines of the file, from the first.
        concurrency: inputs in work at a time; as many as the engine takes unless given.
    """

    generator: str
    input: Path
    out: Path | None = None
    parameters: dict[str, JsonValue] = Field(default={})
    publish: bool = True
    prefix: str = ""
    limit: PositiveInt | None = None
    concurrency: PositiveInt | None = None
    templates: Path | None = None


class GenerateJob:
    """Generates rubrics with one writer, and publishes them at one source. `writer` starts the model when needed."""

    def __init__(self, writer: Callable[[], Awaitable[Writer]], rubrics: RubricSource) -> None:
        self._writer = writer
        self._rubrics = rubrics

    def check(self, request: dict[str, Any]) -> None:
        """Raises `ValueError` for what cannot be run."""
        try:
            parsed = GenerateRequest.model_validate(request)
            check_parameters(parsed.generator, parsed.parameters)
        except ValidationError as error:
            first = field_errors(error.errors())[0]
            raise ValueError(f"{first.field}: {first.message}") from None
        if not parsed.input.is_file():
            raise ValueError(f"there is no file {parsed.input}")
        _read_templates(parsed)

    def results_file(self, request: dict[str, Any], folder: Path) -> Path:
        """Where the results stand, a line each."""
        return (GenerateRequest.model_validate(request).out or folder) / RUBRICS_FILE

    async def run(self, context: JobContext) -> None:
        """Run it to its end, from wherever an earlier attempt got to.

        Raises:
            RunStopped: the engine keeps failing.
            EngineStartError: the model cannot be started.
            FolderInUse: another run works in the folder.
            OSError, ValueError: the input cannot be read, or the folder cannot be used.
        """
        request = GenerateRequest.model_validate(context.request)

        async def find(reference: str) -> RubricVersion | None:
            return await self._rubrics.find(context.project_id, reference)

        templates = await asyncio.to_thread(_read_templates, request)
        generator = generator_of(request.generator, request.parameters, find=find, templates=templates)
        try:
            await self._run(context, request, generator)
        finally:
            await generator.close()

    async def _run(self, context: JobContext, request: GenerateRequest, generator: Generator[Any, Any]) -> None:
        writer = (await self._writer()).with_own_usage()
        settings = GeneratorRunSettings(request.concurrency, request.limit, request.prefix)
        publish: Publisher | None = None
        if request.publish:
            model = writer.identity.model
            publish = publisher(self._rubrics, context.project_id, context.operation_id, generator, model)

        def report(run_counts: RunCounts) -> None:
            context.report(run_counts.progress())

        with RunFolder(request.out or context.folder) as folder:
            run = GeneratorRun(
                generator, writer, folder, request.input, settings=settings, publish=publish, report=report
            )
            keys = await run.run()
            title = f"{request.generator}: {request.input.name}"
            await asyncio.to_thread(write_results, folder, keys, title=title)


def _read_templates(request: GenerateRequest) -> Mapping[str, str] | None:
    """The templates that replace the generator's own; raises `ValueError` for a set that cannot be used."""
    return None if request.templates is None else read_templates(request.templates)


def publisher(
    rubrics: RubricSource,
    project_id: str,
    operation_id: str,
    generator: Generator[Any, Any],
    model: str,
    extra_parameters: Mapping[str, JsonValue] = MappingProxyType({}),
) -> Publisher:
    """What publishes an operation's rubrics, with who made them; `told` joins the generator's parameters there."""

    async def publish(record: dict[str, Any]) -> tuple[str, bool]:
        version, added = await rubrics.publish(
            project_id,
            record["name"],
            RubricContent.model_validate({"criteria": record["criteria"]}),
            metadata=record["metadata"],
            tags=record["tags"],
            parent=_parent(record),
            lineage=lineage_of(generator, model, record["source_digest"], operation_id, extra_parameters),
        )
        return version.reference, added

    return publish


def lineage_of(
    generator: Generator[Any, Any],
    model: str,
    source_digest: str,
    operation_id: str,
    extra_parameters: Mapping[str, JsonValue] = MappingProxyType({}),
) -> Lineage:
    """Say what made a rubric; `told` joins the generator's parameters."""
    return Lineage(
        generator=generator.kind,
        model=model,
        template_digest=generator.template_digest,
        parameters={**generator.parameters.model_dump(mode="json"), **extra_parameters},
        source_digest=source_digest,
        operation_id=operation_id,
    )


def _parent(record: dict[str, Any]) -> int | None:
    """The version that a record revises, where it is one of the same name."""
    name, _, version = (record["parent"] or "").partition("@")
    return int(version) if name == record["name"] and version.isdecimal() else None
