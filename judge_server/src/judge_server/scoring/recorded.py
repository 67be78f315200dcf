"""Read verdicts from the ledger: combine them from the rows of their votes, page by page."""

import base64
import binascii
import json
import re
import struct
from collections.abc import AsyncGenerator, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, cast

from judge_server.judging.plan import PendingVerdict
from judge_server.judging.results import ALWAYS_UNCERTAIN, DEFAULT_RULES, CallOutcome, VerdictRules
from judge_server.ports import CallFailure, JudgeResult, LedgerReader
from judge_server.scoring.verdicts import read_votes
from rubric_store.ledger.rows import (
    LEFT_OUT,
    UNCERTAIN,
    JudgedResponse,
    JudgedVote,
    ResponseFilter,
    UseFilter,
    UseRecord,
    UseRow,
    VerdictKey,
    VerdictRow,
)
from trainer_client import wire
from trainer_client.wire import Criterion, Passage, UncertainBand, Verdict, VerdictMethod
from trainer_client.wire.ledger import RecordedPage, RecordedVerdict

PAGE_CHARACTERS = 4_000_000
"""A page of recorded verdicts ends before its texts have more characters than this, unless one verdict alone has."""

_TEXTS_OF_USES, _SHORT_BYTES = 32, 2**16
"""How many verdicts' short texts are read at once. A longer text is read alone, so that no page needs much memory."""

_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_STORED_IMAGE = re.compile(r"\[image sha256:[0-9a-f]{64}\]")
_CURSOR = struct.Struct(">16sII")
_FIELDS = Criterion.model_fields


def storable_text(text: str) -> str:
    """Replace by U+FFFD the characters that the database cannot store: NUL and lone surrogates."""
    return text if text.isascii() and "\0" not in text else _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def read_text(stored: str) -> Any:
    """Read a stored text or messages, without lone surrogates, which neither a file nor an answer can hold."""
    value = json.loads(stored)
    return json.loads(storable_text(json.dumps(value, ensure_ascii=False))) if "\\ud" in stored else value


def digest_bytes(rubric: str) -> bytes:
    """The bytes of a rubric digest `sha256:…`."""
    return bytes.fromhex(rubric.removeprefix("sha256:"))


def has_stored_image(text: str) -> bool:
    """Whether a stored message, as JSON, has an image, of which the ledger keeps the digest only."""
    return _STORED_IMAGE.search(text) is not None


def recorded_result(row: VerdictRow) -> JudgeResult:
    """Return the result that the ledger recorded."""
    # Rows from before calibration have no raw probability; their probability is raw.
    raw = row.probability if row.raw_probability is None else row.raw_probability
    result = JudgeResult(row.score, row.probability, row.menu_mass, row.step, row.grade, row.rationale, raw)
    said = [] if row.members is None else json.loads(row.members)
    return replace(result, members=tuple([wire.MemberVerdict.model_validate(one) for one in said]))


def recorded_verdict(votes: Sequence[tuple[UseRow, VerdictRow | None]]) -> Verdict:
    """The verdict on one criterion, from the rows of its votes."""
    first, _ = votes[0]
    passages = None
    if first.passages is not None:
        passages = tuple([Passage.model_validate(one) for one in json.loads(first.passages)])
    pending = PendingVerdict(first.criterion, cast(VerdictMethod, first.method), (), first.step, passages=passages)
    outcomes = [_outcome(use.failure, use.detail, None if row is None else recorded_result(row)) for use, row in votes]
    return _combined(pending, first.failure, outcomes, is_cached=all(use.cached for use, _ in votes))


def recorded_verdicts(record: UseRecord) -> Iterator[Verdict]:
    """The verdicts on a response, by slot, from the rows of all their votes."""
    return (recorded_verdict(list(votes)) for _, votes in groupby(record.votes, key=lambda vote: vote[0].slot))


def judged_verdicts(response: JudgedResponse, band: UncertainBand | None = None) -> list[Verdict]:
    """The verdicts on a response, by slot. Without a band, a verdict is uncertain if it was recorded as such."""
    return [_judged_verdict(list(votes), band) for _, votes in groupby(response.votes, key=lambda vote: vote.slot)]


def recorded_score(votes: Sequence[JudgedVote]) -> float | None:
    """The score of a criterion from its recorded votes; None if the verdict failed."""
    return _judged_verdict(votes).score


def _judged_verdict(votes: Sequence[JudgedVote], band: UncertainBand | None = None) -> Verdict:
    first, rules = votes[0], None
    if band is not None:
        rules = VerdictRules(band=band) if any(vote.probability is not None for vote in votes) else DEFAULT_RULES
    pending = PendingVerdict(first.criterion, cast(VerdictMethod, first.method), ())
    outcomes = [_outcome(vote.failure, vote.detail, _result_of(vote)) for vote in votes]
    return _combined(pending, first.failure, outcomes, rules)


