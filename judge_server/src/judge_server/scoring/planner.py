"""Plan a scoring request: turn its groups and rubrics into judging plans, within limits of size and time.

Planning runs in slices of a few milliseconds, or in threads for large texts, so that the event loop stays responsive.
If the request allows truncation, a response too long for the judge's context is shortened (`fit_response`).
`JudgedRequest` is what a request hands to the recorder, by reference, so that recording is cheap.
"""

import asyncio
import logging
import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from functools import partial
from typing import NamedTuple, Protocol

from judge_server.errors import EngineUnavailable, TooLarge, invalid_field
from judge_server.intervals import wilson
from judge_server.judging.checks import verification_of
from judge_server.judging.combining import combine_plans
from judge_server.judging.plan import GroupPlanner, ResponsePlan, check_required, check_scopes, plan_outcome
from judge_server.judging.presentation import (
    fit_grounding,
    images_of,
    planned_characters,
    prompt_characters,
)
from judge_server.judging.questions import PreparedConfig
from judge_server.judging.results import DEFAULT_RULES, Outcomes, VerdictRules
from judge_server.judging.shown import GroupContext
from judge_server.observability.tracing import traced
from judge_server.ports import Call, JsonOutput, LedgerReader, TextOutput
from judge_server.scheduling.executor import ExecutorStatus
from judge_server.scheduling.time_sharing import LARGE_CHARACTERS, TimeSlicer, run_inline_or_in_thread
from judge_server.scoring.combined import AnyJudge
from judge_server.scoring.rubrics import ResolvedRubric
from judge_server.verifiers import missing_field, stated_answer
from rubric_store.rubrics.rows import criteria_characters
from trainer_client.dropout import CriteriaSample, draw_sample
from trainer_client.steps import has_format
from trainer_client.text.thinking import JudgedContent, judged_content, opened_by
from trainer_client.wire import (
    ComparisonRequest,
    Criterion,
    Group,
    JudgingOptions,
    Prompt,
    Response,
    RewardRequest,
    UsedProtocol,
    VerdictRequest,
    as_response,
)
from trainer_client.wire.base import construct
from trainer_client.wire.groups import ResponseLike
from trainer_client.wire.rewards import GOLD_SUFFIX, RewardRules

log = logging.getLogger("adjudge")

MAX_VERDICTS = 200_000
"""The most verdicts a request may ask for, from the judge and from programs, votes included."""

MAX_PROMPT_CHARACTERS = 2**28
"""The most characters of all prompts of a request; what responses share counts once for each of them."""

WINDOW_GROUPS = 128
"""How many of the last groups that were judged by a criterion say whether it is saturated."""

SATURATED_FROM = 0.9
"""A criterion is saturated if all responses meet it in at least this share of these groups, by the 95% interval."""


@dataclass(frozen=True, slots=True)
class PlannedResponse:
    """A response, the part of it that is judged, and its plan."""

    response: Response
    material: JudgedContent
    plan: ResponsePlan

    @property
    def spans(self) -> list[tuple[int, int, int]]:
        """The judged part, as step 0, and its steps: (number, start, end) in code points of the response as sent."""
        at = self.material.offset
        whole = (0, at, at + len(self.material.text))
        return [whole, *((number, start + at, end + at) for number, start, end in self.plan.steps)]


def keeps_format(material: JudgedContent, prepared: PreparedConfig | None) -> bool:
    """Whether a response has the format of SRaR's base reward; only steps by headings ask for one."""
    other_steps = prepared is not None and prepared.config.steps != "headings"
    return other_steps or has_format(material.text)


@dataclass(frozen=True, slots=True)
class PlannedGroup:
    """A group with its rubric and its planned responses; `sample` says which criteria dropout left out."""

    group: Group
    rubric: ResolvedRubric
    grounding_omitted: int
    responses: list[PlannedResponse]
    sample: CriteriaSample | None = None


class AskedGroups(NamedTuple):
    """The groups of a request and how they are judged; a pair of a comparison is a group of two responses.

    Attributes:
        field: the field of the request that has them.
        groups: the groups.
        judging: how the judge is asked.
        protocol: the judging protocol; None if no judge is asked.
    """

    field: str
    groups: Sequence[Group]
    judging: JudgingOptions
    protocol: UsedProtocol | None

    @classmethod
    def of(cls, request: RewardRequest | VerdictRequest | ComparisonRequest) -> "AskedGroups":
        """Return the groups of a request."""
        if not isinstance(request, ComparisonRequest):
            return cls("groups", request.groups, request.judging, request.protocol)
        judging = JudgingOptions.model_construct(**dict(request.judging), defences=())
        pairs = []
        for pair in request.pairs:
            values = vars(pair) | {"responses": (pair.a, pair.b), "ground_truth": None}
            del values["a"], values["b"]
            pairs.append(construct(Group, values))
        return cls("pairs", pairs, judging, "comparison")


