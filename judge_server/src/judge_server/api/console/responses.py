"""Responses and their verdicts: how pages show them, why each has its reward, and the search for them."""

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeVar, get_args

from pydantic import ValidationError
from starlette.responses import RedirectResponse, Response

from judge_server.api.console.rendering import PageRouter, Value, Visit, address
from judge_server.api.console.runs import read_report
from judge_server.api.ledger import rubric_digest
from judge_server.errors import InvalidRequest, ServiceError
from judge_server.ports import LedgerReader
from judge_server.scoring.explanation import Explanation, RecordedReward, explain
from judge_server.scoring.recorded import (
    decode_cursor,
    encode_cursor,
    recorded_verdict,
    recorded_verdicts,
    storable_text,
)
from judge_server.scoring.rewards import reward_of
from rubric_store.ledger.rows import (
    ResponseFilter,
    ResponseRow,
    UseFilter,
    UseRecord,
    VerdictKey,
    VerdictOutcome,
)
from trainer_client.dropout import read_sample
from trainer_client.rewards import ResponseFacts
from trainer_client.wire import Criterion, Passage, RewardOptions, Verdict
from trainer_client.wire.rewards import RewardRules
from trainer_client.wire.verdicts import FailureKind, VerdictStatus

T = TypeVar("T")
Place = tuple[bytes, int, int]
"""A place in the ledger: request, response and slot."""


TEXT_LIMIT = 20_000
"""Characters of a text that a page shows, unless the whole is asked for."""

CLOSE_CALL = (0.4, 0.6)
"""The probabilities of yes between which a verdict is close to a coin toss. It counts like any other: to leave such
verdicts out of rewards, a request has an `uncertain_band`."""

_EXCERPT = 280


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
        number: its number in the group, from 1.
    """

    record: UseRecord
    criteria: tuple[Criterion, ...] | None
    text: str | None
    number: int

    @property
    def reward(self) -> float | None:
        """The reward as answered."""
        return self.record.response.reward

    @property
    def declared_reward(self) -> float | None:
        """The reward under the rubric's own weights, if others were used."""
        return self.record.response.declared_reward

    @cached_property
    def verdicts(self) -> tuple[Verdict, ...]:
        """A verdict on each criterion, in the order of the rubric."""
        return tuple(recorded_verdicts(self.record))

    @cached_property
    def by_criterion(self) -> dict[str, Verdict]:
        """Its verdicts by the id of the criterion; of a ranking, by that of the comparison."""
        return {verdict.criterion: verdict for verdict in self.verdicts}

    @property
    def slots(self) -> tuple[int, ...]:
        """The slot of each verdict."""
        return tuple(dict.fromkeys(vote.slot for vote, _ in self.record.votes))

    @property
    def rules(self) -> RewardRules | None:
        """How its reward was computed; of a request of an older version only the mode is known."""
        request = self.record.request
        if request.mode is None:
            return None
        return RewardRules.read(request.reward_rules) or RewardRules(reward=RewardOptions(mode=request.mode))

    @cached_property
    def explanation(self) -> Explanation:
        """Why it has its reward."""
        row = self.record.response
        complete = RewardRules.read(self.record.request.reward_rules) is not None
        facts = ResponseFacts(row.format_ok, row.tokens, row.stopped)
        recorded = RecordedReward(self.rules, row.reward, row.status, facts, complete, row.declared_reward)
        return explain(recorded, () if row.rubric is None else self.criteria, self.verdicts)

    def components(self, weights: Mapping[str, float]) -> Mapping[str, float | None]:
        """Its component rewards by name, if they were asked for, under the weights of its group, if it has any."""
        rules, row = self.rules, self.record.response
        if rules is None or rules.reward.components is None or row.status is None or self.criteria is None:
            return {}
        if rules.reward.weighting == "contrast" and not weights:
            return {}
        sample = read_sample(self.criteria, self.verdicts, rules.dropout)
        facts = ResponseFacts(row.format_ok, row.tokens, row.stopped, sample)
        try:
            return reward_of(self.criteria, self.verdicts, rules, facts, weights).outcome.components
        except (ValueError, ServiceError):  # the explanation says so
            return {}

    @property
    def excerpt(self) -> str:
        """The beginning of its text, in one line."""
        parts = read_text(self.text, 4 * _EXCERPT)
        whole = " ".join(" ".join(part.text for part in parts if part.role not in ("system", "tool")).split())
        return whole if len(whole) <= _EXCERPT else f"{whole[: _EXCERPT - 1]}…"

    @property
    def anchor(self) -> str:
        """Its place on the page of its group."""
        return f"response-{self.record.response.request.hex()}-{self.record.response.place}"

    @property
    def group_href(self) -> str:
        """The page of its group, at this response."""
        return response_address(self.record.response)


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


