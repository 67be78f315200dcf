"""Generation of rubrics as an operation: in chunks by a worker, or in a folder by a command.

`GenerateHandler` makes a chunk of each input, since each takes many model calls, and publishes each rubric as soon as
it is done. `GenerateJob` runs the whole operation in a folder, where it can be resumed.

A chunk publishes its rubric once, even if it runs twice because a worker died between publishing and storing the
result. The next attempt finds the version by its lineage: the operation, and the source or, if several inputs revise
one rubric, the chunk.
"""

import asyncio
import tempfile
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import asdict
from json import dumps
from pathlib import Path
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel, Field, JsonValue, PositiveInt, ValidationError

from judge_server.errors import EngineStartError
from judge_server.generation.generator import Generator, InputRow
from judge_server.generation.kinds import check_parameters, generator_of
from judge_server.generation.results import write_results
from judge_server.generation.run import GeneratorRun, GeneratorRunSettings, Publisher, RunCounts
from judge_server.generation.run_folder import (
    DISCARDED_FILE,
    RUBRICS_FILE,
    RunFolder,
    read_failures,
    read_journal,
    split_of,
)
from judge_server.generation.wording import read_templates
from judge_server.generation.writer import Writer, WriterUsage
from judge_server.operations.handlers.base import (
    FatalChunkError,
    InvalidOperationError,
    RetryableChunkError,
    ServiceUnavailableError,
)
from judge_server.ports import Engine, OperationProgress, RubricSource
from judge_server.ports.operations import JobContext
from trainer_client.wire import Criterion, Lineage, RubricContent, RubricVersion
from trainer_client.wire.base import RequestModel
from trainer_client.wire.operations import ChunkOutcome, ChunkRef, GenerateOperation, LeasedChunk, NewChunk
from trainer_client.wire.problems import field_errors
from trainer_client.wire.rewards import Usage

CHUNK_PARAMETER = "operation_chunk"
"""The name of the chunk among the lineage parameters of a revised rubric."""

MAX_VERSIONS_SEARCHED = 500
"""The number of versions of a rubric that are searched for the chunk's own; others may have added newer ones."""

LintFunction = Callable[[Sequence[Criterion]], list[dict[str, JsonValue]]]
"""Returns the lint findings about a rubric, each with `code`, `severity`, `criterion`, `problem` and `advice`."""


class GenerateRequest(RequestModel):
    """A request to generate rubrics.

    Attributes:
        generator: the kind of generator.
        templates: a folder with prompt templates that replace the generator's own.
        input: a JSONL file on the machine that runs the operation.
        out: the folder for the results; by default that of the operation.
        parameters: the parameters of the generator.
        publish: publish the rubrics to the store.
        prefix: the prefix of their names.
        limit: the number of lines of the file to use, from the first.
        concurrency: the number of inputs in progress at a time; by default as many as the engine supports.
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
    """Generates rubrics with a writer and publishes them to a store. `writer` starts the model when needed."""

    def __init__(self, writer: Callable[[], Awaitable[Writer]], rubrics: RubricSource) -> None:
        self._writer = writer
        self._rubrics = rubrics

    def check(self, request: dict[str, Any]) -> None:
        """Check that a request can be run; raises `ValueError`."""
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
        """The file of the results, one per line."""
        return (GenerateRequest.model_validate(request).out or folder) / RUBRICS_FILE

    async def run(self, context: JobContext) -> None:
        """Run the operation to its end, resuming from an earlier attempt.

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
    """Read the templates that replace the generator's own; raises `ValueError` for an unusable set."""
    return None if request.templates is None else read_templates(request.templates)


def publisher(
    rubrics: RubricSource,
    project_id: str,
    operation_id: str,
    generator: Generator[Any, Any],
    model: str,
    extra_parameters: Mapping[str, JsonValue] = MappingProxyType({}),
) -> Publisher:
    """Create a function that publishes an operation's rubrics with their lineage.

    `extra_parameters` are added to the generator's parameters in the lineage.
    """

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
    """The lineage of a generated rubric; `extra_parameters` are added to the generator's parameters."""
    return Lineage(
        generator=generator.kind,
        model=model,
        template_digest=generator.template_digest,
        parameters={**generator.parameters.model_dump(mode="json"), **extra_parameters},
        source_digest=source_digest,
        operation_id=operation_id,
    )


def _parent(record: dict[str, Any]) -> int | None:
    """The version that a record revises, if it has the same name."""
    name, _, version = (record["parent"] or "").partition("@")
    return int(version) if name == record["name"] and version.isdecimal() else None


