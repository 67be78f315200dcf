"""`POST /v1/rewards/recompute`: compute a run's rewards from the ledger, by the same formulas that scoring uses.

No judge is asked: verdicts are read from the ledger, and a failed one stays failed. Rules that the request for it
leaves out are those by which each recorded request was rewarded.
"""

import json
from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import chain, groupby
from typing import TypeVar

from pydantic import ValidationError

from judge_server.errors import InvalidRequest, JudgingFailed, NotFound, RubricRefused, invalid_field, unknown_run
from judge_server.ports import LedgerReader
from judge_server.scheduling.time_sharing import run_in_thread
from judge_server.scoring.ranking import pair_verdicts
from judge_server.scoring.recorded import judged_verdicts, storable_text
from judge_server.scoring.rewards import (
    RewardResult,
    effective_weights,
    ranked,
    reward_of,
    step_rewards,
    with_weights,
)
from rubric_store.ledger.rows import LEFT_OUT, JudgedBy, JudgedResponse, JudgedRun, JudgedVote, RunRange
from trainer_client.dropout import read_sample
from trainer_client.rewards import (
    ResponseFacts,
    UnscoredCriteria,
    UnsuitableRubric,
    check_rubric,
    component_weights,
    read_criteria,
)
from trainer_client.wire import (
    PROTOCOLS_FOR,
    YES_NO_PROTOCOLS,
    Criterion,
    RewardMode,
    RewardOptions,
    StepReward,
    Verdict,
    VerdictUse,
)
from trainer_client.wire.ledger import (
    RecomputedGroup,
    RecomputedResponse,
    RecomputeRequest,
    RecomputeStart,
    RecomputeSummary,
    StepBudgets,
)
from trainer_client.wire.rewards import RewardRules

_T = TypeVar("_T")

_USES_AT_ONCE = 10_000

RubricsByDigest = dict[bytes | None, tuple[tuple[Criterion, ...], tuple[Criterion, ...]]]
"""The criteria of each rubric with the request's weights, and as they were judged."""


@dataclass(slots=True)
class RecomputeTotals:
    """Counts of what was rewarded so far."""

    verdicts: int = 0
    missing: int = 0
    total: float = 0.0
    rewarded: int = 0
    statuses: Counter[str] = field(default_factory=Counter)


async def recompute(
    ledger: LedgerReader, request: RecomputeRequest, *, project_id: str
) -> AsyncGenerator[RecomputeStart | RecomputedGroup | RecomputeSummary, None]:
    """Recompute the rewards of part of a run: yield its size, the groups in the order judged, and a summary.

    Raises:
        NotFound: the ledger has no such part; raised first.
        InvalidRequest: the verdicts cannot feed the mode, or a weight names a criterion that is in no rubric (both
            before any group); or a penalty needs what a response lacks (at that response).
        RubricRefused: a rubric cannot feed the mode; before any group.
        JudgingFailed: a verdict that a reward needs failed and `on_failure` is `error`; at that response.
    """
    name = storable_text(request.run or "")
    part = RunRange(project_id, name, request.first_step, request.last_step, request.protocol)
    run = await ledger.judged_run(part)
    if not run.requests:
        raise _unknown(request)
    rules = {stored: _rules(request, stored) for stored in {one.reward_rules for one in run.judged_by}}
    _check(request, run, rules)
    rubrics = _rubrics(request, run, rules)
    yield RecomputeStart(run=request.run, requests=run.requests, verdicts=run.uses)
    totals, after = RecomputeTotals(), None
    while True:
        responses, after = await ledger.judged_responses(part, after, _USES_AT_ONCE)
        for group in await run_in_thread(_rewarded, request, rules, rubrics, responses, totals):
            yield group
        if after is None:
            break
    yield RecomputeSummary(
        run=request.run,
        mode=_only({one.reward.mode for one in rules.values()}),
        on_failure=_only({one.on_failure for one in rules.values()}),
        requests=run.requests,
        responses=totals.statuses.total(),
        verdicts=totals.verdicts,
        missing=totals.missing,
        scored=totals.statuses["scored"],
        partial=totals.statuses["partial"],
        unscored=totals.statuses["unscored"],
        mean_reward=totals.total / totals.rewarded if totals.rewarded else None,
    )


def _unknown(request: RecomputeRequest) -> NotFound:
    part = " in these steps" if (request.first_step, request.last_step) != (None, None) else ""
    also = f" judged as {request.protocol!r}" if request.protocol else ""
    return unknown_run(f"no record of run {request.run!r}{part}{also}")


_RulesByRecord = dict[str | None, RewardRules]
"""The rules to recompute requests by, by the rules that they recorded."""


