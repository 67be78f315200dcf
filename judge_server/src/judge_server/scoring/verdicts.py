"""Turn outcomes into the verdicts of an answer."""

from collections.abc import Iterable, Sequence

from judge_server.errors import replace_lone_surrogates
from judge_server.judging.calibration import NEUTRAL
from judge_server.judging.plan import PendingVerdict, ResponsePlan
from judge_server.judging.prompts import points
from judge_server.judging.questions import PreparedConfig
from judge_server.judging.replies import combine_votes
from judge_server.judging.results import (
    DEFAULT_RULES,
    NO_MEMBER_COSTS,
    CallOutcome,
    MemberCosts,
    Outcomes,
    VerdictRules,
)
from judge_server.ports import CallFailure, JudgeResult
from judge_server.scoring.combined import AnyJudge
from judge_server.scoring.planner import PlannedGroup
from judge_server.scoring.rubrics import ResolvedRubric
from trainer_client import wire
from trainer_client.wire.base import construct
from trainer_client.wire.judging import DecoyPolicy


def read_verdicts(plan: ResponsePlan, outcomes: Outcomes, rules: VerdictRules = DEFAULT_RULES) -> list[wire.Verdict]:
    """Return the verdicts of a plan, in order."""
    return [verdict_of(pending, outcomes, rules) for pending in plan.pending]


def is_suspicious(plan: ResponsePlan, outcomes: Outcomes) -> bool | None:
    """Return whether the judge said that the response meets a decoy criterion; None without an answer to that."""
    outcome = None if plan.decoy is None else outcomes.by_digest[plan.decoy.digests[0]]
    return outcome.score >= 0.5 if isinstance(outcome, JudgeResult) else None


def decoy_failures(plans: Iterable[ResponsePlan], outcomes: Outcomes, policy: DecoyPolicy) -> dict[bytes, CallFailure]:
    """Under the policy `fail`, return failures of the kind `decoy` for the judge's verdicts on suspicious responses.

    They are for one request: caches and other requests keep the verdicts.
    """
    suspicious = [plan for plan in plans if is_suspicious(plan, outcomes)] if policy == "fail" else []
    pending = [pending for plan in suspicious for pending in plan.pending if pending.method == "judge"]
    return dict.fromkeys([digest for pending in pending for digest in pending.digests], _DECOY_MET)


_DECOY_MET = CallFailure(
    "decoy", "the judge says that the response meets a criterion that no response meets, so its verdicts mean nothing"
)


def verdict_of(pending: PendingVerdict, outcomes: Outcomes, rules: VerdictRules = DEFAULT_RULES) -> wire.Verdict:
    """Return a verdict whose outcomes are known."""
    if not pending.digests:
        return wire.Verdict(criterion=pending.criterion, status="left_out")
    votes = [outcomes.by_digest[digest] for digest in pending.digests]
    is_cached = outcomes.cached.issuperset(pending.awaited)
    return read_votes(pending, votes, rules, is_cached=is_cached, turns=_turns_of(pending, outcomes))


def read_votes(
    pending: PendingVerdict,
    votes: Sequence[CallOutcome],
    rules: VerdictRules,
    *,
    is_cached: bool = False,
    turns: tuple[wire.TurnVerdict, ...] = (),
) -> wire.Verdict:
    """Return a verdict from the outcomes of its votes."""
    method = pending.method
    outcome = rules.apply(combine_votes(votes), method)
    scores = tuple([None if isinstance(v, CallFailure) else v.score for v in votes]) if len(votes) > 1 else ()
    if isinstance(outcome, CallFailure):
        return wire.Verdict(
            criterion=pending.criterion,
            status="failed",
            failure=failure_of(outcome),
            method=method,
            votes=scores,
            turns=turns,
            passages=pending.passages,
        )
    uncertain = rules.is_uncertain(outcome, method)
    return construct(
        wire.Verdict,
        {
            "criterion": pending.criterion,
            "status": "uncertain" if uncertain else "ok",
            "score": None if uncertain else outcome.score,
            "probability": outcome.probability,
            "raw_probability": outcome.raw_probability,
            "content_free_probability": outcome.content_free_probability,
            "choice_mass": outcome.choice_mass,
            "grade": outcome.grade,
            "step": pending.step if outcome.step is None else outcome.step,
            "rationale": outcome.rationale,
            "method": method,
            "votes": scores,
            "failure": None,
            "cached": is_cached,
            "members": outcome.members if len(votes) == 1 else (),
            "turns": turns,
            "passages": pending.passages,
        },
    )


def _turns_of(pending: PendingVerdict, outcomes: Outcomes) -> tuple[wire.TurnVerdict, ...]:
    """Return the verdict on each turn; empty unless the criterion applies to each turn."""
    if not pending.turns:
        return ()
    verdicts = []
    for number, digest in pending.turns:
        one = outcomes.by_digest[digest]
        if isinstance(one, CallFailure):
            verdicts.append(wire.TurnVerdict(turn=number, failure=one.kind))
        else:
            verdicts.append(wire.TurnVerdict(turn=number, score=one.score, probability=one.probability))
    return tuple(verdicts)


