"""Responses and their verdicts: how pages show them, why each has its reward, and the search for them."""

import json
import math
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import NamedTuple, TypeVar, get_args

from pydantic import ValidationError
from starlette.requests import Request
from starlette.responses import RedirectResponse, Response

from judge_server.api.auth import project_of
from judge_server.api.console.forms import (
    choice_parameter,
    float_parameter,
    int_parameter,
    run_parameter,
    step_parameters,
    text_parameter,
)
from judge_server.api.console.rendering import Console, PageRouter, Value, address
from judge_server.api.console.runs import read_report
from judge_server.api.ledger import rubric_digest
from judge_server.errors import InvalidRequest, ServiceError
from judge_server.ledger.rows import (
    decode_cursor,
    encode_cursor,
    recorded_verdict,
    recorded_verdicts,
    storable_text,
)
from judge_server.ports import LedgerReader
from judge_server.scoring.rewards import reward_of
from rubric_store.ledger.rows import (
    ResponseFilter,
    ResponseRow,
    UseFilter,
    UseRecord,
    VerdictKey,
    VerdictOutcome,
)
from trainer_client.dropout import CriteriaSample, read_sample
from trainer_client.modes import short
from trainer_client.penalties import explain_penalties
from trainer_client.rewards import ResponseFacts, explain_reward
from trainer_client.wire import Criterion, Passage, RewardOptions, Verdict
from trainer_client.wire.ledger import RewardRules
from trainer_client.wire.rewards import NEEDS_NO_RUBRIC, FailureKind, VerdictStatus

T = TypeVar("T")
Place = tuple[bytes, int, int]
"""A place in the ledger: request, response and slot."""


class Explanation(NamedTuple):
    """Why a response has its reward.

    `formula` is `EXPRESSION = VALUE`, with the criterion of a term in brackets; it is empty if there is nothing to
    compute. `matches` tells whether its value is the recorded reward.
    """

    sentence: str
    formula: str = ""
    matches: bool = True


class RecordedReward(NamedTuple):
    """A reward as answered.

    Attributes:
        rules: how it was computed; None if only verdicts were asked for.
        reward, status: the reward and its status; both are None if the request was answered with an error.
        declared: the reward under the rubric's own weights, if others were used.
        facts: what it depends on beside the verdicts; the sample is that of the verdicts.
        complete: false if an older version recorded only the mode of the rules, so that the rest are defaults.
    """

    rules: RewardRules | None
    reward: float | None
    status: str | None
    facts: ResponseFacts
    complete: bool = True
    declared: float | None = None


def explain(recorded: RecordedReward, criteria: Sequence[Criterion] | None, verdicts: Sequence[Verdict]) -> Explanation:
    """Explain a recorded reward by its verdicts.

    Args:
        recorded: the reward as answered.
        criteria: the M criteria of the rubric; None if the ledger no longer has it. Empty without a rubric.
        verdicts: the M verdicts, or the single one on the whole response.
    """
    rules, reward = recorded.rules, recorded.reward
    if rules is None:
        return Explanation("Only verdicts were asked for, so there is no reward.")
    options = rules.reward
    if options.mode == "ranking":
        return _ranked(recorded, verdicts)
    if options.mode in NEEDS_NO_RUBRIC:
        criteria = ()
    if criteria is None or (criteria and len(criteria) != len(verdicts)):
        return Explanation("The rubric of this response is not in the ledger, so its reward cannot be explained.")
    counted = [verdict for i, verdict in enumerate(verdicts) if not criteria or _counts(criteria[i], rules)]
    failed = _missing_sentence(counted, rules)
    if recorded.status is None:
        return Explanation(f"The request was answered with an error, so it has no rewards{failed and ': '}{failed}.")
    if recorded.status == "unscored" and reward is None:
        return Explanation(
            f"There is no reward, because {failed}, which could have changed it. Neither a failed nor an uncertain "
            "verdict counts as a no."
        )
    if recorded.status == "unscored":
        return Explanation(f"The reward is {short(reward)} by the request's failure policy, because {failed}.")
    if options.weighting == "contrast":
        return _under_other_weights(recorded, rules, criteria, verdicts)
    facts = recorded.facts._replace(sample=read_sample(criteria, verdicts, rules.dropout) if criteria else None)
    matches, dropped = _computes(recorded, criteria, verdicts, facts)
    if facts.sample is not None:
        return Explanation(_estimated(facts.sample, verdicts), matches=matches)
    criteria = [criterion for criterion in criteria if _counts(criterion, rules)]
    scores = [verdict.value(options.use) for verdict in counted]
    format_ok = bool(facts.format_ok)
    told = explain_reward(criteria, scores, options, format_ok=format_ok, drop_failed=dropped)
    told = explain_penalties(told, options, tokens=facts.tokens, stopped=facts.stopped)
    if not matches:
        return Explanation(_mismatch(recorded), told.formula, matches=False)
    soft = " It is made of probabilities of yes, not of verdicts." if options.use == "probability" else ""
    treated = "left out, as the failure policy says" if dropped else "written as 0, since it cannot change the reward"
    missing = f" {failed[0].upper()}{failed[1:]}: {treated}." if failed else ""
    return Explanation(f"{told.sentence}{soft}{missing}", told.formula)


