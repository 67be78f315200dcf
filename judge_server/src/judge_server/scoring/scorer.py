"""Score a request: resolve the rubrics, plan, judge, reward, answer.

Every request goes one way. `Scorer._plan` makes a `ScoringJob` of it, `Scorer.run` judges the job and yields each
`JudgedGroup` once its verdicts are known, and the answer is made of these: rewards by `_reward_group`, verdicts by
`_group_verdicts`, comparisons by `compared`.

This is where verdicts become a reward: `_reward_response` passes them to `judge_server.scoring.rewards.reward_of`, and
that to `trainer_client.rewards.reward_verdicts`.
"""

import asyncio
import logging
import secrets
from collections import Counter
from collections.abc import AsyncGenerator, AsyncIterator, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any, NamedTuple

from judge_server.errors import JudgingFailed, ServiceError
from judge_server.judging.plan import ResponsePlan
from judge_server.judging.preparation import require_probabilities
from judge_server.judging.questions import PreparedConfig
from judge_server.judging.results import DEFAULT_RULES, Caller, Outcomes, VerdictRules, failures_by_kind
from judge_server.ports import CallFailure, JudgeResult, LedgerReader, RubricSource
from judge_server.scheduling.time_sharing import TimeSlicer, run_inline_or_in_thread
from judge_server.scoring.combined import AnyJudge
from judge_server.scoring.planner import (
    AskedGroups,
    JudgedRequest,
    PlannedGroup,
    PlannedResponse,
    RecordSink,
    flagged_ids,
    keeps_format,
    plan_groups,
    with_saturated_criteria,
)
from judge_server.scoring.ranking import GroupTournament, compared, pair_verdicts, plan_tournaments
from judge_server.scoring.recorded import recorded_result
from judge_server.scoring.rewards import (
    effective_weights,
    ranked,
    reward_of,
    step_rewards,
    with_weights,
)
from judge_server.scoring.rubrics import resolve_rubrics
from judge_server.scoring.verdicts import (
    decoy_failures,
    failure_of,
    is_suspicious,
    judge_of,
    pinned,
    read_verdicts,
    usage_of,
    verdict_of,
)
from trainer_client import wire
from trainer_client.dropout import CriteriaSample
from trainer_client.ranking import PairVerdict, report
from trainer_client.rewards import (
    ResponseFacts,
    Term,
    UnscoredCriteria,
    component_weights,
    read_criteria,
)
from trainer_client.wire.judging import DecoyPolicy
from trainer_client.wire.rewards import RewardRules

log = logging.getLogger("adjudge")

FOLLOW_INTERVAL_S = 0.1
"""How often `Scorer.stream` looks for new verdicts if it is to yield them, in seconds. A longer interval shows them
later; a shorter one looks more often than a person sees."""

_RECALLED_AT_ONCE = 500

RANKED_INLINE = 64
"""A larger group is ranked, or weighed, in a thread."""

Request = wire.RewardRequest | wire.VerdictRequest | wire.ComparisonRequest


@dataclass(frozen=True, slots=True)
class OneRound:
    """All verdicts on a group's responses in one round. `on_decoy` says what becomes of suspicious responses."""

    group: PlannedGroup
    on_decoy: DecoyPolicy

    async def next_round(self, slicer: TimeSlicer) -> list[ResponsePlan]:
        """Return the plan of each response."""
        return [response.plan for response in self.group.responses]

    def end_round(self, outcomes: Outcomes) -> PlannedGroup:
        """Return the group."""
        outcomes.by_digest.update(
            decoy_failures([response.plan for response in self.group.responses], outcomes, self.on_decoy)
        )
        return self.group


GroupRounds = OneRound | GroupTournament
"""What is asked about one group, round by round.

`next_round` returns the plans of the next round; there is at least one. When the outcomes of a round are known,
`end_round` returns the judged group, or None if another round follows.
"""


