"""What differs between two versions of a rubric, criterion by criterion, by their ids.

Knows what a difference is made of; `trainer_client.rubric_diff` finds differences and applies them.
"""

from typing import Literal

from pydantic import JsonValue

from trainer_client.wire.base import AnswerModel
from trainer_client.wire.criteria import Criterion


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
