"""Rubrics on the wire: the rules a rubric must keep to be written, what is published, versions and lists.

Knows nothing of where rubrics are stored or how they are judged.
"""

from collections import Counter
from datetime import datetime
from typing import Annotated

from pydantic import Field, JsonValue, field_validator

from trainer_client.wire.base import STRICT_NUMBER, AnswerModel, RequestList, RequestModel, check_magnitude
from trainer_client.wire.criteria import Criterion, content_digest
from trainer_client.wire.json_object import JsonObject
from trainer_client.wire.lineage import Lineage
from trainer_client.wire.references import RubricTag

MAX_TAGS = 64


class RubricContent(RequestModel):
    """The criteria of a rubric, with the rules any rubric keeps: some criterion, distinct ids, a positive weight.

    A weight is 0, or from 1e-9 to 1e6 in magnitude.

    A list of mistakes, every criterion a `pitfall` of negative weight, needs no positive weight.
    """

    criteria: RequestList[Criterion] = Field(min_length=1, max_length=512)

    @field_validator("criteria")
    @classmethod
    def _ids_are_distinct(cls, criteria: tuple[Criterion, ...]) -> tuple[Criterion, ...]:
        repeated = [id_ for id_, n in Counter(c.id for c in criteria).items() if n > 1]
        if repeated:
            raise ValueError(f"criterion ids must differ; repeated: {', '.join(sorted(repeated))}")
        return criteria

    @field_validator("criteria")
    @classmethod
    def _weights_are_moderate(cls, criteria: tuple[Criterion, ...]) -> tuple[Criterion, ...]:
        for criterion in criteria:
            try:
                check_magnitude(criterion.weight)
            except ValueError as error:
                raise ValueError(f"the weight of criterion {criterion.id!r}: {error}") from None
        return criteria

    @field_validator("criteria")
    @classmethod
    def _some_weight_is_positive(cls, criteria: tuple[Criterion, ...]) -> tuple[Criterion, ...]:
        mistakes = all(c.kind == "pitfall" and c.weight < 0 for c in criteria)
        if criteria and not mistakes and not any(c.weight > 0 for c in criteria):
            raise ValueError(
                "no criterion has a positive weight, so the reward would have nothing to divide by; "
                "give at least one criterion a weight above 0, or make each a pitfall of negative weight"
            )
        return criteria

    @property
    def digest(self) -> str:
        """`sha256:` and the hash of the criteria in canonical JSON: equal content, equal digest."""
        return content_digest(self.criteria)


class RubricPublication(RubricContent):
    """What is published: criteria, and what is kept beside them. Only the criteria enter the digest.

    Attributes:
        metadata: a JSON object of the publisher's own, kept with the version; at most 64 KiB.
        tags: added to the name's tags, by which rubrics are found.
        lineage: who or what made this version.
        parent: the version of the same name that this one was made from; the newest unless given.
    """

    metadata: JsonObject | None = None
    tags: RequestList[RubricTag] = Field(default=(), max_length=MAX_TAGS)
    lineage: Lineage | None = None
    parent: Annotated[int, Field(ge=1), STRICT_NUMBER] | None = None


class Retirement(AnswerModel):
    """When a version was taken out of use, and why."""

    at: datetime
    reason: str


class RubricVersion(AnswerModel):
    """One immutable version of a named rubric. Only its retirement may come and go.

    `parent` is the version of the same name it was made from, null for the first.
    """

    name: str
    version: int
    digest: str
    criteria: tuple[Criterion, ...]
    created_at: datetime
    parent: int | None = None
    metadata: dict[str, JsonValue] = Field(default_factory=dict)
    lineage: Lineage | None = None
    retirement: Retirement | None = None

    @property
    def reference(self) -> str:
        """The pinned reference, `name@version`."""
        return f"{self.name}@{self.version}"


class RubricSummary(AnswerModel):
    """A named rubric in a list: the version its bare name stands for, and how many criteria that has.

    That is the newest that is not retired. Where all are, it is the newest, and `retired` says so. `aliases` maps
    the aliases of the name to the versions they stand for.
    """

    name: str
    latest_version: int
    digest: str
    criteria_count: int
    created_at: datetime
    tags: tuple[str, ...] = ()
    aliases: dict[str, int] = Field(default_factory=dict)
    retired: bool = False


class RubricPage(AnswerModel):
    """A page of rubrics by name; `next_cursor` fetches the following page and is null on the last."""

    rubrics: tuple[RubricSummary, ...]
    next_cursor: str | None = None


class VersionSummary(AnswerModel):
    """A version in a rubric's history: all of it but its criteria, and the aliases that stand for it now."""

    version: int
    digest: str
    criteria_count: int
    created_at: datetime
    parent: int | None = None
    metadata: dict[str, JsonValue] = Field(default_factory=dict)
    lineage: Lineage | None = None
    retirement: Retirement | None = None
    aliases: tuple[str, ...] = ()


class RubricHistory(AnswerModel):
    """The versions of one rubric, the newest first; `next_cursor` fetches the older ones and is null on the last."""

    name: str
    tags: tuple[str, ...] = ()
    versions: tuple[VersionSummary, ...]
    next_cursor: str | None = None
