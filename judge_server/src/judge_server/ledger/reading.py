"""Pages of recorded verdicts, built from rows of the ledger, and their cursors."""

import base64
import binascii
import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from judge_server.judging.combining import CombinedResult, MemberOutcome
from judge_server.judging.plan import VerdictSlot
from judge_server.judging.results import ALWAYS_UNCERTAIN, DEFAULT_RULES, CallOutcome, JudgementResults
from judge_server.ports import CallFailure, JudgeResult, LedgerReader
from judge_server.scoring.verdicts import verdict_of
from trainer_client.wire import Criterion, MemberVerdict, Verdict
from trainer_client.wire.ledger import RecordedPage, RecordedVerdict
from trainer_client.wire.ledger_rows import LEFT_OUT, UNCERTAIN, UseFilter, UseRecord, UseRow, VerdictRow

_CURSOR = struct.Struct(">16sII")
_FIELDS = Criterion.model_fields


async def recorded_page(ledger: LedgerReader, use_filter: UseFilter, *, texts: bool) -> RecordedPage:
    """Read a page of recorded verdicts, and the cursor of the next page."""
    rows = await ledger.uses(use_filter._replace(limit=use_filter.limit + 1))
    page = rows[: use_filter.limit]
    responses = [use.response for use in page]
    digests = {row.rubric for row in responses if row.rubric}
    if texts:
        digests |= {d for row in responses for d in (row.prompt, row.response, row.grounding) if d}
    stored = await ledger.texts(use_filter.project_id, list(digests)) if digests else {}
    used = {row.rubric for row in responses if row.rubric is not None}
    rubrics = {digest: {item["id"]: item for item in json.loads(stored[digest])} for digest in used if digest in stored}
    cursor = encode_cursor(page[-1].votes[0][0]) if len(rows) > len(page) else None
    verdicts = tuple([_to_recorded_verdict(use, stored, rubrics) for use in page])
    return RecordedPage(verdicts=verdicts, next_cursor=cursor)


def encode_cursor(use: UseRow) -> str:
    """The cursor that continues after a use."""
    return base64.urlsafe_b64encode(_CURSOR.pack(use.request, use.place, use.slot)).decode()


def decode_cursor(cursor: str) -> tuple[bytes, int, int]:
    """Decode a cursor to the use that it continues after; raises `ValueError` for an invalid cursor."""
    try:
        packed = base64.b64decode(cursor.encode("ascii"), altchars=b"-_", validate=True)
        request, place, slot = _CURSOR.unpack(packed)
    except (binascii.Error, struct.error, UnicodeError):
        raise ValueError("the cursor is invalid; pass the next_cursor of a page unchanged") from None
    if max(place, slot) >= 2**31:
        raise ValueError("the cursor is invalid; pass the next_cursor of a page unchanged")
    return request, place, slot


def _to_recorded_verdict(
    use: UseRecord, texts: dict[bytes, str], rubrics: Mapping[bytes, Mapping[str, Mapping[str, Any]]]
) -> RecordedVerdict:
    request, response = use.request, use.response
    first, _ = use.votes[0]
    criterion = rubrics.get(response.rubric or b"", {}).get(first.criterion)
    return RecordedVerdict(
        id=encode_cursor(first),
        run=request.run or None,
        step=request.step,
        group=response.group_id,
        response=response.position,
        rubric=None if response.rubric is None else f"sha256:{response.rubric.hex()}",
        verdict=recorded_verdict(use.votes),
        reward=response.reward,
        kind=None if criterion is None else criterion.get("kind", _FIELDS["kind"].default),
        weight=None if criterion is None else criterion.get("weight", _FIELDS["weight"].default),
        prompt_digest=f"sha256:{response.prompt.hex()}",
        request_id=request.request_id,
        judge=request.model,
        fingerprint=request.fingerprint,
        at=request.created_at,
        **{name: json.loads(texts[d]) for name, d in _texts_of(use) if d in texts},
    )


def recorded_verdict(votes: Sequence[tuple[UseRow, VerdictRow | None]]) -> Verdict:
    """The verdict on one criterion, from the rows of its votes."""
    first, _ = votes[0]
    outcomes = {vote.digest: _to_outcome(vote, verdict) for vote, verdict in votes}
    rules = ALWAYS_UNCERTAIN if first.failure == UNCERTAIN else DEFAULT_RULES
    digests = () if first.failure == LEFT_OUT else tuple(outcomes)
    slot = VerdictSlot(first.criterion, first.method, digests, first.step)  # type: ignore[arg-type]
    cached = frozenset(vote.digest for vote, _ in votes if vote.cached)
    return verdict_of(slot, JudgementResults(by_digest=outcomes, cached=cached), rules)


def _texts_of(use: UseRecord) -> Sequence[tuple[str, bytes | None]]:
    response = use.response
    return ("prompt", response.prompt), ("text", response.response), ("grounding", response.grounding)


def _to_outcome(use: UseRow, row: VerdictRow | None) -> CallOutcome:
    if use.failure is not None and use.failure != UNCERTAIN:
        return CallFailure(use.failure, use.detail or "")  # type: ignore[arg-type]
    if row is None:
        return CallFailure("engine", use.detail or "its verdict is not in the ledger")
    # Rows from before calibration have no raw probability; their probability is raw.
    raw = row.probability if row.raw_probability is None else row.raw_probability
    result = JudgeResult(row.score, row.probability, row.menu_mass, row.step, row.grade, row.rationale, raw)
    if row.members is None:
        return result
    said = [MemberVerdict.model_validate(one) for one in json.loads(row.members)]
    members = [MemberOutcome(one.judge, one.score, one.probability, one.failure) for one in said]
    return CombinedResult.of(result, tuple(members))