def group_address(row: ResponseRow, **also: Value) -> str:
    """The page of a response's group."""
    return address("group", run=row.run, request=row.request.hex(), group=row.group_id, **also)


def response_address(row: ResponseRow) -> str:
    """The page of a response's group, at the response."""
    return f"{group_address(row)}#response-{row.request.hex()}-{row.place}"


async def show_records(
    ledger: LedgerReader, records: Sequence[UseRecord], also: Sequence[bytes] = ()
) -> tuple[list[ShownResponse], Mapping[bytes, str]]:
    """The responses with their rubrics and texts, and all texts that were read."""
    rubrics = {record.response.rubric for record in records if record.response.rubric is not None}
    digests = {record.response.response for record in records} | rubrics | set(also)
    project = records[0].request.project_id if records else ""
    texts = await ledger.texts(project, list(digests)) if records else {}
    criteria = {digest: read_criteria(texts.get(digest)) for digest in rubrics}
    return [
        ShownResponse(
            record,
            criteria.get(record.response.rubric or b""),
            texts.get(record.response.response),
            record.response.position + 1,
        )
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


def quote_passages(passages: Iterable[Passage], response: str | None, grounding: str | None) -> list[TextPart]:
    """The passages that a verdict was asked on, of those texts that the ledger has."""
    stored = {"response": response, "grounding": grounding}
    texts = {name: "" if text is None else json.loads(text) for name, text in stored.items()}
    return [_part(one.text, texts[one.text][one.start : one.end].strip(), None) for one in passages if texts[one.text]]


def _part(role: str, text: str, limit: int | None) -> TextPart:
    text = text.encode("utf-8", "replace").decode()
    return TextPart(role, text) if limit is None else TextPart(role, text[:limit], max(0, len(text) - limit))


router = PageRouter()

_RESPONSES_A_PAGE, _VERDICTS_A_PAGE = 25, 50
_VERDICTS_A_BATCH = 500
_MAX_BATCHES = 10
"""A search reads this many batches, and then offers to go on."""

_RUNS = 50
_STATUS: dict[str, VerdictStatus] = {
    "passed": "ok", "not passed": "ok", "failed": "failed", "uncertain": "uncertain", "left out": "left_out",
}  # fmt: skip


async def _search(
    read: Callable[[Place | None], Awaitable[Sequence[T]]],
    place_of: Callable[[T], Place],
    matches: Callable[[T], bool],
    after: Place | None,
    *,
    batch: int,
    limit: int,
) -> tuple[list[T], Place | None]:
    """A page of what matches in batches, and the place to continue after; None at the end."""
    found: list[T] = []
    for _ in range(_MAX_BATCHES):
        items = await read(after)
        found += filter(matches, items)
        if len(found) > limit:
            return found[:limit], place_of(found[limit - 1])
        if len(items) < batch:
            return found, None
        after = place_of(items[-1])
    return found, after


@router.get("/responses")
async def responses(visit: Visit) -> Response:
    """A list of responses, with the beginning of each text."""
    ledger, project, run = visit.ledger, visit.project, visit.run
    given = visit.query
    first, last = visit.steps
    status = visit.choice("status", ("scored", "partial", "unscored"))
    outcome = visit.choice("outcome", get_args(VerdictOutcome))
    criterion = visit.text("criterion") or None
    wanted = ResponseFilter(
        project, storable_text(run), first, last, visit.number("low"), visit.number("high"),
        given.get("includes_high") == "1", status, criterion=criterion and storable_text(criterion),
        outcome=outcome if criterion else None,
        limit=_RESPONSES_A_PAGE + 1,
    )  # fmt: skip

    def matches(record: UseRecord) -> bool:
        if wanted.criterion is None:
            return True
        verdicts = recorded_verdicts(record)
        told = next((outcome_of(verdict) for verdict in verdicts if verdict.criterion == wanted.criterion), None)
        return told is not None and wanted.outcome in (None, told)

    records, after = await _search(
        lambda after: ledger.responses(wanted._replace(after=after and after[:2])),
        lambda record: (*record.key, 0),
        matches,
        _after(visit),
        batch=wanted.limit,
        limit=_RESPONSES_A_PAGE,
    )
    found, _ = await show_records(ledger, records)
    report = await read_report(visit, run)
    return visit.page(
        "responses.html.jinja", run=run, found=found, report=report, given=given, criterion=criterion,
        outcome=outcome, next_href=_next_address("responses", visit, run, after),
    )  # fmt: skip


@router.get("/ledger")
async def ledger(visit: Visit) -> Response:
    """A page of the verdicts of a run, oldest first; without a run, those of the latest one."""
    reader, project = visit.ledger, visit.project
    recent = (await reader.runs(project, limit=_RUNS)).runs
    if "run" not in visit.query:
        if recent:
            return RedirectResponse(address("ledger", run=recent[0].run or ""), 303)
        return visit.page("ledger.html.jinja", run=None)
    run, given = visit.run, visit.query
    outcome = visit.choice("outcome", get_args(VerdictOutcome))
    failure = visit.choice("failure", get_args(FailureKind))
    criterion, rubric = visit.text("criterion") or None, visit.text("rubric") or None
    report = await read_report(visit, run)
    digest = await rubric_digest(visit.service, project, rubric)
    passed = outcome in ("passed", "not passed")
    wanted = UseFilter(
        project, storable_text(run), visit.whole_number("step"), digest, criterion and storable_text(criterion),
        None if outcome is None else _STATUS[outcome],
        limit=_VERDICTS_A_BATCH if passed else _VERDICTS_A_PAGE + 1,
        failure=failure,
    )  # fmt: skip
    found, after = await _search(
        lambda after: reader.uses(wanted._replace(after=after)),
        lambda use: (use.votes[0][0].request, use.votes[0][0].place, use.votes[0][0].slot),
        lambda use: not passed or outcome_of(recorded_verdict(use.votes)) == outcome,
        _after(visit),
        batch=wanted.limit,
        limit=_VERDICTS_A_PAGE,
    )
    return visit.page(
        "ledger.html.jinja", run=run, runs=[one.run or "" for one in recent], report=report,
        found=[(use, recorded_verdict(use.votes)) for use in found], given=given,
        outcomes=get_args(VerdictOutcome), failures=get_args(FailureKind),
        next_href=_next_address("ledger", visit, run, after),
    )  # fmt: skip


def _after(visit: Visit) -> Place | None:
    cursor = visit.text("after")
    try:
        return decode_cursor(cursor) if cursor else None
    except ValueError:
        raise InvalidRequest("after: the place to continue after is invalid; go back to the first page") from None


def _next_address(page: str, visit: Visit, run: str, after: Place | None) -> str:
    """The page that continues after a place, with the same filters; empty at the end."""
    if after is None:
        return ""
    kept = {name: value for name, value in visit.query.items() if name not in ("after", "run")}
    return address(page, run=run, **kept, after=encode_cursor(VerdictKey(run, *after)))
