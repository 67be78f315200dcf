"""Conversion of judged requests to ledger rows, without I/O; only the ids of requests are random.

`judge_server.scoring.recorded` reads verdicts from them.
"""

import hashlib
import json
import secrets
import zlib
from collections.abc import Iterable
from itertools import count
from typing import Any, NamedTuple

from judge_server.judging.replies import combine_votes
from judge_server.ledger.monitoring.signals import signals_of
from judge_server.ports import CallFailure, JudgeResult
from judge_server.scheduling.time_sharing import rest_if_due
from judge_server.scoring.planner import JudgedRequest, PlannedGroup, PlannedResponse, keeps_format
from judge_server.scoring.recorded import digest_bytes, storable_text
from judge_server.scoring.rubrics import ResolvedRubric
from judge_server.scoring.verdicts import member_usage
from rubric_store.ledger.rows import (
    LEFT_OUT,
    UNCERTAIN,
    LedgerRows,
    RequestRow,
    ResponseRow,
    SignalRow,
    TextRow,
    UseRow,
    VerdictRow,
)
from trainer_client.wire import Message, Prompt
from trainer_client.wire.groups import IMAGE
from trainer_client.wire.rewards import JudgingRules

_NO_CALL = bytes(32)
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


def compressed(text: bytes) -> bytes:
    """Compress a text as zlib does, with a window no larger than the text: a third of the time for a text of 2 KB."""
    window = min(_LARGEST_WINDOW, max(10, len(text).bit_length()))
    compressor = zlib.compressobj(_ZLIB_LEVEL, zlib.DEFLATED, window, 8 if window == _LARGEST_WINDOW else 6)
    return compressor.compress(text) + compressor.flush()


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
            given = combine_votes(votes)
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
