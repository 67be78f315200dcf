"""From what a request says of rubrics to immutable criteria, checked against the mode before anything is judged."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass

from judge_server.errors import InvalidRequest, NotReady, RubricRefused, RubricRetired, ServiceError, UnknownRubric
from judge_server.ports import RubricSource
from judge_server.telemetry.spans import traced
from trainer_client._suitability import UnsuitableRubric
from trainer_client.wire import Criterion, FieldError, PinnedRubric, RubricContent, RubricVersion, parse_reference

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

_STORE_RETRY_AFTER_S = 2

RubricCheck = Callable[[Sequence[Criterion]], None]
"""Raises `UnsuitableRubric` for criteria that cannot serve what a request asks for."""


async def find_rubric(source: RubricSource, project_id: str, reference: str) -> RubricVersion:
    """The version a reference stands for.

    Raises:
        InvalidRequest: the reference has no known form.
        UnknownRubric: there is none; the message names the closest there is.
        NotReady: the store cannot be read now.
    """
    try:
        parse_reference(reference)
    except ValueError as error:
        raise InvalidRequest(str(error), errors=(FieldError(field="rubric", message=str(error)),)) from None
    try:
        found = await source.find(project_id, reference)
        if found is None:
            raise await unknown_rubric(source, project_id, reference)
    except ConnectionError as error:
        raise NotReady(
            f"The rubric store cannot be read, so what {reference!r} stands for is not known: {error}. Criteria in the "
            "request need no store, and neither does a name@version or digest that this process has used lately.",
            retry_after_s=_STORE_RETRY_AFTER_S,
        ) from error
    return found


async def unknown_rubric(source: RubricSource, project_id: str, reference: str) -> UnknownRubric:
    """The error for a reference that stands for nothing; it names the closest there is."""
    closest = await source.closest(project_id, reference)
    hint = f"Did you mean {closest!r}?" if closest else "None is called anything like it; list them first."
    return UnknownRubric(f"There is no rubric {reference!r}. {hint}")


@traced("rubrics")
async def resolve_rubrics(
    source: RubricSource,
    own: Sequence[str | RubricContent | None],
    shared: str | RubricContent | None,
    project_id: str,
    *,
    deadline: float,
    rubric_check: RubricCheck | None = None,
    where: str = "groups",
    allow_retired: bool = False,
) -> list[ResolvedRubric]:
    """The rubric of each item of a request, in order; a reference used by many is looked up once.

    Args:
        source: where named rubrics come from.
        own: each item's own rubric, None where it uses the request's.
        shared: the request's rubric, None where it has none.
        project_id: whose rubrics.
        deadline: by when what is looked up must be found, in the loop's time.
        suits: what a rubric must hold.
        where: the request's field that lists the items.
        allow_retired: whether versions that are taken out of use will do.

    Raises:
        InvalidRequest, UnknownRubric: see `find_rubric`.
        RubricRetired: a version is retired and `allow_retired` is not set; says what to use in its place.
        RubricRefused: a rubric does not suit; says which item's and why.
        NotReady: the store cannot be read now, or not before the deadline.
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
            field = f"{where}.{index}.rubric" if override else "rubric"
            async with _lookup_timeout(deadline):
                resolved[key] = await _resolve(source, project_id, asked, field, allow_retired)
            try:
                if rubric_check is not None:
                    rubric_check(resolved[key].criteria)
            except UnsuitableRubric as error:
                raise _refused(RubricRefused, field, str(error)) from None
        rubrics.append(resolved[key])
    return rubrics


async def _resolve(
    source: RubricSource, project_id: str, asked: str | RubricContent, field: str, allow_retired: bool
) -> ResolvedRubric:
    if isinstance(asked, RubricContent):
        return ResolvedRubric(asked.criteria, PinnedRubric(digest=asked.digest))
    found = await find_rubric(source, project_id, asked)
    if found.retirement is not None and not allow_retired:
        current = await source.find(project_id, found.name)
        remedy = "" if current is None or current.retirement else f"use {current.reference}, or "
        raise _refused(
            RubricRetired,
            field,
            f"{asked!r} stands for {found.reference}, which was retired on {found.retirement.at:%Y-%m-%d}: "
            f"{found.retirement.reason} — {remedy}send allow_retired: true to judge by it all the same",
        )
    return ResolvedRubric(found.criteria, PinnedRubric(digest=found.digest, name=found.name, version=found.version))


@asynccontextmanager
async def _lookup_timeout(deadline: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout_at(deadline):
            yield
    except TimeoutError:
        raise NotReady(
            "The rubric store has not answered within the request's deadline, so nothing was judged.",
            retry_after_s=_STORE_RETRY_AFTER_S,
        ) from None


def _refused(kind: type[ServiceError], field: str, message: str) -> ServiceError:
    return kind(f"{field}: {message}", errors=(FieldError(field=field, message=message),))