@dataclass(frozen=True, slots=True)
class ScoringJob:
    """A request in progress: its prepared judge, how it takes verdicts, its groups, and the outcomes so far.

    `rounds` say what is asked about each group, round by round; a group has no verdict before its last round is over.
    `reward_rules` mean nothing to a request for verdicts only.
    """

    request: Request
    request_id: str
    project_id: str
    record_id: bytes | None
    deadline: float
    prepared: PreparedConfig | None
    rules: VerdictRules
    reward_rules: RewardRules
    groups: list[PlannedGroup]
    rounds: Sequence[GroupRounds]
    outcomes: Outcomes = field(default_factory=Outcomes)

    @property
    def caller(self) -> Caller:
        """Who is billed for the judge calls."""
        return Caller.of(self.request)

    @property
    def is_ranking(self) -> bool:
        """Whether the responses of a group are compared with each other for a reward."""
        return isinstance(self.request, wire.RewardRequest) and self.request.reward.mode == "ranking"


class JudgedGroup(NamedTuple):
    """A group whose verdicts are known: its place in the request, its plans, and the verdicts on each response."""

    place: int
    planned: PlannedGroup
    verdicts: Sequence[list[wire.Verdict]]


class JudgedVerdict(NamedTuple):
    """A verdict as soon as it is known: the index of its response in the request, and its own in the plan."""

    response: int
    slot: int
    verdict: wire.Verdict


StreamPart = JudgedVerdict | wire.GroupRewards | wire.RewardSummary