def _rules(request: RecomputeRequest, recorded: str | None) -> RewardRules:
    """The rules in force: what the request for recomputing gives, and else what the judged request recorded."""
    given = {name: getattr(request.reward, name) for name in request.reward.model_fields_set}
    before = RewardRules.read(recorded) or RewardRules()
    try:
        reward = RewardOptions.model_validate(dict(before.reward) | given)
    except ValidationError as error:
        wrong = error.errors(include_url=False, include_input=False)[0]["msg"].removeprefix("Value error, ")
        message = f"with the other reward options that run {request.run!r} was judged with, {wrong}"
        raise invalid_field("reward", message) from None
    return RewardRules(
        reward=reward,
        on_failure=request.on_failure or ("null" if before.on_failure == "error" else before.on_failure),
        uncertain_band=request.uncertain_band,
        on_uncertain=request.on_uncertain or ("null" if before.on_uncertain == "error" else before.on_uncertain),
        dropout=before.dropout,
    )


def _only(values: set[_T]) -> _T | None:
    """The only value; None if there are several."""
    return next(iter(values)) if len(values) == 1 else None


def _check(request: RecomputeRequest, run: JudgedRun, rules: _RulesByRecord) -> None:
    """Refuse verdicts that cannot feed the mode by which they are to be rewarded."""
    protocols = sorted({one.protocol for one in run.judged_by})
    refused = [one for one in run.judged_by if not _feeds(one.protocol, rules[one.reward_rules].reward.mode)]
    if not refused:
        _require_yes_no(request, run, rules)
        return
    fed = [m for m in PROTOCOLS_FOR if all(_feeds(protocol, m) for protocol in protocols)]
    was = " and ".join(repr(protocol or "outcome") for protocol in protocols)
    if fed:
        remedy = f"use {' or '.join(map(repr, fed))}"
    else:
        remedy = "no mode takes them all, so select a part of the run by protocol or by step"
    mode = rules[refused[0].reward_rules].reward.mode
    message = f"run {request.run!r} was judged as {was}, which cannot feed mode {mode!r}; {remedy}"
    raise invalid_field("reward.mode", message)


def _require_yes_no(request: RecomputeRequest, run: JudgedRun, rules: _RulesByRecord) -> None:
    """Refuse what needs probabilities of yes if verdicts are grades."""

    if request.uncertain_band is not None and any(one.protocol == "comparison" for one in run.judged_by):
        raise invalid_field(
            "uncertain_band",
            f"run {request.run!r} has rankings, in which no verdict is uncertain; leave out uncertain_band",
        )

    def needs(one: JudgedBy) -> bool:
        return request.uncertain_band is not None or rules[one.reward_rules].reward.use == "probability"

    grades = sorted({one.protocol for one in run.judged_by if one.protocol not in YES_NO_PROTOCOLS and needs(one)})
    if grades:
        where = "uncertain_band" if request.reward.use == "verdict" else "reward.use"
        message = (
            f"run {request.run!r} was judged as {' and '.join(map(repr, grades))}, whose verdicts are grades and have "
            f"no probability of yes; leave out {where}, or select a part of the run by protocol"
        )
        raise invalid_field(where, message)


def _feeds(protocol: str, mode: RewardMode) -> bool:
    """Whether verdicts of a protocol ('' if no judge was asked) can feed a mode."""
    return protocol in PROTOCOLS_FOR[mode] if protocol else mode == "outcome"


def _rubrics(request: RecomputeRequest, run: JudgedRun, rules: _RulesByRecord) -> RubricsByDigest:
    """Return the run's rubrics with the request's weights, after checking that each can feed the mode."""
    rubrics: RubricsByDigest = {None: ((), ())}
    unused = set(request.weights)
    for digest, written in run.rubrics.items():
        criteria = [Criterion.model_validate(criterion) for criterion in json.loads(written)]
        unused -= {criterion.id for criterion in criteria}
        reweighted = [
            c.model_copy(update={"weight": request.weights[c.id]}) if c.id in request.weights else c for c in criteria
        ]
        rubrics[digest] = (tuple(reweighted), tuple(criteria))
    if unused:
        message = f"no rubric of run {request.run!r} has a criterion {min(unused)!r}"
        raise invalid_field("weights", message)
    for one in run.judged_by:
        options = rules[one.reward_rules].reward
        try:
            if one.rubric in run.rubrics:
                check_rubric(rubrics[one.rubric][0], options.mode, options.kinds, options.components)
        except UnsuitableRubric as error:
            raise RubricRefused(f"rubric {_reference(one.rubric)}: {error}") from None
    return rubrics


def _rewarded(
    request: RecomputeRequest,
    rules: _RulesByRecord,
    rubrics: RubricsByDigest,
    responses: Sequence[JudgedResponse],
    totals: RecomputeTotals,
) -> list[RecomputedGroup]:
    groups = []
    for _, members in groupby(responses, key=lambda each: (each.request_id, each.group_id)):
        for group in _parts(list(members)):
            stored = group[0].reward_rules
            in_force = rules[stored] if stored in rules else _rules(request, stored)  # of a request judged meanwhile
            if in_force.reward.mode == "ranking":
                groups.append(_ranked(in_force, group, totals))
            else:
                groups.append(_group(in_force, request.budgets, rubrics, group, totals))
    return groups


