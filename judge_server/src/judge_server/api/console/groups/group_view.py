"""What the page of a group shows: verdicts as a matrix that can be sorted, two responses side by side, and steps.

A group is what one request sent. If its request has only one response of the group, as some trainers send them, the
others to the same prompt in the same step are shown with it.
"""

from collections.abc import Sequence
from typing import NamedTuple

from judge_server.api.console.responses.shown import ShownResponse, group_address, outcome_of, show_records
from judge_server.api.console.tables import Row, Table, Value
from judge_server.ports import LedgerReader
from trainer_client.wire import Criterion, Verdict
from trainer_client.wire.ledger_rows import ResponseFilter

NUMBER, REWARD = "number", "reward"
"""The orders of responses, beside that by the verdict on a criterion (`c3` for the fourth one)."""

RUBRIC, DIFFERING, RATE = "rubric", "differing", "rate"
"""The orders of criteria."""


class Column(NamedTuple):
    """A response in the matrix, with its number in the group, from 1."""

    number: int
    response: ShownResponse


class MatrixRow(NamedTuple):
    """A criterion in the matrix: its place in the rubric, its id, itself if the rubric is known, and its verdicts.

    `differs` tells whether the verdicts on it differ between the responses, or between the two that are compared. A
    verdict is None if a response was not judged by the criterion.
    """

    slot: int
    name: str
    criterion: Criterion | None
    verdicts: tuple[Verdict | None, ...]
    differs: bool


class Group(NamedTuple):
    """A group, with a page of its responses.

    `next_href` is the page with further responses, empty if there are none. `whole` tells whether all of its responses
    are here. `prompt` and `grounding` are texts as JSON, None if the ledger does not have them.
    """

    responses: tuple[ShownResponse, ...]
    prompt: str | None
    grounding: str | None
    next_href: str = ""
    whole: bool = True
    gathered: bool = False

    @property
    def columns(self) -> tuple[Column, ...]:
        """The responses in the order of their numbers, which are those of the request unless it has only one."""
        if self.gathered:
            return tuple([Column(number, one) for number, one in enumerate(self.responses, 1)])
        return tuple([Column(one.number, one) for one in self.responses])

    @property
    def slots(self) -> int:
        """The number of verdicts of a response."""
        return max(len(one.verdicts) for one in self.responses)

    def criterion(self, slot: int) -> Criterion | None:
        """The criterion of a verdict."""
        criteria = self.responses[0].criteria or ()
        return criteria[slot] if len(criteria) == self.slots else None

    def name(self, slot: int) -> str:
        """The id of the criterion of a verdict."""
        return next(one.verdicts[slot].criterion for one in self.responses if slot < len(one.verdicts))

    @property
    def table(self) -> Table:
        """The matrix as a table: a row per verdict."""
        headings = (
            "response", "reward", "criterion", "weight", "status", "score", "probability", "raw probability", "failure",
        )  # fmt: skip
        rows = []
        for number, one in self.columns:
            weights = {criterion.id: criterion.weight for criterion in one.criteria or ()}
            for verdict in one.verdicts:
                failure = None if verdict.failure is None else f"{verdict.failure.kind}: {verdict.failure.detail}"
                judged = (verdict.status, verdict.score, verdict.probability, verdict.raw_probability, failure)
                rows.append(Row((number, one.reward, verdict.criterion, weights.get(verdict.criterion), *judged)))
        return Table(headings, tuple(rows))


