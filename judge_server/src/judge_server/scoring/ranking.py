"""The mode `ranking`: compare the responses of each group in pairs, round after round, and reward them by that.

Every pair is asked in both orders. A comparison is a verdict on the response that was shown first, with the id
`beats_N`, where N is the place of the other one in the group. So the ledger has it like any other verdict, and the
rewards of a group follow from its verdicts alone.

`POST /v1/comparisons` judges two responses side by side in the same way.
"""

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import replace
from functools import partial
from typing import NamedTuple

from judge_server.errors import TooLarge
from judge_server.judging.pairs import DEFAULT_QUESTION, PairPlanner, ShownResponse, Tournament, most_pairs
from judge_server.judging.plan import GroupContext, PendingVerdict, ResponsePlan, check_required
from judge_server.judging.presentation import fit_grounding, planned_characters, prompt_characters
from judge_server.judging.questions import JudgingConfig, PreparedConfig
from judge_server.judging.results import Caller, CallOutcome, Outcomes
from judge_server.observability.tracing import traced
from judge_server.ports import Batch, CallFailure, JudgeResult, RubricSource
from judge_server.rubrics import ResolvedRubric, resolve_rubrics
from judge_server.scoring.judge import AnyJudge
from judge_server.scoring.planner import (
    MAX_PROMPT_CHARACTERS,
    MAX_VERDICTS,
    PlannedGroup,
    PlannedResponse,
    refuse_images,
)
from judge_server.scoring.verdicts import failure_of, judge_of, pinned, usage_of
from judge_server.time_sharing import LARGE_CHARACTERS, TimeSlicer, run_inline_or_in_thread
from rubric_store.rubrics.rows import criteria_characters
from trainer_client import wire
from trainer_client.ranking import PairVerdict, compared_with, comparison_id
from trainer_client.text.thinking import judged_content, opened_by

_NO_BATCH = Batch("", "", ())


