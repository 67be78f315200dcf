"""`POST /v1/comparisons`: judge two responses side by side, in both orders.

The answer to a pair is the mean over its orders (DRO, pairwise win rate), so a judge that prefers whichever response
comes first gives every pair one half.
"""

import asyncio
from collections.abc import Sequence

from judge_server.judging.combining import CombinedConfig, combine_plans
from judge_server.judging.fingerprint import CallDigests
from judge_server.judging.plan import GroupContext, PlannedCall, ResponsePlan, VerdictSlot, check_required
from judge_server.judging.questions import JudgingConfig, PreparedConfig, ask, option
from judge_server.judging.results import Caller, JudgementResults
from judge_server.judging.shortening import fit_grounding, prompt_characters
from judge_server.ports import Batch, CallFailure, RubricSource, TokenChoice
from judge_server.prompts.fencing import render_conversation
from judge_server.rubrics import ResolvedRubric, resolve_rubrics
from judge_server.scoring.combined import AnyJudge
from judge_server.scoring.planner import LARGE_CHARACTERS
from judge_server.scoring.verdicts import failure_of, judge_of, pinned, usage_of
from judge_server.time_sharing import TimeSlicer, run_inline_or_in_thread
from trainer_client import wire
from trainer_client.text.thinking import judged_content

DEFAULT_QUESTION = "Which response is better?"
A_OR_B = TokenChoice((option("A"), option("B")))
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
    if isinstance(prepared, CombinedConfig):
        orders = zip(*[_plans(own, request, pair, rubric) for own in prepared.members], strict=True)
        return [combine_plans(prepared, plans) for plans in orders]
    templates, options = prepared.single_templates, request.judging
    a, b = [
        render_conversation(material.messages or material.text, templates.fence)
        for material in (judged_content(wire.as_response(given), options.reasoning) for given in (pair.a, pair.b))
    ]
    prompt = render_conversation(pair.prompt, templates.fence)
    withheld = prepared.declaration.withholds
    grounding = None
    if pair.grounding and "grounding" not in withheld:
        grounding, _ = fit_grounding(pair.grounding, options.grounding_characters)
    criteria = () if "criteria" in withheld else rubric.criteria
    asked = templates.comparison(criteria, request.question or DEFAULT_QUESTION)
    plans = []
    for first, shown in (("a", (a, b)), ("b", (b, a))):
        shared = templates.pair(
            prompt=prompt,
            conversation=not isinstance(pair.prompt, str),
            a=shown[0],
            b=shown[1],
            grounding=grounding,
            reference_answer=None if "reference_answer" in withheld else pair.reference_answer,
        )
        question = ask(prepared, first, asked, A_OR_B, None, "yes_no")
        digests = CallDigests(prepared.fingerprint, templates.system, shared).of(question.call)
        batch = Batch(templates.system, shared, (question.call,))
        slot = VerdictSlot(first, "judge", digests)
        plans.append(ResponsePlan((slot,), batch, (PlannedCall(question, digests),), system_alone=templates.system))
    return plans


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
