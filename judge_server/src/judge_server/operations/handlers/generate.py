"""Generation of rubrics in chunks of one input each, since an input takes many model calls.

A chunk publishes its rubric as soon as it is made, and only once, even if it runs twice because a worker died between
publishing and storing the result. The next attempt finds the version by its lineage: the operation, and the source or,
if several inputs revise one rubric, the chunk.

Validation of published rubrics, with a verdict and a reason for every criterion, has a chunk for each version.
"""

import asyncio
import hashlib
import json
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

from pydantic import BaseModel, JsonValue, TypeAdapter, ValidationError

from judge_server.errors import EngineStartError
from judge_server.generation.generator import Generator, InputRow
from judge_server.generation.inputs import default_name, make_record, run_input
from judge_server.generation.kinds import open_generator
from judge_server.generation.results import split_of
from judge_server.generation.validity import VALIDITY_PROMPTS, ItemValidity, judge_version, kind_of
from judge_server.generation.writer import RubricDiscarded, Writer, WriterFailed, WriterUsage
from judge_server.judging.prompts import InvalidTemplate
from judge_server.operations.handlers.base import (
    FatalChunkError,
    InvalidOperationError,
    RetryableChunkError,
    ServiceUnavailableError,
)
from judge_server.ports import Engine, EngineIdentity, RubricSource, RubricValidations
from judge_server.scoring.rubrics import find_rubric
from rubric_store.operations.rows import ChunkOutcome, ChunkRef, LeasedChunk, NewChunk
from rubric_store.rubrics.rows import CriterionValidity
from trainer_client.wire import Criterion, Lineage, NewRubricName, RubricContent, RubricVersion
from trainer_client.wire.operations import GenerateOperation, ValidateOperation
from trainer_client.wire.problems import field_errors
from trainer_client.wire.verdicts import Usage

_NAME: TypeAdapter[str] = TypeAdapter(NewRubricName)

CHUNK_PARAMETER = "operation_chunk"
"""The name of the chunk among the lineage parameters of a revised rubric."""

MAX_VERSIONS_SEARCHED = 500
"""The number of versions of a rubric that are searched for the chunk's own; others may have added newer ones."""

LintFunction = Callable[[Sequence[Criterion]], list[dict[str, JsonValue]]]
"""Returns the lint findings about a rubric, each with `code`, `severity`, `criterion`, `problem` and `advice`."""

WriterFactory = Callable[[], Awaitable[Writer]]
"""Returns a writer that counts its own usage, over a model that it starts if necessary."""


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
    """Publishes the rubric of a chunk once, with its lineage."""

    def __init__(self, rubrics: RubricSource, ref: ChunkRef, generator: Generator[Any, Any]) -> None:
        self._rubrics = rubrics
        self._ref = ref
        self._generator = generator

    async def find_revision(self, row: InputRow, prefix: str) -> dict[str, Any] | None:
        """The record of the version that an earlier attempt added to the rubric a row names; None if there is none.

        Call this before the model is called: otherwise a second attempt would revise that version. The record has no
        `key`, which would name the model, and reports no calls.
        """
        name = row.rubric_name
        if name is None or not self._generator.revises:
            return None
        version = await self._find_published({"name": prefix + name})
        if version is None or version.lineage is None:
            return None
        source = version.lineage.source_digest or ""
        return {
            "line": 1,
            "id": row.id,
            "name": version.name,
            "split": split_of(source),
            "source_digest": source,
            "metadata": version.metadata,
            "tags": [],
            "flags": version.metadata.get("flags", []),
            "parent": None if version.parent is None else f"{version.name}@{version.parent}",
            "record": {},
            "usage": asdict(WriterUsage()),
            **_published_fields(version),
        }

    async def publish(self, record: dict[str, Any], model: str) -> tuple[dict[str, Any], bool]:
        """Publish a record, unless an earlier attempt has.

        Returns the fields of the version that replace the record's, and whether this operation added the version.
        Raises `ValueError` if the store rejects the rubric.
        """
        if (existing := await self._find_published(record)) is not None:
            return _published_fields(existing), True
        extra_parameters = {CHUNK_PARAMETER: self._ref.chunk} if self._generator.revises else {}
        version, added = await self._rubrics.publish(
            self._ref.project_id,
            record["name"],
            RubricContent.model_validate({"criteria": record["criteria"]}),
            metadata=record["metadata"],
            tags=record["tags"],
            parent=_parent(record),
            lineage=lineage_of(
                self._generator, model, record["source_digest"], self._ref.operation_id, extra_parameters
            ),
        )
        return {"reference": version.reference}, added

    async def _find_published(self, record: dict[str, Any]) -> RubricVersion | None:
        project_id, name = self._ref.project_id, record["name"]
        if not self._generator.revises:
            newest = await self._rubrics.find(project_id, name)
            return newest if newest is not None and self._is_own(newest.lineage, record["source_digest"]) else None
        history = await self._rubrics.history(project_id, name, after=None, limit=MAX_VERSIONS_SEARCHED)
        for version in () if history is None else history.versions:
            if self._is_own(version.lineage, None):
                return await self._rubrics.find(project_id, f"{name}@{version.version}")
        return None

    def _is_own(self, lineage: Lineage | None, source: str | None) -> bool:
        """Whether a version is of this operation, and of a source or, without one, of this chunk."""
        if lineage is None or lineage.operation_id != self._ref.operation_id:
            return False
        if source is None:
            return lineage.parameters.get(CHUNK_PARAMETER) == self._ref.chunk
        return lineage.source_digest == source


