"""What the pages of rubrics show: versions as a tree, two versions side by side, and pass rates over versions."""

import re
from collections import defaultdict
from collections.abc import Sequence
from difflib import SequenceMatcher
from typing import NamedTuple

from judge_server.api.console.runs.run_view import HEAT_LEVELS
from judge_server.api.console.tables import Row, Table
from judge_server.rubrics import diff_versions
from trainer_client.wire import Criterion, RubricContent, RubricVersion, VersionSummary
from trainer_client.wire.ledger_rows import RubricRate, RubricUse

_WORDS = re.compile(r"\s+|\d+(?:[.,]\d+)*|\w+|[^\w\s]")
_MAX_WORD_PAIRS = 2_000_000
"""Pairs of words that a comparison looks at, in some tenths of a second; texts after that are compared as a whole."""


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


class TextPiece(NamedTuple):
    """A part of a text: `same`, or in only one of the two texts."""

    text: str
    same: bool


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
    left = _MAX_WORD_PAIRS
    rows = []
    for id_ in ids:
        row, pairs = _side_by_side(id_, old.get(id_), new.get(id_), moved=id_ in moved, word_pairs=left)
        rows.append(row)
        left -= pairs
    return Comparison(tuple(rows), sum(bool(row.changes) for row in rows))


_WORDING = {"description": "reworded", "weight": "reweighted"}


def _side_by_side(
    id_: str, before: Criterion | None, after: Criterion | None, *, moved: bool, word_pairs: int
) -> tuple[SideBySide, int]:
    """A criterion before and after, and how many pairs of words were looked at."""
    if before is None or after is None:
        left, right = [(TextPiece(one.description, same=False),) if one else () for one in (before, after)]
        return SideBySide(id_, before, after, ("added",) if before is None else ("removed",), (left, right)), 0
    fields = [name for name in Criterion.model_fields if getattr(before, name) != getattr(after, name)]
    changes = [_WORDING.get(name, f"{name.replace('_', ' ')} changed") for name in fields] + ["moved"] * moved
    pieces, pairs = _word_pieces(before.description, after.description, word_pairs)
    return SideBySide(id_, before, after, tuple(changes), pieces), pairs


_Pieces = tuple[tuple[TextPiece, ...], tuple[TextPiece, ...]]


def _word_pieces(before: str, after: str, word_pairs: int) -> tuple[_Pieces, int]:
    """The pieces of both texts, and how many pairs of words were looked at: at most `word_pairs`."""
    if before == after:
        return ((TextPiece(before, same=True),), (TextPiece(after, same=True),)), 0
    old, new = _WORDS.findall(before), _WORDS.findall(after)
    if len(old) * len(new) > word_pairs:
        return ((TextPiece(before, same=False),), (TextPiece(after, same=False),)), 0
    left: list[TextPiece] = []
    right: list[TextPiece] = []
    for kind, i, j, k, n in SequenceMatcher(a=old, b=new, autojunk=False).get_opcodes():
        left += [TextPiece("".join(old[i:j]), kind == "equal")] if j > i else []
        right += [TextPiece("".join(new[k:n]), kind == "equal")] if n > k else []
    return (tuple(left), tuple(right)), len(old) * len(new)


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
