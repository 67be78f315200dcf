"""Score a request: resolve the rubrics, plan, judge, reward, answer.

This is where verdicts become a reward: `_reward_response` passes them to `reward_of`, and that to
`trainer_client.rewards.reward_verdicts`. `reward_of` and `step_rewards` need no plan, request or database, so that
recomputing from the ledger gives the same numbers.
"""

import asyncio
import math
import secrets
from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from functools import partial
from typing import Any, NamedTuple

from judge_server.errors import InvalidRequest, JudgingFailed
from judge_server.judging.plan import ResponsePlan
from judge_server.judging.questions import PreparedConfig
from judge_server.judging.results import Caller, Outcomes, VerdictRules, failures_by_kind
from judge_server.ports import CallFailure, JudgeResult, RubricSource
from judge_server.rubrics import resolve_rubrics
from judge_server.scoring.judge import AnyJudge
from judge_server.scoring.planner import (
    JudgedRequest,
    PlannedGroup,
    PlannedResponse,
    RecordSink,
    keeps_format,
    left_out_ids,
    plan_groups,
)
from judge_server.scoring.ranking import GroupTournament, pair_verdicts, plan_tournaments, play
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
from judge_server.time_sharing import TimeSlicer, run_inline_or_in_thread
from trainer_client import wire
from trainer_client.dropout import CriteriaSample
from trainer_client.penalties import penalise
from trainer_client.ranking import rank, report
from trainer_client.rewards import (
    ResponseFacts,
    RewardOutcome,
    Term,
    UnscoredCriteria,
    check_rubric,
    read_criteria,
    reward_verdicts,
)
from trainer_client.steps import NO_STEP, step_deltas
from trainer_client.wire.ledger import RewardRules, StepBudgets

DEFAULT_BUDGETS = StepBudgets()


FOLLOW_INTERVAL_S = 0.1
"""How often `Scorer.follow` looks for new verdicts, in seconds."""

RANKED_INLINE = 64
"""A larger group is ranked in a thread."""


class JudgedVerdict(NamedTuple):
    """A verdict as soon as it is known: the index of its response in the request, and its own in the plan."""

    response: int
    slot: int
    verdict: wire.Verdict


StreamPart = JudgedVerdict | wire.GroupRewards | wire.RewardSummary


@dataclass(frozen=True, slots=True)
class ScoringJob:
    """A request in progress: its prepared judge, how it takes verdicts, its plans, and the outcomes so far.

    In the mode `ranking`, each group has a tournament, and its plans have no verdicts before that is over.
    `reward_rules` mean nothing to a request for verdicts only.
    """

    request: wire.RewardRequest | wire.VerdictRequest
    request_id: str
    project_id: str
    deadline: float
    prepared: PreparedConfig | None
    rules: VerdictRules
    reward_rules: RewardRules
    groups: list[PlannedGroup]
    tournaments: Sequence[GroupTournament] = ()
    record_id: bytes | None = None
    outcomes: Outcomes = field(default_factory=Outcomes)

    @property
    def caller(self) -> Caller:
        """Who is billed for the judge calls."""
        return Caller.of(self.request)

    @property
    def plans(self) -> list[ResponsePlan]:
        """The plans of all responses, group by group."""
        return [response.plan for group in self.groups for response in group.responses]


