"""Resolve the rubrics of a request, manage aliases, tags and retirement, and compare versions.

A reference or inline rubric is resolved to immutable criteria and checked against the reward mode before anything is
judged. The functions here check that a rubric, version or alias exists and raise the service's errors; a
`RubricSource` stores it.

Diffs are pure functions over criteria. They match criteria by id, which is stable across versions.
"""

import asyncio
import re
from bisect import bisect_left
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass
from typing import NamedTuple, get_args

from judge_server.errors import (
    AliasMoved,
    InvalidRequest,
    NotReady,
    RubricRefused,
    RubricRetired,
    ServiceError,
    UnknownRubric,
)
from judge_server.observability.tracing import traced
from judge_server.ports import RubricSource
from judge_server.scheduling.time_sharing import LARGE_CHARACTERS, TimeSlicer, run_inline_or_in_thread
from rubric_store.rubrics.rows import criteria_characters
from trainer_client.rewards import UnsuitableRubric, check_rubric
from trainer_client.wire import (
    ComparisonRequest,
    Criterion,
    FieldError,
    Group,
    PinnedRubric,
    RewardRequest,
    RubricAlias,
    RubricContent,
    RubricDiff,
    RubricHistory,
    RubricTags,
    RubricVersion,
    VerdictRequest,
    parse_reference,
)
from trainer_client.wire.criteria import content_digest
from trainer_client.wire.rubrics import CriterionMove, DiffSide, FieldChange, PlacedCriterion, Reweighting, Rewording
from trainer_client.wire.verdicts import Pair

PROJECT_ID = "default"
"""The project of requests without a key."""

RUBRIC_MAX_AGE_S = 5.0
"""For how long scoring may use what it read of `name@3` or a digest. A retirement by another process takes effect
after this time, by the same process at once."""

_STORE_RETRY_AFTER_S = 2


@dataclass(frozen=True, slots=True)
class ResolvedRubric:
    """Criteria, and the pinned identity they are reported under; both are empty if a group needs no rubric."""

    criteria: tuple[Criterion, ...] = ()
    pinned: PinnedRubric | None = None

    @property
    def digest(self) -> str | None:
        """The digest of its content."""
        return self.pinned.digest if self.pinned else None


NO_RUBRIC = ResolvedRubric()


async def digest_of_reference(source: RubricSource, project_id: str, reference: str) -> str:
    """Resolve a reference to a digest; a digest need not be in the store, since inline rubrics have one too.

    Raises what `find_rubric` raises.
    """
    with suppress(ValueError):
        if (digest := parse_reference(reference).digest) is not None:
            return digest
    return (await find_rubric(source, project_id, reference)).digest


async def find_rubric(
    source: RubricSource, project_id: str, reference: str, *, max_age_s: float = 0.0
) -> RubricVersion:
    """Find the version that a reference points to; see `RubricSource.find` for `max_age_s`.

    Raises:
        InvalidRequest: the reference is malformed.
        UnknownRubric: no rubric matches it; the message suggests the closest name.
        NotReady: the store cannot be read now.
    """
    try:
        parse_reference(reference)
    except ValueError as error:
        raise InvalidRequest(str(error), errors=(FieldError(field="rubric", message=str(error)),)) from None
    try:
        version = await source.find(project_id, reference, max_age_s=max_age_s)
        if version is None:
            raise await unknown_rubric(source, project_id, reference)
    except ConnectionError as error:
        raise NotReady(
            f"The rubric store cannot be read, so {reference!r} cannot be resolved: {error}. Criteria in the request "
            "need no store, and neither does a name@version or digest that this process has used recently.",
            retry_after_s=_STORE_RETRY_AFTER_S,
        ) from error
    return version


async def unknown_rubric(source: RubricSource, project_id: str, reference: str) -> UnknownRubric:
    """Create the error for a reference that matches no rubric; it suggests the closest one."""
    closest = await source.closest(project_id, reference)
    hint = f"Did you mean {closest!r}?" if closest else "No rubric has a similar name; list the rubrics first."
    return UnknownRubric(f"There is no rubric {reference!r}. {hint}")


