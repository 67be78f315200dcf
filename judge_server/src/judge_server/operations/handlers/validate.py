"""Judging the validity of published rubrics as an operation.

Validating rubrics: a version a chunk. What is found is kept with the version, so that no version is judged twice.

Judging the validity of published rubrics as an operation: a verdict and a reason for every criterion.

Each version's verdicts are kept with it as soon as they are there. A version that was judged by the same model in the
same words, in this operation or another, is not judged again.
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
    """Which rubrics: `references`, or the newest version of every name that begins with `prefix`."""

    references: tuple[str, ...] = Field(default=(), max_length=100_000)
    prefix: str | None = None

    @model_validator(mode="after")
    def _check_selection(self) -> "ValidateRequest":
        if bool(self.references) == (self.prefix is not None):
            raise ValueError("give references, or a prefix of names, and not both")
        return self


@dataclass(frozen=True, slots=True)
class _ValidationRun:
    """One run of the operation: what it works with, what an earlier one left, and the versions that have their turn."""

    project_id: str
    writer: Writer
    journal: Journal
    known: set[str]
    run_counts: RunCounts
    started: set[str] = field(default_factory=set)


class ValidateJob:
    """Judges rubrics of one source with one writer; `writer` starts the model when needed."""

    def __init__(
        self, writer: Callable[[], Awaitable[Writer]], rubrics: RubricSource, validations: RubricValidations
    ) -> None:
        self._writer = writer
        self._rubrics = rubrics
        self._validations = validations

    def check(self, request: dict[str, Any]) -> None:
        """Raises `ValueError` for what cannot be run."""
        try:
            ValidateRequest.model_validate(request)
        except ValidationError as error:
            first = field_errors(error.errors())[0]
            raise ValueError(f"{first.field}: {first.message}" if first.field else first.message) from None

    def results_file(self, request: dict[str, Any], folder: Path) -> Path:
        """Where the results stand: `reference`, `digest`, `items` and `model` of each version."""
        return folder / RESULTS

    async def run(self, context: JobContext) -> None:
        """Judge what an earlier attempt did not; what an engine's failure leaves undone is counted as failed."""
        request = ValidateRequest.model_validate(context.request)
        writer = (await self._writer()).with_own_usage()
        clock = asyncio.get_running_loop().time
        began, run_counts = clock(), RunCounts(usage=writer.usage)
        context.folder.mkdir(parents=True, exist_ok=True)
        with Journal(context.folder / RESULTS) as journal:
            known = {record["key"] for record in read_journal(journal.path)}
            references = [one async for one in self._references(context.project_id, request)]
            run_counts.total = len(references)
            attempt = _ValidationRun(context.project_id, writer, journal, known, run_counts)

            async def work(waiting: Any) -> None:
                for reference in waiting:
                    await self._validate_one(attempt, reference)
                    run_counts.seconds = clock() - began
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

    async def _validate_one(self, attempt: _ValidationRun, reference: str) -> None:
        run_counts, identity = attempt.run_counts, attempt.writer.identity
        version = await self._rubrics.find(attempt.project_id, reference)
        if version is None:
            run_counts.discarded[UNKNOWN_RUBRIC] += 1
            return
        if version.reference in attempt.started:
            run_counts.repeated += 1
            run_counts.total -= 1
            return
        attempt.started.add(version.reference)
        key = _key(version, identity)
        if key in attempt.known:
            run_counts.known += 1
            run_counts.made += 1
            return
        items = await self._find_earlier(attempt.project_id, version, identity)
        if items is not None:
            run_counts.known += 1
        else:
            try:
                items = await judge_version(attempt.writer, version)
            except ValueError:
                run_counts.discarded[NO_QUESTION] += 1
                return
            except WriterFailed:
                run_counts.failed += 1
                return
            await self._keep(attempt.project_id, version, identity, items)
            run_counts.added += 1
        record_fields = {"reference": version.reference, "digest": version.digest, "model": identity.model}
        attempt.journal.append({"key": key, **record_fields, "items": [asdict(item) for item in items]})
        run_counts.made += 1

    async def _find_earlier(
        self, project_id: str, version: RubricVersion, identity: EngineIdentity
    ) -> list[ItemValidity] | None:
        """What this judge found of a version in these words; None where it was not asked."""
        for kept in await self._validations.validations(project_id, version.name, version.version):
            if (kept.judge, kept.template_digest) == (judge_digest(identity), VALIDITY_PROMPTS.digest):
                return with_kinds(version, kept.items)
        return None

    async def _keep(
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
    """What the store keeps of a version's criteria, with their kinds."""
    kinds = {criterion.id: kind_of(criterion) for criterion in version.criteria}
    return [ItemValidity(item.criterion, kinds[item.criterion], item.valid, item.reason) for item in items]


def judge_digest(identity: EngineIdentity) -> str:
    """`sha256:…` of the model, its weights and its chat template: what makes one judge another."""
    return "sha256:" + _hash([identity.model, identity.weights_digest, identity.chat_template_digest])


def _key(version: RubricVersion, identity: EngineIdentity) -> str:
    """Equal for what need not be judged twice: the version, the model, and how it is asked."""
    return _hash([version.reference, version.digest, judge_digest(identity), VALIDITY_PROMPTS.digest])


def _hash(parts: list[Any]) -> str:
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


class ValidateHandler:
    """Judges the criteria of versions with a model's endpoint.

    A result has the `index` and `reference` of a version, its `digest`, the `model`, and `items`: of each criterion
    whether it is valid, and why.
    """

    has_final_chunk = False

    def __init__(self, writers: WriterProvider, rubrics: RubricSource, validations: RubricValidations) -> None:
        self._writers = writers
        self._rubrics = rubrics
        self._validations = validations

    async def split(self, project_id: str, request: BaseModel) -> tuple[dict[str, Any], Sequence[NewChunk]]:
        """A chunk for each version, pinned, each once."""
        assert isinstance(request, ValidateOperation)
        found = [await find_rubric(self._rubrics, project_id, reference) for reference in request.references]
        pinned = dict.fromkeys(version.reference for version in found)
        return {}, [NewChunk(1, {"index": index, "reference": reference}) for index, reference in enumerate(pinned)]

    async def run(self, work: LeasedChunk) -> ChunkOutcome:
        """Judge one version."""
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