class Scorer:
    """Judges requests with one judge and one source of rubrics, and passes them to the recorder, if there is one.

    A request that reverifies a run takes the verdicts that the ledger knows from there.

    For `record_id`, see `JudgedRequest`. What is refused, is refused before anything is judged.
    """

    def __init__(
        self,
        judge: AnyJudge,
        rubrics: RubricSource,
        recorder: RecordSink | None = None,
        ledger: LedgerReader | None = None,
    ) -> None:
        self.judge = judge
        self.rubrics = rubrics
        self.recorder = recorder
        self.ledger = ledger

    async def score(
        self, request: wire.RewardRequest, *, request_id: str, project_id: str, record_id: bytes | None = None
    ) -> wire.RewardAnswer:
        """Judge and reward every response of the request.

        Raises:
            InvalidRequest, UnknownRubric, RubricRefused: before anything is judged.
            Overloaded: the judge's queue is full.
            NotReady: no judge is available.
            JudgingFailed: a verdict that a reward needs failed and `on_failure` is `error`.
        """
        async with self._planned(request, request_id, project_id, record_id) as job:
            judged, slicer = await self._collect(job), TimeSlicer()
            try:
                groups = tuple([await _reward_group(job, group, slicer) for group in judged])
            except ServiceError:
                self._record_refused(job, {group.place: None for group in judged})
                raise
            usage = self._record(job, groups)
            return wire.RewardAnswer(**_summary_fields(self.judge, job, usage), groups=groups)

    async def verdicts(
        self, request: wire.VerdictRequest, *, request_id: str, project_id: str, record_id: bytes | None = None
    ) -> wire.VerdictAnswer:
        """Judge every response of the request; no rewards are computed. Raises as `score`."""
        async with self._planned(request, request_id, project_id, record_id) as job:
            judged = await self._collect(job)
            usage, slicer = self._record(job), TimeSlicer()
            return wire.VerdictAnswer(
                **_answer_fields(self.judge, job, usage),
                uncertain_band=job.rules.band,
                groups=tuple([await _group_verdicts(job, group, slicer) for group in judged]),
            )

    async def compare(
        self, request: wire.ComparisonRequest, *, request_id: str, project_id: str
    ) -> wire.ComparisonAnswer:
        """Compare every pair of the request, in both orders. Raises as `score`."""
        async with self._planned(request, request_id, project_id) as job:
            judged, slicer, pairs = await self._collect(job), TimeSlicer(), []
            for group in judged:
                await slicer.yield_if_due()
                pairs.append(compared(group.planned.group.id, *group.verdicts))
            scores = [pair.score for pair in pairs if pair.score is not None]
            return wire.ComparisonAnswer(
                **_answer_fields(self.judge, job, usage_of(job.outcomes)),
                win_rate=sum(scores) / len(scores) if scores else None,
                pairs=tuple(pairs),
            )

    async def stream(
        self,
        request: wire.RewardRequest,
        *,
        request_id: str,
        project_id: str,
        record_id: bytes | None = None,
        each_verdict: bool = False,
    ) -> AsyncGenerator[StreamPart, None]:
        """Like `score`, but yield each group as soon as it is done, then the summary. Closing cancels the rest.

        With `each_verdict`, also yield each verdict within `FOLLOW_INTERVAL_S` of being known, before its group, except
        for the comparisons of a ranking.
        """
        async with self._planned(request, request_id, project_id, record_id) as job:
            slicer = TimeSlicer()
            news = _NewVerdicts(job) if each_verdict and not job.is_ranking else None
            rewarded: dict[int, wire.GroupRewards | None] = {}
            try:
                async with aclosing(self.run(job, None if news is None else FOLLOW_INTERVAL_S)) as judging:
                    async for judged in judging:
                        for verdict in news.take(None if judged is None else judged.place) if news is not None else ():
                            await slicer.yield_if_due()  # a page shows each verdict, and one request may have 200,000
                            yield verdict
                        if judged is not None:
                            rewarded[judged.place] = None
                            rewarded[judged.place] = group = await _reward_group(job, judged, slicer)
                            yield group
            except Exception:
                self._record_refused(job, rewarded)
                raise
            usage = self._record(job, [rewarded[place] for place in range(len(job.groups))])
            yield wire.RewardSummary(**_summary_fields(self.judge, job, usage))

    @asynccontextmanager
    async def _planned(
        self, request: Request, request_id: str, project_id: str, record_id: bytes | None = None
    ) -> AsyncIterator[ScoringJob]:
        """Plan a request, and keep the judge's weights as they are until it is answered.

        Raises:
            NotReady: other weights are still being loaded at the deadline, or which ones the judge has is unknown.
        """
        deadline = asyncio.get_running_loop().time() + request.deadline_s
        async with self.judge.executor.one_version(deadline):
            yield await self._plan(request, request_id, project_id, deadline, record_id)

    async def run(self, job: ScoringJob, tick_s: float | None = None) -> AsyncGenerator[JudgedGroup | None, None]:
        """Judge a job round by round, and yield each group when all of its verdicts are known.

        A round of all groups is submitted at once, so the queue admits or refuses it as a whole. What the deadline cuts
        off fails, unless not even the first round was planned: then `NotReady` is raised. With `tick_s`, also yield
        None when that many seconds have passed without a complete response. Closing cancels the rest.
        """
        left, planning, slicer = dict(enumerate(job.rounds)), TimeSlicer(job.deadline), TimeSlicer()
        while left:
            plans: list[ResponsePlan] = []
            places: list[int] = []
            for place, rounds in left.items():
                of_group = await rounds.next_round(planning)
                plans += of_group
                places += [place] * len(of_group)
            planning, waiting = slicer, Counter(places)
            if job.request.reverifies is not None and self.ledger is not None:
                await self._recall(self.ledger, job, plans)
            judging = self.judge.judge(plans, job.deadline, caller=job.caller, tick_s=tick_s)
            async with aclosing(judging):
                async for judged in judging:
                    job.outcomes.add(judged.outcomes)
                    for place in [places[index] for index in judged.complete]:
                        waiting[place] -= 1
                        group = None if waiting[place] else left[place].end_round(job.outcomes)
                        if group is not None:
                            del left[place]
                            job.groups[place] = group
                            yield JudgedGroup(place, group, await _verdicts_on(job, group, slicer))
                    if not judged.complete:
                        yield None

    async def _recall(self, ledger: LedgerReader, job: ScoringJob, plans: Sequence[ResponsePlan]) -> None:
        """Put the verdicts that the ledger has of planned calls into the judge's cache, where they are looked up.

        Verdicts that are made of others, such as those of a cascade, are asked again unless these are in the cache.
        """
        digests = list({digest for plan in plans for digest in plan.digests})
        try:
            for start in range(0, len(digests), _RECALLED_AT_ONCE):
                known = await ledger.verdicts(job.project_id, digests[start : start + _RECALLED_AT_ONCE])
                await self.judge.cache.put_many({digest: recorded_result(row) for digest, row in known.items()})
        except ConnectionError as error:
            log.warning("the ledger cannot be read, so verdicts that it may have are asked again: %s", error)

    async def _collect(self, job: ScoringJob) -> list[JudgedGroup]:
        """Judge all groups of a job; return them in order."""
        async with aclosing(self.run(job)) as judging:
            return sorted([group async for group in judging if group is not None])

    async def _plan(
        self, request: Request, request_id: str, project_id: str, deadline: float, record_id: bytes | None
    ) -> ScoringJob:
        asked = AskedGroups.of(request)
        rewarded = request if isinstance(request, wire.RewardRequest) else None
        options = None if rewarded is None else rewarded.reward
        rubrics = await resolve_rubrics(self.rubrics, request, project_id, deadline)
        prepared = None if asked.protocol is None else self.judge.prepared_for(asked.judging, asked.protocol)
        if rewarded is not None:
            request = rewarded = await with_saturated_criteria(rewarded, project_id, self.ledger)
        rules = DEFAULT_RULES
        if not isinstance(request, wire.ComparisonRequest):
            for one in tuple(self.judge.members.values()) or (self.judge,):
                if options is not None and options.use == "probability":
                    require_probabilities(one.identity, "reward.use")
                if request.uncertain_band is not None:
                    require_probabilities(one.identity, "uncertain_band")
            rules = VerdictRules.of(request, prepared)
        rounds: Sequence[GroupRounds]
        if asked.protocol == "comparison":
            assert prepared is not None
            assert not isinstance(request, wire.VerdictRequest)
            rounds = await plan_tournaments(self.judge, prepared, request, asked, rubrics, deadline)
        else:
            planned_by = prepared
            if isinstance(request, wire.VerdictRequest) and request.fresh and prepared is not None:
                # a repetition under an idempotency key has the same digests, so it finds the verdicts of the first
                planned_by = _with_new_digests(prepared, (record_id or secrets.token_bytes(16)).hex())
            groups = await plan_groups(self.judge, planned_by, asked, rubrics, deadline, rewarded)
            rounds = [OneRound(group, asked.judging.on_decoy) for group in groups]
        return ScoringJob(
            request,
            request_id,
            project_id,
            record_id,
            deadline,
            prepared,
            rules,
            RewardRules() if rewarded is None else RewardRules.of(rewarded, rules.band),
            [one.group for one in rounds],
            rounds,
        )

    def _record_refused(self, job: ScoringJob, judged: Mapping[int, wire.GroupRewards | None]) -> None:
        """Record the judged groups of a request that fails, by place, with the rewards of those that were answered.

        The record has an id of its own, because a repetition under the same key may be answered, and is then recorded.
        """
        places = sorted(judged)
        if places:
            groups = [judged[place] for place in places]
            part = replace(job, record_id=None, groups=[job.groups[place] for place in places])
            self._record(part, () if all(group is None for group in groups) else groups)

    def _record(self, job: ScoringJob, groups: Sequence[wire.GroupRewards | None] = ()) -> wire.Usage:
        """Count and record what was judged; return what it cost. `groups` has None for a group without rewards."""
        request, rewarded = job.request, list[wire.ResponseReward | None]()
        for planned, group in zip(job.groups, groups, strict=False):
            rewarded += [None] * len(planned.responses) if group is None else group.responses
        assert not isinstance(request, wire.ComparisonRequest)
        usage = usage_of(job.outcomes, job.groups, job.rules, checklist=request.protocol == "checklist")
        wants_rewards = isinstance(request, wire.RewardRequest)
        if wants_rewards:
            numbers = [one.reward for one in rewarded if one is not None and one.reward is not None]
            self.judge.metrics.observe_rewards(job.caller, numbers)
        self.judge.metrics.count_uncertain(usage.uncertain)
        if self.recorder is not None:
            self.recorder.record(
                JudgedRequest(
                    job.project_id,
                    request,
                    job.request_id,
                    job.prepared,
                    job.groups,
                    job.outcomes,
                    rewards=[(None, None) if one is None else (one.reward, one.status) for one in rewarded],
                    declared_rewards=[None if one is None else one.declared_reward for one in rewarded],
                    seconds=asyncio.get_running_loop().time() - (job.deadline - request.deadline_s),
                    at=datetime.now(UTC),
                    record_id=job.record_id,
                    rules=job.rules,
                    reward_rules=job.reward_rules if wants_rewards else None,
                )
            )
        return usage


