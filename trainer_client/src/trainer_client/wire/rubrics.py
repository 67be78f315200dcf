"""Rubrics and their versions: references, publication, lineage, differences, validity and retirement.

A version is immutable. Aliases, tags and retirement can change without a new version. A difference between two
versions matches their criteria by id; `judge_server.scoring.rubrics` computes and applies differences.
"""

import re
from collections import Counter
from datetime import datetime
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, Field, JsonValue, StringConstraints, field_validator

from trainer_client.wire.base import (
    STORABLE,
    STRICT_NUMBER,
    AnswerModel,
    JsonObject,
    RequestList,
    RequestModel,
    SafeInt,
    check_magnitude,
)
from trainer_client.wire.criteria import Criterion, content_digest
from trainer_client.wire.names import ALIAS_PATTERN, RUBRIC_NAME_PATTERN, TAG_PATTERN

ShortText = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=200), STORABLE]


class Lineage(RequestModel):
    """Who or what made a version: a person or team, or a generator. All fields are optional and never change.

    Attributes:
        author: the person or team that wrote the rubric.
        generator: the kind of generator that wrote it, for example `contrastive`.
        model: the model that the generator called.
        template_digest: `sha256:…` of the generator's templates.
        parameters: the generator's other parameters (numbers of samples, limits, seeds); at most 64 KiB.
        source_digest: `sha256:…` of the question or document that the rubric was made from.
        operation_id: the operation that made it.
    """

    author: ShortText | None = None
    generator: ShortText | None = None
    model: ShortText | None = None
    template_digest: ShortText | None = None
    parameters: JsonObject = Field(default_factory=dict)
    source_digest: ShortText | None = None
    operation_id: ShortText | None = None


LATEST_ALIAS = "latest"
"""`name@latest` means the same as `name`, so no alias can have this name."""

RESERVED_PARTS = frozenset({"aliases", "diff", "retirement", "tags", "versions"})
"""The words that follow a rubric's name in URL paths; a new name must not contain them after a slash."""


def _no_reserved_part(name: str) -> str:
    reserved = RESERVED_PARTS.intersection(name.split("/")[1:])
    if reserved:
        raise ValueError(
            f"a name must not contain {min(reserved)!r} after a slash, since URLs use this word; use another word"
        )
    return name


def _not_latest(alias: str) -> str:
    if alias == LATEST_ALIAS:
        raise ValueError(f"{LATEST_ALIAS!r} always points to the newest version and cannot be moved; use another alias")
    return alias


_NAME_LENGTH = 200
RubricName = Annotated[str, StringConstraints(pattern=RUBRIC_NAME_PATTERN, max_length=_NAME_LENGTH)]
NewRubricName = Annotated[RubricName, AfterValidator(_no_reserved_part)]
"""A name under which a rubric can be published."""

AliasName = Annotated[str, StringConstraints(pattern=ALIAS_PATTERN), AfterValidator(_not_latest)]
"""A name for the version that a team uses, such as `production`; it can be moved from one version to another."""

RubricTag = Annotated[str, StringConstraints(pattern=TAG_PATTERN)]
"""A keyword to find rubrics by."""


class Reference(NamedTuple):
    """A parsed rubric reference: a digest, or a name with a version, an alias, or neither (the newest version)."""

    name: str | None
    version: int | None
    digest: str | None
    alias: str | None = None


_NAME, _ALIAS = (pattern.strip("^$") for pattern in (RUBRIC_NAME_PATTERN, ALIAS_PATTERN))
_REFERENCE = re.compile(rf"(?P<name>{_NAME})(@((?P<version>[1-9][0-9]{{0,8}})|(?P<alias>{_ALIAS})))?")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def parse_reference(text: str) -> Reference:
    """Parse `name`, `name@3`, `name@alias` or `sha256:…`; `name@latest` is the same as `name`.

    Raises:
        ValueError: the text has none of these four forms.
    """
    if _DIGEST.fullmatch(text):
        return Reference(None, None, text)
    match = _REFERENCE.fullmatch(text)
    if match and len(match["name"]) <= _NAME_LENGTH:
        version, alias = match["version"], match["alias"]
        return Reference(
            match["name"], int(version) if version else None, None, None if alias == LATEST_ALIAS else alias
        )
    shown = text if len(text) <= 256 else f"{text[:64]}…"
    raise ValueError(f"{shown!r} is not a rubric reference; use name, name@3, name@alias or sha256:<64 hex digits>")


MAX_TAGS = 64


