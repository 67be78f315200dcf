"""Comparisons: the mode `ranking`, and the pairs of `POST /v1/comparisons`. Both are asked in tournaments.

Every pair is asked in both orders. A comparison is a verdict on the response that was shown first, with the id
`beats_N`, where N is the place of the other one in the group. So the ledger has it like any other verdict, and the
rewards of a group follow from its verdicts alone. A pair of `/v1/comparisons` is a group of two responses.
"""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Literal

from judge_server.errors import TooLarge
from judge_server.judging.pairs import DEFAULT_QUESTION, PairPlanner, ShownResponse, Tournament, most_pairs
from judge_server.judging.plan import PendingVerdict, ResponsePlan
from judge_server.judging.presentation import planned_characters, prompt_characters
from judge_server.judging.questions import PreparedConfig
from judge_server.judging.results import Outcomes
from judge_server.observability.tracing import traced
from judge_server.ports import Batch, JudgeResult
from judge_server.scheduling.time_sharing import LARGE_CHARACTERS, TimeSlicer, run_inline_or_in_thread
from judge_server.scoring.combined import AnyJudge
from judge_server.scoring.planner import (
    MAX_PROMPT_CHARACTERS,
    MAX_VERDICTS,
    AskedGroups,
    PlannedGroup,
    PlannedResponse,
    read_context,
)
from judge_server.scoring.rubrics import ResolvedRubric
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

    def end_round(self, outcomes: Outcomes) -> PlannedGroup | None:
        """Take note of what the responses have won, which decides who meets next; return the group if all is judged."""
        won = {key: outcomes.by_digest[plan.pending[0].digests[0]] for key, plan in self._plans.items()}
        self._won = [[] for _ in self.group.responses]
        for (first, second), outcome in won.items():
            back = won[second, first]
            if isinstance(outcome, JudgeResult) and isinstance(back, JudgeResult):
                self._won[first].append(outcome.score)
                self._won[second].append(1.0 - outcome.score)
        return self._judged_group() if self.finished else None

    def _judged_group(self) -> PlannedGroup:
        """Return the group with its comparisons, each at the response that was shown first."""
        own: list[list[PendingVerdict]] = [[] for _ in self.group.responses]
        for first, second in sorted(self._plans):
            own[first].append(self._plans[first, second].pending[0])
        responses = [
            replace(response, plan=replace(response.plan, pending=tuple(pending)))
            for response, pending in zip(self.group.responses, own, strict=True)
        ]
        return replace(self.group, responses=responses)


@traced("plan")
async def plan_tournaments(
    judge: AnyJudge,
    prepared: PreparedConfig,
    request: wire.RewardRequest | wire.ComparisonRequest,
    asked: AskedGroups,
    rubrics: Sequence[ResolvedRubric],
    deadline: float,
) -> list[GroupTournament]:
    """Prepare the tournament of every group, or of every pair of a comparison.

    In a ranking, the judge sees the criteria that are rewarded, not the shadow ones.

    Raises:
        InvalidRequest: a group lacks what the template set requires; the message names the group.
        TooLarge: see `check_ranking_size`.
        NotReady: the deadline passed before planning was complete.
    """
    slicer, tournaments = TimeSlicer(deadline), []
    schedule, question = wire.RewardOptions(), DEFAULT_QUESTION
    if isinstance(request, wire.RewardRequest):
        check_ranking_size(request, judge.executor.max_calls)
        schedule = request.reward
    elif request.question:
        question = request.question
    for index, (group, rubric) in enumerate(zip(asked.groups, rubrics, strict=True)):
        await slicer.yield_if_due()
        context, omitted = await read_context(judge, prepared, asked, index)
        is_ranking = isinstance(request, wire.RewardRequest)
        criteria = tuple([criterion for criterion in rubric.criteria if not (is_ranking and criterion.shadow)])
        given = [wire.as_response(response) for response in group.responses]
        shared = planned_characters(group.prompt) + criteria_characters(criteria)
        shared += sum(len(text) for text in (context.grounding, group.reference_answer) if text)
        large = shared + 2 * max(planned_characters(response.text) for response in given) > LARGE_CHARACTERS
        make_planner = partial(
            PairPlanner, prepared, context, criteria, question, defences=asked.judging.defences, group=index
        )
        planner = await run_inline_or_in_thread(large, make_planner)
        responses, opens = [], opened_by(group.prompt, asked.judging.prompt_opens)
        for response in given:
            await slicer.yield_if_due()
            part = asked.judging.reasoning
            material = await run_inline_or_in_thread(large, judged_content, response, part, opens)
            responses.append(PlannedResponse(response, material, ResponsePlan((), _NO_BATCH, (), group=index)))
        planned = PlannedGroup(group, rubric, omitted, responses)
        tournaments.append(GroupTournament(planned, planner, schedule, large=large))
    return tournaments


def pair_verdicts(group: Sequence[Sequence[wire.Verdict]], use: wire.VerdictUse) -> list[PairVerdict]:
    """Return the comparisons of a group from the verdicts of its responses.

    Raises:
        ValueError: a verdict is no comparison.
    """
    found = []
    for place, verdicts in enumerate(group):
        for verdict in verdicts:
            opponent = compared_with(verdict.criterion)
            if opponent is None:
                raise ValueError(f"{verdict.criterion!r} is not a comparison of two responses")
            found.append(PairVerdict(place, opponent, verdict.value(use), verdict.score, verdict.judge_failure))
    return found


_TIE = 0.5
_WIN = {"a": 1.0, "tie": _TIE, "b": 0.0}


def compared(pair: str, a_first: Sequence[wire.Verdict], b_first: Sequence[wire.Verdict]) -> wire.Comparison:
    """Return the comparison of a pair from the verdicts in both orders."""
    orders = _order("a", *a_first), _order("b", *b_first)
    wins = [_WIN[order.preferred] for order in orders if order.preferred is not None]
    if len(wins) < len(orders):
        return wire.Comparison(id=pair, status="failed", orders=orders)
    score = sum(wins) / len(wins)
    probabilities = [order.probability for order in orders if order.probability is not None]
    return wire.Comparison(
        id=pair,
        status="ok",
        score=score,
        preferred="tie" if score == _TIE else "a" if score > _TIE else "b",
        probability=sum(probabilities) / len(probabilities) if len(probabilities) == len(orders) else None,
        consistent=len(set(wins)) == 1,
        orders=orders,
    )


def _order(first: Literal["a", "b"], verdict: wire.Verdict) -> wire.OrderVerdict:
    if verdict.failure is not None:
        return wire.OrderVerdict(first=first, status="failed", failure=verdict.failure)
    second: Literal["a", "b"] = "b" if first == "a" else "a"
    probability = verdict.probability
    if probability is not None and first == "b":
        probability = 1.0 - probability
    return wire.OrderVerdict(
        first=first,
        status="ok",
        probability=probability,
        preferred="tie" if _TIE in (probability, verdict.score) else first if verdict.score == 1.0 else second,
        choice_mass=verdict.choice_mass,
        rationale=verdict.rationale,
        cached=verdict.cached,
    )
