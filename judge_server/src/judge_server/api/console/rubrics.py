"""The page of a rubric: its versions and their differences, criteria, pass rates and separation."""

from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from typing import Any, NamedTuple, get_args

from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from judge_server.api.auth import project_of
from judge_server.api.console.forms import Form, choice_parameter, text_parameter
from judge_server.api.console.operations import is_of_rubric, separation_of
from judge_server.api.console.rendering import Console, PageRouter, Row, Table, address, csv_response
from judge_server.api.console.responses import read_criteria
from judge_server.api.console.runs import HEAT_LEVELS
from judge_server.errors import NotFound
from judge_server.ledger.rows import digest_bytes
from judge_server.scheduling.time_sharing import LARGE_CHARACTERS, run_in_thread, run_inline_or_in_thread
from judge_server.scoring.rubrics import TextPiece, diff_versions, diff_words, find_rubric, history
from rubric_store.ledger.rows import RubricRate, RubricUse
from trainer_client.wire import (
    DEFAULT_JUDGE,
    Criterion,
    RewardMode,
    RubricContent,
    RubricHistory,
    RubricVersion,
    VersionSummary,
)
from trainer_client.wire.rewards import NEEDS_NO_RUBRIC

_MAX_PIECES = 5000
"""Pieces that a comparison shows of all descriptions; those after that are shown as a whole."""


MANY_CRITERIA = 50
"""A page with more criteria, or with long ones, is written in the thread for long work."""


def are_large(criteria: Sequence[Criterion]) -> bool:
    """Whether a page that shows the criteria takes long to write."""
    return len(criteria) > MANY_CRITERIA or sum(len(one.description) for one in criteria) > LARGE_CHARACTERS


class TreeNode(NamedTuple):
    """A version in the tree: how many branches it is away from the trunk, and whether it begins one."""

    version: VersionSummary
    depth: int
    branches: bool


def version_tree(versions: Sequence[VersionSummary]) -> list[TreeNode]:
    """Order versions as a tree: each after the one it was made from, with a branch where a version has several heirs.

    The heir that leads to the newest version continues the line, below the branches.

    Args:
        versions: newest first. A version whose parent is not among them begins a trunk of its own.
    """
    known = {version.version for version in versions}
    heirs: dict[int | None, list[VersionSummary]] = defaultdict(list)
    for version in sorted(versions, key=lambda one: one.version):
        heirs[version.parent if version.parent in known else None].append(version)
    newest = {version.version: version.version for version in versions}  # among a version and all that came of it
    for version in sorted(versions, key=lambda one: -one.version):
        if version.parent in known:
            newest[version.parent] = max(newest[version.parent], newest[version.version])
    nodes: list[TreeNode] = []
    waiting = [TreeNode(version, 0, False) for version in reversed(heirs[None])]
    while waiting:
        node = waiting.pop()
        nodes.append(node)
        own = sorted(heirs[node.version.version], key=lambda one: newest[one.version])
        if own:
            waiting.append(TreeNode(own[-1], node.depth, False))
        waiting += [TreeNode(version, node.depth + 1, True) for version in reversed(own[:-1])]
    return nodes


class SideBySide(NamedTuple):
    """A criterion before and after; None where there is none. `changes` names what differs, empty if nothing does.

    `words` are the pieces of both descriptions.
    """

    id: str
    before: Criterion | None
    after: Criterion | None
    changes: tuple[str, ...]
    words: tuple[tuple[TextPiece, ...], tuple[TextPiece, ...]]


class Comparison(NamedTuple):
    """Two versions side by side, in the order of the later one, and how many criteria changed."""

    rows: tuple[SideBySide, ...]
    changed: int

    @property
    def summary(self) -> str:
        """Such as `1 added, 2 reworded, 4 unchanged`."""
        kinds = [row.changes[0] if len(row.changes) == 1 else "changed" for row in self.rows if row.changes]
        named = [f"{kinds.count(kind)} {kind}" for kind in dict.fromkeys(sorted(kinds))]
        return ", ".join([*named, f"{len(self.rows) - self.changed} unchanged"])


def compare(before: RubricVersion, after: RubricVersion | RubricContent) -> Comparison:
    """Two versions of a rubric, or a version and criteria that are not published, criterion by criterion."""
    if isinstance(after, RubricContent):
        after = before.model_copy(update={"criteria": after.criteria, "digest": after.digest})
    old = {criterion.id: criterion for criterion in before.criteria}
    new = {criterion.id: criterion for criterion in after.criteria}
    moved = {move.id for move in diff_versions(before, after).moved}
    ids = list(new)
    for place, id_ in enumerate(old):
        if id_ not in new:
            ids.insert(min(place, len(ids)), id_)
    left = _MAX_PIECES
    rows = []
    for id_ in ids:
        row = _side_by_side(id_, old.get(id_), new.get(id_), moved=id_ in moved, max_pieces=left)
        rows.append(row)
        left -= sum(map(len, row.words))
    return Comparison(tuple(rows), sum(bool(row.changes) for row in rows))


