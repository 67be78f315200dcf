"""Conversion of judged requests to ledger rows, without I/O; only the ids of requests are random.

Pages of recorded verdicts are built from the same rows, and have cursors.
"""

import base64
import binascii
import hashlib
import json
import re
import secrets
import struct
import zlib
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from itertools import count, groupby
from typing import Any, NamedTuple

from judge_server.judging.plan import PendingVerdict
from judge_server.judging.replies import combine_votes
from judge_server.judging.results import ALWAYS_UNCERTAIN, DEFAULT_RULES, CallOutcome, Outcomes
from judge_server.ledger.monitoring.signals import signals_of
from judge_server.ports import CallFailure, JudgeResult, LedgerReader
from judge_server.scheduling.time_sharing import rest_if_due
from judge_server.scoring.planner import JudgedRequest, PlannedGroup, PlannedResponse, keeps_format
from judge_server.scoring.rubrics import ResolvedRubric
from judge_server.scoring.verdicts import member_usage, recorded_result, verdict_of
from rubric_store.ledger.rows import (
    LEFT_OUT,
    UNCERTAIN,
    LedgerRows,
    RequestRow,
    ResponseFilter,
    ResponseRow,
    SignalRow,
    TextRow,
    UseFilter,
    UseRecord,
    UseRow,
    VerdictKey,
    VerdictRow,
)
from trainer_client.wire import Criterion, Message, Passage, Prompt, Verdict
from trainer_client.wire.groups import IMAGE
from trainer_client.wire.ledger import RecordedPage, RecordedVerdict
from trainer_client.wire.rewards import JudgingRules

_UNSTORABLE = re.compile("[\0\ud800-\udfff]")
_NO_CALL = bytes(32)
_STORED_IMAGE = re.compile(r"\[image sha256:[0-9a-f]{64}\]")
_ZLIB_LEVEL = 1  # higher levels take several times as long and save only a tenth
_LARGEST_WINDOW = 15


def rows_of(entries: Iterable[JudgedRequest], *, keep_texts: bool) -> LedgerRows:
    """The rows of judged requests. Without `keep_texts`, rubrics are the only texts kept, since rewards need them."""
    signals: list[SignalRow] = []
    rows = LedgerRows([], [], [], [], [], signals)
    texts: dict[bytes, TextRow] = {}
    results: dict[bytes, JudgeResult] = {}
    for entry in entries:
        builder = _RowBuilder(entry, rows, texts, results, keep_texts)
        builder.add()
        signals += builder.signals()
    rows.texts.extend(texts.values())
    return rows


def storable_text(text: str) -> str:
    """Replace by U+FFFD the characters that the database cannot store: NUL and lone surrogates."""
    return text if text.isascii() and "\0" not in text else _UNSTORABLE.sub("\N{REPLACEMENT CHARACTER}", text)


def compressed(text: bytes) -> bytes:
    """Compress a text as zlib does, with a window no larger than the text: a third of the time for a text of 2 KB."""
    window = min(_LARGEST_WINDOW, max(10, len(text).bit_length()))
    compressor = zlib.compressobj(_ZLIB_LEVEL, zlib.DEFLATED, window, 8 if window == _LARGEST_WINDOW else 6)
    return compressor.compress(text) + compressor.flush()


def digest_bytes(rubric: str) -> bytes:
    """The bytes of a rubric digest `sha256:…`."""
    return bytes.fromhex(rubric.removeprefix("sha256:"))


def _stored(message: Message) -> dict[str, Any]:
    """Return a message as data, with the digest of each image in its place in the text."""
    fields = message.model_dump(mode="json", exclude_defaults=True, exclude={"images"})
    for image in message.images if "content" in fields else ():
        digest = hashlib.sha256(image.encode()).hexdigest()
        fields["content"] = fields["content"].replace(IMAGE, f"[image sha256:{digest}]", 1)
    return fields


def _json_list(items: Iterable[Any]) -> bytes:
    """Encode a list item by item, because encoding does not let another thread run."""
    return f"[{', '.join([json.dumps(item) for item in items])}]".encode()


def _judging_rules(judged: JudgedRequest) -> JudgingRules:
    """Return how the judge was asked; a band that rewards depend on is among their rules."""
    request = judged.request
    return JudgingRules(
        judge=request.judge,
        judging=request.judging,
        reverifies=request.reverifies,
        uncertain_band=judged.rules.band if judged.reward_rules is None else None,
    )


class _GroupTexts(NamedTuple):
    """The digests of what the responses of a group share."""

    rubric: bytes | None
    prompt: bytes
    grounding: bytes | None
    reference_answer: bytes | None
    ground_truth: bytes | None


