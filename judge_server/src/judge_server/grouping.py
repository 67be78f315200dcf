"""From a request's groups and their rubrics to plans: what each response is judged on, and by what."""

import asyncio
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ParamSpec, TypeVar

from judge_server.checks import missing_field
from judge_server.errors import InvalidRequest, NotReady, TooLarge
from judge_server.judging.fitting import fit_response
from judge_server.judging.grounding import fit_grounding
from judge_server.judging.judge import Judge
from judge_server.judging.plan import (
    GroupContext,
    GroupPlanner,
    ResponsePlan,
    check_required,
    plan_outcome,
    verification_of,
)
from judge_server.judging.shortening import material_characters, prompt_characters
from judge_server.judging.ways import PreparedConfig
from judge_server.rubrics import ResolvedRubric
from judge_server.telemetry.spans import traced
from trainer_client.thinking import JudgedContent, judged_content
from trainer_client.wire import FieldError, Group, JudgingOptions, Response, as_response
from trainer_client.wire.messages import ResponseLike

P = ParamSpec("P")
T = TypeVar("T")

MAX_VERDICTS = 200_000
"""How many verdicts a request may ask for, of the judge and of programs, votes included."""

MAX_PROMPT_CHARACTERS = 2**28
"""How much text all prompts of a request may have together: what its responses share counts for each of them."""

LARGE_CHARACTERS = 2**16
"""A response with its context that is longer is planned in a thread."""

_SLICE_S = 0.005
"""Seconds of work on the event loop until others have their turn."""


@dataclass(frozen=True, slots=True)
class PlannedResponse:
    """A response, what of it is judged, and the plan for that."""

    response: Response
    material: JudgedContent
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


def check_request_size(
    prepared: PreparedConfig | None,
    groups: Sequence[Group],
    rubrics: Sequence[ResolvedRubric],
    options: JudgingOptions,
    max_calls: int,
) -> None:
    """Multiply what a request asks for before any of it is planned.

    Raises:
        TooLarge: it is more than `max_calls` calls, `MAX_VERDICTS` or `MOST_CHARACTERS`; says the product and its
            largest factors.
    """
    calls = verdicts = characters = 0
    counted: dict[tuple[int, bool], tuple[int, int]] = {}
    largest = 0, 0
    for group, rubric in zip(groups, rubrics, strict=True):
        key = id(rubric.criteria), bool(group.ground_truth)
        if key not in counted:
            counted[key] = _per_response(prepared, group, rubric)
        asked, by_program = counted[key]
        responses = len(group.responses)
        largest = max(largest, (responses, asked + by_program))
        calls += responses * options.votes * (math.ceil(asked / prepared.per_call(asked)) if prepared and asked else 0)
        verdicts += responses * (options.votes * asked + by_program)
        shared = sum(len(text) for text in (group.grounding, group.reference_answer, group.ground_truth) if text)
        characters += responses * (shared + prompt_characters(group.prompt)) + sum(map(_characters, group.responses))
    about = (
        f"{sum(len(group.responses) for group in groups):,} responses, up to {largest[1]:,} criteria and "
        f"{options.votes} votes make"
    )
    remedy = "send fewer responses at once"
    if calls > max_calls:
        remedy += ", more criteria per call, or raise ADJUDGE_QUEUE_CALLS on the server"
        raise TooLarge(f"groups: {about} {calls:,} judge calls, more than the queue's {max_calls:,}; {remedy}")
    if verdicts > MAX_VERDICTS:
        raise TooLarge(f"groups: {about} {verdicts:,} verdicts, more than {MAX_VERDICTS:,}; {remedy}")
    if characters > MAX_PROMPT_CHARACTERS:
        raise TooLarge(
            f"groups: the prompts of all responses have {characters:,} characters, more than {MAX_PROMPT_CHARACTERS:,}, with "
            f"what the responses of a group share counted for each; {remedy}, or a shorter prompt and grounding"
        )


def _per_response(prepared: PreparedConfig | None, group: Group, rubric: ResolvedRubric) -> tuple[int, int]:
    """How many verdicts on one response the judge gives, and how many programs do."""
    if prepared is None:
        return 0, 1
    if prepared.config.protocol == "likert":
        return 1, 0
    context = GroupContext("", ground_truth=group.ground_truth)
    by_program = sum(verification_of(prepared, criterion, context) is not None for criterion in rubric.criteria)
    return len(rubric.criteria) - by_program, by_program


def _characters(given: ResponseLike) -> int:
    return prompt_characters(as_response(given).text)