def check_request_size(
    prepared: PreparedConfig | None,
    groups: Sequence[Group],
    rubrics: Sequence[ResolvedRubric],
    options: JudgingOptions,
    max_calls: int,
) -> None:
    """Check the size of a request before any of it is planned.

    Raises:
        TooLarge: it needs more than `max_calls` calls, `MAX_VERDICTS` or `MAX_PROMPT_CHARACTERS`; the message gives
            the product and its largest factors.
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
        further = _further_turns(group, rubric)
        calls += responses * options.votes * (math.ceil(asked / prepared.per_call(asked)) if prepared and asked else 0)
        content_free = asked if prepared is not None and prepared.config.contextual else 0
        calls += further + content_free
        verdicts += responses * (options.votes * asked + by_program) + further + content_free
        if prepared is not None and prepared.config.passages is not None:
            beside = sum(len(text) for text in (group.reference_answer, group.ground_truth) if text)
            characters += responses * options.votes * asked * (2 * prepared.config.passages + beside)
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
            f"groups: the prompts of all responses together have {characters:,} characters, more than "
            f"{MAX_PROMPT_CHARACTERS:,} (text shared by a group counts for each response); {remedy}, or shorten the "
            "prompt and grounding"
        )


def _per_response(prepared: PreparedConfig | None, group: Group, rubric: ResolvedRubric) -> tuple[int, int]:
    """Return how many verdicts on one response come from the judge, and how many from programs."""
    if prepared is None:
        return 0, 1
    if prepared.config.protocol == "likert":
        return 1, 0
    context = GroupContext("", ground_truth=group.ground_truth)
    by_program = sum(verification_of(prepared, criterion, context) is not None for criterion in rubric.criteria)
    return len(rubric.criteria) - by_program, by_program


def _further_turns(group: Group, rubric: ResolvedRubric) -> int:
    """Return how many more verdicts criteria on each turn take than ones on whole responses."""
    each = sum(criterion.applies_to == "each_turn" for criterion in rubric.criteria)
    if not each:
        return 0
    texts = [as_response(given).text for given in group.responses]
    turns = [sum(m.role == "assistant" for m in text) for text in texts if not isinstance(text, str)]
    return each * sum(max(count - 1, 0) for count in turns)


def _characters(given: ResponseLike) -> int:
    return len(given) if isinstance(given, str) else prompt_characters(as_response(given).text)


@traced("plan")
async def plan_groups(
    judge: AnyJudge,
    prepared: PreparedConfig | None,
    asked: AskedGroups,
    rubrics: Sequence[ResolvedRubric],
    deadline: float,
    dropped: RewardRequest | None = None,
) -> list[PlannedGroup]:
    """Plan every response of every group. With `prepared` None, no judge is asked and final answers are compared.

    `dropped` is the request, if it has rubric dropout.

    Planning yields every few milliseconds, to notice the deadline (loop time) and a client that disconnects.

    Raises:
        InvalidRequest: a criterion's verification has nothing to compare with, or a group lacks what the template set
            requires; the message names the group.
        TooLarge: see `check_request_size`.
        NotReady: the deadline passed before planning was complete.
    """
    check_request_size(prepared, asked.groups, rubrics, asked.judging, judge.executor.max_calls)
    _check_decoys(prepared, asked.judging)
    slicer = TimeSlicer(deadline)
    planned = []
    for index, rubric in enumerate(rubrics):
        plan = _plan_outcomes if prepared is None else partial(_plan_verdicts, judge, prepared, dropped)
        planned.append(await plan(asked, index, rubric, slicer))
    return planned


async def _plan_outcomes(asked: AskedGroups, index: int, rubric: ResolvedRubric, slicer: TimeSlicer) -> PlannedGroup:
    """Plan the comparison of each response's final answer with the ground truth, which the request has."""
    group, options = asked.groups[index], asked.judging
    truth, opens = group.ground_truth or "", opened_by(group.prompt, options.prompt_opens)
    true_answer = await run_inline_or_in_thread(len(truth) > LARGE_CHARACTERS, stated_answer, truth)
    responses = []
    for given in group.responses:
        await slicer.yield_if_due()
        response = as_response(given)
        large = len(truth) + planned_characters(response.text) > LARGE_CHARACTERS
        material = await run_inline_or_in_thread(large, judged_content, response, options.reasoning, opens)
        plan = await run_inline_or_in_thread(large, plan_outcome, material, truth, true_answer, index)
        responses.append(PlannedResponse(response, material, plan))
    _, omitted = await _fit_grounding(group, options)
    return PlannedGroup(group, rubric, omitted, responses)


