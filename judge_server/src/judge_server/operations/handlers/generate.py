"""Generating rubrics as an operation.

Generating rubrics: an input a chunk, since each takes a model many calls; what is made is published as it is done.

A chunk that is worked on twice publishes once: a version that this operation made of the same source is taken for the
chunk's result, whatever a second attempt wrote.

Generating rubrics as an operation: its request, and a run of it that begins or goes on in its folder.

Publishing what a chunk made once, however often the chunk is worked on: the store is asked what it has of it.

Between publishing and keeping the chunk's result a worker may die. Whoever takes the chunk next finds the version by
its lineage: the operation, and the source or, where several inputs revise one rubric, the chunk.

What kinds share that have a model write: the writer, started when it is first needed.
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


CHUNK_PARAMETER = "operation_chunk"
"""What the chunk is called among the parameters of the lineage of a rubric that was revised."""

MAX_VERSIONS_SEARCHED = 500
"""How many versions of a rubric are looked through for the chunk's own: what others may have added meanwhile."""


class IdempotentPublisher:
    """What a chunk of an operation published. `published` is told what stands in the store for the chunk's result."""

    def __init__(self, rubrics: RubricSource, ref: ChunkRef, generator: Generator[Any, Any]) -> None:
        self.published: dict[str, Any] = {}
        self._rubrics = rubrics
        self._ref = ref
        self._generator = generator

    async def find_revision(self, row: InputRow, prefix: str) -> dict[str, Any] | None:
        """The record of the version that an earlier attempt added to the rubric that a row names; None without one.

        It is looked for before anything is asked of the model: to a second attempt that version would be what it has
        to revise. Such a record has no `key`, which names the model that was asked, and tells of no calls.
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
        """What publishes a record, unless an earlier attempt did."""
        extra_parameters = {CHUNK_PARAMETER: self._ref.chunk} if self._generator.revises else {}
        publish_version = publisher(
            self._rubrics, self._ref.project_id, self._ref.operation_id, self._generator, model, extra_parameters
        )

        async def publish(record: dict[str, Any]) -> tuple[str, bool]:
            before = await self._find_published(record)
            if before is not None:
                self._remember(before)
                return before.reference, True
            reference, added = await publish_version(record)
            self.published["reference"] = reference
            return reference, added

        return publish

    def _remember(self, version: RubricVersion) -> None:
        criteria = [one.model_dump(mode="json", exclude_none=True) for one in version.criteria]
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
        made = None if lineage is None else (lineage.operation_id, lineage.parameters.get(CHUNK_PARAMETER))
        return made == (self._ref.operation_id, self._ref.chunk)


class WriterProvider:
    """A model's endpoint, or none. `engine` makes the engine; whoever made this closes it."""

    def __init__(self, engine: Callable[[], Engine] | None) -> None:
        self._make_engine = engine
        self._engine: Engine | None = None
        self._writer: Writer | None = None
        self._starting = asyncio.Lock()

    async def writer(self) -> Writer:
        """The writer, with a usage of its own.

        Raises:
            ChunkFailed: this process has no model to write with.
            ServiceAway: it cannot be reached.
        """
        if self._make_engine is None:
            raise FatalChunkError(
                "the process that took this has no model to write with; set ADJUDGE_WRITER_URL there, such as "
                "openai+http://HOST:PORT, and try the operation again"
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
        """Let go of the model."""
        if self._engine is not None:
            await self._engine.close()
        self._engine = self._writer = None


def to_usage(usage: WriterUsage | OperationProgress) -> Usage:
    """What a writer used, as the usage of an operation."""
    return Usage(
        judge_calls=usage.calls,
        prompt_tokens_computed=usage.tokens_computed,
        prompt_tokens_reused=usage.tokens_reused,
        tokens_written=usage.tokens_written,
    )


LintFunction = Callable[[Sequence[Criterion]], list[dict[str, JsonValue]]]
"""Gives the findings of a look through a rubric, each with `code`, `severity`, `criterion`, `problem`, `advice`."""


class GenerateHandler:
    """Generates rubrics with a model's endpoint.

    A result is a rubric as `rubrics.jsonl` of `adjudge generate` has it, with the `index` of its input, and the
    `reference` of its version where it is published; where it is not, with the `lineage` to publish it with. With
    `lint` it has the findings about the rubric, under `lint`. An input that gave none counts as discarded, with its
    reason.
    """

    has_final_chunk = False

    def __init__(self, writers: WriterProvider, rubrics: RubricSource, lint: LintFunction | None = None) -> None:
        self._writers = writers
        self._rubrics = rubrics
        self._lint = lint

    async def split(self, project_id: str, request: BaseModel) -> tuple[dict[str, Any], Sequence[NewChunk]]:
        """A chunk for each input; one that the generator cannot read, or that repeats another, refuses all."""
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
        """Make the rubric of one input."""
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
                with RunFolder(Path(folder, "run")) as kept:
                    settings = GeneratorRunSettings(concurrency=1, prefix=request.prefix)
                    run = GeneratorRun(
                        generator, writer, kept, file, settings=settings, publish=publish, report=lambda _: None
                    )
                    await run.run()
                    made = list(kept.rubrics())
                failures = list(read_failures(kept.path))
                reasons = [record["reason"] for record in read_journal(kept.path / DISCARDED_FILE)]
        finally:
            await generator.close()
        outcome = ChunkOutcome(usage=to_usage(writer.usage), discarded=dict.fromkeys(reasons, 1))
        if run.run_counts.failed:
            raise RetryableChunkError(str(failures[-1]["detail"]), outcome)
        results = [
            self._with_lint({"index": work.body["index"], **record, **idempotent_publisher.published})
            for record in made
        ]
        if not request.publish:
            for result in results:
                source = str(result["source_digest"])
                lineage = lineage_of(generator, writer.identity.model, source, work.ref.operation_id)
                result["lineage"] = lineage.model_dump(mode="json", exclude_none=True)
        counts = {"added": run.run_counts.added, "unpublished": run.run_counts.unpublished}
        return outcome._replace(results=results, counts=counts)

    def _with_lint(self, result: dict[str, Any]) -> dict[str, Any]:
        """Add what lint finds in the rubric of a result."""
        if self._lint is None:
            return result
        content = RubricContent.model_validate({"criteria": result["criteria"]})
        return {**result, "lint": self._lint(content.criteria)}


def _input_file(folder: str, given: Any) -> Path:
    file = Path(folder, "input.jsonl")
    file.write_text(dumps(given) + "\n", encoding="utf-8")
    return file


def _chunks(generator: Generator[Any, Any], request: GenerateOperation) -> list[NewChunk]:
    chunks: list[NewChunk] = []
    contents: dict[str, int] = {}
    names: dict[str, int] = {}
    for index, given in enumerate(request.inputs):
        try:
            row = generator.Input.model_validate(given).loaded(None)
        except ValidationError as error:
            first = field_errors(error.errors())[0]
            raise InvalidOperationError(f"inputs.{index}.{first.field}: {first.message}") from None
        except ValueError as error:
            raise InvalidOperationError(f"inputs.{index}: {error}") from None
        for one in generator.inputs_of(row):
            name = generator.name_of(one)
            if (before := contents.setdefault(one.canonical, index)) != index:
                raise InvalidOperationError(
                    f"inputs.{index}: it has the content of inputs.{before}; leave one of them out"
                )
            if name is not None and not generator.revises and (before := names.setdefault(name, index)) != index:
                raise InvalidOperationError(
                    f"inputs.{index}: its rubric would be called {name}, as that of inputs.{before}"
                )
            chunks.append(NewChunk(1, {"index": index, "input": one.model_dump(mode="json", exclude_none=True)}))
    return chunks
