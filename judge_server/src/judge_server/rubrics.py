"""From what a request says of rubrics to immutable criteria, checked against the mode before anything is judged."""

from dataclasses import dataclass

from judge_server.errors import InvalidRequest, RubricRefused, UnknownRubric
from judge_server.ports import RubricSource
from trainer_client.rewards import UnsuitableRubric, check_rubric
from trainer_client.wire import (
    Criterion,
    FieldError,
    PinnedRubric,
    RewardRequest,
    RubricContent,
    RubricVersion,
    parse_reference,
)

PROJECT_ID = "default"
"""The one project there is until keys name others."""


@dataclass(frozen=True, slots=True)
class ResolvedRubric:
    """Criteria, and the pinned identity they are reported under."""

    criteria: tuple[Criterion, ...]
    pinned: PinnedRubric


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


async def resolve_rubrics(source: RubricSource, request: RewardRequest, project_id: str) -> list[ResolvedRubric]:
    """The rubric of each group, in order; a reference used by many groups is looked up once.

    Raises:
        InvalidRequest, UnknownRubric: see `find_rubric`.
        RubricRefused: a rubric cannot feed the request's reward mode; says which group and why.
    """
    resolved: dict[str, ResolvedRubric] = {}
    rubrics = []
    for index, group in enumerate(request.groups):
        asked = group.rubric or request.rubric
        assert asked is not None  # RewardRequest refuses a group without a rubric
        key = asked if isinstance(asked, str) else asked.digest
        if key not in resolved:
            resolved[key] = await _resolve(source, project_id, asked)
            try:
                check_rubric(resolved[key].criteria, request.reward.mode)
            except UnsuitableRubric as error:
                where = f"groups.{index}.rubric" if group.rubric else "rubric"
                raise RubricRefused(
                    f"{where}: {error}", errors=(FieldError(field=where, message=str(error)),)
                ) from None
        rubrics.append(resolved[key])
    return rubrics


async def _resolve(source: RubricSource, project_id: str, asked: str | RubricContent) -> ResolvedRubric:
    if isinstance(asked, RubricContent):
        return ResolvedRubric(asked.criteria, PinnedRubric(digest=asked.digest))
    found = await find_rubric(source, project_id, asked)
    return ResolvedRubric(found.criteria, PinnedRubric(digest=found.digest, name=found.name, version=found.version))