class GroupView:
    """How a group is shown.

    Args:
        group: the group.
        order: the order of responses; unknown ones are that by number.
        rows: the order of criteria; unknown ones are that of the rubric.
        pair: the numbers of two responses to read side by side; others are ignored.
        whole: whether texts are shown whole.
    """

    def __init__(
        self, group: Group, *, order: str = "", rows: str = "", pair: tuple[int | None, int | None] = (None, None),
        whole: bool = False,
    ) -> None:  # fmt: skip
        self.group, self.whole = group, whole
        self.order = order if order in (REWARD, *(f"c{slot}" for slot in range(group.slots))) else NUMBER
        self.rows = rows if rows in (DIFFERING, RATE) else RUBRIC
        numbered = {column.number: column for column in group.columns}
        chosen = [numbered[number] for number in pair if number in numbered]
        self.pair: tuple[Column, ...] = tuple(chosen) if len(chosen) == 2 and chosen[0] != chosen[1] else ()
        """The two responses to read side by side; empty without them."""

    @property
    def columns(self) -> tuple[Column, ...]:
        """The responses of the matrix, in order."""
        columns = self.group.columns
        if self.order == NUMBER:
            return columns
        if self.order == REWARD:
            return tuple(sorted(columns, key=lambda column: _descending(column.response.reward)))
        slot = int(self.order.removeprefix("c"))
        return tuple(sorted(columns, key=lambda column: _descending(_strength(_verdict(column, slot)))))

    @property
    def shown(self) -> tuple[Column, ...]:
        """The responses whose texts are shown."""
        return self.pair or self.columns

    @property
    def matrix(self) -> tuple[MatrixRow, ...]:
        """A row for each criterion, in order."""
        columns = self.columns
        rows = []
        for slot in range(self.group.slots):
            verdicts = tuple([_verdict(column, slot) for column in columns])
            compared = [_verdict(column, slot) for column in self.pair] if self.pair else verdicts
            outcomes = {outcome_of(verdict) for verdict in compared if verdict is not None}
            rows.append(MatrixRow(slot, self.group.name(slot), self.group.criterion(slot), verdicts, len(outcomes) > 1))
        if self.rows == DIFFERING:
            rows.sort(key=lambda row: not row.differs)
        elif self.rows == RATE:
            rows.sort(key=lambda row: _rate(row.verdicts))
        return tuple(rows)

    def href(self, **changed: Value) -> str:
        """The address of this page with other settings."""
        left, right = (column.number for column in self.pair) if self.pair else (None, None)
        settings: dict[str, Value] = {
            "order": None if self.order == NUMBER else self.order,
            "rows": None if self.rows == RUBRIC else self.rows,
            "left": left,
            "right": right,
            "whole": 1 if self.whole else None,
        }
        return group_address(self.group.responses[0].record, **(settings | changed))


def _verdict(column: Column, slot: int) -> Verdict | None:
    verdicts = column.response.verdicts
    return verdicts[slot] if slot < len(verdicts) else None


def _strength(verdict: Verdict | None) -> float | None:
    """How far a verdict says yes: its score, and among equal scores its probability."""
    if verdict is None or verdict.score is None:
        return None
    return verdict.score + (0.0 if verdict.probability is None else verdict.probability / 1000)


def _descending(value: float | None) -> tuple[bool, float]:
    return value is None, -(value or 0.0)


def _rate(verdicts: Sequence[Verdict | None]) -> float:
    """The share of passed verdicts; above 1 without any, so that such criteria come last."""
    scores = [verdict.score for verdict in verdicts if verdict is not None and verdict.score is not None]
    return sum(score >= 0.5 for score in scores) / len(scores) if scores else 2.0


async def read_group(ledger: LedgerReader, wanted: ResponseFilter) -> Group | None:
    """A page of a group's responses; None if the group does not exist."""
    records = await ledger.responses(wanted._replace(limit=wanted.limit + 1))
    if not records:
        return None
    gathered = False
    if len(records) == 1 and wanted.after is None:
        step, prompt = records[0].request.step, records[0].response.prompt
        others = wanted._replace(request=None, first=step, last=step, limit=wanted.limit + 1)
        same = [
            one for one in await ledger.responses(others) if (one.request.step, one.response.prompt) == (step, prompt)
        ]
        gathered = len(same) > 1
        records = same if gathered else records
    shown, last = records[: wanted.limit], records[: wanted.limit][-1]
    row = shown[0].response
    also = [digest for digest in (row.prompt, row.grounding) if digest is not None]
    responses, texts = await show_records(ledger, shown, also=also)
    more = len(records) > len(shown)
    return Group(
        tuple(responses),
        texts.get(row.prompt),
        None if row.grounding is None else texts.get(row.grounding),
        group_address(last, after=last.response.place) if more and not gathered else "",
        whole=not more and wanted.after is None,
        gathered=gathered,
    )
