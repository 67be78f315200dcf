"""From a request's groups and their rubrics to plans: what each response is judged on, and by what."""

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass

from judge_server.checks import needs
from judge_server.errors import InvalidRequest
from judge_server.judging.fitting import fit_response
from judge_server.judging.grounding import fit_grounding
from judge_server.judging.judge import Judge
from judge_server.judging.plan import Context, GroupPlanner, ResponsePlan, check_required, plan_outcome
from judge_server.judging.shortening import characters
from judge_server.judging.ways import JudgeSetup
from judge_server.rubrics import ResolvedRubric
from judge_server.telemetry.spans import traced
from trainer_client.thinking import Material, judged
from trainer_client.wire import FieldError, Group, JudgingOptions, Response, as_response

_RESPONSES_PER_TURN = 16


@dataclass(frozen=True, slots=True)
class PlannedResponse:
    """A response, what of it is judged, and the plan for that."""

    response: Response
    material: Material
    plan: ResponsePlan

    @property
    def spans(self) -> list[tuple[int, int, int]]:
        """What was judged, as step 0, and its steps: (number, start, end) in code points of the response as sent."""
        at = self.material.offset
        whole = (0, at, at + len(self.material.text))
        return [whole, *((number, start + at, end + at) for number, start, end in self.plan.steps)]


@dataclass(frozen=True, slots=True)
class PlannedGroup:
    """A group with its rubric, and its responses planned."""

    group: Group
    rubric: ResolvedRubric
    grounding_omitted: int
    responses: list[PlannedResponse]


@traced("plan")
async def plan_groups(
    judge: Judge,
    setup: JudgeSetup | None,
    groups: Sequence[Group],
    rubrics: Sequence[ResolvedRubric],
    options: JudgingOptions,
) -> list[PlannedGroup]:
    """Plan every response of every group; without a setup, no judge is asked and final answers are compared.

    Raises:
        InvalidRequest: a criterion's verification lacks what it compares with, or a group what the set of templates
            requires; says which group's.
    """
    planned = []
    for index, (group, rubric) in enumerate(zip(groups, rubrics, strict=True)):
        grounding, omitted = None, 0
        if group.grounding:
            grounding, omitted = fit_grounding(group.grounding, options.grounding_characters)
        context = Context(group.prompt, grounding, group.reference_answer, group.ground_truth)
        planner = None
        if setup is not None:
            check_required(f"groups.{index}", setup, context)
            planner = GroupPlanner(setup, context, rubric.criteria, votes=options.votes)
            _check_verifications(f"groups.{index}", planner, context)
        responses = []
        for place, given in enumerate(group.responses):
            if place % _RESPONSES_PER_TURN == 0:
                await asyncio.sleep(0)  # let other requests and health checks have their turn
            response = as_response(given)
            material = judged(response, options.reasoning)
            if planner is None:
                assert group.ground_truth is not None  # RewardRequest refuses `outcome` without one
                plan = plan_outcome(material, group.ground_truth)
            else:
                plan = await _plan(judge, planner, material, options.truncate)
            responses.append(PlannedResponse(response, material, plan))
        planned.append(PlannedGroup(group, rubric, omitted, responses))
    return planned


async def _plan(judge: Judge, planner: GroupPlanner, material: Material, truncate: bool) -> ResponsePlan:
    if not truncate:
        return planner.plan(material)

    def keeping(keep: int | None) -> ResponsePlan:
        return planner.plan(material, keep=keep)

    return await fit_response(judge.desk, judge.identity.context_tokens, characters(material), keeping)


def _check_verifications(where: str, planner: GroupPlanner, context: Context) -> None:
    for criterion, verification in planner.verified:
        missing = needs(verification, context.ground_truth)
        if missing is not None:
            field = f"{where}.{missing}"
            message = (
                f"criterion {criterion.id!r} is verified by {verification.method!r} and names nothing to compare with; "
                f"give the group a {missing}, or the criterion's verification an expected answer"
            )
            raise InvalidRequest(f"{field}: {message}", errors=(FieldError(field=field, message=message),))
