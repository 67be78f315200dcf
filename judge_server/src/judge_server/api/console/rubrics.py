"""The pages of rubrics: the list, one rubric with its versions and pass rates, the editor, import and retirement."""

from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple

from pydantic import TypeAdapter, ValidationError
from starlette.responses import RedirectResponse, Response

from judge_server.api.console.forms import Form, UploadedFile
from judge_server.api.console.rendering import PageRouter, Row, Table, Visit, address, csv_response
from judge_server.api.console.responses import read_criteria
from judge_server.api.console.run_charts import HEAT_LEVELS
from judge_server.api.http.requests import refuse_unusable_criteria, reject_unknown_cursor
from judge_server.errors import InvalidRequest, NotFound, TooLarge
from judge_server.ports import LintFinding, NamedRubric, RubricFile
from judge_server.ports.stores import RubricDocument
from judge_server.scheduling.time_sharing import LARGE_CHARACTERS, run_in_thread, run_inline_or_in_thread
from judge_server.scoring import rubrics as changes
from judge_server.scoring.recorded import digest_bytes
from judge_server.scoring.rubrics import TextPiece, diff_versions, diff_words, find_rubric, history
from rubric_store.ledger.rows import RubricRate, RubricUse
from trainer_client.wire import (
    Criterion,
    RubricContent,
    RubricHistory,
    RubricVersion,
    VersionSummary,
    parse_reference,
)
from trainer_client.wire.rubrics import Reason

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
async def rubric(visit: Visit) -> Response:
    """A published version, by reference or digest; or the criteria of a rubric that the ledger has."""
    project, digest = visit.project, visit.text("digest")
    if reference := visit.text("reference"):
        return await _version(visit, await find_rubric(visit.service.rubrics, project, reference))
    known = await visit.service.rubrics.find(project, digest) if digest.startswith("sha256:") else None
    if known is not None:
        return await _version(visit, known)
    criteria: tuple[Criterion, ...] | None = None
    with suppress(ValueError):
        key = digest_bytes(digest)
        criteria = read_criteria((await visit.ledger.texts(project, [key])).get(key))
    if criteria is None:
        raise NotFound("This project has no rubric with this digest, neither published nor in its ledger.")
    return await run_inline_or_in_thread(
        are_large(criteria), visit.page, "rubric.html.jinja", digest=digest, version=None, criteria=criteria
    )


async def _version(visit: Visit, version: RubricVersion) -> Response:
    service = visit.service
    known = await history(service.rubrics, visit.project, version.name, limit=_VERSIONS)
    texts = service.rubric_texts
    done = visit.choice("done", tuple(_DONE))
    aliases = await service.rubrics.aliases(visit.project, version.name)
    return await run_inline_or_in_thread(
        are_large(version.criteria), visit.page, "rubric.html.jinja",
        digest=version.digest, version=version, criteria=version.criteria, history=known,
        tree=version_tree(known.versions), rates=await _rates(visit, version, known),
        findings=None if texts is None else await run_in_thread(texts.lint, version.criteria),
        aliases=aliases.aliases, done=_DONE[done] if done else "",
        csv_href=address("rubric/rates.csv", reference=version.reference), measurable=service.operations is not None,
    )  # fmt: skip


async def _rates(visit: Visit, version: RubricVersion, known: RubricHistory) -> PassRates | None:
    """The pass rates of the newest versions and of this one; None without a ledger."""
    if visit.service.ledger is None:
        return None
    newest = known.versions[:_RATED_VERSIONS]
    rated = [*newest, *(one for one in known.versions[_RATED_VERSIONS:] if one.version == version.version)]
    digests = [digest_bytes(one.digest) for one in rated]
    used = await visit.service.ledger.rubric_use(visit.project, digests, _RATED_RUNS)
    return pass_rates(rated, used, [criterion.id for criterion in version.criteria])


@router.get("/rubric/rates.csv")
async def rates_csv(visit: Visit) -> Response:
    """The pass rates of a rubric by criterion and version."""
    project, reference = visit.project, visit.text("reference")
    version = await find_rubric(visit.service.rubrics, project, reference)
    known = await history(visit.service.rubrics, project, version.name, limit=_VERSIONS)
    rates = await _rates(visit, version, known)
    if rates is None:
        raise NotFound("This process has no ledger, so it knows no pass rates.")
    return csv_response(rates.table, "rates.csv")


@router.get("/rubric/compare")
async def comparison(visit: Visit) -> Response:
    """Two versions of a rubric side by side, each given as a number or an alias."""
    project, name = visit.project, visit.text("name")
    known = await history(visit.service.rubrics, project, name, limit=_VERSIONS)
    newest = known.versions[0]
    to = visit.text("to") or str(newest.version)
    after = await find_rubric(visit.service.rubrics, project, f"{name}@{to}")
    before = await find_rubric(
        visit.service.rubrics, project, f"{name}@{visit.text('from') or after.parent or after.version}"
    )
    compared = await run_in_thread(compare, before, after)
    return await run_inline_or_in_thread(
        are_large(before.criteria + after.criteria), visit.page, "rubric_compare.html.jinja",
        name=name, versions=known.versions, before=before, after=after,
        comparison=compared,
    )  # fmt: skip


