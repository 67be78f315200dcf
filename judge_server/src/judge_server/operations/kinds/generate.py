"""Generating rubrics: an input a chunk, since each takes a model many calls; what is made is published as it is done.

A chunk that is worked on twice publishes once: a version that this operation made of the same source is taken for the
chunk's result, whatever a second attempt wrote.
"""

import tempfile
from collections.abc import Callable, Sequence
from json import dumps
from pathlib import Path
from typing import Any

from pydantic import BaseModel, JsonValue, ValidationError

from judge_server.generation.folder import DISCARDED_FILE, RunFolder, read_failures
from judge_server.generation.generator import Generator
from judge_server.generation.job import lineage_of
from judge_server.generation.journal import read_journal
from judge_server.generation.registry import check_parameters, generator_of
from judge_server.generation.runner import GeneratorRun, GeneratorRunSettings
from judge_server.operations.kind import InvalidOperationError, RetryableChunkError
from judge_server.operations.kinds.once import IdempotentPublisher
from judge_server.operations.kinds.writing import WriterProvider, to_usage
from judge_server.ports import RubricSource
from trainer_client.wire import Criterion, RubricContent, RubricVersion
from trainer_client.wire.operation_rows import ChunkOutcome, LeasedChunk, NewChunk
from trainer_client.wire.operations import GenerateOperation
from trainer_client.wire.problems import field_errors

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
