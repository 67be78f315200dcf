"""What pages show of responses: their verdicts, their texts, and why each has its reward."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby
from typing import NamedTuple

from pydantic import ValidationError

from judge_server.api.console.responses.explanation import Explanation, RecordedReward, explain
from judge_server.api.console.tables import Value, address
from judge_server.ledger.reading import recorded_verdict
from judge_server.ports import LedgerReader
from trainer_client.wire import Criterion, Verdict
from trainer_client.wire.ledger import RewardRules
from trainer_client.wire.ledger_rows import ResponseFilter, ResponseRecord, VerdictOutcome

TEXT_LIMIT = 20_000
"""Characters of a text that a page shows, unless the whole is asked for."""

CLOSE_CALL = (0.4, 0.6)
"""The probabilities of yes between which a verdict is close to a coin toss. It counts like any other: to leave such
verdicts out of rewards, a request has an `uncertain_band`."""

_EXCERPT = 280
_MAX_BATCHES = 10
"""A search for verdicts reads this many pages of responses, and then offers to go on."""


class TextPart(NamedTuple):
    """A part of a text: who said it, empty for a plain text, and the number of characters that are not shown."""

    role: str
    text: str
    omitted: int = 0


@dataclass(frozen=True)
class ShownResponse:
    """A response with its verdicts.

    Attributes:
        criteria: the criteria of its rubric; None if the ledger does not have the rubric.
        text: its text as JSON; None if the ledger keeps no texts.
    """

    record: ResponseRecord
    criteria: tuple[Criterion, ...] | None
    text: str | None

    @property
    def number(self) -> int:
        """Its number in the group, from 1."""
        return self.record.response.position + 1

    @property
    def reward(self) -> float | None:
        """The reward as answered."""
        return self.record.response.reward

    @cached_property
    def verdicts(self) -> tuple[Verdict, ...]:
        """A verdict on each criterion, in the order of the rubric."""
        slots = groupby(self.record.votes, key=lambda vote: vote[0].slot)
        return tuple([recorded_verdict(list(votes)) for _, votes in slots])

    @property
    def slots(self) -> tuple[int, ...]:
        """The slot of each verdict."""
        return tuple(dict.fromkeys(vote.slot for vote, _ in self.record.votes))

    @cached_property
    def explanation(self) -> Explanation:
        """Why it has its reward."""
        request, response = self.record.request, self.record.response
        recorded = RecordedReward(
            request.mode,  # type: ignore[arg-type]
            response.reward,
            response.status,
            response.format_ok,
            RewardRules.read(request.reward_rules),
            response.tokens,
            response.stopped,
        )
        criteria = () if response.rubric is None else self.criteria
        return explain(recorded, criteria, self.verdicts)

    @property
    def excerpt(self) -> str:
        """The beginning of its text, in one line."""
        parts = read_text(self.text, 4 * _EXCERPT)
        whole = " ".join(" ".join(part.text for part in parts if part.role not in ("system", "tool")).split())
        return whole if len(whole) <= _EXCERPT else f"{whole[: _EXCERPT - 1]}…"

    def parts(self, limit: int | None) -> list[TextPart]:
        """Its text, up to `limit` characters of each part."""
        return read_text(self.text, limit)

    @property
    def group_href(self) -> str:
        """The page of its group, at this response."""
        return f"{group_address(self.record)}#{self.anchor}"

    @property
    def anchor(self) -> str:
        """Its place on the page of its group."""
        row = self.record.response
        return f"response-{row.request.hex()}-{row.place}"

    def outcome_of(self, criterion: str) -> VerdictOutcome | None:
        """The verdict on a criterion; None if it was not judged by it."""
        found = next((verdict for verdict in self.verdicts if verdict.criterion == criterion), None)
        return None if found is None else outcome_of(found)


_WITHOUT_SCORE: Mapping[str, VerdictOutcome] = {"left_out": "left out", "uncertain": "uncertain"}


def outcome_of(verdict: Verdict) -> VerdictOutcome:
    """What a verdict says, as charts count it: a score of 0.5 or more passes."""
    if verdict.score is None:
        return _WITHOUT_SCORE.get(verdict.status, "failed")
    return "passed" if verdict.score >= 0.5 else "not passed"


def is_close(verdict: Verdict) -> bool:
    """Whether a judge's verdict is close to a coin toss, by its probability; pages show it as such."""
    low, high = CLOSE_CALL
    return verdict.score is not None and verdict.probability is not None and low <= verdict.probability <= high