def _estimated(sample: CriteriaSample, verdicts: Sequence[Verdict]) -> str:
    """Say how dropout makes a reward of some of the verdicts."""
    judged = sum(verdict.status != "left_out" for verdict in verdicts)
    told = f"an unbiased estimate of that of the whole rubric: {judged} of its {len(verdicts)} criteria were judged"
    if sample.share is None:
        return f"The reward is {told}, and the others were left out at random for the whole group."
    if any(sample.left_out):
        told += ", and each of the others, which nearly all responses meet, counts as met"
    droppable = zip(verdicts, sample.droppable, strict=True)
    missed = [one.criterion for one, may_go in droppable if may_go and one.score is not None and one.score < 1]
    if missed:
        told += (
            f". What the response misses of {', '.join(missed)} counts {1 / sample.share:.4g} times, since a share of "
            f"{sample.share:.4g} of the groups is judged by it"
        )
    return f"The reward is {told}."


def _under_other_weights(
    recorded: RecordedReward, rules: RewardRules, criteria: Sequence[Criterion], verdicts: Sequence[Verdict]
) -> Explanation:
    """Explain the reward under the rubric's own weights; the others follow from the verdicts on the whole group."""
    reward = rules.reward.model_copy(update={"weighting": "declared"})
    own = recorded._replace(rules=rules.model_copy(update={"reward": reward}), reward=recorded.declared)
    told = explain(own, criteria, verdicts)
    return told._replace(
        sentence=f"The reward is {short(recorded.reward)} under the weights of its group, which favour criteria that "
        f"tell its responses apart. The rubric's own weights give {short(recorded.declared)}, as follows. "
        + told.sentence
    )


def _computes(
    recorded: RecordedReward, criteria: Sequence[Criterion], verdicts: Sequence[Verdict], facts: ResponseFacts
) -> tuple[bool, bool]:
    """Whether the verdicts give the recorded reward by its rules, and whether its policy dropped missing ones."""
    assert recorded.rules is not None
    try:
        result = reward_of(criteria, verdicts, recorded.rules, facts)
    except (ValueError, ServiceError):
        return False, False
    given, computed = recorded.reward, result.reward
    if given is None or computed is None:
        equal = given is computed
    else:
        equal = math.isclose(given, computed, rel_tol=1e-9, abs_tol=1e-9)
    return equal and result.outcome.status == recorded.status, result.outcome.policy_applied == "skip"


def _ranked(recorded: RecordedReward, verdicts: Sequence[Verdict]) -> Explanation:
    """Explain a reward that follows from the comparisons of a whole group, of which the verdicts are one part."""
    preferred = sum(verdict.score == 1.0 for verdict in verdicts)
    known = sum(verdict.status == "ok" for verdict in verdicts)
    shown = f"Shown first, the response was preferred in {preferred} of the {known} comparisons that were answered"
    if recorded.status is None:
        return Explanation("The request was answered with an error, so it has no rewards.")
    if recorded.status == "unscored":
        given = (
            "no reward" if recorded.reward is None else f"the reward {short(recorded.reward)}, by the failure policy,"
        )
        return Explanation(f"The response has {given} because too few of its comparisons were answered. {shown}.")
    return Explanation(
        "The reward is a Bradley-Terry score: the probability of being preferred over an average response of the same "
        f"group, by all comparisons of the group. {shown}; the others are at the responses that it was compared with."
    )


def _counts(criterion: Criterion, rules: RewardRules) -> bool:
    """Whether a criterion enters the reward."""
    return not criterion.shadow and (rules.reward.kinds is None or criterion.kind in rules.reward.kinds)


def _mismatch(recorded: RecordedReward) -> str:
    """Why the recorded reward is not that of the verdicts in the ledger."""
    assert recorded.rules is not None
    if not recorded.complete:
        return (
            f"The answered reward is {short(recorded.reward)}, and mode {recorded.rules.reward.mode} with default "
            "options gives another one. The request used options or a failure policy that were not recorded."
        )
    return (
        f"The answered reward is {short(recorded.reward)}, and the request's options with the verdicts shown here give "
        "another one. The ledger shows the first verdict on a question; this request was probably rewarded by a later "
        "one that differs."
    )


def _missing_sentence(verdicts: Sequence[Verdict], rules: RewardRules) -> str:
    """Which verdicts are missing, such as `the verdict on c1 failed (timeout)`; empty if none are."""
    failed = [verdict for verdict in verdicts if verdict.failure is not None]
    uncertain = [verdict for verdict in verdicts if verdict.status == "uncertain"]
    kinds = ", ".join(sorted({verdict.failure.kind for verdict in failed if verdict.failure is not None}))
    parts = [f"{_named(failed)} failed ({kinds})"] if failed else []
    if uncertain:
        band = rules.uncertain_band
        between = "" if band is None else f" (its probability is from {short(band[0])} to {short(band[1])})"
        parts.append(f"{_named(uncertain)} {'is' if len(uncertain) == 1 else 'are'} uncertain{between}")
    return " and ".join(parts)