async def _plan_verdicts(
    judge: AnyJudge,
    prepared: PreparedConfig,
    dropped: RewardRequest | None,
    asked: AskedGroups,
    index: int,
    rubric: ResolvedRubric,
    slicer: TimeSlicer,
) -> PlannedGroup:
    """Plan the calls and checks about each response of a group; those of a cascade or panel for each of its judges."""
    group, options = asked.groups[index], asked.judging
    context, omitted = await read_context(judge, prepared, asked, index)
    criteria, prompt = criteria_characters(rubric.criteria), planned_characters(group.prompt)
    searched = len(context.grounding or "") if prepared.config.passages is not None else 0
    large = criteria + prompt + searched + len(group.ground_truth or "") > LARGE_CHARACTERS
    sample = None if dropped is None else _draw(dropped, prepared, context, group, rubric)
    make_planner = partial(
        GroupPlanner,
        context=context,
        criteria=rubric.criteria,
        options=options,
        group=index,
        left_out=() if sample is None else flagged_ids(rubric.criteria, sample.left_out),
    )
    members = prepared.members or (prepared,)
    planners = [await run_inline_or_in_thread(large, make_planner, own) for own in members]
    _check_verifications(f"groups.{index}", planners[0], context)
    for own in members:
        check_scopes(f"groups.{index}", own, rubric.criteria, options.votes)
    if prepared.members:
        _refuse_each_turn(f"groups.{index}", rubric.criteria)
    judges: Sequence[AnyJudge] = tuple(judge.members.values()) or (judge,)
    responses: list[PlannedResponse] = []
    opens = opened_by(group.prompt, options.prompt_opens)
    shared = prompt + sum(map(len, filter(None, (context.grounding, group.reference_answer, group.ground_truth))))
    shared += len(rubric.criteria) * (prepared.config.passages or 0)
    for given in group.responses:
        await slicer.yield_if_due()
        response = as_response(given)
        questions = 0 if responses else criteria  # the first plan makes the questions, which the others share
        large = shared + questions + planned_characters(response.text) > LARGE_CHARACTERS
        material = await run_inline_or_in_thread(large, judged_content, response, options.reasoning, opens)
        plans = [
            await _plan(one, planner, material, options.truncate, large, slicer.deadline)
            for one, planner in zip(judges, planners, strict=True)
        ]
        responses.append(PlannedResponse(response, material, combine_plans(prepared, plans)))
    return PlannedGroup(group, rubric, omitted, responses, sample)


async def read_context(
    judge: AnyJudge, prepared: PreparedConfig, asked: AskedGroups, index: int
) -> tuple[GroupContext, int]:
    """Return what the responses of a group share, and how many characters of the grounding it leaves out.

    Raises:
        InvalidRequest: the group has images, and the judge takes none; or it lacks what the template set requires.
    """
    group, where = asked.groups[index], f"{asked.field}.{index}"
    texts = [given if isinstance(given, str) else as_response(given).text for given in group.responses]
    refuse_images(judge, where, [group.prompt, *texts])
    grounding, omitted = await _fit_grounding(group, asked.judging)
    context = GroupContext(group.prompt, grounding, group.reference_answer, group.ground_truth)
    check_required(where, prepared, context)
    return context, omitted


async def _fit_grounding(group: Group, options: JudgingOptions) -> tuple[str | None, int]:
    if not group.grounding:
        return None, 0
    large = len(group.grounding) > LARGE_CHARACTERS
    return await run_inline_or_in_thread(large, fit_grounding, group.grounding, options.grounding_characters)