class RubricContent(RequestModel):
    """The criteria of a rubric: at least one, with distinct ids, of which at least one has a positive weight.

    A weight is 0, or from 1e-9 to 1e6 in magnitude. A rubric that lists only mistakes, where every criterion is a
    `pitfall` of negative weight, needs no positive weight.

    Attributes:
        criteria: what to check in a response.
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
                "no criterion has a positive weight, so the reward would be divided by zero; "
                "give at least one criterion a weight above 0, or make each a pitfall of negative weight"
            )
        return criteria

    @property
    def digest(self) -> str:
        """`sha256:` and the hash of the criteria in canonical JSON. Equal content has equal digests."""
        return content_digest(self.criteria)


class RubricPublication(RubricContent):
    """A rubric version to publish: criteria and data stored with them. Only the criteria enter the digest.

    Attributes:
        metadata: a JSON object of your own, stored with the version; at most 64 KiB.
        tags: tags to add to the rubric, which it can then be found by.
        lineage: who or what made this version.
        parent: the version of the same name that this one was made from; defaults to the newest.
    """

    metadata: JsonObject | None = None
    tags: RequestList[RubricTag] = Field(default=(), max_length=MAX_TAGS)
    lineage: Lineage | None = None
    parent: Annotated[int, Field(ge=1), STRICT_NUMBER] | None = None


class Retirement(AnswerModel):
    """When and why a version was retired.

    Attributes:
        reason: why it was retired.
    """

    at: datetime
    reason: str


class RubricVersion(AnswerModel):
    """One version of a named rubric. It is immutable, except that it can be retired and restored.

    Attributes:
        criteria: the criteria, in the order of publication.
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
    """A named rubric in a list, with the version that its name alone refers to.

    That is the newest version that is not retired. If all versions are retired, it is the newest one.

    Attributes:
        latest_version: the version that the name alone refers to.
        retired: whether all versions are retired.
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
    """A page of rubrics, sorted by name.

    Attributes:
        rubrics: the rubrics, by name.
    """

    rubrics: tuple[RubricSummary, ...]
    next_cursor: str | None = None


class VersionSummary(AnswerModel):
    """A version in a rubric's history, without its criteria. `aliases` are those that currently point to it."""

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
    """A page of the versions of a rubric, newest first.

    Attributes:
        versions: the versions, newest first.
    """

    name: str
    tags: tuple[str, ...] = ()
    versions: tuple[VersionSummary, ...]
    next_cursor: str | None = None


Reason = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=2_000), STORABLE]


class AliasMove(RequestModel):
    """Point an alias to this version."""

    version: SafeInt = Field(ge=1, lt=10**9)


class RubricAlias(AnswerModel):
    """An alias of a rubric and the version that it points to.

    Attributes:
        alias: the name that points to a version.
    """

    name: str
    alias: str
    version: int


class RubricAliases(AnswerModel):
    """All aliases of a rubric, each with the version that it points to."""

    name: str
    aliases: dict[str, int]


class TagSet(RequestModel):
    """The tags that replace all tags of a rubric."""

    tags: RequestList[RubricTag] = Field(max_length=MAX_TAGS)


class RubricTags(AnswerModel):
    """The tags of a rubric, sorted."""

    name: str
    tags: tuple[str, ...]


class RetirementRequest(RequestModel):
    """Retire a version, and say why.

    Attributes:
        reason: why it is retired, which refused requests are told.
    """

    reason: Reason


class PlacedCriterion(AnswerModel):
    """A criterion and its position in its version, counted from 0.

    Attributes:
        place: its position, from 0.
        criterion: the criterion.
    """

    place: int
    criterion: Criterion


class _CriterionChange(AnswerModel):
    """Something of a criterion that differs between two versions.

    Attributes:
        id: the criterion's id.
        before, after: what it is in that version.
    """

    id: str


class Rewording(_CriterionChange):
    """A criterion whose description changed."""

    before: str
    after: str


class Reweighting(_CriterionChange):
    """A criterion whose weight changed."""

    before: float
    after: float


class FieldChange(_CriterionChange):
    """A change of another field of a criterion. Each changed field has its own entry.

    Attributes:
        field: the field that changed.
    """

    field: Literal[
        "kind",
        "tags",
        "scale",
        "verification",
        "name",
        "required_elements",
        "scoring_guide",
        "expected_keywords",
        "expected_concepts",
        "verification_method",
        "shadow",
        "applies_to",
    ]
    before: JsonValue
    after: JsonValue


class CriterionMove(_CriterionChange):
    """A criterion whose position among the criteria of both versions changed, with its position in each, from 0."""

    before: int
    after: int


class DiffSide(AnswerModel):
    """One of the two compared versions."""

    version: int
    digest: str


class RubricDiff(AnswerModel):
    """The difference between two versions of a rubric. Applied to the first version, it gives the second.

    A criterion appears in every list that applies to it.

    Attributes:
        before, after: the versions compared.
        added: criteria that only the second version has.
        removed: criteria that only the first version has.
        reworded: criteria with another description.
        reweighted: criteria with another weight.
        changed: changes of other fields.
        moved: the smallest set of criteria that explains the new order.
        unchanged: the number of criteria in none of the lists.
    """

    name: str
    before: DiffSide
    after: DiffSide
    added: tuple[PlacedCriterion, ...] = ()
    removed: tuple[PlacedCriterion, ...] = ()
    reworded: tuple[Rewording, ...] = ()
    reweighted: tuple[Reweighting, ...] = ()
    changed: tuple[FieldChange, ...] = ()
    moved: tuple[CriterionMove, ...] = ()
    unchanged: int