def failure_of(outcome: CallFailure) -> wire.Failure:
    """Return why there is no verdict, as in an answer; characters that JSON cannot carry become U+FFFD."""
    return wire.Failure(kind=outcome.kind, detail=replace_lone_surrogates(outcome.detail))


def judge_of(judge: AnyJudge, prepared: PreparedConfig | None, outcomes: Outcomes) -> wire.JudgeInfo | None:
    """Return the judge as named in an answer, with its members' costs; None if no judge was asked."""
    if prepared is None:
        return None
    members = tuple(
        [
            wire.JudgeMember(
                judge=name,
                model=own.model,
                fingerprint=own.fingerprint,
                calibration=_calibration_of(own),
                usage=member_usage(outcomes.members.get(name, NO_MEMBER_COSTS)),
            )
            for name, own in zip(judge.members, prepared.members, strict=True)
        ]
    )
    return wire.JudgeInfo(
        model=prepared.model,
        protocol=prepared.config.protocol,
        fingerprint=prepared.fingerprint,
        withheld=prepared.declaration.withholds,
        calibration=_calibration_of(prepared),
        uncalibrated=prepared.uncalibrated or None,
        members=members,
    )


def _calibration_of(prepared: PreparedConfig) -> str | None:
    return None if prepared.calibration == NEUTRAL else prepared.calibration.name


def pinned(rubrics: Sequence[ResolvedRubric]) -> tuple[wire.PinnedRubric, ...]:
    """Return the distinct rubrics used, in order."""
    return tuple(dict.fromkeys(rubric.pinned for rubric in rubrics if rubric.pinned is not None))


def usage_of(
    outcomes: Outcomes,
    groups: Sequence[PlannedGroup] = (),
    rules: VerdictRules = DEFAULT_RULES,
    *,
    checklist: bool = False,
) -> wire.Usage:
    """Return what judging cost, and how many verdicts failed, were uncertain or awarded too many points.

    Of failed verdicts that are combined from others, these count.
    """
    costs = outcomes.costs
    failed = [digest for digest, one in outcomes.by_digest.items() if isinstance(one, CallFailure)]
    uncertain, refused = _count_by_rules(outcomes, groups, rules)
    return wire.Usage(
        judge_calls=costs.calls,
        checks=outcomes.checks,
        cached=len(outcomes.cached),
        joined=len(outcomes.joined),
        failed=len(set(failed) - outcomes.combined) + refused,
        clipped=_clipped(outcomes, groups) if checklist else 0,
        uncertain=uncertain,
        left_out=sum([len(group.responses) * sum(group.sample.left_out) for group in groups if group.sample]),
        prompt_tokens_computed=costs.tokens_computed,
        prompt_tokens_reused=costs.tokens_reused,
        tokens_written=costs.tokens_written,
        seconds_queued=costs.seconds_queued,
        seconds_judging=costs.seconds_judging,
        compared=outcomes.compared,
        disagreed=outcomes.disagreed,
    )


def member_usage(member: MemberCosts) -> wire.MemberUsage:
    """Return what one judge of a cascade or panel cost, as in an answer."""
    return wire.MemberUsage(
        verdicts=member.verdicts,
        failed=member.failed,
        judge_calls=member.costs.calls,
        prompt_tokens_computed=member.costs.tokens_computed,
        prompt_tokens_reused=member.costs.tokens_reused,
        tokens_written=member.costs.tokens_written,
        seconds_judging=member.costs.seconds_judging,
    )


def _count_by_rules(outcomes: Outcomes, groups: Sequence[PlannedGroup], rules: VerdictRules) -> tuple[int, int]:
    """Return how many distinct verdicts of the judge are uncertain, and how many lack a probability that is needed."""
    if rules == DEFAULT_RULES:
        return 0, 0
    asked = {
        pending.digests
        for group in groups
        for response in group.responses
        for pending in response.plan.pending
        if pending.method == "judge" and pending.digests
    }
    uncertain = refused = 0
    for digests in asked:
        votes = [outcomes.by_digest[digest] for digest in digests]
        given = combine_votes(votes)
        uncertain += rules.is_uncertain(given, "judge")
        refused += rules.apply(given, "judge") is not given
    return uncertain, refused


def _clipped(outcomes: Outcomes, groups: Sequence[PlannedGroup]) -> int:
    clipped: set[bytes] = set()
    for group in groups:
        highest = {criterion.id: points(criterion) for criterion in group.rubric.criteria}
        for pending in (pending for response in group.responses for pending in response.plan.pending):
            for digest in pending.digests:
                outcome = outcomes.by_digest.get(digest)
                if isinstance(outcome, JudgeResult) and outcome.grade is not None and pending.criterion in highest:
                    clipped |= {digest} if not 0 <= outcome.grade <= highest[pending.criterion] else set()
    return len(clipped)