class _RowBuilder:
    """Adds the rows of one request to `rows` and `texts`; `results` are the verdicts that have a row already."""

    def __init__(
        self,
        entry: JudgedRequest,
        rows: LedgerRows,
        texts: dict[bytes, TextRow],
        results: dict[bytes, JudgeResult],
        keep_texts: bool,
    ) -> None:
        self._entry, self._rows, self._texts, self._results = entry, rows, texts, results
        self._keep_texts = keep_texts
        self._known = entry.outcomes.cached | entry.outcomes.joined
        self._project = entry.project_id
        self._run = storable_text(entry.request.run or "")
        self._id = entry.record_id or int(entry.at.timestamp() * 1e6).to_bytes(8, "big") + secrets.token_bytes(8)

    def signals(self) -> list[SignalRow]:
        """The request's signals, which monitors read."""
        return signals_of(self._entry, self._project, self._run, self._id)

    def add(self) -> None:
        """Add all rows of the request."""
        entry, outcomes = self._entry, self._entry.outcomes
        members = {name: member_usage(cost).model_dump() for name, cost in outcomes.members.items()}
        self._rows.requests.append(
            RequestRow(
                self._project,
                self._run,
                self._id,
                storable_text(entry.request_id),
                entry.request.step,
                None if entry.reward_rules is None else entry.reward_rules.reward.mode,
                entry.prepared.config.protocol if entry.prepared else "",
                entry.prepared.fingerprint if entry.prepared else None,
                storable_text(entry.prepared.model) if entry.prepared else None,
                entry.request.judging.votes,
                entry.uses,
                outcomes.costs.calls,
                outcomes.costs.tokens_computed,
                outcomes.costs.tokens_reused,
                outcomes.costs.tokens_written,
                entry.seconds,
                entry.at,
                json.dumps(members) if members else None,
                None if entry.reward_rules is None else entry.reward_rules.recorded(),
                _judging_rules(entry).recorded(),
            )
        )
        places = count()
        for group in entry.groups:
            given = group.group
            beside = given.grounding or None, given.reference_answer, given.ground_truth
            texts = _GroupTexts(
                self._rubric(group.rubric),
                self._text(given.prompt),
                *[None if text is None else self._text(text) for text in beside],
            )
            for position, planned in enumerate(group.responses):
                rest_if_due()
                place = next(places)
                self._response(group, planned, place, position, texts)
                self._uses(planned, place)

    def _response(
        self,
        group: PlannedGroup,
        planned: PlannedResponse,
        place: int,
        position: int,
        texts: "_GroupTexts",
    ) -> None:
        response = planned.response
        reward, status = self._entry.rewards[place] if self._entry.rewards else (None, None)
        self._rows.responses.append(
            ResponseRow(
                self._project,
                self._run,
                self._id,
                place,
                storable_text(group.group.id),
                position,
                texts.rubric,
                texts.prompt,
                self._text(response.text),
                texts.grounding,
                response.tokens,
                response.stopped,
                keeps_format(planned.material, self._entry.prepared),
                self._spans(planned),
                reward,
                status,
                texts.reference_answer,
                texts.ground_truth,
                self._entry.declared_rewards[place] if self._entry.declared_rewards else None,
            )
        )

    def _spans(self, planned: PlannedResponse) -> str | None:
        if self._entry.prepared is None or self._entry.prepared.config.protocol != "stepwise":
            return None
        return json.dumps(planned.spans)

    def _uses(self, planned: PlannedResponse, place: int) -> None:
        outcomes, known, rules, written = self._entry.outcomes.by_digest, self._known, self._entry.rules, self._results
        project, run, request, add = self._project, self._run, self._id, self._rows.uses.append
        for slot, pending in enumerate(planned.plan.pending):
            criterion, method, digests, step, _, parts, passages = pending
            if not digests:
                row = project, run, request, place, slot, 0, criterion, method, _NO_CALL, False
                add(UseRow(*row, LEFT_OUT, None, None, False))
                continue
            shown = None if passages is None else json.dumps([one.model_dump() for one in passages])
            votes = [outcomes[digest] for digest in digests]
            given = votes[0] if len(votes) == 1 else combine_votes(votes)
            verdict = rules.apply(given, method)
            failed, uncertain = isinstance(verdict, CallFailure), rules.is_uncertain(verdict, method)
            refused = None if verdict is given else verdict
            for vote, (digest, outcome) in enumerate(zip(digests, votes, strict=True)):
                failure, detail = UNCERTAIN if uncertain else None, None
                if isinstance(problem := refused or outcome, CallFailure):
                    failure, detail = failure or problem.kind, storable_text(problem.detail)
                known_before = written.get(digest)
                if isinstance(outcome, JudgeResult) and known_before is not outcome and known_before != outcome:
                    self._verdict(digest, outcome)
                cached = digest in known if not parts else all(part in known for part in parts)
                add(
                    UseRow(
                        project, run, request, place, slot, vote, criterion, method, digest, failed, failure, detail,
                        step, cached, shown,
                    )
                )  # fmt: skip

    def _verdict(self, digest: bytes, result: JudgeResult) -> None:
        self._results[digest] = result
        members = [one.model_dump(exclude_defaults=True) for one in result.members]
        self._rows.verdicts.append(
            VerdictRow(
                self._project,
                digest,
                self._id,
                result.score,
                result.probability,
                result.choice_mass,
                result.step,
                result.grade,
                None if result.rationale is None else storable_text(result.rationale),
                result.raw_probability,
                json.dumps(members) if members else None,
            )
        )

    def _rubric(self, rubric: ResolvedRubric) -> bytes | None:
        if rubric.digest is None:
            return None
        digest = digest_bytes(rubric.digest)
        if digest not in self._texts:
            criteria = _json_list(c.model_dump(mode="json", exclude_defaults=True) for c in rubric.criteria)
            self._texts[digest] = TextRow(self._project, digest, compressed(criteria))
        return digest

    def _text(self, text: Prompt) -> bytes:
        """The digest of a text or of messages as JSON; adds a row for it if texts are kept."""
        encoded = json.dumps(text).encode() if isinstance(text, str) else _json_list(map(_stored, text))
        digest = hashlib.sha256(encoded).digest()
        if self._keep_texts and digest not in self._texts:
            self._texts[digest] = TextRow(self._project, digest, compressed(encoded))
        return digest


