"""`POST /v1/comparisons`: judge two responses side by side, in both orders.

The answer to a pair is the mean over its orders (DRO, pairwise win rate), so a judge that prefers whichever response
comes first gives every pair one half.
"""

import asyncio
from collections.abc import Sequence

from judge_server.judging.pairs import DEFAULT_QUESTION, PairPlanner
from judge_server.judging.plan import GroupContext, ResponsePlan, VerdictSlot, check_required
from judge_server.judging.presentation import fit_grounding, prompt_characters
from judge_server.judging.questions import JudgingConfig, PreparedConfig
from judge_server.judging.results import Caller, JudgementResults
from judge_server.ports import CallFailure, RubricSource
from judge_server.rubrics import ResolvedRubric, resolve_rubrics
from judge_server.scoring.combined import AnyJudge
from judge_server.scoring.planner import LARGE_CHARACTERS, refuse_images
from judge_server.scoring.verdicts import failure_of, judge_of, pinned, usage_of
from judge_server.time_sharing import TimeSlicer, run_inline_or_in_thread
from trainer_client import wire
from trainer_client.text.thinking import judged_content

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
    for index, pair in enumerate(request.pairs):
        refuse_images(judge, f"pairs.{index}", [pair.prompt, *(wire.as_response(r).text for r in (pair.a, pair.b))])
        check_required(f"pairs.{index}", prepared, GroupContext(pair.prompt, pair.grounding, pair.reference_answer))
    slicer, plans = TimeSlicer(deadline), []
    for pair, rubric in zip(request.pairs, resolved, strict=True):
        await slicer.yield_if_due()
        large = _characters(pair) > LARGE_CHARACTERS
        plans.append(await run_inline_or_in_thread(large, _plans, prepared, request, pair, rubric))
    outcomes = await judge.outcomes(
        [order for orders in plans for order in orders], deadline, caller=Caller.of(request)
    )
    pairs = tuple([_compared(pair, orders, outcomes) for pair, orders in zip(request.pairs, plans, strict=True)])
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
        pairs=pairs,
    )


def _characters(pair: wire.Pair) -> int:
    """Return the most characters of a pair that the judge may be shown."""
    of_sources = sum(len(text) for text in (pair.grounding, pair.reference_answer) if text)
    responses = [wire.as_response(given).text for given in (pair.a, pair.b)]
    return of_sources + sum(map(prompt_characters, (pair.prompt, *responses)))


def _plans(
    prepared: PreparedConfig, request: wire.ComparisonRequest, pair: wire.Pair, rubric: ResolvedRubric
) -> list[ResponsePlan]:
    """Return the plans of both orders, `a` first and `b` first."""
    options = request.judging
    grounding = fit_grounding(pair.grounding, options.grounding_characters)[0] if pair.grounding else None
    context = GroupContext(pair.prompt, grounding, pair.reference_answer)
    planner = PairPlanner(prepared, context, rubric.criteria, request.question or DEFAULT_QUESTION)
    a, b = [planner.shown(judged_content(wire.as_response(given), options.reasoning)) for given in (pair.a, pair.b)]
    return [planner.plan("a", a, b), planner.plan("b", b, a)]


def _compared(pair: wire.Pair, plans: Sequence[ResponsePlan], outcomes: JudgementResults) -> wire.Comparison:
    orders = tuple([_order(plan.slots[0], outcomes) for plan in plans])
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


def _order(slot: VerdictSlot, outcomes: JudgementResults) -> wire.OrderVerdict:
    first = "a" if slot.criterion == "a" else "b"
    second = "b" if first == "a" else "a"
    (digest,) = slot.digests
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