def _with_new_digests(prepared: PreparedConfig, salt: str) -> PreparedConfig:
    """Return a configuration whose calls are in no cache, and which no other request has in flight."""
    members = tuple([_with_new_digests(member, salt) for member in prepared.members])
    return replace(prepared, fingerprint=f"{prepared.fingerprint} {salt}", members=members)


async def _verdicts_on(job: ScoringJob, group: PlannedGroup, slicer: TimeSlicer) -> list[list[wire.Verdict]]:
    verdicts = []
    for response in group.responses:
        await slicer.yield_if_due()
        verdicts.append(read_verdicts(response.plan, job.outcomes, job.rules))
    return verdicts


async def _group_verdicts(job: ScoringJob, judged: JudgedGroup, slicer: TimeSlicer) -> wire.GroupVerdicts:
    group, responses = judged.planned, []
    for response, verdicts in zip(group.responses, judged.verdicts, strict=True):
        await slicer.yield_if_due()
        responses.append(
            wire.ResponseVerdicts(
                verdicts=tuple(verdicts),
                characters_omitted=response.plan.characters_omitted,
                characters_hidden=response.material.characters_left_out,
                suspicious=is_suspicious(response.plan, job.outcomes),
            )
        )
    return wire.GroupVerdicts(
        id=group.group.id,
        rubric=group.rubric.digest,
        grounding_characters_omitted=group.grounding_omitted,
        responses=tuple(responses),
    )