def _named(verdicts: Sequence[Verdict]) -> str:
    names = ", ".join(verdict.criterion for verdict in verdicts[:5]) + (" and others" if len(verdicts) > 5 else "")
    return f"the verdict{'s' if len(verdicts) > 1 else ''} on {names}"


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
    """

    record: UseRecord
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

    @property
    def declared_reward(self) -> float | None:
        """The reward under the rubric's own weights, if others were used."""
        return self.record.response.declared_reward

    @cached_property
    def verdicts(self) -> tuple[Verdict, ...]:
        """A verdict on each criterion, in the order of the rubric."""
        return tuple(recorded_verdicts(self.record))

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
async def responses(console: Console, request: Request) -> Response:
    """A list of responses, with the beginning of each text."""
    ledger, project, run = console.service.readable_ledger(), project_of(request), run_parameter(request)
    given = request.query_params
    first, last = step_parameters(request)
    status = choice_parameter(request, "status", ("scored", "partial", "unscored"))
    outcome = choice_parameter(request, "outcome", get_args(VerdictOutcome))
    criterion = text_parameter(request, "criterion") or None
    wanted = ResponseFilter(
        project, storable_text(run), first, last, float_parameter(request, "low"), float_parameter(request, "high"),
        given.get("includes_high") == "1", status, criterion=criterion and storable_text(criterion),
        outcome=outcome if criterion else None,
        limit=_RESPONSES_A_PAGE + 1,
    )  # fmt: skip

    def matches(record: UseRecord) -> bool:
        if wanted.criterion is None:
            return True
        verdicts = ShownResponse(record, None, None).verdicts
        told = next((outcome_of(verdict) for verdict in verdicts if verdict.criterion == wanted.criterion), None)
        return told is not None and wanted.outcome in (None, told)

    records, after = await _search(
        lambda after: ledger.responses(wanted._replace(after=after and after[:2])),
        lambda record: (*record.key, 0),
        matches,
        _after(request),
        batch=wanted.limit,
        limit=_RESPONSES_A_PAGE,
    )
    found, _ = await show_records(ledger, records)
    report = await read_report(console, request, run)
    return console.page(
        request, "responses.html.jinja", run=run, found=found, report=report, given=given, criterion=criterion,
        outcome=outcome, next_href=_next_address("responses", request, run, after),
    )  # fmt: skip


@router.get("/ledger")
async def ledger(console: Console, request: Request) -> Response:
    """A page of the verdicts of a run, oldest first; without a run, those of the latest one."""
    reader, project = console.service.readable_ledger(), project_of(request)
    recent = (await reader.runs(project, limit=_RUNS)).runs
    if "run" not in request.query_params:
        if recent:
            return RedirectResponse(address("ledger", run=recent[0].run or ""), 303)
        return console.page(request, "ledger.html.jinja", run=None)
    run, given = run_parameter(request), request.query_params
    outcome = choice_parameter(request, "outcome", get_args(VerdictOutcome))
    failure = choice_parameter(request, "failure", get_args(FailureKind))
    criterion, rubric = text_parameter(request, "criterion") or None, text_parameter(request, "rubric") or None
    report = await read_report(console, request, run)
    digest = await rubric_digest(console.service, project, rubric)
    passed = outcome in ("passed", "not passed")
    wanted = UseFilter(
        project, storable_text(run), int_parameter(request, "step"), digest, criterion and storable_text(criterion),
        None if outcome is None else _STATUS[outcome],
        limit=_VERDICTS_A_BATCH if passed else _VERDICTS_A_PAGE + 1,
        failure=failure,
    )  # fmt: skip
    found, after = await _search(
        lambda after: reader.uses(wanted._replace(after=after)),
        lambda use: (use.votes[0][0].request, use.votes[0][0].place, use.votes[0][0].slot),
        lambda use: not passed or outcome_of(recorded_verdict(use.votes)) == outcome,
        _after(request),
        batch=wanted.limit,
        limit=_VERDICTS_A_PAGE,
    )
    return console.page(
        request, "ledger.html.jinja", run=run, runs=[one.run or "" for one in recent], report=report,
        found=[(use, recorded_verdict(use.votes)) for use in found], given=given,
        outcomes=get_args(VerdictOutcome), failures=get_args(FailureKind),
        next_href=_next_address("ledger", request, run, after),
    )  # fmt: skip


def _after(request: Request) -> Place | None:
    cursor = text_parameter(request, "after")
    try:
        return decode_cursor(cursor) if cursor else None
    except ValueError:
        raise InvalidRequest("after: the place to continue after is invalid; go back to the first page") from None


def _next_address(page: str, request: Request, run: str, after: Place | None) -> str:
    """The page that continues after a place, with the same filters; empty at the end."""
    if after is None:
        return ""
    kept = {name: value for name, value in request.query_params.items() if name not in ("after", "run")}
    return address(page, run=run, **kept, after=encode_cursor(VerdictKey(run, *after)))
