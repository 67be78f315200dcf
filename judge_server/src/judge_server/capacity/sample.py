"""Plan a sample of responses as a request for rewards would be planned, without judging it."""

import asyncio
from collections.abc import Sequence
from dataclasses import replace

from judge_server.errors import InvalidRequest
from judge_server.judging.plan import ResponsePlan
from judge_server.ports import RubricSource
from judge_server.rubrics import PROJECT_ID, ResolvedRubric, resolve_rubrics
from judge_server.scoring.judge import Judge
from judge_server.scoring.planner import plan_groups
from judge_server.scoring.ranking import plan_tournaments
from judge_server.time_sharing import TimeSlicer
from trainer_client.rewards import check_rubric
from trainer_client.wire import RewardRequest

PLANNING_S = 600.0
"""The seconds that planning a sample may take."""


async def plan_sample(
    judge: Judge, rubrics: RubricSource, request: RewardRequest, *, criteria_share: float = 1.0
) -> list[ResponsePlan]:
    """Return the plans of a request's groups, in order. A ranking's later rounds are planned as if all were tied.

    Args:
        judge: a started judge.
        rubrics: where references are looked up.
        request: the sample, and how it is judged.
        criteria_share: the share of each rubric's criteria to plan, evenly picked and at least one.

    Raises:
        ServiceError: as for a request for rewards.
    """
    deadline = asyncio.get_running_loop().time() + PLANNING_S
    mode = request.reward.mode
    if request.protocol is None:
        raise InvalidRequest(f"reward.mode: mode {mode!r} asks no judge, so there is nothing to plan")

    resolved = await resolve_rubrics(
        rubrics,
        [group.rubric for group in request.groups],
        request.rubric,
        PROJECT_ID,
        deadline=deadline,
        rubric_check=lambda criteria: check_rubric(criteria, mode, request.reward.kinds),
    )
    resolved = [_with_share(rubric, criteria_share) for rubric in resolved]
    prepared = judge.prepared_for(request.judging, request.protocol)
    if mode != "ranking":
        groups = await plan_groups(judge, prepared, request.groups, resolved, request.judging, deadline)
        return [response.plan for group in groups for response in group.responses]
    plans: list[ResponsePlan] = []
    for tournament in await plan_tournaments(judge, prepared, request, resolved, deadline):
        while not tournament.finished:
            plans += await tournament.next_round(TimeSlicer(deadline))
    return plans


def _with_share(rubric: ResolvedRubric, share: float) -> ResolvedRubric:
    criteria: Sequence[object] = rubric.criteria
    kept = max(1, round(len(criteria) * share)) if criteria else 0
    places = {place * len(criteria) // kept for place in range(kept)} if kept else set()
    return replace(rubric, criteria=tuple([one for place, one in enumerate(rubric.criteria) if place in places]))
