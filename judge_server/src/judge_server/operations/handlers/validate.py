"""Validation of published rubrics as an operation: a verdict and a reason for every criterion.

`ValidateHandler` makes a chunk of each version; `ValidateJob` runs the whole operation in a folder. The verdicts on a
version are stored with it as soon as they exist. A version that the same model has judged with the same prompts, in
this operation or another, is not judged again.
"""

import asyncio
import hashlib
import json
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from pydantic import BaseModel, Field, ValidationError, model_validator

from judge_server.generation.run import RunCounts
from judge_server.generation.run_folder import Journal, read_journal
from judge_server.generation.validity import VALIDITY_PROMPTS, ItemValidity, judge_version, kind_of
from judge_server.generation.writer import Writer, WriterFailed
from judge_server.operations.handlers.base import RetryableChunkError
from judge_server.operations.handlers.generate import WriterProvider, to_usage
from judge_server.ports import EngineIdentity, OperationProgress, RubricSource, RubricValidations
from judge_server.ports.operations import JobContext
from judge_server.rubrics import find_rubric
from trainer_client.wire import RubricVersion
from trainer_client.wire.base import RequestModel
from trainer_client.wire.operations import ChunkOutcome, LeasedChunk, NewChunk, ValidateOperation
from trainer_client.wire.problems import field_errors
from trainer_client.wire.rubrics import CriterionValidity

RESULTS = "validity.jsonl"
NO_QUESTION, UNKNOWN_RUBRIC = "no_question", "unknown_rubric"
_PAGE_SIZE = 500


class ValidateRequest(RequestModel):
    """The rubrics to validate: `references`, or the newest version of every name that begins with `prefix`."""

    references: tuple[str, ...] = Field(default=(), max_length=100_000)
    prefix: str | None = None

    @model_validator(mode="after")
    def _check_selection(self) -> "ValidateRequest":
        if bool(self.references) == (self.prefix is not None):
            raise ValueError("give either references or a prefix of names")
        return self


@dataclass(frozen=True, slots=True)
class _ValidationRun:
    """The state of one run: `known` has the keys that earlier runs judged, `started` the references taken up so far."""

    project_id: str
    writer: Writer
    journal: Journal
    known: set[str]
    run_counts: RunCounts
    started: set[str] = field(default_factory=set)


class ValidateJob:
    """Validates rubrics of a store with a writer; `writer` starts the model when needed."""

    def __init__(
        self, writer: Callable[[], Awaitable[Writer]], rubrics: RubricSource, validations: RubricValidations
    ) -> None:
        self._writer = writer
        self._rubrics = rubrics
        self._validations = validations

    def check(self, request: dict[str, Any]) -> None:
        """Check that a request can be run; raises `ValueError`."""
        try:
            ValidateRequest.model_validate(request)
        except ValidationError as error:
            first = field_errors(error.errors())[0]
            raise ValueError(f"{first.field}: {first.message}" if first.field else first.message) from None

    def results_file(self, request: dict[str, Any], folder: Path) -> Path:
        """The file of the results: `reference`, `digest`, `items` and `model` of each version."""
        return folder / RESULTS

    async def run(self, context: JobContext) -> None:
        """Judge the versions that no earlier attempt has; versions on which the engine fails are counted as failed."""
        request = ValidateRequest.model_validate(context.request)
        writer = (await self._writer()).with_own_usage()
        clock = asyncio.get_running_loop().time
        started_at, run_counts = clock(), RunCounts(usage=writer.usage)
        context.folder.mkdir(parents=True, exist_ok=True)
        with Journal(context.folder / RESULTS) as journal:
            known = {record["key"] for record in read_journal(journal.path)}
            references = [reference async for reference in self._references(context.project_id, request)]
            run_counts.total = len(references)
            run = _ValidationRun(context.project_id, writer, journal, known, run_counts)

            async def work(waiting: Any) -> None:
                for reference in waiting:
                    await self._validate_one(run, reference)
                    run_counts.seconds = clock() - started_at
                    context.report(run_counts.progress())

            waiting = iter(references)
            async with asyncio.TaskGroup() as workers:
                for _ in range(min(writer.identity.concurrent_batches, len(references))):
                    workers.create_task(work(waiting))

    async def _references(self, project_id: str, request: ValidateRequest) -> AsyncIterator[str]:
        for reference in dict.fromkeys(request.references):
            yield reference
        after: str | None = None
        while request.prefix is not None:
            page = await self._rubrics.list(
                project_id, prefix=request.prefix, tag=None, text="", after=after, limit=_PAGE_SIZE
            )
            for row in page.rubrics:
                yield f"{row.name}@{row.latest_version}"
            after = page.next_cursor
            if after is None:
                return

    async def _validate_one(self, run: _ValidationRun, reference: str) -> None:
        run_counts, identity = run.run_counts, run.writer.identity
        version = await self._rubrics.find(run.project_id, reference)
        if version is None:
            run_counts.discarded[UNKNOWN_RUBRIC] += 1
            return
        if version.reference in run.started:
            run_counts.repeated += 1
            run_counts.total -= 1
            return
        run.started.add(version.reference)
        key = _key(version, identity)
        if key in run.known:
            run_counts.known += 1
            run_counts.made += 1
            return
        items = await self._find_stored(run.project_id, version, identity)
        if items is not None:
            run_counts.known += 1
        else:
            try:
                items = await judge_version(run.writer, version)
            except ValueError:
                run_counts.discarded[NO_QUESTION] += 1
                return
            except WriterFailed:
                run_counts.failed += 1
                return
            await self._store(run.project_id, version, identity, items)
            run_counts.added += 1
        record_fields = {"reference": version.reference, "digest": version.digest, "model": identity.model}
        run.journal.append({"key": key, **record_fields, "items": [asdict(item) for item in items]})
        run_counts.made += 1

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
    return "sha256:" + _hash([identity.model, identity.weights_digest, identity.chat_template_digest])


def _key(version: RubricVersion, identity: EngineIdentity) -> str:
    """A key that is equal for validations with the same version, model and prompts."""
    return _hash([version.reference, version.digest, judge_digest(identity), VALIDITY_PROMPTS.digest])


def _hash(parts: list[Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


class ValidateHandler:
    """Judges the validity of the criteria of rubric versions with a model.

    A result has the `index` and `reference` of a version, its `digest`, the `model`, and `items`: for each criterion,
    whether it is valid and why.
    """

    has_final_chunk = False

    def __init__(self, writers: WriterProvider, rubrics: RubricSource, validations: RubricValidations) -> None:
        self._writers = writers
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
        writer = await self._writers.writer()
        reports: list[OperationProgress] = []

        async def get_writer() -> Any:
            return writer

        job = ValidateJob(get_writer, self._rubrics, self._validations)
        with tempfile.TemporaryDirectory(prefix="adjudge-validate-") as folder:
            request = {"references": [work.body["reference"]]}
            context = JobContext(work.ref.operation_id, work.ref.project_id, request, Path(folder), reports.append)
            await job.run(context)
            records = list(read_journal(Path(folder, RESULTS)))
        progress = reports[-1]
        usage = to_usage(progress)
        if progress.failed:
            raise RetryableChunkError("the model gave no answer", ChunkOutcome(usage=usage))
        results = [{"index": work.body["index"], **_without_key(record)} for record in records]
        return ChunkOutcome(results, usage, {"added": progress.added}, progress.discarded)


def _without_key(record: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in record.items() if name != "key"}