def group_address(record: ResponseRecord, **also: Value) -> str:
    """The page of a response's group."""
    row = record.response
    return address("group", run=row.run, request=row.request.hex(), group=row.group_id, **also)


async def read_responses(
    ledger: LedgerReader, wanted: ResponseFilter
) -> tuple[list[ShownResponse], tuple[bytes, int] | None]:
    """A page of responses, and the place to continue after; None at the end.

    With a criterion, only responses that were judged by it; with an outcome, only those with this verdict on it.
    """
    found: list[ResponseRecord] = []
    if wanted.criterion is None:
        found = await ledger.responses(wanted._replace(limit=wanted.limit + 1))
        more = len(found) > wanted.limit
        found = found[: wanted.limit]
        return (await show_records(ledger, found))[0], _key(found[-1]) if more else None
    after = wanted.after
    for _ in range(_MAX_BATCHES):
        batch = await ledger.responses(wanted._replace(after=after))
        for record in batch:
            after = _key(record)
            told = ShownResponse(record, None, None).outcome_of(wanted.criterion)
            if told is not None and wanted.outcome in (None, told):
                found.append(record)
                if len(found) == wanted.limit:
                    return (await show_records(ledger, found))[0], after
        if len(batch) < wanted.limit:
            return (await show_records(ledger, found))[0], None
    return (await show_records(ledger, found))[0], after


def _key(record: ResponseRecord) -> tuple[bytes, int]:
    return record.response.request, record.response.place


async def show_records(
    ledger: LedgerReader, records: Sequence[ResponseRecord], also: Sequence[bytes] = ()
) -> tuple[list[ShownResponse], Mapping[bytes, str]]:
    """The responses with their rubrics and texts, and all texts that were read."""
    rubrics = {record.response.rubric for record in records if record.response.rubric is not None}
    digests = {record.response.response for record in records} | rubrics | set(also)
    project = records[0].request.project_id if records else ""
    texts = await ledger.texts(project, list(digests)) if records else {}
    criteria = {digest: read_criteria(texts.get(digest)) for digest in rubrics}
    return [
        ShownResponse(record, criteria.get(record.response.rubric or b""), texts.get(record.response.response))
        for record in records
    ], texts


def read_criteria(stored: str | None) -> tuple[Criterion, ...] | None:
    """The criteria of a rubric in the ledger; None if it is not there."""
    if stored is None:
        return None
    try:
        return tuple([Criterion.model_validate(criterion) for criterion in json.loads(stored)])
    except ValidationError:  # of a release with other criteria
        return None


def read_text(stored: str | None, limit: int | None) -> list[TextPart]:
    """The parts of a text or a conversation in the ledger, each up to `limit` characters; empty if it is not there."""
    if stored is None:
        return []
    value = json.loads(stored)
    if isinstance(value, str):
        return [_part("", value, limit)]
    parts = []
    for message in value:
        for field in ("reasoning_content", "content"):
            if message.get(field):
                role = f"{message['role']}, reasoning" if field == "reasoning_content" else message["role"]
                parts.append(_part(role, message[field], limit))
        if message.get("tool_calls"):
            called = json.dumps(message["tool_calls"], indent=2, ensure_ascii=False)
            parts.append(_part(f"{message['role']}, tool calls", called, limit))
    return parts


def _part(role: str, text: str, limit: int | None) -> TextPart:
    text = text.encode("utf-8", "replace").decode()
    return TextPart(role, text) if limit is None else TextPart(role, text[:limit], max(0, len(text) - limit))