class _NewVerdicts:
    """The verdicts of a request that have not been taken yet."""

    def __init__(self, job: ScoringJob) -> None:
        self._job = job
        planned = [(place, one.plan) for place, group in enumerate(job.groups) for one in group.responses]
        self._left = [
            (place, index, slot, pending)
            for index, (place, plan) in enumerate(planned)
            for slot, pending in enumerate(plan.pending)
        ]

    def take(self, complete: int | None) -> list[JudgedVerdict]:
        """Take those that are known now. A failure may still be retried, unless its group is `complete`."""
        job, taken, left = self._job, [], []
        for one in self._left:
            place, index, slot, pending = one
            outcomes = [job.outcomes.by_digest.get(digest) for digest in pending.digests]
            if place == complete or all(isinstance(outcome, JudgeResult) for outcome in outcomes):
                taken.append(JudgedVerdict(index, slot, verdict_of(pending, job.outcomes, job.rules)))
            else:
                left.append(one)
        self._left = left
        return taken


def _answer_fields(judge: AnyJudge, job: ScoringJob, usage: wire.Usage) -> dict[str, Any]:
    """Return the fields that the answers to all requests have."""
    return {
        "request_id": job.request_id,
        "run": job.request.run,
        "step": job.request.step,
        "judge": judge_of(judge, job.prepared, job.outcomes),
        "rubrics": pinned([group.rubric for group in job.groups]),
        "usage": usage,
    }


def _summary_fields(judge: AnyJudge, job: ScoringJob, usage: wire.Usage) -> dict[str, Any]:
    """Return the fields of an answer with rewards, other than its groups."""
    rules, fields = job.reward_rules, _answer_fields(judge, job, usage)
    if job.rules.band is not None:
        fields |= {"uncertain_band": job.rules.band, "on_uncertain": rules.on_uncertain}
    return fields | {"mode": rules.reward.mode, "on_failure": rules.on_failure}