def check_ranking_size(request: wire.RewardRequest, max_calls: int) -> None:
    """Check the size of all rounds of a request before any of it is planned.

    Raises:
        TooLarge: it needs more than `max_calls` calls, `MAX_VERDICTS` or `MAX_PROMPT_CHARACTERS`.
    """
    options, calls, characters = request.reward, 0, 0
    for group in request.groups:
        count = len(group.responses)
        pairs = most_pairs(count, options.schedule, options.rounds)
        shared = sum(len(text) for text in (group.grounding, group.reference_answer) if text)
        lengths = [prompt_characters(wire.as_response(response).text) for response in group.responses]
        calls += 2 * pairs
        characters += 2 * pairs * (shared + prompt_characters(group.prompt))
        if options.schedule == "pivot":
            characters += 2 * (sum(lengths) + (count - 2) * max(lengths))
        else:
            characters += 2 * sum(lengths) * -(-2 * pairs // count)
    about = f"the schedule {options.schedule!r} makes {calls:,} comparisons of {len(request.groups):,} groups"
    remedy = "send fewer groups at once, or use the schedule 'swiss' or 'pivot'"
    if calls > min(max_calls, MAX_VERDICTS):
        raise TooLarge(
            f"groups: {about}, more than the {min(max_calls, MAX_VERDICTS):,} that the queue takes; {remedy}, or raise "
            "ADJUDGE_QUEUE_CALLS on the server"
        )
    if characters > MAX_PROMPT_CHARACTERS:
        raise TooLarge(
            f"groups: {about}, whose prompts together have {characters:,} characters, more than "
            f"{MAX_PROMPT_CHARACTERS:,}; {remedy}, or shorten the prompt and grounding"
        )


class GroupTournament:
    """The tournament of one group in progress: what is compared in a round, and what came of it.

    `group` is the group before it is judged, without a verdict.
    """

    def __init__(self, group: PlannedGroup, planner: PairPlanner, options: wire.RewardOptions, *, large: bool) -> None:
        self.group = group
        self._planner = planner
        self._large = large
        self._shown: list[ShownResponse] = []
        self._tournament = Tournament(
            [repr(one.response.text) for one in group.responses], options.schedule, options.rounds
        )
        self._plans: dict[tuple[int, int], ResponsePlan] = {}
        self._won: list[list[float]] = [[] for _ in group.responses]

    @property
    def finished(self) -> bool:
        """Whether all rounds are planned."""
        return self._tournament.finished

    async def next_round(self, slicer: TimeSlicer) -> list[ResponsePlan]:
        """Return the plans of the next round, both orders of each pair; those with the same first response adjoin."""
        if not self._shown:
            self._shown = await run_inline_or_in_thread(
                self._large, lambda: [self._planner.shown(one.material) for one in self.group.responses]
            )
        standings = [sum(won) / len(won) if won else 0.5 for won in self._won]
        pairs = self._tournament.next_round(standings)
        round_plans = {}
        for first, second in sorted([*pairs, *[(j, i) for i, j in pairs]]):
            await slicer.yield_if_due()
            shown = self._shown[first], self._shown[second]
            about = comparison_id(second)
            round_plans[first, second] = await run_inline_or_in_thread(self._large, self._planner.plan, about, *shown)
        self._plans |= round_plans
        return list(round_plans.values())

    def record(self, known: Mapping[bytes, CallOutcome]) -> None:
        """Take note of what the responses have won, which decides who meets in the next round."""
        won = {key: known[plan.pending[0].digests[0]] for key, plan in self._plans.items()}
        self._won = [[] for _ in self.group.responses]
        for (first, second), outcome in won.items():
            back = won[second, first]
            if isinstance(outcome, JudgeResult) and isinstance(back, JudgeResult):
                self._won[first].append(outcome.score)
                self._won[second].append(1.0 - outcome.score)

    def judged_group(self) -> PlannedGroup:
        """Return the group with its comparisons, each at the response that was shown first."""
        responses = []
        for place, response in enumerate(self.group.responses):
            own = [plan for (first, _), plan in sorted(self._plans.items()) if first == place]
            pending = tuple([plan.pending[0] for plan in own])
            responses.append(replace(response, plan=replace(response.plan, pending=pending)))
        return replace(self.group, responses=responses)


@traced("plan")
async def plan_tournaments(
    judge: AnyJudge,
    prepared: PreparedConfig,
    request: wire.RewardRequest,
    rubrics: Sequence[ResolvedRubric],
    deadline: float,
) -> list[GroupTournament]:
    """Prepare the tournament of every group. The judge sees the criteria that are rewarded, not the shadow ones.

    Raises:
        InvalidRequest: a group lacks what the template set requires; the message names the group.
        TooLarge: see `check_ranking_size`.
        NotReady: the deadline passed before planning was complete.
    """
    check_ranking_size(request, judge.executor.max_calls)
    options, slicer, tournaments = request.judging, TimeSlicer(deadline), []
    for index, (group, rubric) in enumerate(zip(request.groups, rubrics, strict=True)):
        await slicer.yield_if_due()
        grounding, omitted = None, 0
        if group.grounding:
            large = len(group.grounding) > LARGE_CHARACTERS
            grounding, omitted = await run_inline_or_in_thread(
                large, fit_grounding, group.grounding, options.grounding_characters
            )
        context = GroupContext(group.prompt, grounding, group.reference_answer, group.ground_truth)
        refuse_images(judge, f"groups.{index}", [group.prompt, *(wire.as_response(r).text for r in group.responses)])
        check_required(f"groups.{index}", prepared, context)
        criteria = tuple([criterion for criterion in rubric.criteria if not criterion.shadow])
        given = [wire.as_response(response) for response in group.responses]
        shared = planned_characters(group.prompt) + sum(
            len(text) for text in (grounding, group.reference_answer) if text
        )
        shared += criteria_characters(criteria)
        large = shared + 2 * max(planned_characters(response.text) for response in given) > LARGE_CHARACTERS
        make_planner = partial(PairPlanner, prepared, context, criteria, defences=options.defences, group=index)
        planner = await run_inline_or_in_thread(large, make_planner)
        responses, opens = [], opened_by(group.prompt, options.prompt_opens)
        for response in given:
            await slicer.yield_if_due()
            material = await run_inline_or_in_thread(large, judged_content, response, options.reasoning, opens)
            responses.append(PlannedResponse(response, material, ResponsePlan((), _NO_BATCH, (), group=index)))
        planned = PlannedGroup(group, rubric, omitted, responses)
        tournaments.append(GroupTournament(planned, planner, request.reward, large=large))
    return tournaments


class Played(NamedTuple):
    """What has become known since the last one: the groups whose tournament is over, by place, and new outcomes."""

    groups: dict[int, PlannedGroup]
    outcomes: Outcomes


async def play(
    judge: AnyJudge, tournaments: Sequence[GroupTournament], deadline: float, caller: Caller
) -> AsyncGenerator[Played, None]:
    """Judge all groups round by round.

    A round of all groups is submitted at once, so the queue admits or refuses it as a whole. Comparisons that the
    deadline cuts off fail, in later rounds too. Closing cancels the rest.

    Raises:
        Overloaded: the judge's queue has no room for a round; what was judged before is cached.
        NotReady: no judge is available.
    """
    left, known, slicer = dict(enumerate(tournaments)), dict[bytes, CallOutcome](), TimeSlicer()
    while left:
        plans: list[ResponsePlan] = []
        places: list[int] = []
        for place, tournament in left.items():
            of_group = await tournament.next_round(slicer)
            plans += of_group
            places += [place] * len(of_group)
        waiting = Counter(places)
        async with aclosing(judge.judge(plans, deadline, caller=caller)) as judging:
            async for judged in judging:
                known.update(judged.outcomes.by_digest)
                finished = {}
                for place in [places[index] for index in judged.complete]:
                    waiting[place] -= 1
                    if not waiting[place]:
                        left[place].record(known)
                        if left[place].finished:
                            finished[place] = left.pop(place).judged_group()
                yield Played(finished, judged.outcomes)


def pair_verdicts(group: Sequence[Sequence[wire.Verdict]], use: wire.VerdictUse) -> list[PairVerdict]:
    """Return the comparisons of a group from the verdicts of its responses."""
    found = []
    for place, verdicts in enumerate(group):
        for verdict in verdicts:
            opponent = compared_with(verdict.criterion)
            assert opponent is not None, f"{verdict.criterion!r} is no comparison"
            kind = None if verdict.failure is None else verdict.failure.kind
            found.append(PairVerdict(place, opponent, verdict.value(use), verdict.score, kind))
    return found


_TIE = 0.5


async def compare(
    judge: AnyJudge, rubrics: RubricSource, request: wire.ComparisonRequest, *, request_id: str, project_id: str
) -> wire.ComparisonAnswer:
    """Compare every pair of the request.

    Raises:
        InvalidRequest, UnknownRubric: before anything is judged.
        Overloaded: the judge's queue is full.
        NotReady: no judge is available, or the deadline passed before planning was complete.
    """
    deadline = asyncio.get_running_loop().time() + request.deadline_s
    pair_rubrics = [pair.rubric for pair in request.pairs]
    resolved = await resolve_rubrics(
        rubrics,
        pair_rubrics,
        request.rubric,
        project_id,
        deadline=deadline,
        where="pairs",
        allow_retired=request.allow_retired,
    )
    options = request.judging
    prepared = judge.prepared(
        JudgingConfig("comparison", 1, options.rationale, options.think_tokens, template=options.template)
    )
    slicer, plans = TimeSlicer(deadline), []
    for index, pair in enumerate(request.pairs):
        await slicer.yield_if_due()
        refuse_images(judge, f"pairs.{index}", [pair.prompt, *(wire.as_response(r).text for r in (pair.a, pair.b))])
        check_required(f"pairs.{index}", prepared, GroupContext(pair.prompt, pair.grounding, pair.reference_answer))
    for pair, rubric in zip(request.pairs, resolved, strict=True):
        await slicer.yield_if_due()
        large = _characters(pair) > LARGE_CHARACTERS
        plans.append(await run_inline_or_in_thread(large, _plans, prepared, request, pair, rubric))
    outcomes = await judge.outcomes(
        [order for orders in plans for order in orders], deadline, caller=Caller.of(request)
    )
    slicer, pairs = TimeSlicer(), []
    for pair, orders in zip(request.pairs, plans, strict=True):
        await slicer.yield_if_due()
        pairs.append(_compared(pair, orders, outcomes))
    scores = [pair.score for pair in pairs if pair.score is not None]
    judge_info = judge_of(judge, prepared, outcomes)
    assert judge_info is not None
    return wire.ComparisonAnswer(
        request_id=request_id,
        run=request.run,
        step=request.step,
        judge=judge_info,
        rubrics=pinned(resolved),
        usage=usage_of(outcomes),
        win_rate=sum(scores) / len(scores) if scores else None,
        pairs=tuple(pairs),
    )


def _characters(pair: wire.Pair) -> int:
    """Return the number of characters whose planning takes as long as that of a pair."""
    of_sources = sum(len(text) for text in (pair.grounding, pair.reference_answer) if text)
    responses = [wire.as_response(given).text for given in (pair.a, pair.b)]
    return of_sources + sum(map(planned_characters, (pair.prompt, *responses)))


def _plans(
    prepared: PreparedConfig, request: wire.ComparisonRequest, pair: wire.Pair, rubric: ResolvedRubric
) -> list[ResponsePlan]:
    """Return the plans of both orders, `a` first and `b` first."""
    options = request.judging
    grounding = fit_grounding(pair.grounding, options.grounding_characters)[0] if pair.grounding else None
    context = GroupContext(pair.prompt, grounding, pair.reference_answer)
    planner = PairPlanner(prepared, context, rubric.criteria, request.question or DEFAULT_QUESTION)
    opens = opened_by(pair.prompt, options.prompt_opens)
    both = [judged_content(wire.as_response(given), options.reasoning, opens) for given in (pair.a, pair.b)]
    a, b = map(planner.shown, both)
    return [planner.plan("a", a, b), planner.plan("b", b, a)]


def _compared(pair: wire.Pair, plans: Sequence[ResponsePlan], outcomes: Outcomes) -> wire.Comparison:
    orders = tuple([_order(plan.pending[0], outcomes) for plan in plans])
    wins = [_WIN[order.preferred] for order in orders if order.preferred is not None]
    if len(wins) < len(orders):
        return wire.Comparison(id=pair.id, status="failed", orders=orders)
    score = sum(wins) / len(wins)
    probabilities = [order.probability for order in orders if order.probability is not None]
    return wire.Comparison(
        id=pair.id,
        status="ok",
        score=score,
        preferred="tie" if score == _TIE else "a" if score > _TIE else "b",
        probability=sum(probabilities) / len(probabilities) if len(probabilities) == len(orders) else None,
        consistent=len(set(wins)) == 1,
        orders=orders,
    )


_WIN = {"a": 1.0, "tie": _TIE, "b": 0.0}


def _order(pending: PendingVerdict, outcomes: Outcomes) -> wire.OrderVerdict:
    first = "a" if pending.criterion == "a" else "b"
    second = "b" if first == "a" else "a"
    (digest,) = pending.digests
    outcome = outcomes.by_digest[digest]
    if isinstance(outcome, CallFailure):
        return wire.OrderVerdict(first=first, status="failed", failure=failure_of(outcome))
    probability = outcome.probability
    if probability is not None and first == "b":
        probability = 1.0 - probability
    return wire.OrderVerdict(
        first=first,
        status="ok",
        probability=probability,
        preferred="tie" if _TIE in (probability, outcome.score) else first if outcome.score == 1.0 else second,
        choice_mass=outcome.choice_mass,
        rationale=outcome.rationale,
        cached=digest in outcomes.cached,
    )