@traced("plan")
async def plan_groups(
    judge: Judge,
    prepared: PreparedConfig | None,
    groups: Sequence[Group],
    rubrics: Sequence[ResolvedRubric],
    options: JudgingOptions,
    deadline: float,
) -> list[PlannedGroup]:
    """Plan every response of every group; without a setup, no judge is asked and final answers are compared.

    It is done in slices of some milliseconds, between which the deadline (loop time) and a caller who leaves are seen.

    Raises:
        InvalidRequest: a criterion's verification lacks what it compares with, or a group what the set of templates
            requires; says which group's.
        TooLarge: see `check_request_size`.
        NotReady: the deadline passed before all was planned.
    """
    check_request_size(prepared, groups, rubrics, options, judge.executor.max_calls)
    slicer = TimeSlicer(deadline)
    planned = []
    for index, (group, rubric) in enumerate(zip(groups, rubrics, strict=True)):
        grounding, omitted = None, 0
        if group.grounding:
            budget, large = options.grounding_characters, len(group.grounding) > LARGE_CHARACTERS
            grounding, omitted = await run_inline_or_in_thread(large, fit_grounding, group.grounding, budget)
        context = GroupContext(group.prompt, grounding, group.reference_answer, group.ground_truth)
        planner = None
        if prepared is not None:
            check_required(f"groups.{index}", prepared, context)
            large = prompt_characters(group.prompt) > LARGE_CHARACTERS
            planner = await run_inline_or_in_thread(
                large, GroupPlanner, prepared, context, rubric.criteria, votes=options.votes, group=index
            )
            _check_verifications(f"groups.{index}", planner, context)
        responses = []
        shared = sum(map(len, filter(None, (grounding, group.reference_answer, group.ground_truth))))
        shared += prompt_characters(group.prompt)
        for given in group.responses:
            await slicer.yield_if_due()
            response = as_response(given)
            large = shared + prompt_characters(response.text) > LARGE_CHARACTERS
            material = await run_inline_or_in_thread(large, judged_content, response, options.reasoning)
            if planner is None:
                assert group.ground_truth is not None  # RewardRequest refuses `outcome` without one
                plan = await run_inline_or_in_thread(large, plan_outcome, material, group.ground_truth, index)
            else:
                plan = await _plan(judge, planner, material, options.truncate, large)
            responses.append(PlannedResponse(response, material, plan))
        planned.append(PlannedGroup(group, rubric, omitted, responses))
    return planned


class TimeSlicer:
    """Has others take their turns while a request is planned, or answered; `deadline` is in the loop's time."""

    def __init__(self, deadline: float = math.inf) -> None:
        self._loop = asyncio.get_running_loop()
        self._deadline = deadline
        self._began = -math.inf

    async def yield_if_due(self) -> None:
        """Let others have their turn, if this has lasted; raises `NotReady` where the deadline is over."""
        if time.perf_counter() - self._began < _SLICE_S:
            return
        await asyncio.sleep(0)
        if self._loop.time() >= self._deadline:
            raise NotReady(
                "The request's deadline passed before all of it was planned, so nothing was judged; send fewer "
                "responses at once, or give it longer.",
                retry_after_s=1,
            )
        self._began = time.perf_counter()


async def run_inline_or_in_thread(large: bool, make: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Make something of texts: on the event loop, or in a thread where the texts are large."""
    return await asyncio.to_thread(make, *args, **kwargs) if large else make(*args, **kwargs)


async def _plan(
    judge: Judge, planner: GroupPlanner, material: JudgedContent, truncate: bool, large: bool
) -> ResponsePlan:
    if not truncate:
        return await run_inline_or_in_thread(large, planner.plan, material)

    async def keeping(keep: int | None) -> ResponsePlan:
        return await run_inline_or_in_thread(large, planner.plan, material, keep=keep)

    return await fit_response(judge.executor, judge.identity.context_tokens, material_characters(material), keeping)


def _check_verifications(where: str, planner: GroupPlanner, context: GroupContext) -> None:
    for criterion, verification in planner.verified:
        missing = missing_field(verification, context.ground_truth)
        if missing is not None:
            field = f"{where}.{missing}"
            message = (
                f"criterion {criterion.id!r} is verified by {verification.method!r} and names nothing to compare with; "
                f"give the group a {missing}, or the criterion's verification an expected answer"
            )
            raise InvalidRequest(f"{field}: {message}", errors=(FieldError(field=field, message=message),))