async def _reward_group(job: ScoringJob, judged: JudgedGroup, slicer: TimeSlicer) -> wire.GroupRewards:
    """Return the rewards of a group's responses."""
    group, extra, options = judged.planned, dict[str, Any](), job.reward_rules.reward
    terms, weights = read_criteria(group.rubric.criteria), dict[str, float]()
    try:
        if job.is_ranking:
            pairs = pair_verdicts(judged.verdicts, options.use)
            extra["ranking"] = report(options.schedule, pairs)
            responses = await _rank_responses(job, judged, pairs)
        else:
            responses = []
            if options.weighting == "contrast":
                large = len(judged.verdicts) > RANKED_INLINE
                weights = await run_inline_or_in_thread(large, effective_weights, terms, judged.verdicts, options)
            for planned, verdicts in zip(group.responses, judged.verdicts, strict=True):
                await slicer.yield_if_due()
                responses.append(_reward_response(job, group.sample, terms, weights, planned, verdicts))
    except UnscoredCriteria as error:
        raise _judging_failed(job.outcomes, error) from None
    if options.components is not None:
        extra["component_weights"] = component_weights(with_weights(terms, weights), options)
    if group.sample is not None:
        sample, criteria = group.sample, group.rubric.criteria
        extra |= {"left_out": flagged_ids(criteria, sample.left_out), "inclusion": sample.inclusion}
        if sample.share is not None:
            extra["saturated"] = flagged_ids(criteria, sample.droppable)
    return wire.GroupRewards(
        id=group.group.id,
        rubric=group.rubric.digest,
        grounding_characters_omitted=group.grounding_omitted,
        criterion_weights=weights,
        responses=tuple(responses),
        **extra,
    )


async def _rank_responses(
    job: ScoringJob, judged: JudgedGroup, pairs: Sequence[PairVerdict]
) -> list[wire.ResponseReward]:
    """Return the rewards of responses by how they fared against each other."""
    planned = judged.planned.responses
    facts = [ResponseFacts(tokens=one.response.tokens, stopped=one.response.stopped) for one in planned]
    results = await run_inline_or_in_thread(len(facts) > RANKED_INLINE, ranked, pairs, facts, job.reward_rules)
    return [
        wire.ResponseReward(
            **result.fields(), characters_hidden=one.material.characters_left_out, verdicts=tuple(verdicts)
        )
        for one, verdicts, result in zip(planned, judged.verdicts, results, strict=True)
    ]


def _reward_response(
    job: ScoringJob,
    sample: CriteriaSample | None,
    terms: Sequence[Term],
    weights: Mapping[str, float],
    planned: PlannedResponse,
    verdicts: Sequence[wire.Verdict],
) -> wire.ResponseReward:
    options, response = job.reward_rules.reward, planned.response
    facts = ResponseFacts(
        keeps_format(planned.material, job.prepared) if options.mode == "stepwise" else None,
        response.tokens,
        response.stopped,
        sample,
    )
    result = reward_of(terms, verdicts, job.reward_rules, facts, weights)
    stepwise = job.prepared is not None and job.prepared.config.protocol == "stepwise"
    return wire.ResponseReward(
        **result.fields(),
        characters_omitted=planned.plan.characters_omitted,
        characters_hidden=planned.material.characters_left_out,
        suspicious=is_suspicious(planned.plan, job.outcomes),
        verdicts=tuple(verdicts),
        steps=step_rewards(terms, verdicts, options.use, planned.spans, sample=sample) if stepwise else (),
    )


def _judging_failed(outcomes: Outcomes, error: UnscoredCriteria) -> JudgingFailed:
    if error.uncertain:
        return JudgingFailed(f"on_uncertain is 'error': {error}.")
    failures = [outcome for outcome in outcomes.by_digest.values() if isinstance(outcome, CallFailure)]
    kinds = failures_by_kind(failures)
    ordered = sorted(kinds, key=lambda kind: (-kinds[kind], kind))  # in whatever order the outcomes arrived
    counts = ", ".join(f"{kinds[kind]} {kind}" for kind in ordered)
    example = min([failure_of(one).detail for one in failures if one.kind == ordered[0]], default=error)
    return JudgingFailed(
        f"{kinds.total()} of {len(outcomes.by_digest)} verdicts failed ({counts}) and on_failure is 'error'. "
        f"For example: {example}"
    )