@traced("rubrics")
async def resolve_rubrics(
    source: RubricSource, request: RewardRequest | VerdictRequest | ComparisonRequest, project_id: str, deadline: float
) -> list[ResolvedRubric]:
    """Resolve the rubric of each group or pair of a request, in order; each reference is looked up once.

    Args:
        source: the store of named rubrics.
        request: the request. A rubric must suit its reward mode, if it has one.
        project_id: the project of the rubrics.
        deadline: the time, on the event loop's clock, by which lookups must finish.

    Raises:
        InvalidRequest, UnknownRubric: see `find_rubric`.
        RubricRetired: a version is retired and the request does not allow that; the message says what to use instead.
        RubricRefused: a rubric does not suit the mode; the message says which one and why.
        NotReady: the store cannot be read now, or not before the deadline.
    """
    where = "pairs" if isinstance(request, ComparisonRequest) else "groups"
    items: Sequence[Group | Pair] = getattr(request, where)
    options = request.reward if isinstance(request, RewardRequest) else None
    resolved: dict[str, ResolvedRubric] = {}
    digests: dict[int, str] = {}
    rubrics, slicer = [], TimeSlicer(deadline)
    for index, item in enumerate(items):
        await slicer.yield_if_due()
        rubric = item.rubric or request.rubric
        if rubric is None:
            rubrics.append(NO_RUBRIC)
            continue
        key = rubric if isinstance(rubric, str) else await _digest_of(rubric, digests)
        if key not in resolved:
            field = f"{where}.{index}.rubric" if item.rubric else "rubric"
            if isinstance(rubric, str):
                async with _lookup_timeout(deadline):
                    resolved[key] = await _find(source, project_id, rubric, field, request.allow_retired)
            else:
                resolved[key] = ResolvedRubric(rubric.criteria, PinnedRubric(digest=key))
            try:
                if options is not None:
                    check_rubric(resolved[key].criteria, options.mode, options.kinds, options.components)
            except UnsuitableRubric as error:
                raise _refused(RubricRefused, field, str(error)) from None
        rubrics.append(resolved[key])
    return rubrics


async def _digest_of(rubric: RubricContent, known: dict[int, str]) -> str:
    """Return the digest of a rubric in the request, computed once; groups may share it."""
    if id(rubric) not in known:
        large = criteria_characters(rubric.criteria) > LARGE_CHARACTERS
        known[id(rubric)] = await run_inline_or_in_thread(large, content_digest, rubric.criteria)
    return known[id(rubric)]


async def _find(source: RubricSource, project_id: str, rubric: str, field: str, allow_retired: bool) -> ResolvedRubric:
    version = await find_rubric(source, project_id, rubric, max_age_s=RUBRIC_MAX_AGE_S)
    if version.retirement is not None and not allow_retired:
        current = await source.find(project_id, version.name)
        remedy = "" if current is None or current.retirement else f"use {current.reference}, or "
        raise _refused(
            RubricRetired,
            field,
            f"{rubric!r} stands for {version.reference}, which was retired on {version.retirement.at:%Y-%m-%d}: "
            f"{version.retirement.reason} — {remedy}send allow_retired: true to judge by it anyway",
        )
    pinned = PinnedRubric(digest=version.digest, name=version.name, version=version.version)
    return ResolvedRubric(version.criteria, pinned)


@asynccontextmanager
async def _lookup_timeout(deadline: float) -> AsyncIterator[None]:
    try:
        async with asyncio.timeout_at(deadline):
            yield
    except TimeoutError:
        raise NotReady(
            "The rubric store did not answer within the request's deadline, so nothing was judged.",
            retry_after_s=_STORE_RETRY_AFTER_S,
        ) from None


def _refused(error_type: type[ServiceError], field: str, message: str) -> ServiceError:
    return error_type(f"{field}: {message}", errors=(FieldError(field=field, message=message),))


