"""What may be changed about a rubric without a new version: its aliases, its tags, and whether it is in use."""

from typing import Annotated

from pydantic import Field, StringConstraints

from trainer_client.wire.base import AnswerModel, RequestList, RequestModel, SafeInt
from trainer_client.wire.references import RubricTag
from trainer_client.wire.rubrics import MAX_TAGS

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
