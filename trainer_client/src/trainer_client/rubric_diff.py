"""Finds what differs between two versions of a rubric, and applies a difference: pure functions over criteria.

Criteria are the same where their ids are: ids are stable across versions. Knows no store and no service.
"""

from bisect import bisect_left
from collections.abc import Sequence
from typing import Any

from trainer_client.wire.criteria import Criterion
from trainer_client.wire.rubric_diffs import (
    CriterionMove,
    DiffSide,
    FieldChange,
    PlacedCriterion,
    Reweighting,
    Rewording,
    RubricDiff,
)
from trainer_client.wire.rubrics import RubricVersion

_OTHER_FIELDS = ("kind", "tags", "scale", "verification")


def diff_versions(before: RubricVersion, after: RubricVersion) -> RubricDiff:
    """What turns one version of a rubric into another, in the order of the criteria.

    Raises:
        ValueError: the versions are of different rubrics.
    """
    if before.name != after.name:
        raise ValueError(f"{before.reference} and {after.reference} are versions of different rubrics")
    old = {criterion.id: (place, criterion) for place, criterion in enumerate(before.criteria)}
    new = {criterion.id: (place, criterion) for place, criterion in enumerate(after.criteria)}
    both = [(old[id_][1], criterion) for id_, (_, criterion) in new.items() if id_ in old]
    moved = _moved_ids([id_ for id_ in new if id_ in old], {id_: place for id_, (place, _) in old.items()})
    return RubricDiff(
        name=before.name,
        before=DiffSide(version=before.version, digest=before.digest),
        after=DiffSide(version=after.version, digest=after.digest),
        added=_criteria_only_in(new, old),
        removed=_criteria_only_in(old, new),
        reworded=tuple(
            Rewording(id=a.id, before=a.description, after=b.description)
            for a, b in both
            if a.description != b.description
        ),
        reweighted=tuple(
            Reweighting(id=a.id, before=a.weight, after=b.weight) for a, b in both if a.weight != b.weight
        ),
        changed=tuple(change for a, b in both for change in _changes(a, b)),
        moved=tuple(CriterionMove(id=id_, before=old[id_][0], after=new[id_][0]) for id_ in new if id_ in moved),
        unchanged=sum(a == b and a.id not in moved for a, b in both),
    )


def apply_diff(criteria: Sequence[Criterion], diff: RubricDiff) -> tuple[Criterion, ...]:
    """The criteria of a diff's second version, made from those of its first.

    Raises:
        ValueError: these are not the criteria of its first version.
    """
    fields = {criterion.id: criterion.model_dump() for criterion in criteria}
    try:
        for removed in diff.removed:
            del fields[removed.criterion.id]
        for reworded in diff.reworded:
            fields[reworded.id]["description"] = reworded.after
        for reweighted in diff.reweighted:
            fields[reweighted.id]["weight"] = reweighted.after
        for changed in diff.changed:
            fields[changed.id][changed.field] = changed.after
        placed = {added.place: added.criterion for added in diff.added}
        placed |= {move.after: Criterion.model_validate(fields.pop(move.id)) for move in diff.moved}
    except KeyError as error:
        raise ValueError(f"there is no criterion {error} to change; is this the version the diff is from?") from None
    staying = iter([Criterion.model_validate(kept) for kept in fields.values()])
    total = len(fields) + len(placed)
    return tuple([placed[place] if place in placed else next(staying) for place in range(total)])


def _criteria_only_in(
    ours: dict[str, tuple[int, Criterion]], theirs: dict[str, tuple[int, Criterion]]
) -> tuple[PlacedCriterion, ...]:
    """The criteria that only one side has."""
    return tuple(
        PlacedCriterion(place=place, criterion=criterion)
        for id_, (place, criterion) in ours.items()
        if id_ not in theirs
    )


def _changes(before: Criterion, after: Criterion) -> list[FieldChange]:
    old, new = before.model_dump(mode="json"), after.model_dump(mode="json")
    return [_change(before.id, name, old, new) for name in _OTHER_FIELDS if old[name] != new[name]]


def _change(id_: str, field: Any, old: dict[str, Any], new: dict[str, Any]) -> FieldChange:
    return FieldChange(id=id_, field=field, before=old[field], after=new[field])


def _moved_ids(ids: Sequence[str], place_before: dict[str, int]) -> set[str]:
    """The ids to move so that the others keep their order: all but a longest rising run of places."""
    ends: list[int] = []  # ends[n]: the index of the id that ends the rising run of length n + 1 with the lowest place
    previous: list[int | None] = []
    for index, id_ in enumerate(ids):
        length = bisect_left(ends, place_before[id_], key=lambda end: place_before[ids[end]])
        previous.append(ends[length - 1] if length else None)
        ends[length : length + 1] = [index]
    kept, at = set(), ends[-1] if ends else None
    while at is not None:
        kept.add(ids[at])
        at = previous[at]
    return set(ids) - kept