def diff_versions(before: RubricVersion, after: RubricVersion) -> RubricDiff:
    """The changes that turn one version of a rubric into another, in the order of the criteria.

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


def _criteria_only_in(
    ours: dict[str, tuple[int, Criterion]], theirs: dict[str, tuple[int, Criterion]]
) -> tuple[PlacedCriterion, ...]:
    """The criteria in `ours` that are not in `theirs`."""
    return tuple(
        PlacedCriterion(place=place, criterion=criterion)
        for id_, (place, criterion) in ours.items()
        if id_ not in theirs
    )


def _changes(before: Criterion, after: Criterion) -> list[FieldChange]:
    old, new = before.model_dump(mode="json"), after.model_dump(mode="json")
    return [
        FieldChange(id=before.id, field=name, before=old[name], after=new[name])
        for name in get_args(FieldChange.model_fields["field"].annotation)
        if old[name] != new[name]
    ]


def _moved_ids(ids: Sequence[str], place_before: dict[str, int]) -> set[str]:
    """The ids to move so that the others keep their order: all but a longest series of rising places."""
    series = _longest_series([(index, place_before[id_]) for index, id_ in enumerate(ids)])
    return set(ids) - {ids[index] for index, _ in series}


async def move_alias(
    source: RubricSource, project_id: str, name: str, alias: str, version: int, *, expected: int | None
) -> RubricAlias:
    """Point an alias to a version; see `RubricSource.move_alias`.

    Raises:
        UnknownRubric: there is no such version.
        InvalidRequest: the alias name is invalid, or the version is retired.
        AliasMoved: the alias points to another version than expected.
    """
    await find_rubric(source, project_id, f"{name}@{version}")
    try:
        moved, current = await source.move_alias(project_id, name, alias, version, expected=expected)
    except ValueError as error:
        raise _invalid("alias", error) from None
    if not moved:
        raise _alias_moved(name, alias, current)
    return RubricAlias(name=name, alias=alias, version=version)


async def remove_alias(source: RubricSource, project_id: str, name: str, alias: str, *, expected: int) -> None:
    """Remove an alias.

    Raises:
        UnknownRubric: there is no such alias.
        AliasMoved: the alias points to another version than expected.
    """
    await alias_of(source, project_id, name, alias)
    removed, current = await source.remove_alias(project_id, name, alias, expected=expected)
    if not removed:
        raise _alias_moved(name, alias, current)


async def alias_of(source: RubricSource, project_id: str, name: str, alias: str) -> RubricAlias:
    """Look up an alias; raises `UnknownRubric` if it does not exist."""
    version = (await source.aliases(project_id, name)).aliases.get(alias)
    if version is None:
        raise await unknown_rubric(source, project_id, f"{name}@{alias}")
    return RubricAlias(name=name, alias=alias, version=version)


async def replace_tags(source: RubricSource, project_id: str, name: str, tags: Sequence[str]) -> RubricTags:
    """Replace the tags of a rubric; raises `UnknownRubric`, or `InvalidRequest` for a version or malformed tags."""
    found = await find_rubric(source, project_id, name)
    if found.name != name:
        raise _invalid("name", f"tags belong to all versions of a rubric; send them to its name, {found.name!r}")
    try:
        return await source.replace_tags(project_id, name, tags)
    except ValueError as error:
        raise _invalid("tags", error) from None


async def retire(source: RubricSource, project_id: str, reference: str, reason: str | None) -> RubricVersion:
    """Retire the version of a reference `name@3`, or restore it if `reason` is None.

    Raises:
        InvalidRequest: the reference has another form.
        UnknownRubric: there is no such version.
    """
    version = await find_rubric(source, project_id, reference)
    if parse_reference(reference).version is None:
        raise _invalid("reference", f"{reference!r} does not pin a version; write {version.reference!r}")
    if reason is None:
        return await source.restore(project_id, version.name, version.version)
    return await source.retire(project_id, version.name, version.version, reason)


async def history(
    source: RubricSource, project_id: str, name: str, *, after: str | None = None, limit: int = 100
) -> RubricHistory:
    """List the versions of a rubric, newest first; raises `UnknownRubric`, or `InvalidRequest` for a bad cursor."""
    try:
        page = await source.history(project_id, name, after=after, limit=limit)
    except ValueError as error:
        raise _invalid("after", error) from None
    if page is None:
        raise await unknown_rubric(source, project_id, name)
    return page


async def difference(source: RubricSource, project_id: str, name: str, before: str, after: str) -> RubricDiff:
    """Compare two versions of a rubric, each given as a number or an alias.

    Raises:
        InvalidRequest, UnknownRubric: see `find_rubric`.
    """
    sides = [await find_rubric(source, project_id, f"{name}@{side}") for side in (before, after)]
    return diff_versions(*sides)


def _alias_moved(name: str, alias: str, current: int | None) -> AliasMoved:
    if current is None:
        return AliasMoved(f"{name} has no alias {alias!r} now; create it (over HTTP with If-None-Match: *)", None)
    return AliasMoved(
        f"{name}@{alias} stands for version {current} now, not for the version you expect: it was moved in the "
        f"meantime. Look at that version; to move the alias anyway, send the request again expecting {current} (over "
        f'HTTP with If-Match: "{current}")',
        current,
    )


def _invalid(field: str, error: ValueError | str) -> InvalidRequest:
    return InvalidRequest(str(error), errors=(FieldError(field=field, message=str(error)),))


class TextPiece(NamedTuple):
    """A part of a text: `same`, or in only one of the two texts."""

    text: str
    same: bool


_WORDS = re.compile(r"\s+|\d+(?:[.,]\d+)*|\w+|[^\w\s]")
_DIFF_LEVELS = 6


def diff_words(before: str, after: str) -> tuple[list[TextPiece], list[TextPiece]]:
    """Both texts in pieces, which tell the words that they share from those that only one has.

    It takes time linear in the texts, but for the sorting of words: see `_shared_blocks`.
    """
    old, new = _WORDS.findall(before), _WORDS.findall(after)
    pieces: tuple[list[TextPiece], list[TextPiece]] = ([], [])
    i = k = 0
    for at, place, length in [*_shared_blocks(old, new), (len(old), len(new), 0)]:
        for side, words in zip(pieces, (old[i:at], new[k:place]), strict=True):
            side += [TextPiece("".join(words), same=False)] if words else []
        for side in pieces:
            side += [TextPiece("".join(old[at : at + length]), same=True)] if length else []
        i, k = at + length, place + length
    return pieces


def _shared_blocks(old: Sequence[str], new: Sequence[str]) -> list[tuple[int, int, int]]:
    """Blocks of words that two texts share, in order: the place in the old, the place in the new, the number of words.

    These are the beginnings and the ends that agree, and between them the longest series of words that occur once on
    both sides; the parts between those are compared in the same way, for `_DIFF_LEVELS` levels.
    """
    pairs: list[tuple[int, int]] = []
    parts = [(0, len(old), 0, len(new), _DIFF_LEVELS)]
    while parts:
        i, j, k, n, levels = parts.pop()
        while i < j and k < n and old[i] == new[k]:
            pairs.append((i, k))
            i, k = i + 1, k + 1
        while i < j and k < n and old[j - 1] == new[n - 1]:
            j, n = j - 1, n - 1
            pairs.append((j, n))
        if not levels or i == j or k == n:
            continue
        anchors = _longest_series(_unique_in_both(old, i, j, new, k, n))
        for at, place in [*anchors, (j, n)] if anchors else ():
            parts.append((i, at, k, place, levels - 1))
            i, k = at + 1, place + 1
        pairs += anchors
    blocks: list[tuple[int, int, int]] = []
    for at, place in sorted(pairs):
        if blocks and (at, place) == (blocks[-1][0] + blocks[-1][2], blocks[-1][1] + blocks[-1][2]):
            blocks[-1] = (*blocks[-1][:2], blocks[-1][2] + 1)
        else:
            blocks.append((at, place, 1))
    return blocks


def _unique_in_both(old: Sequence[str], i: int, j: int, new: Sequence[str], k: int, n: int) -> list[tuple[int, int]]:
    """The places of the words that occur once in each part, in the order of the old text."""
    before, after = Counter(old[i:j]), Counter(new[k:n])
    places = {word: place for place, word in enumerate(new[k:n], k)}
    return [(at, places[word]) for at, word in enumerate(old[i:j], i) if before[word] == 1 and after.get(word) == 1]


def _longest_series(pairs: Sequence[tuple[int, int]]) -> list[tuple[int, int]]:
    """The longest series of pairs that rises on both sides, of pairs that rise on the first."""
    ends: list[int] = []
    best: list[int] = []
    previous: list[int] = []
    for place, (_, value) in enumerate(pairs):
        length = bisect_left(ends, value)
        previous.append(best[length - 1] if length else -1)
        ends[length : length + 1], best[length : length + 1] = [value], [place]
    series = []
    at = best[-1] if best else -1
    while at >= 0:
        series.append(pairs[at])
        at = previous[at]
    return series[::-1]
