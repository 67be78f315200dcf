"""Evaluating a judge: its verdicts on labelled groups, and at the end how far they agree with the labels."""

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel, JsonValue

from judge_server.operations.kind import RetryableChunkError
from judge_server.operations.kinds.asking import (
    ClientFactory,
    split_groups,
    transient_failure_message,
    translate_client_errors,
)
from judge_server.ports import OperationStore, RubricSource
from trainer_client.wire import VerdictRequest
from trainer_client.wire.operation_rows import ChunkOutcome, ChunkRef, LeasedChunk, NewChunk
from trainer_client.wire.operations import CHUNK_DEADLINE_S, MAX_PAGE_RESULTS, EvaluateOperation


class EvaluateHandler:
    """Judges labelled groups through a client of the service.

    A result has the `index` and `id` of a group, the judge's `fingerprint`, and `verdicts`: of each labelled criterion
    of each response its `label`, `score`, `probability` and `raw_probability`. The summary compares them.
    """

    has_final_chunk = True

    def __init__(self, client_factory: ClientFactory, rubrics: RubricSource, store: OperationStore) -> None:
        self._client_factory = client_factory
        self._rubrics = rubrics
        self._store = store

    async def split(self, project_id: str, request: BaseModel) -> tuple[dict[str, Any], Sequence[NewChunk]]:
        """Options apart from groups, and those in chunks; rubrics are pinned."""
        assert isinstance(request, EvaluateOperation)
        return await split_groups(self._rubrics, project_id, request)

    async def run(self, work: LeasedChunk) -> ChunkOutcome:
        """Judge a chunk, or compare all there is."""
        if work.body is None:
            return ChunkOutcome(summary=await self._summary(work.ref))
        groups = [dict(group) for group in work.body["groups"]]
        labels = [group.pop("labels") for group in groups]
        defaults = {"deadline_s": CHUNK_DEADLINE_S, "priority": "bulk"}
        request = VerdictRequest.model_validate({**defaults, **work.request, "groups": groups})
        async with translate_client_errors(), self._client_factory(work.ref.project_id) as client:
            answer = await client.send_verdicts(request, work)
        problem = transient_failure_message(
            v for group in answer.groups for response in group.responses for v in response.verdicts
        )
        if problem is not None and not work.last_attempt:
            raise RetryableChunkError(problem, ChunkOutcome(usage=answer.usage))
        fingerprint = None if answer.judge is None else answer.judge.fingerprint
        results: list[dict[str, Any]] = []
        for index, (group, wanted) in enumerate(zip(answer.groups, labels, strict=True), work.body["first"]):
            verdicts: list[dict[str, Any]] = [
                {"response": place, "criterion": v.criterion, "label": of_it[v.criterion]}
                | {"score": v.score, "probability": v.probability, "raw_probability": v.raw_probability}
                for place, (response, of_it) in enumerate(zip(group.responses, wanted, strict=True))
                for v in response.verdicts
                if v.criterion in of_it
            ]
            results.append({"index": index, "id": group.id, "fingerprint": fingerprint, "verdicts": verdicts})
        failed = sum(any(v["score"] is None for v in result["verdicts"]) for result in results)
        return ChunkOutcome(results, answer.usage, {"failed": failed})

    async def _summary(self, ref: ChunkRef) -> dict[str, JsonValue]:
        verdicts: list[dict[str, Any]] = []
        after: int | None = 0
        while after is not None:
            page = await self._store.results(ref.project_id, ref.operation_id, after=after, limit=MAX_PAGE_RESULTS)
            if page is None:
                break
            verdicts += [verdict for result in page.results for verdict in result["verdicts"]]  # type: ignore[union-attr,misc]
            after = page.next_after if page.results else None
        from judge_server.operations.kinds.agreement import summary_of  # numpy, 14 MB, is for this alone

        return summary_of(verdicts)
