"""From rows of the ledger to verdicts as answers give them, page by page, and the cursors of those pages."""

import base64
import binascii
import json
import struct
from collections.abc import Mapping, Sequence
from typing import Any

from judge_server.judging.plan import VerdictSlot
from judge_server.judging.results import CallOutcome, JudgementResults
from judge_server.ports import CallFailure, JudgeResult, LedgerReader
from judge_server.scoring.verdicts import verdict_of
from trainer_client.wire import Criterion
from trainer_client.wire.ledger import RecordedPage, RecordedVerdict
from trainer_client.wire.ledger_rows import UseFilter, UseRecord, UseRow, VerdictRow

_CURSOR = struct.Struct(">16sII")
_FIELDS = Criterion.model_fields


async def recorded_page(ledger: LedgerReader, wanted: UseFilter, *, texts: bool) -> RecordedPage:
    """The verdicts that are asked for, and the cursor of what follows."""
    found = await ledger.uses(wanted._replace(limit=wanted.limit + 1))
    shown = found[: wanted.limit]
    responses = [use.response for use in shown]
    digests = {each.rubric for each in responses if each.rubric}
    if texts:
        digests |= {d for each in responses for d in (each.prompt, each.response, each.grounding) if d}
    kept = await ledger.texts(wanted.project_id, list(digests)) if digests else {}
    used = {each.rubric for each in responses if each.rubric is not None}
    rubrics = {digest: {each["id"]: each for each in json.loads(kept[digest])} for digest in used if digest in kept}
    cursor = encode_cursor(shown[-1].votes[0][0]) if len(found) > len(shown) else None
    return RecordedPage(verdicts=tuple([_to_recorded_verdict(use, kept, rubrics) for use in shown]), next_cursor=cursor)


def encode_cursor(use: UseRow) -> str:
    """The cursor that continues after a use."""
    return base64.urlsafe_b64encode(_CURSOR.pack(use.request, use.place, use.slot)).decode()


def decode_cursor(cursor: str) -> tuple[bytes, int, int]:
    """What a cursor continues after; raises `ValueError` if no page gave it out."""
    try:
        packed = base64.b64decode(cursor.encode("ascii"), altchars=b"-_", validate=True)
        request, place, slot = _CURSOR.unpack(packed)
    except (binascii.Error, struct.error, UnicodeError):
        raise ValueError("this cursor is not one we gave out; pass a page's next_cursor unchanged") from None
    if max(place, slot) >= 2**31:
        raise ValueError("this cursor is not one we gave out; pass a page's next_cursor unchanged")
    return request, place, slot


def _to_recorded_verdict(
    use: UseRecord, texts: dict[bytes, str], rubrics: Mapping[bytes, Mapping[str, Mapping[str, Any]]]
) -> RecordedVerdict:
    request, response = use.request, use.response
    first, _ = use.votes[0]
    criterion = rubrics.get(response.rubric or b"", {}).get(first.criterion)
    votes = {vote.digest: _to_outcome(vote, found) for vote, found in use.votes}
    slot = VerdictSlot(first.criterion, first.method, tuple(votes), first.step)  # type: ignore[arg-type]
    cached = frozenset(vote.digest for vote, _ in use.votes if vote.cached)
    return RecordedVerdict(
        run=request.run or None,
        step=request.step,
        group=response.group_id,
        response=response.position,
        rubric=None if response.rubric is None else f"sha256:{response.rubric.hex()}",
        verdict=verdict_of(slot, JudgementResults(by_digest=votes, cached=cached)),
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


def _texts_of(use: UseRecord) -> Sequence[tuple[str, bytes | None]]:
    response = use.response
    return ("prompt", response.prompt), ("text", response.response), ("grounding", response.grounding)


def _to_outcome(use: UseRow, found: VerdictRow | None) -> CallOutcome:
    if use.failure is not None:
        return CallFailure(use.failure, use.detail or "")  # type: ignore[arg-type]
    if found is None:
        return CallFailure("engine", "its verdict is not in the ledger")
    # Rows of before calibration have no raw probability: theirs is the one they have.
    raw = found.probability if found.raw_probability is None else found.raw_probability
    return JudgeResult(found.score, found.probability, found.menu_mass, found.step, found.grade, found.rationale, raw)