class IdempotentPublisher:
    """Publishes the rubric of a chunk once. `published` has the fields of the version for the chunk's result."""

    def __init__(self, rubrics: RubricSource, ref: ChunkRef, generator: Generator[Any, Any]) -> None:
        self.published: dict[str, Any] = {}
        self._rubrics = rubrics
        self._ref = ref
        self._generator = generator

    async def find_revision(self, row: InputRow, prefix: str) -> dict[str, Any] | None:
        """The record of the version that an earlier attempt added to the rubric a row names; None if there is none.

        Call this before the model is called: otherwise a second attempt would revise that version. The record has no
        `key`, which would name the model, and reports no calls.
        """
        name = self._generator.name_of(row)
        if name is None or not self._generator.revises:
            return None
        version = await self._find_published({"name": prefix + name})
        if version is None or version.lineage is None:
            return None
        self._remember(version)
        source = version.lineage.source_digest or ""
        return {
            "line": 1,
            "id": row.id,
            "name": version.name,
            "split": split_of(source),
            "source_digest": source,
            "metadata": version.metadata,
            "tags": [],
            "flags": [],
            "parent": None if version.parent is None else f"{version.name}@{version.parent}",
            "record": {},
            "usage": asdict(WriterUsage()),
        }

    def publisher(self, model: str) -> Publisher:
        """Create a function that publishes a record, unless an earlier attempt has."""
        extra_parameters = {CHUNK_PARAMETER: self._ref.chunk} if self._generator.revises else {}
        publish_version = publisher(
            self._rubrics, self._ref.project_id, self._ref.operation_id, self._generator, model, extra_parameters
        )

        async def publish(record: dict[str, Any]) -> tuple[str, bool]:
            existing = await self._find_published(record)
            if existing is not None:
                self._remember(existing)
                return existing.reference, True
            reference, added = await publish_version(record)
            self.published["reference"] = reference
            return reference, added

        return publish

    def _remember(self, version: RubricVersion) -> None:
        criteria = [criterion.model_dump(mode="json", exclude_none=True) for criterion in version.criteria]
        self.published.update(reference=version.reference, digest=version.digest, criteria=criteria)

    async def _find_published(self, record: dict[str, Any]) -> RubricVersion | None:
        project_id, name = self._ref.project_id, record["name"]
        if not self._generator.revises:
            newest = await self._rubrics.find(project_id, name)
            is_own = newest is not None and self._has_source(newest.lineage, record["source_digest"])
            return newest if is_own else None
        history = await self._rubrics.history(project_id, name, after=None, limit=MAX_VERSIONS_SEARCHED)
        for version in () if history is None else history.versions:
            if self._is_of_chunk(version.lineage):
                return await self._rubrics.find(project_id, f"{name}@{version.version}")
        return None

    def _has_source(self, lineage: Lineage | None, source: str) -> bool:
        return lineage is not None and (lineage.operation_id, lineage.source_digest) == (self._ref.operation_id, source)

    def _is_of_chunk(self, lineage: Lineage | None) -> bool:
        origin = None if lineage is None else (lineage.operation_id, lineage.parameters.get(CHUNK_PARAMETER))
        return origin == (self._ref.operation_id, self._ref.chunk)


class WriterProvider:
    """Provides writers over one engine, which starts when first needed; call `close` at the end.

    `engine` creates the engine; it is None if the process has no model.
    """

    def __init__(self, engine: Callable[[], Engine] | None) -> None:
        self._make_engine = engine
        self._engine: Engine | None = None
        self._writer: Writer | None = None
        self._starting = asyncio.Lock()

    async def writer(self) -> Writer:
        """A writer that counts its own usage.

        Raises:
            FatalChunkError: this process has no model.
            ServiceUnavailableError: the model cannot be reached.
        """
        if self._make_engine is None:
            raise FatalChunkError(
                "the worker has no model to generate rubrics with; set ADJUDGE_WRITER_URL for it, such as "
                "openai+http://HOST:PORT, and retry the operation"
            )
        async with self._starting:
            if self._writer is None:
                self._engine = self._engine or self._make_engine()
                try:
                    self._writer = Writer(self._engine, await self._engine.start())
                except EngineStartError as error:
                    await self.close()
                    raise ServiceUnavailableError(str(error)) from error
        return self._writer.with_own_usage()

    async def close(self) -> None:
        """Close the engine, if it was started."""
        if self._engine is not None:
            await self._engine.close()
        self._engine = self._writer = None


def to_usage(usage: WriterUsage | OperationProgress) -> Usage:
    """Convert the usage of a writer to that of an operation."""
    return Usage(
        judge_calls=usage.calls,
        prompt_tokens_computed=usage.tokens_computed,
        prompt_tokens_reused=usage.tokens_reused,
        tokens_written=usage.tokens_written,
    )