class Scorer:
    """Judges requests with one judge and one source of rubrics, and passes them to the recorder, if there is one.

    Every request goes the same way: resolve its rubrics and plan (`_plan_job`), judge (`_judged`), reward each group
    unless only verdicts are wanted, record (`_record`), answer. For `record_id`, see `JudgedRequest`.
    """

    def __init__(self, judge: AnyJudge, rubrics: RubricSource, recorder: RecordSink | None = None) -> None:
        self.judge = judge
        self.rubrics = rubrics
        self.recorder = recorder

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
        job = await self._plan_job(request, request_id, project_id, record_id)
        await self._judge(job)
        groups: tuple[wire.GroupRewards, ...] = ()
        try:
            slicer = TimeSlicer()
            groups = tuple([await _reward_group(job, group, slicer) for group in job.groups])
        finally:
            usage = self._record(job, groups)
        return wire.RewardAnswer(**_answer_fields(self.judge, job, usage), groups=groups)

    async def verdicts(
        self, request: wire.VerdictRequest, *, request_id: str, project_id: str, record_id: bytes | None = None
    ) -> wire.VerdictAnswer:
        """Judge every response of the request; no rewards are computed.

        Raises:
            InvalidRequest, UnknownRubric: before anything is judged.
            Overloaded: the judge's queue is full.
            NotReady: no judge is available.
        """
        job = await self._plan_job(request, request_id, project_id, record_id)
        await self._judge(job)
        usage, slicer = self._record(job), TimeSlicer()
        return wire.VerdictAnswer(
            request_id=request_id,
            run=request.run,
            step=request.step,
            judge=judge_of(self.judge, job.prepared, job.outcomes),
            rubrics=pinned([group.rubric for group in job.groups]),
            uncertain_band=job.rules.band,
            usage=usage,
            groups=tuple([await _group_verdicts(job, group, slicer) for group in job.groups]),
        )

    async def stream(
        self, request: wire.RewardRequest, *, request_id: str, project_id: str, record_id: bytes | None = None
    ) -> AsyncGenerator[wire.GroupRewards | wire.RewardSummary, None]:
        """Like `score`, but yield each group as soon as it is done, then the summary. Closing cancels the rest."""
        async with aclosing(self._parts(request, request_id, project_id, record_id)) as parts:
            async for part in parts:
                if not isinstance(part, JudgedVerdict):
                    yield part

    async def follow(
        self, request: wire.RewardRequest, *, request_id: str, project_id: str, record_id: bytes | None = None
    ) -> AsyncGenerator[StreamPart, None]:
        """Like `stream`, but also yield each verdict within `FOLLOW_INTERVAL_S` of being known, before its group.

        Comparisons of a ranking are not among them.
        """
        async with aclosing(self._parts(request, request_id, project_id, record_id, FOLLOW_INTERVAL_S)) as parts:
            async for part in parts:
                yield part

    async def _parts(
        self,
        request: wire.RewardRequest,
        request_id: str,
        project_id: str,
        record_id: bytes | None,
        follow_interval_s: float | None = None,
    ) -> AsyncGenerator[StreamPart, None]:
        job, slicer = await self._plan_job(request, request_id, project_id, record_id), TimeSlicer()
        news = _NewVerdicts(job) if follow_interval_s is not None and not job.tournaments else None
        rewarded: dict[int, wire.GroupRewards] = {}
        async with aclosing(self._judged(job, follow_interval_s)) as judged:
            async for place in judged:
                for verdict in news.take(place) if news is not None else ():
                    yield verdict
                if place is not None:
                    rewarded[place] = await _reward_group(job, job.groups[place], slicer)
                    yield rewarded[place]
        usage = self._record(job, [rewarded[place] for place in range(len(job.groups))])
        yield wire.RewardSummary(**_answer_fields(self.judge, job, usage))

    async def _judge(self, job: ScoringJob) -> None:
        """Judge all groups of a job."""
        async with aclosing(self._judged(job)) as judged:
            async for _ in judged:
                pass

    async def _judged(self, job: ScoringJob, tick_s: float | None = None) -> AsyncGenerator[int | None, None]:
        """Judge a job, and yield the place of each group when all of its verdicts are known.

        With `tick_s`, also yield None when that many seconds have passed without one.
        """
        if job.tournaments:
            async with aclosing(play(self.judge, job.tournaments, job.deadline, job.caller)) as playing:
                async for played in playing:
                    job.outcomes.add(played.outcomes)
                    for place, group in played.groups.items():
                        job.groups[place] = group
                        yield place
            return
        group_of = [place for place, group in enumerate(job.groups) for _ in group.responses]
        waiting = [len(group.responses) for group in job.groups]
        judging = self.judge.judge(job.plans, job.deadline, caller=job.caller, tick_s=tick_s)
        async with aclosing(judging):
            async for judged in judging:
                job.outcomes.add(judged.outcomes)
                for place in [group_of[index] for index in judged.complete]:
                    waiting[place] -= 1
                    if not waiting[place]:
                        plans = [response.plan for response in job.groups[place].responses]
                        rejected = decoy_failures(plans, job.outcomes, job.request.judging.on_decoy)
                        job.outcomes.by_digest.update(rejected)
                        yield place
                if not judged.complete:
                    yield None

    async def _plan_job(
        self,
        request: wire.RewardRequest | wire.VerdictRequest,
        request_id: str,
        project_id: str,
        record_id: bytes | None,
    ) -> ScoringJob:
        deadline = asyncio.get_running_loop().time() + request.deadline_s
        rewarded = request if isinstance(request, wire.RewardRequest) else None
        options = None if rewarded is None else rewarded.reward
        rubrics = await resolve_rubrics(
            self.rubrics,
            [group.rubric for group in request.groups],
            request.rubric,
            project_id,
            deadline=deadline,
            rubric_check=None if options is None else partial(check_rubric, mode=options.mode, kinds=options.kinds),
            allow_retired=request.allow_retired,
        )
        prepared = self.judge.prepared_for(request.judging, request.protocol) if request.protocol is not None else None
        if options is not None and options.use == "probability":
            self.judge.require_probabilities("reward.use")
        if request.uncertain_band is not None:
            self.judge.require_probabilities("uncertain_band")
        tournaments: Sequence[GroupTournament] = ()
        if rewarded is not None and rewarded.reward.mode == "ranking":
            assert prepared is not None
            tournaments = await plan_tournaments(self.judge, prepared, rewarded, rubrics, deadline)
            groups = [tournament.group for tournament in tournaments]
        else:
            asked = prepared
            if isinstance(request, wire.VerdictRequest) and request.fresh and prepared is not None:
                asked = _with_new_digests(prepared, secrets.token_hex(16))
            groups = await plan_groups(self.judge, asked, request.groups, rubrics, request.judging, deadline, rewarded)
        rules = VerdictRules.of(request, prepared)
        reward_rules = RewardRules() if rewarded is None else RewardRules.of(rewarded, rules.band)
        return ScoringJob(
            request,
            request_id,
            project_id,
            deadline,
            prepared,
            rules,
            reward_rules,
            groups,
            tournaments,
            record_id,
        )

    def _record(self, job: ScoringJob, groups: Sequence[wire.GroupRewards] = ()) -> wire.Usage:
        """Count and record what was judged; return what it cost."""
        usage = usage_of(job.outcomes, job.groups, job.rules, checklist=job.request.protocol == "checklist")
        rewarded = [response for group in groups for response in group.responses]
        request, wants_rewards = job.request, isinstance(job.request, wire.RewardRequest)
        if wants_rewards:
            numbers = [response.reward for response in rewarded if response.reward is not None]
            self.judge.metrics.observe_rewards(job.caller, numbers)
        self.judge.metrics.count_uncertain(usage.uncertain)
        if self.recorder is not None:
            self.recorder.record(
                JudgedRequest(
                    job.project_id,
                    request.run,
                    request.step,
                    job.request_id,
                    job.reward_rules.reward.mode if wants_rewards else None,
                    job.prepared,
                    self.judge.identity.model,
                    request.judging.votes,
                    job.groups,
                    job.outcomes,
                    rewards=[(response.reward, response.status) for response in rewarded],
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


async def _group_verdicts(job: ScoringJob, group: PlannedGroup, slicer: TimeSlicer) -> wire.GroupVerdicts:
    responses = []
    for response in group.responses:
        await slicer.yield_if_due()
        responses.append(
            wire.ResponseVerdicts(
                verdicts=tuple(read_verdicts(response.plan, job.outcomes, job.rules)),
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
        self._left = {
            (place, n): pending for place, plan in enumerate(job.plans) for n, pending in enumerate(plan.pending)
        }
        self._group_of = [place for place, group in enumerate(job.groups) for _ in group.responses]

    def take(self, complete: int | None) -> list[JudgedVerdict]:
        """Take those that are known now. A failure may still be retried, unless its group is `complete`."""
        job, taken = self._job, []
        for (place, n), pending in list(self._left.items()):
            outcomes = [job.outcomes.by_digest.get(digest) for digest in pending.digests]
            if self._group_of[place] == complete or all(isinstance(outcome, JudgeResult) for outcome in outcomes):
                del self._left[place, n]
                taken.append(JudgedVerdict(place, n, verdict_of(pending, job.outcomes, job.rules)))
        return taken


def _answer_fields(judge: AnyJudge, job: ScoringJob, usage: wire.Usage) -> dict[str, Any]:
    """Return the fields of an answer other than its groups."""
    return {
        "request_id": job.request_id,
        "run": job.request.run,
        "step": job.request.step,
        "mode": job.reward_rules.reward.mode,
        "on_failure": job.reward_rules.on_failure,
        "judge": judge_of(judge, job.prepared, job.outcomes),
        "rubrics": pinned([group.rubric for group in job.groups]),
        "usage": usage,
        **({} if job.rules.band is None else _abstention(job)),
    }


def _abstention(job: ScoringJob) -> dict[str, Any]:
    return {"uncertain_band": job.rules.band, "on_uncertain": job.reward_rules.on_uncertain}


async def _reward_group(job: ScoringJob, group: PlannedGroup, slicer: TimeSlicer) -> wire.GroupRewards:
    if job.tournaments:
        return await _rank_group(job, group, slicer)
    responses, terms = [], read_criteria(group.rubric.criteria)
    try:
        for response in group.responses:
            await slicer.yield_if_due()
            responses.append(_reward_response(job, group, terms, response))
    except UnscoredCriteria as error:
        raise _judging_failed(job.outcomes, error) from None
    return wire.GroupRewards(
        id=group.group.id,
        rubric=group.rubric.digest,
        grounding_characters_omitted=group.grounding_omitted,
        **({} if group.sample is None else _dropout(group, group.sample)),
        responses=tuple(responses),
    )


async def _rank_group(job: ScoringJob, group: PlannedGroup, slicer: TimeSlicer) -> wire.GroupRewards:
    """Return the rewards of a group's responses by how they fared against each other."""
    rules, verdicts = job.reward_rules, list[list[wire.Verdict]]()
    for response in group.responses:
        await slicer.yield_if_due()
        verdicts.append(read_verdicts(response.plan, job.outcomes, job.rules))
    pairs, large = pair_verdicts(verdicts, rules.reward.use), len(verdicts) > RANKED_INLINE
    try:
        outcomes = await run_inline_or_in_thread(large, rank, len(verdicts), pairs, rules.on_failure)
    except UnscoredCriteria as error:
        raise _judging_failed(job.outcomes, error) from None
    responses = []
    for response, own, outcome in zip(group.responses, verdicts, outcomes, strict=True):
        result = penalised(
            outcome, rules.reward, ResponseFacts(tokens=response.response.tokens, stopped=response.response.stopped)
        )
        responses.append(
            wire.ResponseReward(
                reward=result.reward,
                unpenalised=result.unpenalised,
                status=outcome.status,
                policy_applied=outcome.policy_applied,
                dropped=outcome.dropped,
                characters_hidden=response.material.characters_left_out,
                verdicts=tuple(own),
            )
        )
    return wire.GroupRewards(
        id=group.group.id,
        rubric=group.rubric.digest,
        grounding_characters_omitted=group.grounding_omitted,
        ranking=report(rules.reward.schedule, pairs),
        responses=tuple(responses),
    )


def _dropout(group: PlannedGroup, sample: CriteriaSample) -> dict[str, Any]:
    return {"left_out": left_out_ids(group.rubric.criteria, sample), "inclusion": sample.inclusion}


def _reward_response(
    job: ScoringJob, group: PlannedGroup, terms: Sequence[Term], planned: PlannedResponse
) -> wire.ResponseReward:
    options = job.reward_rules.reward
    verdicts = read_verdicts(planned.plan, job.outcomes, job.rules)
    response = planned.response
    facts = ResponseFacts(
        keeps_format(planned.material, job.prepared) if options.mode == "stepwise" else None,
        response.tokens,
        response.stopped,
        group.sample,
    )
    reward, unpenalised, outcome = reward_of(terms, verdicts, job.reward_rules, facts)
    stepwise = job.prepared is not None and job.prepared.config.protocol == "stepwise"
    return wire.ResponseReward(
        reward=reward,
        unpenalised=unpenalised,
        status=outcome.status,
        policy_applied=outcome.policy_applied,
        dropped=outcome.dropped,
        characters_omitted=planned.plan.characters_omitted,
        characters_hidden=planned.material.characters_left_out,
        suspicious=is_suspicious(planned.plan, job.outcomes),
        verdicts=tuple(verdicts),
        steps=step_rewards(terms, verdicts, options.use, planned.spans, sample=group.sample) if stepwise else (),
    )


def _judging_failed(outcomes: Outcomes, error: UnscoredCriteria) -> JudgingFailed:
    if error.uncertain:
        return JudgingFailed(f"on_uncertain is 'error': {error}.")
    kinds = failures_by_kind(outcomes.by_digest.values())
    counts = ", ".join(f"{n} {kind}" for kind, n in kinds.most_common())
    example = next((failure_of(o).detail for o in outcomes.by_digest.values() if isinstance(o, CallFailure)), error)
    return JudgingFailed(
        f"{kinds.total()} of {len(outcomes.by_digest)} verdicts failed ({counts}) and on_failure is 'error'. "
        f"For example: {example}"
    )


class RewardResult(NamedTuple):
    """A response's reward, the reward before penalties (None if there were none), and the formula's outcome."""

    reward: float | None
    unpenalised: float | None
    outcome: RewardOutcome


def reward_of(
    criteria: Sequence[wire.Criterion | Term],
    verdicts: Sequence[wire.Verdict],
    rules: RewardRules,
    facts: ResponseFacts,
) -> RewardResult:
    """Return the reward of one response. Arguments and errors are those of `reward_verdicts` and `penalise`.

    Raises:
        InvalidRequest: the numbers in the request give a reward that is not finite.
    """
    try:
        outcome = reward_verdicts(criteria, verdicts, rules, facts)
    except ArithmeticError as error:
        raise _not_finite(str(error)) from error
    return penalised(outcome, rules.reward, facts)


def penalised(outcome: RewardOutcome, options: wire.RewardOptions, facts: ResponseFacts) -> RewardResult:
    """Return the reward of one response with the request's penalties; raises as `reward_of`."""
    if not options.has_penalties or outcome.policy_applied in wire.ZERO_POLICIES:  # a failure stays at 0
        result = RewardResult(outcome.reward, None, outcome)
    else:
        _require_finite(outcome.reward, outcome)
        try:
            reward = penalise(outcome.reward, options, tokens=facts.tokens, stopped=facts.stopped)
        except ArithmeticError as error:
            raise _not_finite(str(error)) from error
        result = RewardResult(reward, outcome.reward, outcome)
    _require_finite(result.reward, outcome)
    return result


def _require_finite(reward: float | None, outcome: RewardOutcome) -> None:
    """Refuse a scored response without a finite reward: a trainer would take it for a failure, or train on it."""
    if reward is None and outcome.status == "unscored":
        return
    if reward is None or not math.isfinite(reward):
        raise _not_finite("nothing" if reward is None else f"{reward:g}")


def _not_finite(why: str) -> InvalidRequest:
    message = (
        f"the reward of a scored response is not a finite number ({why}); use weights, penalties and lengths that are "
        "neither huge nor close to 0"
    )
    return InvalidRequest(f"reward: {message}", errors=(wire.FieldError(field="reward", message=message),))


def step_rewards(
    criteria: Sequence[wire.Criterion | Term],
    verdicts: Sequence[wire.Verdict],
    use: wire.VerdictUse,
    spans: Sequence[tuple[int, int, int]],
    budgets: StepBudgets = DEFAULT_BUDGETS,
    *,
    sample: CriteriaSample | None = None,
) -> tuple[wire.StepReward, ...]:
    """Return the reward of each step.

    Args:
        criteria: the M criteria.
        verdicts: the M verdicts.
        use: which number of a verdict counts.
        spans: (number, start, end) of the whole response, as step 0, and of each step.
        budgets: the total that all criteria of one kind together add or subtract.
        sample: which criteria rubric dropout left out.
    """
    named = [NO_STEP if verdict.step is None else verdict.step for verdict in verdicts]
    highest = max([number for number, _, _ in spans], default=0)
    deltas = step_deltas(
        criteria,
        [verdict.value(use) for verdict in verdicts],
        named,
        highest,
        suggest=budgets.suggest,
        pitfall=budgets.pitfall,
        bonus=budgets.bonus,
        soft=use == "probability",
        inclusions=None if sample is None else sample.inclusions(),
    )
    for delta in deltas.values():
        if delta is not None and not math.isfinite(delta):
            raise _not_finite(f"the delta of a step is {delta:g}")
    return tuple([wire.StepReward(number=n, start=start, end=end, delta=deltas.get(n)) for n, start, end in spans])