# -- list, import and editor


_RUBRICS_A_PAGE = 50
_MAX_IMPORTED = 500


@router.get("/rubrics")
async def rubrics(visit: Visit) -> Response:
    """The rubrics of the project by name, found by the beginning of the name, a tag, or words in their criteria."""
    prefix, tag, text = [visit.text(name) for name in ("prefix", "tag", "q")]
    after = visit.text("after") or None
    page = await reject_unknown_cursor(
        visit.service.rubrics.list(
            visit.project, prefix=prefix, tag=tag or None, text=text, after=after, limit=_RUBRICS_A_PAGE
        )
    )
    next_href = address("rubrics", prefix=prefix, tag=tag, q=text, after=page.next_cursor) if page.next_cursor else ""
    return visit.page(
        "rubrics.html.jinja", rubrics=page.rubrics, prefix=prefix, tag=tag, q=text, after=after,
        next_href=next_href, published=visit.whole_number("published"),
        unchanged=visit.whole_number("unchanged") or 0,
    )  # fmt: skip


@router.post("/rubrics/import", scope="rubrics:write", with_file=True)
async def import_file(visit: Visit, form: Form) -> Response:
    """Read a file. One rubric opens in the editor; several are listed, and published when the list is confirmed."""
    confirmed = form.text("content")
    file = UploadedFile(form.text("file_name"), confirmed.encode()) if confirmed else form.file("file")
    if file is None:
        raise InvalidRequest("file: choose a file of rubrics, or drop one on the field")
    if len(file.content) > MAX_TEXT_BYTES:
        raise TooLarge(
            f"the file has more than {MAX_TEXT_BYTES >> 10} KiB; publish it with: adjudge rubrics import FILE"
        )
    texts = visit.service.readable_texts()

    def work() -> tuple[RubricFile, Sequence[object]]:
        read = texts.read(file.content, file.name)
        return read, read.changes

    read, not_kept = await run_in_thread(work)
    found = read.rubrics
    if len(found) > _MAX_IMPORTED:
        many = f"the file has {len(found):,} rubrics, more than {_MAX_IMPORTED}"
        raise InvalidRequest(f"file: {many}; publish it with: adjudge rubrics import FILE")
    text = "" if read.problems else _text_of(file)
    if len(found) == 1 and not confirmed:
        newest = await visit.service.rubrics.find(visit.project, found[0].name)
        return await editor(visit, found[0].name, text, newest)
    if confirmed and not read.problems:
        added = [(await publish_document(visit, one.name, one.document))[1] for one in found]
        counts = {"published": sum(added), "unchanged": len(added) - sum(added)}
        return RedirectResponse(address("rubrics", **counts), 303)
    return await run_inline_or_in_thread(
        len(file.content) > LARGE_CHARACTERS, visit.page, "rubric_import.html.jinja",
        422 if read.problems else 200, file_name=file.name, read=read, not_kept=not_kept, content=text,
    )  # fmt: skip


def _text_of(file: UploadedFile) -> str:
    try:
        return file.content.decode("utf-8-sig")
    except UnicodeDecodeError:
        raise InvalidRequest("file: this is no text; publish it with: adjudge rubrics import FILE") from None


MAX_TEXT_BYTES = 256 * 1024
"""The size of a rubric's text in the editor, and of a file that a page imports."""

_REASON: TypeAdapter[str] = TypeAdapter(Reason)
_EXAMPLE = """criteria:
  - id: answer
    kind: factual
    weight: 3
    description: The final answer is 80 km/h.
  - id: method
    kind: process
    description: Divides the distance by the time.
"""


@dataclass(frozen=True, slots=True)
class Preview:
    """What would be published: problems that prevent it, the difference to the version it is made from, and lint.

    `not_kept` is what the text says and the rubric does not hold. `same` is true if the criteria are those of that
    version.
    """

    problems: Sequence[object] = ()
    rubric: NamedRubric | None = None
    not_kept: Sequence[object] = ()
    comparison: Comparison | None = None
    findings: Sequence[LintFinding] = ()
    same: bool = False


@router.get("/rubric/edit", scope="rubrics:write")
async def edit(visit: Visit) -> Response:
    """The editor: for the next version of a rubric, or for a new one."""
    reference = visit.text("reference")
    if not reference:
        return await editor(visit, "", _EXAMPLE, None)
    version = await find_rubric(visit.service.rubrics, visit.project, reference)
    content = RubricContent.model_construct(criteria=version.criteria)
    text = await run_in_thread(visit.service.readable_texts().write, content)
    return await editor(visit, version.name, text, version)


@router.post("/rubric/preview", scope="rubrics:write")
async def preview(visit: Visit, form: Form) -> Response:
    """The editor again, with what publishing its text would change."""
    return await editor(visit, form.text("name"), form.text("text"), await _parent(visit, form))


