"""The path of a scoring request, top to bottom: resolve the rubrics, plan, judge, reward, answer.

This is where a verdict becomes a reward: `_reward_response` hands the verdicts' scores to
`trainer_client.rewards.assess`. Knows no HTTP and no engine.
"""

import asyncio
from collections.abc import Sequence
from functools import partial

from judge_server.errors import JudgingFailed
from judge_server.judging.fitting import fit_response
from judge_server.judging.judge import Judge, Outcomes, failures_by_kind
from judge_server.judging.plan import ResponsePlan, plan_response
from judge_server.ports import CallFailed, RubricSource
from judge_server.rubrics import ResolvedRubric, resolve_rubrics
from trainer_client import wire
from trainer_client.rewards import UnscoredCriteria, assess
from trainer_client.steps import has_format, step_deltas

_RESPONSES_PER_TURN = 16


class Scorer:
    """Scores requests with one judge and one source of rubrics."""

    def __init__(self, judge: Judge, rubrics: RubricSource) -> None:
        self.judge = judge
        self.rubrics = rubrics

    async def score(self, request: wire.RewardRequest, *, request_id: str, project_id: str) -> wire.RewardAnswer:
        """Judge every response of the request and reward it.

        Raises:
            UnknownRubric, RubricRefused: before anything is judged.
            Overloaded: the judge's queue has no room.
            JudgingFailed: a verdict that a reward needs failed and `on_failure` is `error`.
        """
        deadline = asyncio.get_running_loop().time() + request.deadline_s
        rubrics = await resolve_rubrics(self.rubrics, request, project_id)
        plans = await self._plan(request, rubrics)
        outcomes = await self.judge.outcomes([p for group in plans for p in group], deadline)
        try:
            groups = self._reward(request, rubrics, plans, outcomes)
        except UnscoredCriteria:
            raise _judging_failed(outcomes) from None
        return self._answer(request, request_id, rubrics, outcomes, groups)

    def _reward(
        self,
        request: wire.RewardRequest,
        rubrics: Sequence[ResolvedRubric],
        plans: Sequence[Sequence[ResponsePlan]],
        outcomes: Outcomes,
    ) -> list[wire.GroupRewards]:
        return [
            wire.GroupRewards.model_construct(
                id=group.id,
                rubric=rubric.pinned.digest,
                responses=tuple(
                    [
                        _reward_response(request, rubric, text, plan, outcomes)
                        for text, plan in zip(group.responses, group_plans, strict=True)
                    ]
                ),
            )
            for group, rubric, group_plans in zip(request.groups, rubrics, plans, strict=True)
        ]

    async def _plan(self, request: wire.RewardRequest, rubrics: Sequence[ResolvedRubric]) -> list[list[ResponsePlan]]:
        setup = self.judge.setup(request.protocol)
        planned: list[list[ResponsePlan]] = []
        for group, rubric in zip(request.groups, rubrics, strict=True):
            planned.append([])
            for index, response in enumerate(group.responses):
                if index % _RESPONSES_PER_TURN == 0:
                    await asyncio.sleep(0)  # let other requests and health checks have their turn
                plan = partial(plan_response, setup, group, response, rubric.criteria)
                if request.judging.truncate:
                    fitted = await fit_response(
                        self.judge.engine, self.judge.identity.context_tokens, len(response), plan
                    )
                else:
                    fitted = plan(None)
                planned[-1].append(fitted)
        return planned

    def _answer(
        self,
        request: wire.RewardRequest,
        request_id: str,
        rubrics: Sequence[ResolvedRubric],
        outcomes: Outcomes,
        groups: Sequence[wire.GroupRewards],
    ) -> wire.RewardAnswer:
        return wire.RewardAnswer.model_construct(
            request_id=request_id,
            run=request.run,
            step=request.step,
            mode=request.reward.mode,
            on_failure=request.on_failure,
            judge=wire.Judge(
                model=self.judge.identity.model,
                protocol=request.protocol,
                fingerprint=self.judge.setup(request.protocol).fingerprint,
            ),
            rubrics=tuple(dict.fromkeys(rubric.pinned for rubric in rubrics)),
            usage=wire.Usage(
                judge_calls=outcomes.calls,
                cached=len(outcomes.cached),
                failed=failures_by_kind(outcomes.of.values()).total(),
                prompt_tokens_computed=outcomes.tokens_computed,
                prompt_tokens_reused=outcomes.tokens_reused,
                seconds_queued=outcomes.seconds_queued,
                seconds_judging=outcomes.seconds_judging,
            ),
            groups=tuple(groups),
        )


def _reward_response(
    request: wire.RewardRequest, rubric: ResolvedRubric, text: str, plan: ResponsePlan, outcomes: Outcomes
) -> wire.ResponseReward:
    verdicts = [
        _verdict(criterion.id, outcomes, digest)
        for criterion, digest in zip(rubric.criteria, plan.digests, strict=True)
    ]
    outcome = assess(
        rubric.criteria,
        [verdict.score for verdict in verdicts],
        request.reward.mode,
        request.on_failure,
        format_ok=has_format(text) if request.reward.mode == "stepwise" else None,
        format_weight=request.reward.format_weight,
    )
    return wire.ResponseReward.model_construct(
        reward=outcome.reward,
        status=outcome.status,
        policy_applied=outcome.policy_applied,
        dropped=outcome.dropped,
        characters_omitted=plan.characters_omitted,
        verdicts=tuple(verdicts),
        steps=_steps(rubric, text, plan, verdicts) if request.protocol == "stepwise" else (),
    )


def _verdict(criterion_id: str, outcomes: Outcomes, digest: bytes) -> wire.Verdict:
    outcome = outcomes.of[digest]
    if isinstance(outcome, CallFailed):
        failure = wire.Failure(kind=outcome.kind, detail=outcome.detail)
        return wire.Verdict(criterion=criterion_id, status="failed", failure=failure)
    return wire.Verdict.model_construct(
        criterion=criterion_id,
        status="ok",
        score=outcome.score,
        probability=outcome.probability,
        menu_mass=outcome.menu_mass,
        step=outcome.step,
        failure=None,
        cached=digest in outcomes.cached,
    )


def _steps(
    rubric: ResolvedRubric, text: str, plan: ResponsePlan, verdicts: Sequence[wire.Verdict]
) -> tuple[wire.StepReward, ...]:
    deltas = step_deltas(
        rubric.criteria,
        [verdict.score for verdict in verdicts],
        [-1 if verdict.step is None else verdict.step for verdict in verdicts],
        max((step.number for step in plan.steps), default=0),
    )
    spans = [(0, 0, len(text)), *plan.steps]
    return tuple([wire.StepReward(number=n, start=a, end=b, delta=deltas.get(n)) for n, a, b in spans])


def _judging_failed(outcomes: Outcomes) -> JudgingFailed:
    kinds = failures_by_kind(outcomes.of.values())
    counts = ", ".join(f"{n} {kind}" for kind, n in kinds.most_common())
    example = next(o.detail for o in outcomes.of.values() if isinstance(o, CallFailed))
    return JudgingFailed(
        f"{kinds.total()} of {len(outcomes.of)} verdicts failed ({counts}) and on_failure is 'error'. "
        f"For example: {example}"
    )