def _published_fields(version: RubricVersion) -> dict[str, Any]:
    criteria = [criterion.model_dump(mode="json", exclude_none=True) for criterion in version.criteria]
    return {"reference": version.reference, "digest": version.digest, "criteria": criteria}


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


def to_usage(usage: WriterUsage) -> Usage:
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
    the `reference` of its version if it is published, the reason under `unpublished` if the store rejected it, and the
    `lineage` to publish it with if that was not asked. With `lint`, it has the findings about the rubric under `lint`.
    An input without a rubric counts as discarded, with its reason; with `keep_discards`, that is a result too.

    A body may have the `line` and `key` of its input, and the `record` of a rubric that was made before and is only to
    be published. `generator` is used for all chunks; without it, each chunk makes its own.
    """

    has_final_chunk = False

    def __init__(
        self,
        writer: WriterFactory,
        rubrics: RubricSource,
        lint: LintFunction | None = None,
        *,
        generator: Generator[Any, Any] | None = None,
        keep_discards: bool = False,
    ) -> None:
        self._writer = writer
        self._rubrics = rubrics
        self._lint = lint
        self._generator = generator
        self._keep_discards = keep_discards

    async def split(self, project_id: str, request: BaseModel) -> tuple[dict[str, Any], Sequence[NewChunk]]:
        """Make a chunk of each input; an input that is invalid or repeats another fails the whole request."""
        assert isinstance(request, GenerateOperation)
        try:
            async with open_generator(request.generator, request.parameters, self._rubrics, project_id) as generator:
                chunks = _chunks(generator, request)
        except ValidationError as error:
            first = field_errors(error.errors())[0]
            raise InvalidOperationError(f"parameters.{first.field}: {first.message}") from None
        except InvalidOperationError:
            raise
        except ValueError as error:
            raise InvalidOperationError(f"generator: {error}") from None
        return request.model_dump(mode="json", exclude={"inputs", "kind"}), chunks

    async def run(self, work: LeasedChunk) -> ChunkOutcome:
        """Generate the rubric of one input."""
        request = GenerateOperation.model_validate({**work.request, "inputs": [work.body["input"]]})
        made = open_generator(request.generator, request.parameters, self._rubrics, work.ref.project_id)
        async with made if self._generator is None else nullcontext(self._generator) as generator:
            row = generator.Input.model_validate(work.body["input"]).loaded(None)
            publisher = IdempotentPublisher(self._rubrics, work.ref, generator)
            if request.publish and (record := await publisher.find_revision(row, request.prefix)) is not None:
                return ChunkOutcome([self._result(work, record)], counts={"added": 1})
            writer = await self._writer()
            label = run_input(generator, writer.identity, row, line=work.body.get("line", 1))
            try:
                record = work.body.get("record") or await make_record(generator, label, writer, prefix=request.prefix)
            except WriterFailed as failed:
                raise RetryableChunkError(str(failed), ChunkOutcome(usage=to_usage(writer.usage))) from failed
            except InvalidTemplate as invalid:
                raise FatalChunkError(str(invalid)) from invalid
            except RubricDiscarded as discarded:
                return self._discard(work, row, discarded, writer)
            added = False
            if request.publish:
                try:
                    fields, added = await publisher.publish(record, writer.identity.model)
                except ValueError as refused:
                    fields = {"unpublished": str(refused)}
            else:
                lineage = lineage_of(generator, writer.identity.model, record["source_digest"], work.ref.operation_id)
                fields = {"lineage": lineage.model_dump(mode="json", exclude_none=True)}
        counts = {"added": int(added), "unpublished": int("unpublished" in fields)}
        return ChunkOutcome([self._result(work, {**record, **fields})], to_usage(writer.usage), counts)

    def _discard(self, work: LeasedChunk, row: InputRow, discarded: RubricDiscarded, writer: Writer) -> ChunkOutcome:
        """The outcome for an input without a rubric."""
        outcome = ChunkOutcome(usage=to_usage(writer.usage), discarded={discarded.reason: 1})
        if not self._keep_discards:
            return outcome
        record = {"id": row.id, "reason": discarded.reason, "detail": discarded.detail, "usage": asdict(writer.usage)}
        return outcome._replace(results=[self._label(work, record)], counts={"made": 0})

    def _result(self, work: LeasedChunk, record: dict[str, Any]) -> dict[str, Any]:
        """A record with the labels of its input, and the lint findings about the rubric."""
        result = self._label(work, record)
        if self._lint is None:
            return result
        content = RubricContent.model_validate({"criteria": result["criteria"]})
        return {**result, "lint": self._lint(content.criteria)}

    def _label(self, work: LeasedChunk, record: dict[str, Any]) -> dict[str, Any]:
        return {**record, **{name: work.body[name] for name in ("index", "line", "key") if name in work.body}}


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
            name = chunk_row.rubric_name
            try:
                _NAME.validate_python(request.prefix + (name or default_name(generator.kind, chunk_row)))
            except ValidationError as error:
                named = "" if name is None else f" and the name {name!r}"
                raise InvalidOperationError(
                    f"inputs.{index}: with the prefix {request.prefix!r}{named}, its rubric could not be published: "
                    f"{field_errors(error.errors())[0].message}"
                ) from None
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


NO_QUESTION, UNKNOWN_RUBRIC = "no_question", "unknown_rubric"


class ValidateHandler:
    """Judges the validity of the criteria of rubric versions with a model.

    A result has the `index` and `reference` of a version, its `digest`, the `model`, and `items`: for each criterion,
    whether it is valid and why.
    """

    has_final_chunk = False

    def __init__(self, writer: WriterFactory, rubrics: RubricSource, validations: RubricValidations) -> None:
        self._writer = writer
        self._rubrics = rubrics
        self._validations = validations

    async def split(self, project_id: str, request: BaseModel) -> tuple[dict[str, Any], Sequence[NewChunk]]:
        """Make a chunk of each version, without repetitions and with pinned references."""
        assert isinstance(request, ValidateOperation)
        versions = [await find_rubric(self._rubrics, project_id, reference) for reference in request.references]
        pinned = dict.fromkeys(version.reference for version in versions)
        return {}, [NewChunk(1, {"index": index, "reference": reference}) for index, reference in enumerate(pinned)]

    async def run(self, work: LeasedChunk) -> ChunkOutcome:
        """Validate one version."""
        writer = await self._writer()
        version = await self._rubrics.find(work.ref.project_id, work.body["reference"])
        if version is None:
            return ChunkOutcome(discarded={UNKNOWN_RUBRIC: 1})
        items = await self._find_stored(work.ref.project_id, version, writer.identity)
        is_new = items is None
        if items is None:
            try:
                items = await judge_version(writer, version)
            except WriterFailed as failed:
                usage = ChunkOutcome(usage=to_usage(writer.usage))
                raise RetryableChunkError(f"the model gave no answer: {failed}", usage) from failed
            except ValueError:
                return ChunkOutcome(discarded={NO_QUESTION: 1})
            await self._store(work.ref.project_id, version, writer.identity, items)
        result = {
            "index": work.body["index"],
            "reference": version.reference,
            "digest": version.digest,
            "model": writer.identity.model,
            "items": [asdict(item) for item in items],
        }
        return ChunkOutcome([result], to_usage(writer.usage), {"added": int(is_new)})

    async def _find_stored(
        self, project_id: str, version: RubricVersion, identity: EngineIdentity
    ) -> list[ItemValidity] | None:
        """The stored verdicts on a version by this judge with the current prompts; None if there are none."""
        for validation in await self._validations.validations(project_id, version.name, version.version):
            if (validation.judge, validation.template_digest) == (judge_digest(identity), VALIDITY_PROMPTS.digest):
                return with_kinds(version, validation.items)
        return None

    async def _store(
        self, project_id: str, version: RubricVersion, identity: EngineIdentity, items: Sequence[ItemValidity]
    ) -> None:
        await self._validations.add_validation(
            project_id,
            version.name,
            version.version,
            judge=judge_digest(identity),
            model=identity.model,
            template_digest=VALIDITY_PROMPTS.digest,
            items=[CriterionValidity(criterion=item.id, valid=item.valid, reason=item.reason) for item in items],
        )


def with_kinds(version: RubricVersion, items: Sequence[CriterionValidity]) -> list[ItemValidity]:
    """Add the kinds of criteria to the stored verdicts on a version."""
    kinds = {criterion.id: kind_of(criterion) for criterion in version.criteria}
    return [ItemValidity(item.criterion, kinds[item.criterion], item.valid, item.reason) for item in items]


def judge_digest(identity: EngineIdentity) -> str:
    """The digest `sha256:…` of the model, its weights and its chat template, which identify a judge."""
    parts = [identity.model, identity.weights_digest, identity.chat_template_digest]
    return "sha256:" + hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()