@router.post("/rubric/publish", scope="rubrics:write")
async def publish(visit: Visit, form: Form) -> Response:
    """Publish the text, and show the version; the editor again if it cannot be published."""
    name, text, parent = form.text("name").strip(), form.text("text"), await _parent(visit, form)
    shown = await _preview(visit, text, parent)
    problems = list(shown.problems)
    if shown.rubric is not None:
        try:
            number = parent.version if parent is not None and parent.name == name else None
            version, added = await publish_document(visit, name, shown.rubric.document, number)
        except InvalidRequest as error:
            problems = [f"{one.field}: {one.message}" for one in error.errors] or [error.detail]
        else:
            done = "published" if added else "unchanged"
            return RedirectResponse(address("rubric", reference=version.reference, done=done), 303)
    return await _editor_page(visit, name, text, parent, Preview(problems), 422)


async def publish_document(
    visit: Visit, name: str, document: RubricDocument, parent: int | None = None
) -> tuple[RubricVersion, bool]:
    """Publish a rubric as `POST /v1/rubrics/NAME/versions` does; returns the version, and whether it was added.

    Raises:
        InvalidRequest: the name or a pattern is invalid, or the parent does not exist.
    """
    project, content = visit.project, document.content
    await refuse_unusable_criteria(visit.service.checker, project, content)
    try:
        return await visit.service.rubrics.publish(
            project, name, content, metadata=document.metadata, tags=document.tags, lineage=document.lineage,
            parent=parent,
        )  # fmt: skip
    except ValueError as error:
        raise InvalidRequest(str(error)) from None


async def editor(visit: Visit, name: str, text: str, parent: RubricVersion | None) -> Response:
    """The editor with a text, and what publishing it would change."""
    return await _editor_page(visit, name, text, parent, await _preview(visit, text, parent))


async def _editor_page(
    visit: Visit,
    name: str,
    text: str,
    parent: RubricVersion | None,
    shown: Preview,
    status: int = 200,
) -> Response:
    criteria = shown.rubric.document.content.criteria if shown.rubric is not None else ()
    criteria += parent.criteria if parent is not None else ()
    return await run_inline_or_in_thread(
        are_large(criteria) or len(text) > LARGE_CHARACTERS, visit.page, "rubric_edit.html.jinja", status,
        name=name, text=text, parent=parent, preview=shown,
    )  # fmt: skip


async def _preview(visit: Visit, text: str, parent: RubricVersion | None) -> Preview:
    if len(text) > MAX_TEXT_BYTES:
        raise TooLarge(f"the text has more than {MAX_TEXT_BYTES:,} characters; use adjudge rubrics publish NAME FILE")
    texts = visit.service.readable_texts()

    def work() -> Preview:
        read = texts.read(text.encode(), "rubric.yaml")
        if len(read.rubrics) != 1:
            several = f"the text has {len(read.rubrics):,} rubrics, and a version is one; import them as a file"
            return Preview(read.problems or [several])
        (rubric,) = read.rubrics
        content = rubric.document.content
        findings = texts.lint(content.criteria)
        if parent is None:
            return Preview((), rubric, read.changes, None, findings)
        return Preview((), rubric, read.changes, compare(parent, content), findings, content.digest == parent.digest)

    return await run_in_thread(work)


async def _parent(visit: Visit, form: Form) -> RubricVersion | None:
    """The version that the text was made from; None for a new rubric."""
    reference = form.text("parent")
    return await find_rubric(visit.service.rubrics, visit.project, reference) if reference else None


# -- aliases and retirement


@router.post("/rubric/alias", scope="rubrics:write")
async def alias(visit: Visit, form: Form) -> Response:
    """Point an alias to a version, or remove it; refused if it was moved since the page was made."""
    rubrics, project = visit.service.rubrics, visit.project
    (name, version), alias_name = _pinned(form), form.text("alias").strip()
    at = form.text("expected")
    expected = int(at) if at.isascii() and at.isdecimal() and len(at) < 10 else None
    if form.text("remove"):
        await changes.remove_alias(rubrics, project, name, alias_name, expected=expected or 0)
        return _done(name, version, "removed")
    await changes.move_alias(rubrics, project, name, alias_name, version, expected=expected)
    return _done(name, version, "alias")


@router.post("/rubric/retirement", scope="rubrics:write")
async def retirement(visit: Visit, form: Form) -> Response:
    """Retire a version with a reason, or restore it."""
    name, version = _pinned(form)
    reason = None
    if not form.text("restore"):
        try:
            reason = _REASON.validate_python(form.text("reason"))
        except ValidationError:
            raise InvalidRequest("reason: say in at most 2,000 characters why, and what to use instead") from None
    await changes.retire(visit.service.rubrics, visit.project, f"{name}@{version}", reason)
    return _done(name, version, "restored" if reason is None else "retired")


def _pinned(form: Form) -> tuple[str, int]:
    """The name and the number of the version that a form is about."""
    try:
        reference = parse_reference(form.text("reference"))
    except ValueError as error:
        raise InvalidRequest(f"reference: {error}") from None
    if reference.name is None or reference.version is None:
        raise InvalidRequest("reference: name a version, such as math/primes@3")
    return reference.name, reference.version


def _done(name: str, version: int, what: str) -> Response:
    return RedirectResponse(address("rubric", reference=f"{name}@{version}", done=what), 303)
