"""Scoring in bulk: chunks of groups, each a `POST /v1/rewards` of its own."""

from collections.abc import Sequence
from typing import Any

from pydantic import BaseModel

from judge_server.operations.kind import RetryableChunkError
from judge_server.operations.kinds.asking import (
    ClientFactory,
    split_groups,
    transient_failure_message,
    translate_client_errors,
)
from judge_server.ports import RubricSource
from trainer_client.wire import RewardAnswer, RewardRequest
from trainer_client.wire.operation_rows import ChunkOutcome, LeasedChunk, NewChunk
from trainer_client.wire.operations import CHUNK_DEADLINE_S, ScoreOperation


class ScoreHandler:
    """Scores groups through a client of the service.

    A result is a group's rewards as `POST /v1/rewards` gives them, with the `index` of the group among the inputs and
    the judge's `fingerprint`. A chunk in which a judge failed is asked again, since what it did judge is known then;
    after the last attempt its failures stand, as they would in an answer.
    """

    has_final_chunk = False

    def __init__(self, client_factory: ClientFactory, rubrics: RubricSource) -> None:
        self._client_factory = client_factory
        self._rubrics = rubrics

    async def split(self, project_id: str, request: BaseModel) -> tuple[dict[str, Any], Sequence[NewChunk]]:
        """Options apart from groups, and those in chunks; rubrics are pinned."""
        assert isinstance(request, ScoreOperation)
        return await split_groups(self._rubrics, project_id, request)

    async def run(self, work: LeasedChunk) -> ChunkOutcome:
        """Score a chunk."""
        defaults = {"deadline_s": CHUNK_DEADLINE_S, "priority": "bulk"}
        request = RewardRequest.model_validate({**defaults, **work.request, "groups": work.body["groups"]})
        async with translate_client_errors(), self._client_factory(work.ref.project_id) as client:
            answer = await client.send_rewards(request, work)
        verdicts = [v for group in answer.groups for response in group.responses for v in response.verdicts]
        problem = transient_failure_message(verdicts)
        if problem is not None and not work.last_attempt:
            raise RetryableChunkError(problem, ChunkOutcome(usage=answer.usage))
        failed = sum(any(r.status == "unscored" for r in group.responses) for group in answer.groups)
        return ChunkOutcome(_results(answer, work.body["first"]), answer.usage, {"failed": failed})


def _results(answer: RewardAnswer, first: int) -> list[dict[str, Any]]:
    fingerprint = None if answer.judge is None else answer.judge.fingerprint
    return [
        {"index": index, "fingerprint": fingerprint, **group.model_dump(mode="json")}
        for index, group in enumerate(answer.groups, first)
    ]