def _result_of(vote: JudgedVote) -> JudgeResult | None:
    if vote.score is None:
        return None
    return JudgeResult(vote.score, vote.probability, step=vote.step, grade=vote.grade)


def _outcome(failure: str | None, detail: str | None, result: JudgeResult | None) -> CallOutcome:
    """Return what a vote was; a failed one stays so, although a later request may have got a verdict for it."""
    if failure not in (None, UNCERTAIN):
        return CallFailure(failure, detail or "")  # type: ignore[arg-type]
    return CallFailure("engine", detail or "its verdict is not in the ledger") if result is None else result


def _combined(
    pending: PendingVerdict,
    failure: str | None,
    outcomes: Sequence[CallOutcome],
    rules: VerdictRules | None = None,
    *,
    is_cached: bool = False,
) -> Verdict:
    """Combine votes; `failure` is what was recorded with the first, and the rules follow from it unless given."""
    if failure == LEFT_OUT:
        return Verdict(criterion=pending.criterion, status="left_out")
    rules = rules or (ALWAYS_UNCERTAIN if failure == UNCERTAIN else DEFAULT_RULES)
    return read_votes(pending, outcomes, rules, is_cached=is_cached)


async def recorded_page(ledger: LedgerReader, use_filter: UseFilter, *, texts: bool) -> RecordedPage:
    """Read a page of recorded verdicts, and the cursor of the next page.

    With `texts`, it has fewer verdicts than the filter's limit if their texts are large.
    """
    rows = await ledger.uses(use_filter._replace(limit=use_filter.limit + 1))
    page = rows[: use_filter.limit]
    used = {use.response.rubric for use in page if use.response.rubric is not None}
    stored = await ledger.texts(use_filter.project_id, list(used)) if used else {}
    rubrics = {digest: {item["id"]: item for item in json.loads(text)} for digest, text in stored.items()}
    shown: dict[bytes, str] = {}
    if texts:
        page, shown = await _with_texts(ledger, use_filter.project_id, page)
    cursor = encode_cursor(page[-1].votes[0][0]) if len(rows) > len(page) else None
    verdicts = tuple([_to_recorded_verdict(use, shown, rubrics) for use in page])
    return RecordedPage(verdicts=verdicts, next_cursor=cursor)


async def _with_texts(
    ledger: LedgerReader, project_id: str, page: Sequence[UseRecord]
) -> tuple[list[UseRecord], dict[bytes, str]]:
    """Return the first of these uses, with texts of `PAGE_CHARACTERS` together, and their texts by digest."""
    found: dict[bytes, str | None] = {}
    characters = 0
    for number, use in enumerate(page):
        if number % _TEXTS_OF_USES == 0:
            missing = {digest for one in page[number : number + _TEXTS_OF_USES] for digest in _text_digests(one)}
            missing -= found.keys()
            found |= dict.fromkeys(missing, "")
            found |= await ledger.short_texts(project_id, list(missing), _SHORT_BYTES)
        own = _text_digests(use)
        if long := [digest for digest in own if found[digest] is None]:
            found |= dict.fromkeys(long, "") | await ledger.texts(project_id, long)
        characters += sum([len(found[digest] or "") for digest in own])
        if number and characters > PAGE_CHARACTERS:
            page = page[:number]
            break
    return list(page), {digest: text for digest, text in found.items() if text}


def _text_digests(use: UseRecord) -> set[bytes]:
    row = use.response
    return {digest for digest in (row.prompt, row.response, row.grounding) if digest is not None}


def encode_cursor(use: UseRow | VerdictKey) -> str:
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
    digests = {"prompt": response.prompt, "text": response.response, "grounding": response.grounding}
    return RecordedVerdict(
        id=encode_cursor(first),
        run=request.run or None,
        step=request.step,
        group=response.group_id,
        response=response.position,
        rubric=None if response.rubric is None else f"sha256:{response.rubric.hex()}",
        verdict=recorded_verdict(use.votes),
        reward=response.reward,
        declared_reward=response.declared_reward,
        kind=None if criterion is None else criterion.get("kind", _FIELDS["kind"].default),
        weight=None if criterion is None else criterion.get("weight", _FIELDS["weight"].default),
        prompt_digest=f"sha256:{response.prompt.hex()}",
        request_id=request.request_id,
        judge=request.model,
        fingerprint=request.fingerprint,
        at=request.created_at,
        **{name: read_text(texts[d]) for name, d in digests.items() if d in texts},
    )


async def response_pages(ledger: LedgerReader, wanted: ResponseFilter) -> AsyncGenerator[list[UseRecord], None]:
    """Read the selected responses of a run, `wanted.limit` at a time."""
    while page := await ledger.responses(wanted):
        yield page
        wanted = wanted._replace(after=page[-1].key)