def refuse_images(judge: AnyJudge, where: str, texts: Sequence[Prompt]) -> None:
    """Refuse images that the judge cannot see.

    Raises:
        InvalidRequest: a text has an image, and the judge takes none; `where` is its field in the request.
    """
    if not judge.identity.capabilities.images and any(map(images_of, texts)):
        raise invalid_field(
            where,
            f"this has images, which the judge {judge.identity.model} does not take; leave them out, or use a judge "
            "that does: a model on a server of the OpenAI chat API, with ?images=true in its engine URL",
        )


def _draw(
    request: RewardRequest, prepared: PreparedConfig, context: GroupContext, group: Group, rubric: ResolvedRubric
) -> CriteriaSample | None:
    if request.dropout is None:
        return None
    by_program = [verification_of(prepared, criterion, context) is not None for criterion in rubric.criteria]
    run = request.reverifies or (request.run or "").removesuffix(GOLD_SUFFIX) or None
    return draw_sample(
        rubric.criteria, request.dropout, by_program=by_program, run=run, step=request.step, group=group.id
    )


async def with_saturated_criteria(
    request: RewardRequest, project_id: str, ledger: LedgerReader | None
) -> RewardRequest:
    """Return the request with the names of the saturated criteria, if its dropout asks for them.

    Steps from the request's own on are not read, so that its verdicts do not decide which of them are asked. If the
    ledger cannot be read, no criterion is left out.

    Raises:
        InvalidRequest: the service keeps no ledger.
    """
    dropout = request.dropout
    if dropout is None or dropout.saturated is not True:
        return request
    if ledger is None:
        raise invalid_field(
            "dropout.saturated",
            "this service keeps no ledger, in which saturated criteria could be found; name them, or leave it out",
        )
    assert request.run is not None
    assert request.step is not None
    run = request.reverifies or request.run
    try:
        found = await ledger.criterion_groups(project_id, run, request.step, WINDOW_GROUPS)
    except ConnectionError as error:
        log.warning("the ledger cannot be read, so saturated criteria are judged in every group: %s", error)
        found = {}
    saturated = tuple([name for name, (met, groups) in found.items() if wilson(met, groups)[0] >= SATURATED_FROM])
    return request.model_copy(update={"dropout": dropout.model_copy(update={"saturated": saturated})})


def flagged_ids(criteria: Sequence[Criterion], flags: Sequence[bool]) -> tuple[str, ...]:
    """Return the ids of the criteria with a true flag, in order."""
    return tuple([criterion.id for criterion, flag in zip(criteria, flags, strict=True) if flag])


async def _plan(
    judge: AnyJudge, planner: GroupPlanner, material: JudgedContent, truncate: bool, large: bool, deadline: float
) -> ResponsePlan:
    if not truncate:
        return await run_inline_or_in_thread(large, planner.plan, material)

    async def keeping(keep: int | None) -> ResponsePlan:
        return await run_inline_or_in_thread(large, planner.plan, material, keep=keep)

    most = planner.display.most_shown(material)
    return await fit_response(judge.executor, judge.identity.context_tokens, most, keeping, deadline)


def _check_decoys(prepared: PreparedConfig | None, options: JudgingOptions) -> None:
    if "decoy" not in options.defences:
        return
    if prepared is not None and prepared.members:
        raise invalid_field(
            "judging.defences",
            "a cascade or panel asks no decoy criterion; leave decoy out, or name one of its judges",
        )
    if prepared is None or prepared.config.protocol not in ("binary", "stepwise"):
        raise invalid_field(
            "judging.defences",
            "a decoy criterion is met or not, so it needs the protocol binary or stepwise; leave decoy out, or choose "
            "another protocol or mode",
        )


def _refuse_each_turn(where: str, criteria: Sequence[Criterion]) -> None:
    for criterion in criteria:
        if criterion.applies_to == "each_turn":
            raise invalid_field(
                f"{where}.rubric",
                f"criterion {criterion.id!r} applies to 'each_turn', which a cascade or panel cannot judge; name one "
                "of its judges",
            )


def _check_verifications(where: str, planner: GroupPlanner, context: GroupContext) -> None:
    for criterion, verification in planner.checks.verified:
        missing = missing_field(verification, context.ground_truth)
        if missing is not None:
            raise invalid_field(
                f"{where}.{missing}",
                f"criterion {criterion.id!r} is verified by {verification.method!r}, which has nothing to compare "
                f"with; give the group a {missing}, or the criterion's verification an expected answer",
            )