_WORDING = {"description": "reworded", "weight": "reweighted"}


def _side_by_side(
    id_: str, before: Criterion | None, after: Criterion | None, *, moved: bool, max_pieces: int
) -> SideBySide:
    """A criterion before and after."""
    if before is None or after is None:
        left, right = [(TextPiece(one.description, same=False),) if one else () for one in (before, after)]
        return SideBySide(id_, before, after, ("added",) if before is None else ("removed",), (left, right))
    fields = [name for name in Criterion.model_fields if getattr(before, name) != getattr(after, name)]
    changes = [_WORDING.get(name, f"{name.replace('_', ' ')} changed") for name in fields] + ["moved"] * moved
    old, new = diff_words(before.description, after.description)
    if len(old) + len(new) > max_pieces:
        same = before.description == after.description
        old, new = [TextPiece(before.description, same)], [TextPiece(after.description, same)]
    return SideBySide(id_, before, after, tuple(changes), (tuple(old), tuple(new)))


class RateCell(NamedTuple):
    """The pass rate of a criterion in a version: its level from 0 to 10, None without a verdict."""

    rate: float | None
    level: int | None
    title: str


class RateRow(NamedTuple):
    """The pass rates of a criterion in all versions."""

    criterion: str
    cells: tuple[RateCell, ...]


class PassRates(NamedTuple):
    """Pass rates by criterion and version, from the runs that were counted."""

    versions: tuple[VersionSummary, ...]
    rows: tuple[RateRow, ...]
    runs: tuple[str, ...]

    def of(self, criterion: str, version: int) -> RateCell | None:
        """The pass rate of a criterion in a version; None if that version is not among them."""
        place = next((n for n, one in enumerate(self.versions) if one.version == version), None)
        row = next((row for row in self.rows if row.criterion == criterion), None)
        return None if place is None or row is None else row.cells[place]

    @property
    def table(self) -> Table:
        """The numbers: a row per criterion and version with verdicts."""
        rows = [
            Row((row.criterion, version.version, cell.rate))
            for row in self.rows
            for version, cell in zip(self.versions, row.cells, strict=True)
            if cell.rate is not None
        ]
        return Table(("criterion", "version", "pass rate"), tuple(rows))


def pass_rates(versions: Sequence[VersionSummary], used: RubricUse, first: Sequence[str]) -> PassRates:
    """The pass rates of versions, oldest first; the criteria in `first` come first, then those of other versions."""
    ordered = tuple(sorted(versions, key=lambda one: one.version))
    found = {(f"sha256:{rate.rubric.hex()}", rate.criterion): rate for rate in used.rates}
    counted = [name for one in reversed(ordered) for digest, name in found if digest == one.digest]
    names = dict.fromkeys([name for name in first if name in counted] + counted)
    rows = [
        RateRow(name, tuple([_cell(name, one, found.get((one.digest, name))) for one in ordered])) for name in names
    ]
    return PassRates(ordered, tuple(rows), used.runs)


def _cell(criterion: str, version: VersionSummary, rate: RubricRate | None) -> RateCell:
    where = f"{criterion}, version {version.version}: "
    if rate is None or not rate.given:
        return RateCell(None, None, where + ("no verdict" if rate is None else f"{rate.failed:,} failed verdicts"))
    passed = rate.passed / rate.given
    told = f"{rate.passed:,} of {rate.given:,} passed" + (f", {rate.failed:,} failed" if rate.failed else "")
    return RateCell(passed, round(passed * HEAT_LEVELS), where + told)


router = PageRouter()

_VERSIONS = 100
_RATED_VERSIONS = 8
_RATED_RUNS = 8
_DONE = {
    "published": "This version is published.",
    "unchanged": "These criteria had been published before, so no version was added.",
    "alias": "The alias points to this version.",
    "removed": "The alias is removed.",
    "retired": "This version is retired.",
    "restored": "This version is in use again.",
}


@router.get("/rubric")
async def rubric(console: Console, request: Request) -> Response:
    """A published version, by reference or digest; or the criteria of a rubric that the ledger has."""
    project, digest = project_of(request), text_parameter(request, "digest")
    if reference := text_parameter(request, "reference"):
        return await _version(console, request, await find_rubric(console.service.rubrics, project, reference))
    known = await console.service.rubrics.find(project, digest) if digest.startswith("sha256:") else None
    if known is not None:
        return await _version(console, request, known)
    criteria: tuple[Criterion, ...] | None = None
    with suppress(ValueError):
        key = digest_bytes(digest)
        criteria = read_criteria((await console.service.readable_ledger().texts(project, [key])).get(key))
    if criteria is None:
        raise NotFound("This project has no rubric with this digest, neither published nor in its ledger.")
    return await run_inline_or_in_thread(
        are_large(criteria), console.page, request, "rubric.html.jinja", digest=digest, version=None, criteria=criteria
    )


