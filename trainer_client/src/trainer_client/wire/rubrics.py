"""Rubrics and their versions: references, publication, lineage, differences, validity and retirement.

Rubrics on the wire: the rules a rubric must keep to be written, what is published, versions and lists.

Knows nothing of where rubrics are stored or how they are judged.

What rubrics are called: names, aliases, tags, and references to one version.

Knows nothing of what a rubric holds.

Where a version of a rubric came from: a person, or a generator with all that went into it.

Knows nothing of how rubrics are generated or stored.

What may be changed about a rubric without a new version: its aliases, its tags, and whether it is in use.

What differs between two versions of a rubric, criterion by criterion, by their ids.

Knows what a difference is made of; `judge_server.rubrics` finds differences and applies them.

What a validity judge found of a rubric's criteria, as it crosses between judging and the store.

Knows findings and who found them. Refuses to know how a criterion is judged.
"""

import re
from collections import Counter
from datetime import datetime
from typing import Annotated, Literal, NamedTuple

from pydantic import AfterValidator, Field, JsonValue, StringConstraints, field_validator

from trainer_client.wire.base import (
    STRICT_NUMBER,
    AnswerModel,
    JsonObject,
    RequestList,
    RequestModel,
    SafeInt,
    check_magnitude,
)
from trainer_client.wire.criteria import Criterion, content_digest

ShortText = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=200)]


class Lineage(RequestModel):
    """Who or what made a version. Every part may be unknown; what is given never changes.

    Attributes:
        author: the person or team that wrote it.
        generator: the kind of generator that wrote it, for example `contrastive`.
        model: the model the generator asked.
        template_digest: `sha256:…` of the generator's templates.
        parameters: what else the generator was told (numbers of samples, limits, seeds); at most 64 KiB.
        source_digest: `sha256:…` of the question or document it was made from.
        operation_id: the operation that made it.
    """

    author: ShortText | None = None
    generator: ShortText | None = None
    model: ShortText | None = None
    template_digest: ShortText | None = None
    parameters: JsonObject = Field(default_factory=dict)
    source_digest: ShortText | None = None
    operation_id: ShortText | None = None


_PART = r"[a-z0-9][a-z0-9._-]*"
_NAME = rf"{_PART}(/{_PART})*"
_ALIAS = r"[a-z][a-z0-9._-]{0,63}"

LATEST_ALIAS = "latest"
"""`name@latest` means what `name` means; no alias may be called so."""

RESERVED_PARTS = frozenset({"aliases", "diff", "retirement", "tags", "versions"})
"""What stands after a rubric's name in the addresses of HTTP, and hence in no new name after a slash."""


def _no_reserved_part(name: str) -> str:
    reserved = RESERVED_PARTS.intersection(name.split("/")[1:])
    if reserved:
        raise ValueError(
            f"no part of a name after its first may be {min(reserved)!r}, which stands for something else in the "
            "addresses of HTTP; use another word"
        )
    return name


def _not_latest(alias: str) -> str:
    if alias == LATEST_ALIAS:
        raise ValueError(
            f"{LATEST_ALIAS!r} always stands for the newest version and cannot be moved; use another alias"
        )
    return alias


_NAME_LENGTH = 200
RubricName = Annotated[str, StringConstraints(pattern=rf"^{_NAME}$", max_length=_NAME_LENGTH)]
NewRubricName = Annotated[RubricName, AfterValidator(_no_reserved_part)]
"""A name that something may be published under."""

AliasName = Annotated[str, StringConstraints(pattern=rf"^{_ALIAS}$"), AfterValidator(_not_latest)]
"""What a team calls the version it uses, such as `production`: moved from one version to another."""

RubricTag = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._:/-]{0,63}$")]
"""A word that rubrics are found by."""


class Reference(NamedTuple):
    """A parsed rubric reference: a digest, or a name with a version or an alias (neither: the newest)."""

    name: str | None
    version: int | None
    digest: str | None
    alias: str | None = None


_REFERENCE = re.compile(rf"(?P<name>{_NAME})(@((?P<version>[1-9][0-9]{{0,8}})|(?P<alias>{_ALIAS})))?")
_DIGEST = re.compile(r"sha256:[0-9a-f]{64}")


def parse_reference(text: str) -> Reference:
    """Read `name`, `name@3`, `name@alias` or `sha256:…`; `name@latest` is read as `name`.

    Raises:
        ValueError: the text is none of these; the message shows the four forms.
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
    raise ValueError(f"{shown!r} is no rubric reference; write name, name@3, name@alias or sha256:<64 hex digits>")


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


Reason = Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=2_000)]


class AliasMove(RequestModel):
    """Have an alias stand for this version from now on."""

    version: SafeInt = Field(ge=1, lt=10**9)


class RubricAlias(AnswerModel):
    """An alias of a rubric, and the version it stands for."""

    name: str
    alias: str
    version: int


class RubricAliases(AnswerModel):
    """Every alias of a rubric, by alias."""

    name: str
    aliases: dict[str, int]


class TagSet(RequestModel):
    """The tags a rubric is to have, in place of those it has."""

    tags: RequestList[RubricTag] = Field(max_length=MAX_TAGS)


class RubricTags(AnswerModel):
    """The tags of a rubric, sorted."""

    name: str
    tags: tuple[str, ...]


class RetirementRequest(RequestModel):
    """Take a version out of use."""

    reason: Reason


class PlacedCriterion(AnswerModel):
    """A criterion and its place in its version, counted from 0."""

    place: int
    criterion: Criterion


class Rewording(AnswerModel):
    """A criterion whose description changed."""

    id: str
    before: str
    after: str


class Reweighting(AnswerModel):
    """A criterion whose weight changed."""

    id: str
    before: float
    after: float


class FieldChange(AnswerModel):
    """A criterion of which something else changed: one entry for each of its fields that did."""

    id: str
    field: Literal["kind", "tags", "scale", "verification"]
    before: JsonValue
    after: JsonValue


class CriterionMove(AnswerModel):
    """A criterion that stands elsewhere among those both versions have, with its place in each, counted from 0."""

    id: str
    before: int
    after: int


class DiffSide(AnswerModel):
    """One of the two versions that are compared."""

    version: int
    digest: str


class RubricDiff(AnswerModel):
    """The difference between two versions of a rubric. Applied to the first, its parts give the second.

    A criterion stands under each heading that holds for it. `moved` names as few criteria as explain the order;
    `unchanged` counts those under no heading.
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


class CriterionValidity(AnswerModel):
    """Whether one criterion of a rubric is valid; null where the judge gave no verdict, and `reason` says why not."""

    criterion: str
    valid: bool | None
    reason: str


class RubricValidation(AnswerModel):
    """One pass of a validity judge over a version's criteria, in their order.

    Attributes:
        judge: `sha256:…` of what can change its verdicts about the judge itself.
        model: what the judge's model is called.
        template_digest: `sha256:…` of the words it was asked in.
    """

    name: str
    version: int
    judge: str
    model: str
    template_digest: str
    created_at: datetime
    items: tuple[CriterionValidity, ...]

    @property
    def reference(self) -> str:
        """The pinned reference, `name@version`."""
        return f"{self.name}@{self.version}"
