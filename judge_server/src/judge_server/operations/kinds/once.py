"""Publishing what a chunk made once, however often the chunk is worked on: the store is asked what it has of it.

Between publishing and keeping the chunk's result a worker may die. Whoever takes the chunk next finds the version by
its lineage: the operation, and the source or, where several inputs revise one rubric, the chunk.
"""

from dataclasses import asdict
from typing import Any

from judge_server.generation.generator import Generator, InputRow
from judge_server.generation.job import publisher
from judge_server.generation.runner import Publisher
from judge_server.generation.splits import split_of
from judge_server.generation.writer import WriterUsage
from judge_server.ports import RubricSource
from trainer_client.wire import Lineage, RubricVersion
from trainer_client.wire.operation_rows import ChunkRef

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
