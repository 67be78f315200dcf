"""Check the papers' numeric claims against their own tables.

A paper's data files contain its tables as printed and its claims, each with the expression that computes it. A verdict
says whether the claim follows from the tables, not whether it is true.
"""

import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import StrEnum
from fractions import Fraction
from pathlib import Path
from typing import Any, Literal, NamedTuple

from benchmarks.papers.expressions import Table, evaluate
from benchmarks.papers.numbers import RoundedNumber, printed

FOLDER = Path(__file__).parent / "data"

Relation = Literal["equal", "about", "at least", "more than", "less than", "unclear"]


class ClaimVerdict(StrEnum):
    """How a claim compares with the computed number."""

    AGREES = "agrees"
    ROUNDING = "agrees after rounding"
    DIFFERS = "differs"
    UNKNOWN = "cannot be told"


class ClaimCheck(NamedTuple):
    """A verdict and, if the numbers differ, by how much the computed one exceeds the claim."""

    verdict: ClaimVerdict
    by: Fraction | None = None


@dataclass(frozen=True)
class Claim:
    """A claim of a paper, in our words; `says` and `computed` are numbers, or lists of equal length."""

    paper: str
    where: str
    claim: str
    says: RoundedNumber | list[RoundedNumber] | None
    computed: RoundedNumber | list[RoundedNumber] | None
    relation: Relation = "equal"
    note: str = ""

    @property
    def judged(self) -> list[ClaimCheck]:
        """The verdict on each number."""
        if self.says is None or self.computed is None:
            return [ClaimCheck(ClaimVerdict.UNKNOWN)]
        pairs = zip(_listed(self.says), _listed(self.computed), strict=True)
        return [judge(says, computed, self.relation) for says, computed in pairs]

    @property
    def verdict(self) -> ClaimVerdict:
        """The worst verdict on any of the numbers."""
        return max((judged.verdict for judged in self.judged), key=list(ClaimVerdict).index)


def judge(says: RoundedNumber | None, computed: RoundedNumber | None, relation: Relation = "equal") -> ClaimCheck:
    """Compare a claimed number with the one computed from the paper's tables.

    *Agrees*: the printed numbers give the claim, rounded as the claim is. *Agrees after rounding*: they do not, but
    numbers that round to them may. *Differs*: no such numbers do. The relation `about` allows a deviation of 10%. A
    claim that is `unclear` in the paper cannot be decided.
    """
    if says is None or computed is None or relation == "unclear":
        return ClaimCheck(ClaimVerdict.UNKNOWN)
    if relation == "about":
        holds = abs(computed.value - says.value) <= abs(says.value) / 10
    elif relation == "at least":
        holds = computed.value >= says.value
    elif relation == "more than":
        holds = computed.value > says.value
    elif relation == "less than":
        holds = computed.value < says.value
    elif says.low <= computed.value <= says.high:
        holds = True
    elif computed.low < says.high and says.low < computed.high:
        return ClaimCheck(ClaimVerdict.ROUNDING)
    else:
        holds = False
    return ClaimCheck(ClaimVerdict.AGREES) if holds else ClaimCheck(ClaimVerdict.DIFFERS, computed.value - says.value)


def read_claims(folder: Path = FOLDER) -> list[Claim]:
    """Read all claims of all papers, in the order of the names of folders and files.

    Raises:
        ValueError: a claim cannot be computed; the message names the file and the claim.
    """
    return [claim for paper in sorted(folder.iterdir()) for claim in read_paper(paper)]


def read_paper(folder: Path) -> list[Claim]:
    """Read the claims of one paper, whose files share their tables. Raises as `read_claims`."""
    documents = {file.name: tomllib.loads(file.read_text(encoding="utf-8")) for file in sorted(folder.glob("*.toml"))}
    paper = next(document["paper"] for document in documents.values() if "paper" in document)
    sources = [table for document in documents.values() for table in document.get("tables", {}).items()]
    tables = {key: table for name, data in sources for key, table in _tables(name, data)}
    claims = []
    for name, document in documents.items():
        for filled in (filled for entry in document.get("claims", []) for filled in _filled(entry, tables)):
            try:
                claims.append(_claim(paper, filled, tables))
            except (ValueError, KeyError, SyntaxError, TypeError, ZeroDivisionError, AttributeError) as error:
                where = f"{folder.name}/{name}, {filled['claim']!r}"
                raise ValueError(f"{where}: {error!r}; correct the entry") from error
    return claims


def _claim(paper: str, entry: Mapping[str, Any], tables: Mapping[str, Table]) -> Claim:
    says, computed = (evaluate(entry[key], tables) if key in entry else None for key in ("says", "is"))
    if isinstance(says, list) and isinstance(computed, list) and len(says) != len(computed):
        raise ValueError(f"{len(says)} numbers are claimed, but {len(computed)} are computed")
    relation, note = entry.get("relation", "equal"), entry.get("note", "")
    return Claim(paper, entry["where"], entry["claim"], says, computed, relation, note)


def _tables(name: str, data: Mapping[str, Any]) -> Iterator[tuple[str, Table]]:
    """Yield the table and, if rows have numbers in brackets, a table `NAME_gains` of these numbers."""
    columns = tuple(data["columns"].split())
    rows = {row: _cells(text) for row, text in data["rows"].items()}
    for row, cells in rows.items():
        if len(cells) != len(columns):
            raise ValueError(f"{name}, {row!r}: {len(cells)} cells for {len(columns)} columns")
    yield name, Table(data["where"], columns, {row: [value for value, _ in cells] for row, cells in rows.items()})
    gains = {row: [gain for _, gain in cells] for row, cells in rows.items() if all(gain for _, gain in cells)}
    if gains:
        yield f"{name}_gains", Table(data["where"], columns, gains)


def _cells(text: str) -> list[tuple[RoundedNumber | None, RoundedNumber | None]]:
    """Parse cells such as `61.1 (+14.3)` into the number and the one in brackets. `?` is a missing number."""
    cells: list[tuple[RoundedNumber | None, RoundedNumber | None]] = []
    for word in text.split():
        if word.startswith("("):
            cells[-1] = (cells[-1][0], printed(word.strip("()")))
        else:
            cells.append((None if word == "?" else printed(word), None))
    return cells


def _filled(entry: Mapping[str, Any], tables: Mapping[str, Table]) -> Iterator[dict[str, Any]]:
    """Yield the entry; with `each`, once for each of its values, or for each row of the table with that name."""
    each = entry.get("each")
    if each is None:
        yield dict(entry)
        return
    for values in [{"row": row} for row in tables[each].rows] if isinstance(each, str) else each:
        yield {key: text.format(**values) for key, text in entry.items() if key != "each"}


def _listed(value: RoundedNumber | list[RoundedNumber]) -> list[RoundedNumber]:
    return value if isinstance(value, list) else [value]