class GenerateHandler:
    """Generates rubrics with a model.

    A result is a rubric in the format of `rubrics.jsonl` of `adjudge generate`, with the `index` of its input. It has
    the `reference` of its version if it is published, and otherwise the `lineage` to publish it with. With `lint`, it
    has the findings about the rubric under `lint`. An input without a rubric counts as discarded, with its reason.
    """

    has_final_chunk = False

    def __init__(self, writers: WriterProvider, rubrics: RubricSource, lint: LintFunction | None = None) -> None:
        self._writers = writers
        self._rubrics = rubrics
        self._lint = lint

    async def split(self, project_id: str, request: BaseModel) -> tuple[dict[str, Any], Sequence[NewChunk]]:
        """Make a chunk of each input; an input that is invalid or repeats another fails the whole request."""
        assert isinstance(request, GenerateOperation)
        try:
            check_parameters(request.generator, request.parameters)
        except ValidationError as error:
            first = field_errors(error.errors())[0]
            raise InvalidOperationError(f"parameters.{first.field}: {first.message}") from None
        except ValueError as error:
            raise InvalidOperationError(f"generator: {error}") from None
        generator = generator_of(request.generator, request.parameters)
        try:
            chunks = _chunks(generator, request)
        finally:
            await generator.close()
        return request.model_dump(mode="json", exclude={"inputs", "kind"}), chunks

    async def run(self, work: LeasedChunk) -> ChunkOutcome:
        """Generate the rubric of one input."""
        request = GenerateOperation.model_validate({**work.request, "inputs": [work.body["input"]]})
        project_id = work.ref.project_id

        async def find(reference: str) -> RubricVersion | None:
            return await self._rubrics.find(project_id, reference)

        generator = generator_of(request.generator, request.parameters, find=find)
        idempotent_publisher = IdempotentPublisher(self._rubrics, work.ref, generator)
        try:
            row = generator.Input.model_validate(work.body["input"]).loaded(None)
            if (
                request.publish
                and (record := await idempotent_publisher.find_revision(row, request.prefix)) is not None
            ):
                result = self._with_lint({"index": work.body["index"], **record, **idempotent_publisher.published})
                return ChunkOutcome([result], counts={"added": 1})
            writer = await self._writers.writer()
            with tempfile.TemporaryDirectory(prefix="adjudge-generate-") as folder:
                file = _input_file(folder, work.body["input"])
                publish = idempotent_publisher.publisher(writer.identity.model) if request.publish else None
                with RunFolder(Path(folder, "run")) as run_folder:
                    settings = GeneratorRunSettings(concurrency=1, prefix=request.prefix)
                    run = GeneratorRun(
                        generator, writer, run_folder, file, settings=settings, publish=publish, report=lambda _: None
                    )
                    await run.run()
                    records = list(run_folder.rubrics())
                failures = list(read_failures(run_folder.path))
                reasons = [record["reason"] for record in read_journal(run_folder.path / DISCARDED_FILE)]
        finally:
            await generator.close()
        outcome = ChunkOutcome(usage=to_usage(writer.usage), discarded=dict.fromkeys(reasons, 1))
        if run.run_counts.failed:
            raise RetryableChunkError(str(failures[-1]["detail"]), outcome)
        results = [
            self._with_lint({"index": work.body["index"], **record, **idempotent_publisher.published})
            for record in records
        ]
        if not request.publish:
            for result in results:
                source = str(result["source_digest"])
                lineage = lineage_of(generator, writer.identity.model, source, work.ref.operation_id)
                result["lineage"] = lineage.model_dump(mode="json", exclude_none=True)
        counts = {"added": run.run_counts.added, "unpublished": run.run_counts.unpublished}
        return outcome._replace(results=results, counts=counts)

    def _with_lint(self, result: dict[str, Any]) -> dict[str, Any]:
        """Add the lint findings about the rubric to a result."""
        if self._lint is None:
            return result
        content = RubricContent.model_validate({"criteria": result["criteria"]})
        return {**result, "lint": self._lint(content.criteria)}


def _input_file(folder: str, row: Any) -> Path:
    file = Path(folder, "input.jsonl")
    file.write_text(dumps(row) + "\n", encoding="utf-8")
    return file


def _chunks(generator: Generator[Any, Any], request: GenerateOperation) -> list[NewChunk]:
    chunks: list[NewChunk] = []
    contents: dict[str, int] = {}
    names: dict[str, int] = {}
    for index, item in enumerate(request.inputs):
        try:
            row = generator.Input.model_validate(item).loaded(None)
        except ValidationError as error:
            first = field_errors(error.errors())[0]
            raise InvalidOperationError(f"inputs.{index}.{first.field}: {first.message}") from None
        except ValueError as error:
            raise InvalidOperationError(f"inputs.{index}: {error}") from None
        for chunk_row in generator.inputs_of(row):
            name = generator.name_of(chunk_row)
            if (before := contents.setdefault(chunk_row.canonical, index)) != index:
                raise InvalidOperationError(
                    f"inputs.{index}: its content is the same as that of inputs.{before}; remove one of them"
                )
            if name is not None and not generator.revises and (before := names.setdefault(name, index)) != index:
                raise InvalidOperationError(
                    f"inputs.{index}: its rubric would have the name {name}, like that of inputs.{before}"
                )
            chunks.append(NewChunk(1, {"index": index, "input": chunk_row.model_dump(mode="json", exclude_none=True)}))
    return chunks