_MARGIN = 0.95
_TRIES = 8
_LAST_RESORT = 16
"""If the estimate leaves nothing to show, show this fraction; the estimate errs when little context is left."""

_TEMPLATE_TOKENS = 256
"""More tokens than a chat template and a verdict take together."""


async def fit_response(
    executor: ExecutorStatus,
    context_tokens: int,
    length: int,
    plan: Callable[[int | None], Awaitable[ResponsePlan]],
    deadline: float | None = None,
) -> ResponsePlan:
    """Plan a response of `length` characters so that its longest prompt fits `context_tokens`.

    A judge that is asleep counts no tokens. After the `deadline` (loop time) the full plan is returned.

    `plan(keep)` plans it with `keep` characters shown. If not even a few characters fit, because the prompt or the
    grounding alone is too long, the full plan is returned and the engine fails its calls as `truncated_input`.
    """
    whole = await plan(None)
    if not whole.batch.calls:
        return whole
    longest = max(len(call.question.encode()) + _room(call) for call in whole.batch.calls)
    if (
        len(whole.batch.system.encode()) + len(whole.batch.shared.encode()) + longest + _TEMPLATE_TOKENS
        <= context_tokens
    ):
        return whole  # no tokenizer makes more tokens than bytes
    around = len(whole.batch.system) + max(len(call.question) for call in whole.batch.calls)
    candidate, keep = whole, length
    for _ in range(_TRIES):
        try:
            async with asyncio.timeout_at(deadline):
                tokens = await executor.count_tokens(candidate.batch)
        except (EngineUnavailable, TimeoutError):
            return whole  # its calls will fail with the reason
        if tokens <= context_tokens:
            return candidate
        shown = around + len(candidate.batch.shared)
        estimate = min(keep - 1, keep - int(shown * (1 - _MARGIN * context_tokens / tokens)))
        keep = estimate if estimate > 0 else keep // _LAST_RESORT
        if keep < 1:
            return whole
        candidate = await plan(keep)
    return whole


def _room(call: Call) -> int:
    """Return the most tokens after the question: thinking, rationale, the request for the verdict, the answer."""
    written = call.answer.max_tokens if isinstance(call.answer, JsonOutput | TextOutput) else 0
    if call.reasoning is None:
        return call.think_tokens + written
    return 2 * call.think_tokens + call.reasoning.max_tokens + len(call.reasoning.ask.encode()) + written


class FirstJudgement(NamedTuple):
    """What the first judge gave a response that the gold judge judged too: its reward, and its scores by criterion."""

    reward: float | None
    scores: Mapping[str, float | None]


@dataclass(slots=True)
class JudgedRequest:
    """A judged request, complete and no longer modified.

    `rewards` holds each response's reward and status in order; it is empty if none were computed, and both are None for
    the responses of a group that got none, at which a stream failed. `seconds` is the time from arrival to answer.
    `record_id` is the 16-byte id to record under, so that a request sent again is recorded only once: the first write
    stands. `compared` holds each response's first judgement if this is a gold judge's request. `rules` say which
    verdicts were uncertain, and `reward_rules` how rewards were computed; None if none were asked for.
    `declared_rewards` are those under the rubric's own weights, None where others were not used.
    """

    project_id: str
    request: RewardRequest | VerdictRequest
    request_id: str
    prepared: PreparedConfig | None
    groups: Sequence[PlannedGroup]
    outcomes: Outcomes
    rewards: Sequence[tuple[float | None, str | None]]
    seconds: float
    at: datetime
    record_id: bytes | None = None
    compared: Sequence[FirstJudgement] = ()
    rules: VerdictRules = DEFAULT_RULES
    reward_rules: RewardRules | None = None
    declared_rewards: Sequence[float | None] = ()
    uses: int = field(init=False)
    """How many verdicts the request used, every vote counted."""
    use_rows: int = field(init=False)
    """How many rows these take in the ledger, which also has one for each verdict that dropout left out."""

    def __post_init__(self) -> None:
        self.uses = sum([response.plan.uses for group in self.groups for response in group.responses])
        sampled = [(len(group.responses), group.sample) for group in self.groups if group.sample is not None]
        self.use_rows = self.uses + sum([responses * sample.left_out.count(True) for responses, sample in sampled])


class RecordSink(Protocol):
    """Where judged requests are recorded."""

    def record(self, judged: JudgedRequest) -> None:
        """Accept a judged request; never blocks."""
