"""Writes the tables of contributed bake-offs in docs/reference/judge-models.md, from the files in docs/bakeoffs.

A file is what `adjudge bakeoff … --json` prints. `python -m tests.docs.bakeoffs` reads the files and writes the tables.
A file that is anything else is refused.
"""

from pathlib import Path
from typing import Annotated

from pydantic import AfterValidator, BaseModel, Field, ValidationError, model_validator

ROOT = Path(__file__).parents[2]
FOLDER, PAGE = ROOT / "docs/bakeoffs", ROOT / "docs/reference/judge-models.md"
BEGIN, END = "<!-- bake-offs: written by python -m tests.docs.bakeoffs -->", "<!-- end of bake-offs -->"
_HOW = "Write it with: adjudge bakeoff held.jsonl --judge … --judge … --json"

Text = Annotated[str, Field(min_length=1, max_length=200, pattern=r"^[^|\n<>]*$")]
Share = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]


class InvalidBakeOff(ValueError):
    """A file is not the result of a bake-off; the message says where and what to do."""


class Estimate(BaseModel):
    """A figure with its interval; null where it is not defined."""

    value: float | None
    low: float | None
    high: float | None

    @model_validator(mode="after")
    def _in_order(self) -> "Estimate":
        known = [one for one in (self.low, self.value, self.high) if one is not None]
        if len(known) not in (0, 3) or known != sorted(known):
            raise ValueError(
                f"low, value and high are {self.low}, {self.value}, {self.high}; they must be in this order"
            )
        return self

    def __str__(self) -> str:
        return "–" if self.value is None else f"{self.value:.2f} [{self.low:.2f}, {self.high:.2f}]"


class ShareEstimate(Estimate):
    """A figure from 0 to 1."""

    value: Share | None
    low: Share | None
    high: Share | None


class Quality(BaseModel):
    """The figures of verdicts; a bake-off on pairs has none of them."""

    balanced_accuracy: ShareEstimate
    auroc: ShareEstimate
    ece: ShareEstimate


class Cost(BaseModel):
    """The costs of a judgement that a table shows."""

    seconds: Estimate
    tokens_computed: Estimate


def _real(judge: str) -> str:
    if judge.startswith("scripted:"):
        raise ValueError("a scripted judge is no model; leave it out")
    return judge


class ContenderFigures(BaseModel):
    """A contender that was measured."""

    name: Text
    judge: Annotated[str, AfterValidator(_real)]
    model: Text
    fingerprint: Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
    n: Annotated[int, Field(gt=0)]
    rows: Annotated[int, Field(gt=0)]
    failed: Count
    quality: Quality
    cost: Cost
    recommended: bool


class BakeOffFile(BaseModel):
    """The result of a bake-off."""

    dataset: Annotated[Text, Field(alias="data set")]
    labels_by: Annotated[Text, Field(alias="labels by")]
    examples: Text
    measured: Annotated[str, Field(pattern=r"^20\d\d-\d\d-\d\d \d\d:\d\d UTC$")]
    machine: Text
    contenders: Annotated[tuple[ContenderFigures, ...], Field(min_length=2)]


def read_bakeoff(file: Path) -> BakeOffFile:
    """Read and check a file.

    Raises:
        InvalidBakeOff: it is not what `adjudge bakeoff --json` prints about two contenders or more.
    """
    try:
        return BakeOffFile.model_validate_json(file.read_bytes())
    except ValidationError as error:
        first = error.errors()[0]
        where = ".".join(map(str, first["loc"])) or "the file"
        raise InvalidBakeOff(f"{file.name}: {where}: {first['msg']}. {_HOW}") from error


def tables(folder: Path = FOLDER) -> str:
    """Return the tables of all files of a folder, the oldest bake-off first.

    Raises:
        InvalidBakeOff: a file is invalid, or holds the same bake-off as another.
    """
    found = {file.name: read_bakeoff(file) for file in sorted(folder.iterdir())}
    by_content: dict[str, str] = {}
    for name, one in found.items():
        if (other := by_content.setdefault(one.model_dump_json(), name)) != name:
            raise InvalidBakeOff(f"{name}: {other} holds the same bake-off; remove one of the two")
    ordered = sorted(found.items(), key=lambda named: (named[1].measured, named[0]))
    return "\n".join([_table(name, one) for name, one in ordered])


def _table(name: str, one: BakeOffFile) -> str:
    lines = [
        f"[`{one.dataset}`](../bakeoffs/{name}), {one.examples}; labels by {one.labels_by};",
        f"{one.machine}; {one.measured}:",
        "",
        "| judge | verdicts | failed | balanced accuracy | AUROC | ECE | seconds | tokens computed |",
        "| --- | ---: | ---: | --- | --- | --- | ---: | ---: |",
    ]
    for contender in one.contenders:
        quality, cost = contender.quality, contender.cost
        shown = f"`{contender.name}`{' (recommended)' if contender.recommended else ''}"
        figures = [contender.n, contender.failed, quality.balanced_accuracy, quality.auroc, quality.ece]
        costs = [_number(cost.seconds, 2), _number(cost.tokens_computed, 0)]
        lines.append(f"| {' | '.join(map(str, [shown, *figures, *costs]))} |")
    return "\n".join([*lines, ""])


def _number(estimate: Estimate, digits: int) -> str:
    return "–" if estimate.value is None else f"{estimate.value:.{digits}f}"


def with_tables(page: str, folder: Path = FOLDER) -> str:
    """Return the page with the tables between its two marks."""
    head, _, rest = page.partition(BEGIN)
    _, _, tail = rest.partition(END)
    return f"{head}{BEGIN}\n\n{tables(folder)}\n{END}{tail}"


if __name__ == "__main__":
    PAGE.write_text(with_tables(PAGE.read_text(encoding="utf-8")), encoding="utf-8")
