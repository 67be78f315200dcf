"""The groups that a run has seen of late, the newest of each rubric: what evolving rubrics compare responses of.

Each rank sees its share of the responses; `merge` puts the shares of all ranks together, the same way on each.
"""

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from trainer_client.trl._scored import ScoredRow
from trainer_client.wire import Group

SHARED_PROMPT = ""
"""Stands for the prompt of a rubric that several prompts share."""


@dataclass(frozen=True, slots=True)
class SeenGroup:
    """A prompt with responses to it, and the rubric that judged them.

    Attributes:
        reference: of the rubric, as its user wrote it.
        place: the generation batch, and the place in it of the first response.
        group: as it is judged, without the rubric.
        correct: for each response whether its answer is right; None where that is not known.
    """

    reference: str
    place: tuple[int, int]
    group: Group
    correct: tuple[bool | None, ...]

    @property
    def prompt(self) -> str:
        """A digest of the prompt."""
        prompt_json = self.group.model_dump_json(include={"prompt"})
        return hashlib.sha256(prompt_json.encode("utf-8", "surrogatepass")).hexdigest()[:16]

    def as_json(self) -> dict[str, Any]:
        """Give it as JSON takes it."""
        group = self.group.model_dump(mode="json", exclude_none=True)
        return {"reference": self.reference, "place": [*self.place], "group": group, "correct": [*self.correct]}

    @classmethod
    def from_json(cls, given: Mapping[str, Any]) -> "SeenGroup":
        """Read what `to_json_bytes` gave."""
        first, second = given["place"]
        group = Group.model_validate(given["group"])
        return cls(given["reference"], (first, second), group, tuple(given["correct"]))


@dataclass(frozen=True, slots=True)
class GroupHistory:
    """What was seen: the newest group of each rubric, and the prompt that each rubric ever judged, or `SHARED_PROMPT`."""

    groups: Mapping[str, SeenGroup]
    prompts: Mapping[str, str]

    def with_groups(self, groups: Iterable[SeenGroup], max_groups: int) -> "GroupHistory":
        """Add groups; of all there are, the newest `most` stay."""
        newest, prompts = dict(self.groups), dict(self.prompts)
        for one in groups:
            if prompts.setdefault(one.reference, one.prompt) != one.prompt:
                prompts[one.reference] = SHARED_PROMPT
            if one.reference not in newest or newest[one.reference].place <= one.place:
                newest[one.reference] = one
        return GroupHistory(_newest(newest, max_groups), prompts)

    @property
    def shared(self) -> list[str]:
        """The rubrics of groups that judge several prompts."""
        return [reference for reference in self.groups if self.prompts[reference] == SHARED_PROMPT]


def merge_histories(shares: Sequence[GroupHistory], max_groups: int) -> GroupHistory:
    """Put together what the ranks saw: a group's responses in the order of the ranks, the newest `most` groups."""
    prompts: dict[str, str] = {}
    groups: dict[str, SeenGroup] = {}
    for share in shares:
        for reference, prompt in share.prompts.items():
            if prompts.setdefault(reference, prompt) != prompt:
                prompts[reference] = SHARED_PROMPT
        for reference, one in share.groups.items():
            existing = groups.get(reference)
            if existing is not None and existing.group.id == one.group.id:
                groups[reference] = _merge_group(existing, one)
            elif existing is None or existing.place <= one.place:
                groups[reference] = one
    return GroupHistory(_newest(groups, max_groups), prompts)


def evolvable_groups(
    rows: Sequence[ScoredRow], correct: Sequence[bool | None], batch: int, first: int
) -> list[SeenGroup]:
    """Give the groups of one rank's rows whose rubrics can evolve: those that name no version.

    Args:
        rows: N responses as they were judged.
        correct: N times whether the answer is right.
        batch: the number of the generation batch.
        first: the place of the first row among those of all ranks.
    """
    places: dict[str, list[int]] = {}
    for place, row in enumerate(rows):
        if isinstance(row.rubric, str) and can_evolve(row.rubric):
            places.setdefault(row.group, []).append(place)
    return [_group(rows, own, correct, (batch, first + own[0])) for own in places.values()]


def can_evolve(reference: str) -> bool:
    """Whether a reference stands for another version when the run is pinned to one: `name` or `name@alias`."""
    return not reference.startswith("sha256:") and not reference.partition("@")[2].isdecimal()


def _group(
    rows: Sequence[ScoredRow], own: Sequence[int], correct: Sequence[bool | None], place: tuple[int, int]
) -> SeenGroup:
    row = rows[own[0]]
    group = Group.model_validate({**row.fields, "responses": [rows[one].response for one in own]})
    return SeenGroup(str(row.rubric), place, group, tuple(correct[one] for one in own))


def _merge_group(one: SeenGroup, other: SeenGroup) -> SeenGroup:
    responses = (*one.group.responses, *other.group.responses)
    group = one.group.model_copy(update={"responses": responses})
    return replace(one, place=min(one.place, other.place), group=group, correct=(*one.correct, *other.correct))


def _newest(groups: Mapping[str, SeenGroup], max_groups: int) -> dict[str, SeenGroup]:
    kept = sorted(groups.values(), key=lambda one: one.place)[-max_groups:]
    return {one.reference: one for one in kept}