async def _version(console: Console, request: Request, version: RubricVersion) -> Response:
    service = console.service
    known = await history(service.rubrics, project_of(request), version.name, limit=_VERSIONS)
    texts = service.rubric_texts
    done = choice_parameter(request, "done", tuple(_DONE))
    aliases = await service.rubrics.aliases(project_of(request), version.name)
    return await run_inline_or_in_thread(
        are_large(version.criteria), console.page, request, "rubric.html.jinja",
        digest=version.digest, version=version, criteria=version.criteria, history=known,
        tree=version_tree(known.versions), rates=await _rates(console, request, version, known),
        findings=None if texts is None else await run_in_thread(texts.lint, version.criteria),
        aliases=aliases.aliases, done=_DONE[done] if done else "",
        csv_href=address("rubric/rates.csv", reference=version.reference), measurable=service.operations is not None,
    )  # fmt: skip


async def _rates(console: Console, request: Request, version: RubricVersion, known: RubricHistory) -> PassRates | None:
    """The pass rates of the newest versions and of this one; None without a ledger."""
    if console.service.ledger is None:
        return None
    newest = known.versions[:_RATED_VERSIONS]
    rated = [*newest, *(one for one in known.versions[_RATED_VERSIONS:] if one.version == version.version)]
    digests = [digest_bytes(one.digest) for one in rated]
    used = await console.service.ledger.rubric_use(project_of(request), digests, _RATED_RUNS)
    return pass_rates(rated, used, [criterion.id for criterion in version.criteria])


@router.get("/rubric/rates.csv")
async def rates_csv(console: Console, request: Request) -> Response:
    """The pass rates of a rubric by criterion and version."""
    project, reference = project_of(request), text_parameter(request, "reference")
    version = await find_rubric(console.service.rubrics, project, reference)
    known = await history(console.service.rubrics, project, version.name, limit=_VERSIONS)
    rates = await _rates(console, request, version, known)
    if rates is None:
        raise NotFound("This process has no ledger, so it knows no pass rates.")
    return csv_response(rates.table, "rates.csv")


@router.get("/rubric/compare")
async def comparison(console: Console, request: Request) -> Response:
    """Two versions of a rubric side by side, each given as a number or an alias."""
    project, name = project_of(request), text_parameter(request, "name")
    known = await history(console.service.rubrics, project, name, limit=_VERSIONS)
    newest = known.versions[0]
    to = text_parameter(request, "to") or str(newest.version)
    after = await find_rubric(console.service.rubrics, project, f"{name}@{to}")
    before = await find_rubric(
        console.service.rubrics, project, f"{name}@{text_parameter(request, 'from') or after.parent or after.version}"
    )
    compared = await run_in_thread(compare, before, after)
    return await run_inline_or_in_thread(
        are_large(before.criteria + after.criteria), console.page, request, "rubric_compare.html.jinja",
        name=name, versions=known.versions, before=before, after=after,
        comparison=compared,
    )  # fmt: skip


_EARLIER = 10
_MODES = tuple(mode for mode in get_args(RewardMode) if mode not in NEEDS_NO_RUBRIC)


@router.get("/rubric/discriminate", scope="score")
async def form(console: Console, request: Request) -> Response:
    """The form, and what was measured of this rubric before."""
    return await _page(console, request, text_parameter(request, "reference"))


@router.post("/rubric/discriminate", scope="score", with_file=True)
async def start(console: Console, request: Request, form: Form) -> Response:
    """Start the measurement and go to its page; the form again if the responses cannot be used."""
    project, reference = project_of(request), form.text("reference")
    version = await find_rubric(console.service.rubrics, project, reference)
    file = form.file("file")
    text = form.text("pairs") if file is None else file.content.decode("utf-8-sig", "replace")
    mode, judge = form.text("mode") or _MODES[0], form.text("judge") or DEFAULT_JUDGE
    filled = {"pairs": form.text("pairs"), "mode": mode, "judge": judge}
    if not text.strip():
        return await _page(console, request, reference, filled, "Paste responses, or choose a file of them.")
    asked: dict[str, Any] = {
        "groups": text, "rubric": version.reference, "reward": {"mode": mode}, "judge": judge,
        "run": f"discriminate {version.reference}"[:256], "allow_retired": True,
    }  # fmt: skip
    try:
        made = await console.service.running_operations().submit(project, "discriminate_rubrics", asked)
    except ValueError as error:
        return await _page(console, request, reference, filled, str(error))
    return RedirectResponse(address("operation", id=made.id), 303)


async def _page(
    console: Console, request: Request, reference: str, filled: dict[str, str] | None = None, problem: str = ""
) -> Response:
    project = project_of(request)
    version = await find_rubric(console.service.rubrics, project, reference)
    own = [
        one
        for one in (await console.service.running_operations().list(project)).operations
        if is_of_rubric(one, version.name)
    ]
    return console.page(
        request, "discriminate.html.jinja", 422 if problem else 200, version=version, problem=problem, modes=_MODES,
        filled=filled or {"pairs": "", "mode": _MODES[0], "judge": DEFAULT_JUDGE}, judges=console.service.names,
        earlier=[(one, separation_of(one)) for one in own[:_EARLIER]],
    )  # fmt: skip
