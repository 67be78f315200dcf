"""Validating rubrics: a version a chunk. What is found is kept with the version, so that no version is judged twice."""

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from judge_server.generation.journal import read_journal
from judge_server.generation.validate_job import RESULTS, ValidateJob
from judge_server.operations.job import JobContext
from judge_server.operations.kind import RetryableChunkError
from judge_server.operations.kinds.writing import WriterProvider, to_usage
from judge_server.ports import OperationProgress, RubricSource, RubricValidations
from judge_server.rubrics import find_rubric
from trainer_client.wire.operation_rows import ChunkOutcome, LeasedChunk, NewChunk
from trainer_client.wire.operations import ValidateOperation


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
