"""The ledger's rows as they cross between judging, which makes them, and the store, which keeps them.

Plain tuples, for there are thousands a second. Digests are 32 bytes, `request` is 16 bytes that sort by time. A run
that has no name is the empty text, and so is the protocol where no judge was asked.
"""

from collections.abc import Sequence
from datetime import datetime
from typing import NamedTuple


class RequestRow(NamedTuple):
    """One request. `uses` counts its use rows; `seconds` is from its arrival to its answer."""

    project_id: str
    run: str
    request: bytes
    request_id: str
    step: int | None
    mode: str | None
    protocol: str
    fingerprint: str | None
    model: str | None
    votes: int
    uses: int
    judge_calls: int
    tokens_computed: int
    tokens_reused: int
    tokens_written: int
    seconds: float
    created_at: datetime


class ResponseRow(NamedTuple):
    """One response of a request.

    `place` counts the request's responses, `position` those of the group. `format_ok` is SRaR's format reward, `spans`
    the steps as JSON triples (number, start, end) in code points of the response as sent, the whole response first;
    null where steps were not asked for. `reward` and `status` are as answered, null where none was.
    """

    project_id: str
    run: str
    request: bytes
    place: int
    group_id: str
    position: int
    rubric: bytes | None
    prompt: bytes
    response: bytes
    grounding: bytes | None
    tokens: int | None
    stopped: bool | None
    format_ok: bool
    spans: str | None
    reward: float | None
    status: str | None


class UseRow(NamedTuple):
    """One vote on one criterion of a response, by the digest of its call.

    `failed` says whether the criterion has no verdict from all its votes, `failure` and `detail` why this vote gave
    none. `step` is the verdict's step where the finding names none.
    """

    project_id: str
    run: str
    request: bytes
    place: int
    slot: int
    vote: int
    criterion: str
    method: str
    digest: bytes
    failed: bool
    failure: str | None
    detail: str | None
    step: int | None
    cached: bool


class VerdictRow(NamedTuple):
    """What was found under a call's digest, and the request that brought it.

    `raw_probability` is null in rows of before calibration, whose `probability` is the raw one.
    """

    project_id: str
    digest: bytes
    request: bytes
    score: float
    probability: float | None
    menu_mass: float | None
    step: int | None
    grade: float | None
    rationale: str | None
    raw_probability: float | None = None


class TextRow(NamedTuple):
    """A text under the digest of its JSON form; `body` is that, compressed by zlib. A rubric's digest is its own."""

    project_id: str
    digest: bytes
    body: bytes


class LedgerRows(NamedTuple):
    """Rows to be written together, each kind in a list of its own."""

    texts: list[TextRow]
    verdicts: list[VerdictRow]
    requests: list[RequestRow]
    responses: list[ResponseRow]
    uses: list[UseRow]

    @classmethod
    def concat(cls, parts: Sequence["LedgerRows"]) -> "LedgerRows":
        """The rows of several, in order."""
        if len(parts) == 1:
            return parts[0]
        return cls(*([row for rows in lists for row in rows] for lists in zip(*parts, strict=True)))


class RefusedRows(NamedTuple):
    """Rows that the ledger refused, and why, in a line."""

    rows: LedgerRows
    reason: str


class JudgedVote(NamedTuple):
    """A vote as it is read back for rewards; `score` is None where it failed or its verdict is not in the ledger."""

    slot: int
    criterion: str
    method: str
    failure: str | None
    detail: str | None
    score: float | None
    grade: float | None
    step: int | None


class JudgedResponse(NamedTuple):
    """A response as it is read back for rewards, its votes by slot."""

    request_id: str
    step: int | None
    group_id: str
    position: int
    rubric: bytes | None
    tokens: int | None
    stopped: bool | None
    format_ok: bool
    spans: str | None
    votes: list[JudgedVote]


class JudgedRun(NamedTuple):
    """What of a run there is to make rewards of.

    `protocols` are those it was judged in; `rubrics` the criteria, as JSON, of the digests it was judged by.
    """

    requests: int
    uses: int
    protocols: tuple[str, ...]
    rubrics: dict[bytes, str]


class UseRecord(NamedTuple):
    """A criterion's verdict as it is read back to be shown: its use, what it belongs to, and its votes."""

    request: RequestRow
    response: ResponseRow
    votes: list[tuple[UseRow, VerdictRow | None]]


class UseFilter(NamedTuple):
    """Which uses of a run are asked for; None leaves all in. `after` is the place (request, place, slot) before."""

    project_id: str
    run: str
    step: int | None = None
    rubric: bytes | None = None
    criterion: str | None = None
    failed: bool | None = None
    after: tuple[bytes, int, int] | None = None
    limit: int = 100


class RunRange(NamedTuple):
    """Which part of a run is asked for: steps from `first` to `last`, both included, judged in one protocol."""

    project_id: str
    run: str
    first: int | None = None
    last: int | None = None
    protocol: str | None = None


class RunReportQuery(NamedTuple):
    """What is asked for of a run's figures.

    Steps from `first` to `last`, both included, the newest first where so asked for, and a page of `limit` of them
    after a cursor. Of criteria the `criteria` with the most verdicts, among those of a rubric and those named, where
    either is given; all others are left out.
    """

    project_id: str
    run: str
    first: int | None = None
    last: int | None = None
    newest_first: bool = False
    rubric: bytes | None = None
    criterion_ids: tuple[str, ...] = ()
    criteria: int = 50
    after: str | None = None
    limit: int = 100


class PurgeCounts(NamedTuple):
    """How many rows were taken out of the ledger."""

    requests: int = 0
    uses: int = 0
    verdicts: int = 0
    texts: int = 0