PAGE_CHARACTERS = 4_000_000
"""A page of recorded verdicts ends before its texts have more characters than this, unless one verdict alone has."""

_CURSOR = struct.Struct(">16sII")
_FIELDS = Criterion.model_fields


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
    kept: list[UseRecord] = []
    found: dict[bytes, str] = {}
    characters = 0
    for use in page:
        row = use.response
        own = {digest for digest in (row.prompt, row.response, row.grounding) if digest is not None}
        if missing := own - found.keys():
            found |= dict.fromkeys(missing, "") | await ledger.texts(project_id, list(missing))
        characters += sum([len(found[digest]) for digest in own])
        if kept and characters > PAGE_CHARACTERS:
            break
        kept.append(use)
    return kept, {digest: text for digest, text in found.items() if text}


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
        **{name: json.loads(texts[d]) for name, d in digests.items() if d in texts},
    )


def recorded_verdicts(record: UseRecord) -> Iterator[Verdict]:
    """The verdicts on a response, by slot, from the rows of all their votes."""
    return (recorded_verdict(list(votes)) for _, votes in groupby(record.votes, key=lambda vote: vote[0].slot))


async def response_pages(ledger: LedgerReader, wanted: ResponseFilter) -> AsyncGenerator[list[UseRecord], None]:
    """Read the selected responses of a run, `wanted.limit` at a time."""
    while page := await ledger.responses(wanted):
        yield page
        wanted = wanted._replace(after=page[-1].key)


def has_stored_image(text: str) -> bool:
    """Whether a stored message, as JSON, has an image, of which the ledger keeps the digest only."""
    return _STORED_IMAGE.search(text) is not None


def recorded_verdict(votes: Sequence[tuple[UseRow, VerdictRow | None]]) -> Verdict:
    """The verdict on one criterion, from the rows of its votes."""
    first, _ = votes[0]
    outcomes = {vote.digest: _to_outcome(vote, verdict) for vote, verdict in votes}
    rules = ALWAYS_UNCERTAIN if first.failure == UNCERTAIN else DEFAULT_RULES
    digests = () if first.failure == LEFT_OUT else tuple(outcomes)
    passages = None
    if first.passages is not None:
        passages = tuple([Passage.model_validate(one) for one in json.loads(first.passages)])
    pending = PendingVerdict(first.criterion, first.method, digests, first.step, passages=passages)  # type: ignore[arg-type]
    cached = {vote.digest for vote, _ in votes if vote.cached}
    return verdict_of(pending, Outcomes(by_digest=outcomes, cached=cached), rules)


def _to_outcome(use: UseRow, row: VerdictRow | None) -> CallOutcome:
    if use.failure is not None and use.failure != UNCERTAIN:
        return CallFailure(use.failure, use.detail or "")  # type: ignore[arg-type]
    if row is None:
        return CallFailure("engine", use.detail or "its verdict is not in the ledger")
    return recorded_result(row)
