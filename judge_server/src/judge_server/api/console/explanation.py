"""How a response's reward came about, as its page shows it."""

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import groupby, product
from typing import NamedTuple, get_args

from pydantic import ValidationError

from judge_server.api.console.rendering import Value, address
from judge_server.errors import ServiceError
from judge_server.ledger.rows import recorded_verdict
from judge_server.ports import LedgerReader
from judge_server.scoring.scorer import RewardResult, reward_of
from rubric_store.ledger.rows import ResponseFilter, ResponseRecord, VerdictOutcome
from trainer_client.dropout import CriteriaSample, read_sample
from trainer_client.modes import short
from trainer_client.penalties import explain_penalties
from trainer_client.rewards import ResponseFacts, explain_reward
from trainer_client.wire import Criterion, RewardMode, RewardOptions, UncertainPolicy, Verdict, VerdictUse
from trainer_client.wire.ledger import RewardRules
from trainer_client.wire.rewards import NEEDS_NO_RUBRIC, NOT_LINEAR

_POLICIES: tuple[UncertainPolicy, ...] = ("null", "skip", "zero")
"""The policies that can give a recorded reward; `zero_unparseable` gives what `zero` or `null` gives."""

_UNKNOWN_OPTIONS = (
    "kinds, format_weight, gate_fraction, a penalty on length, a penalty near the generation limit, or a truncation "
    "factor"
)


class Explanation(NamedTuple):
    """Why a response has its reward.

    `formula` is `EXPRESSION = VALUE`, with the criterion of a term in brackets; it is empty if there is nothing to
    compute. `matches` tells whether its value is the recorded reward.
    """

    sentence: str
    formula: str = ""
    matches: bool = True


class RecordedReward(NamedTuple):
    """What the ledger keeps of a response's reward; `rules` is None if an older version recorded it."""

    mode: RewardMode | None
    reward: float | None
    status: str | None
    format_ok: bool
    rules: RewardRules | None = None
    tokens: int | None = None
    stopped: bool | None = None


def explain(recorded: RecordedReward, criteria: Sequence[Criterion] | None, verdicts: Sequence[Verdict]) -> Explanation:
    """Explain a recorded reward by its verdicts.

    Args:
        recorded: the reward as answered.
        criteria: the M criteria of the rubric; None if the ledger no longer has it. Empty without a rubric.
        verdicts: the M verdicts, or the single one on the whole response.
    """
    mode = recorded.mode
    if mode is None:
        return Explanation("Only verdicts were asked for, so there is no reward.")
    if mode == "ranking":
        return _ranked(recorded, verdicts)
    if mode in NEEDS_NO_RUBRIC:
        criteria = ()
    if criteria is None or (criteria and len(criteria) != len(verdicts)):
        return Explanation("The rubric of this response is not in the ledger, so its reward cannot be explained.")
    sample = read_sample(criteria, verdicts) if criteria else None
    found = _reproduced(recorded, criteria, verdicts, sample)
    rules = RewardRules(reward=RewardOptions(mode=mode)) if recorded.rules is None else recorded.rules
    counted = [verdict for i, verdict in enumerate(verdicts) if not criteria or _counts(criteria[i], rules)]
    criteria = [criterion for criterion in criteria if _counts(criterion, rules)]
    failed = _missing_sentence(counted, rules)
    if recorded.status is None:
        return Explanation(f"The request was answered with an error, so it has no rewards{failed and ': '}{failed}.")
    if recorded.status == "unscored":
        if recorded.reward is None:
            return Explanation(
                f"There is no reward, because {failed}, which could have changed it. Neither a failed nor an "
                "uncertain verdict counts as a no."
            )
        return Explanation(f"The reward is {short(recorded.reward)} by the request's failure policy, because {failed}.")
    if sample is not None:
        judged = sum(verdict.status != "left_out" for verdict in verdicts)
        return Explanation(
            f"The reward is an unbiased estimate of that of the whole rubric: {judged} of its {len(verdicts)} criteria "
            "were judged, and the others were left out at random for the whole group.",
            matches=found is not None,
        )
    if found is not None:
        rules = found.rules
    soft = rules.reward.use == "probability"
    dropped = found is not None and found.result.outcome.policy_applied == "skip"
    scores = [verdict.score if found is None else verdict.value(rules.reward.use) for verdict in counted]
    told = explain_reward(criteria, scores, rules.reward, format_ok=recorded.format_ok, drop_failed=dropped)
    told = explain_penalties(told, rules.reward, tokens=recorded.tokens, stopped=recorded.stopped)
    if found is None:
        return Explanation(_mismatch(recorded), told.formula, matches=False)
    sentence = told.sentence + (" It is made of probabilities of yes, not of verdicts." if soft else "")
    treated = "left out, as the failure policy says" if dropped else "written as 0, since it cannot change the reward"
    return Explanation(f"{sentence} {failed[0].upper()}{failed[1:]}: {treated}." if failed else sentence, told.formula)


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
    if recorded.rules is None:
        return (
            f"The answered reward is {short(recorded.reward)}, and mode {recorded.mode} with default options gives "
            f"another one. The request used an option that was not recorded: {_UNKNOWN_OPTIONS}."
        )
    return (
        f"The answered reward is {short(recorded.reward)}, and the request's options with the verdicts shown here give "
        "another one. The ledger shows the first verdict on a question; this request was probably rewarded by a later "
        "one that differs."
    )


class _Reproduced(NamedTuple):
    result: RewardResult
    rules: RewardRules


def _reproduced(
    recorded: RecordedReward,
    criteria: Sequence[Criterion],
    verdicts: Sequence[Verdict],
    sample: CriteriaSample | None,
) -> _Reproduced | None:
    """The result by the recorded rules, or by the first guess, that is the recorded reward; None if there is none."""
    facts = ResponseFacts(recorded.format_ok, recorded.tokens, recorded.stopped, sample)
    for rules in _guesses(recorded.mode) if recorded.rules is None else (recorded.rules,):
        try:
            result = reward_of(criteria, verdicts, rules, facts)
        except (ValueError, ServiceError):
            continue
        if result.outcome.status == recorded.status and _equal(result.reward, recorded.reward):
            return _Reproduced(result, rules)
    return None


def _guesses(mode: RewardMode | None) -> Iterator[RewardRules]:
    """Rules by which a request of an older version may have been rewarded."""
    assert mode is not None
    uses: tuple[VerdictUse, ...] = ("verdict",) if mode in NOT_LINEAR else get_args(VerdictUse)
    for use, on_failure, on_uncertain in product(uses, _POLICIES, _POLICIES):
        options = RewardOptions(mode=mode, use=use)
        yield RewardRules(reward=options, on_failure=on_failure, on_uncertain=on_uncertain)


def _equal(one: float | None, other: float | None) -> bool:
    return one is other if one is None or other is None else math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)


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