def _parts(group: Sequence[JudgedResponse]) -> list[list[JudgedResponse]]:
    """Split the responses of one group id into the groups that were sent under it, each of which begins at place 0."""
    parts: list[list[JudgedResponse]] = []
    for response in group:
        if not response.position or not parts:
            parts.append([])
        parts[-1].append(response)
    return parts


def _ranked(rules: RewardRules, group: Sequence[JudgedResponse], totals: RecomputeTotals) -> RecomputedGroup:
    """Reward a group by its recorded comparisons, as `scorer._rank_responses` does."""
    first, use = group[0], rules.reward.use
    verdicts = [judged_verdicts(response) for response in group]
    with _refusals_at(f"group {first.group_id!r} in request {first.request_id}"):
        _require_probabilities(chain.from_iterable(verdicts), use)
        pairs = pair_verdicts(verdicts, use)
        results = ranked(pairs, [ResponseFacts(tokens=one.tokens, stopped=one.stopped) for one in group], rules)
    return RecomputedGroup(
        request_id=first.request_id,
        step=first.step,
        id=first.group_id,
        rubric=_reference(first.rubric),
        responses=tuple([_recomputed(*one, (), totals) for one in zip(group, results, strict=True)]),
    )


def _group(
    rules: RewardRules,
    budgets: StepBudgets,
    rubrics: RubricsByDigest,
    group: Sequence[JudgedResponse],
    totals: RecomputeTotals,
) -> RecomputedGroup:
    """Reward a group response by response, under the weights that its recorded verdicts give, if they give any."""
    first = group[0]
    weights: dict[str, float] = {}
    if rules.reward.weighting == "contrast" and first.rubric in rubrics:
        with _refusals_at(f"group {first.group_id!r} in request {first.request_id}"):
            verdicts = [judged_verdicts(response, rules.uncertain_band) for response in group]
            weights = effective_weights(rubrics[first.rubric][0], verdicts, rules.reward)
    recomputed = tuple([_response(rules, budgets, rubrics, one, totals, weights) for one in group])
    components: dict[str, float] = {}
    if rules.reward.components is not None:
        terms = with_weights(read_criteria(rubrics[first.rubric][0]), weights)
        components = component_weights(terms, rules.reward)
    return RecomputedGroup(
        request_id=first.request_id,
        step=first.step,
        id=first.group_id,
        rubric=_reference(first.rubric),
        component_weights=components,
        criterion_weights=weights,
        responses=recomputed,
    )


@contextmanager
def _refusals_at(where: str) -> Iterator[None]:
    """Name the place in the run of what a block refuses."""
    try:
        yield
    except UnscoredCriteria as error:
        raise JudgingFailed(f"{where}: {error}") from None
    except ValueError as error:
        raise InvalidRequest(f"{where}: {error}") from None


def _response(
    rules: RewardRules,
    budgets: StepBudgets,
    rubrics: RubricsByDigest,
    response: JudgedResponse,
    totals: RecomputeTotals,
    weights: Mapping[str, float],
) -> RecomputedResponse:
    where = f"response {response.position} of group {response.group_id!r} in request {response.request_id}"
    if response.rubric not in rubrics:
        raise InvalidRequest(f"{where}: its rubric {_reference(response.rubric)} is no longer in the ledger")
    criteria, judged_by = rubrics[response.rubric]
    verdicts, use = judged_verdicts(response, rules.uncertain_band), rules.reward.use
    sample = read_sample(judged_by, verdicts, rules.dropout)
    with _refusals_at(where):
        _require_probabilities(verdicts, use)
        facts = ResponseFacts(response.format_ok, response.tokens, response.stopped, sample)
        result = reward_of(criteria, verdicts, rules, facts, weights)
    steps: tuple[StepReward, ...] = ()
    if response.spans is not None:
        steps = step_rewards(criteria, verdicts, use, json.loads(response.spans), budgets, sample=sample)
    return _recomputed(response, result, steps, totals)


def _recomputed(
    response: JudgedResponse, result: RewardResult, steps: tuple[StepReward, ...], totals: RecomputeTotals
) -> RecomputedResponse:
    _count(totals, response.votes, result.reward, result.outcome.status)
    return RecomputedResponse(position=response.position, **result.fields(), steps=steps)


def _count(totals: RecomputeTotals, votes: Sequence[JudgedVote], reward: float | None, status: str) -> None:
    totals.verdicts += sum([vote.failure != LEFT_OUT for vote in votes])
    totals.missing += sum([vote.score is None and vote.failure is None for vote in votes])
    totals.statuses[status] += 1
    if reward is not None:
        totals.total += reward
        totals.rewarded += 1


def _require_probabilities(verdicts: Iterable[Verdict], use: VerdictUse) -> None:
    """Raise `ValueError` if a verdict of the judge lacks the probability that is to enter the reward."""
    for verdict in verdicts:
        if verdict.score is not None and verdict.value(use) is None:
            raise ValueError(
                f"the verdict on {verdict.criterion!r} was given without a probability; leave out reward.use, or judge "
                "again with a judge that gives probabilities"
            )


def _reference(digest: bytes | None) -> str | None:
    return None if digest is None else f"sha256:{digest.hex()}"
