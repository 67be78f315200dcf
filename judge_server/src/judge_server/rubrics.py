"""From what a request says of rubrics to immutable criteria, checked against the mode before anything is judged."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from judge_server.errors import InvalidRequest, RubricRefused, UnknownRubric
from judge_server.ports import RubricSource
from trainer_client.rewards import UnsuitableRubric
from trainer_client.wire import (
    Criterion,
    FieldError,
    PinnedRubric,
    RubricContent,
    RubricVersion,
    parse_reference,
)

PROJECT_ID = "default"
"""The one project there is until keys name others."""


@dataclass(frozen=True, slots=True)
class ResolvedRubric:
    """Criteria, and the pinned identity they are reported under; neither where a group needs no rubric."""

    criteria: tuple[Criterion, ...] = ()
    pinned: PinnedRubric | None = None

    @property
    def digest(self) -> str | None:
        """The digest of its content."""
        return self.pinned.digest if self.pinned else None


NO_RUBRIC = ResolvedRubric()

Suits = Callable[[Sequence[Criterion]], None]
"""Raises `UnsuitableRubric` for criteria that cannot serve what a request asks for."""


async def find_rubric(source: RubricSource, project_id: str, reference: str) -> RubricVersion:
    """The version a reference stands for.

    Raises:
        InvalidRequest: the reference has no known form.
        UnknownRubric: there is none; the message names the closest there is.
    """
    try:
        parse_reference(reference)
    except ValueError as error:
        raise InvalidRequest(str(error), errors=(FieldError(field="rubric", message=str(error)),)) from None
    found = await source.find(project_id, reference)
    if found is None:
        closest = await source.closest(project_id, reference)
        hint = f"Did you mean {closest!r}?" if closest else "None is called anything like it; list them first."
        raise UnknownRubric(f"There is no rubric {reference!r}. {hint}")
    return found


async def resolve_rubrics(
    source: RubricSource,
    own: Sequence[str | RubricContent | None],
    shared: str | RubricContent | None,
    project_id: str,
    *,
    suits: Suits | None = None,
    where: str = "groups",
) -> list[ResolvedRubric]:
    """The rubric of each item of a request, in order; a reference used by many is looked up once.

    Args:
        source: where named rubrics come from.
        own: each item's own rubric, None where it uses the request's.
        shared: the request's rubric, None where it has none.
        project_id: whose rubrics.
        suits: what a rubric must hold.
        where: the request's field that lists the items.

    Raises:
        InvalidRequest, UnknownRubric: see `find_rubric`.
        RubricRefused: a rubric does not suit; says which item's and why.
    """
    resolved: dict[str, ResolvedRubric] = {}
    rubrics = []
    for index, override in enumerate(own):
        asked = override or shared
        if asked is None:
            rubrics.append(NO_RUBRIC)
            continue
        key = asked if isinstance(asked, str) else asked.digest
        if key not in resolved:
            resolved[key] = await _resolve(source, project_id, asked)
            try:
                if suits is not None:
                    suits(resolved[key].criteria)
            except UnsuitableRubric as error:
                field = f"{where}.{index}.rubric" if override else "rubric"
                raise RubricRefused(
                    f"{field}: {error}", errors=(FieldError(field=field, message=str(error)),)
                ) from None
        rubrics.append(resolved[key])
    return rubrics


async def _resolve(source: RubricSource, project_id: str, asked: str | RubricContent) -> ResolvedRubric:
    if isinstance(asked, RubricContent):
        return ResolvedRubric(asked.criteria, PinnedRubric(digest=asked.digest))
    found = await find_rubric(source, project_id, asked)
    return ResolvedRubric(found.criteria, PinnedRubric(digest=found.digest, name=found.name, version=found.version))
