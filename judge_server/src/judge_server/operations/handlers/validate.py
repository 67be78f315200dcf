"""Validation of published rubrics: a verdict and a reason for every criterion, in a chunk for each version.

The verdicts on a version are stored with it as soon as they exist. A version that the same model has judged with the
same prompts, in this operation or another, is not judged again.
"""

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from pydantic import BaseModel

from judge_server.generation.validity import VALIDITY_PROMPTS, ItemValidity, judge_version, kind_of
from judge_server.generation.writer import WriterFailed
from judge_server.operations.handlers.base import RetryableChunkError
from judge_server.operations.handlers.generate import WriterFactory, to_usage
from judge_server.ports import EngineIdentity, RubricSource, RubricValidations
from judge_server.rubrics import find_rubric
from trainer_client.wire import RubricVersion
from trainer_client.wire.operations import ChunkOutcome, LeasedChunk, NewChunk, ValidateOperation
from trainer_client.wire.rubrics import CriterionValidity

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
