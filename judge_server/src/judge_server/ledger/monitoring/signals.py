"""The signals of a judged request: sums over pairs (x, y) that monitors read instead of the verdicts.

They are computed when a request is recorded and added up by training step, so that a monitor never reads verdicts.
Requests without a run or a step have none.

| signal | name | a pair is | x | y |
| --- | --- | --- | --- | --- |
| `shadow` | criterion | a response | reward | score of the shadow criterion, 1 being good |
| `length` | `tokens` or `characters` | a response | reward | length |
| `criterion` | criterion | a group | 1 if all its responses meet it | 1 if none does |
| `overlap` | | a response | 1 if nearly all of it also occurs in responses to other prompts | 1 if half of it does |
| `members` | | a verdict of a cascade or panel | 1 if at least two members gave a score | 1 if they disagree |
| `members` | criterion | a verdict of a cascade or panel on it | the same | the same |
| `gold` | | a response | the judge's reward | the gold judge's reward |
| `gold` | criterion | a response | 1 if the judge finds it met | 1 if the gold judge does |
"""

import math
import re
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from judge_server.judging.replies import combine_votes
from judge_server.judging.results import Outcomes
from judge_server.ports import CallFailure, JudgeResult
from judge_server.scoring.planner import JudgedRequest, PlannedGroup, PlannedResponse
from rubric_store.ledger.rows import SignalRow
from trainer_client.wire import Criterion

MET_FROM = 0.5
"""The score from which a criterion counts as met."""

MAX_CRITERIA = 256
"""The most criteria of a request that have a signal of their own; a request with more has none by criterion."""

SHINGLE_WORDS = 5
MIN_WORDS = 8
DUPLICATE_FROM, TEMPLATE_FROM = 0.9, 0.5
"""The shares of a response's five-word sequences that responses to other prompts must have too."""

MAX_PROMPTS, MAX_PER_PROMPT, MAX_CHARACTERS = 64, 2, 4_000
"""How much text of a request is compared: the first characters of some responses to each of the first prompts."""

_WORD = re.compile(r"\w+")

Pair = tuple[float, float]


@dataclass(slots=True)
class PairSums:
    """Sums over pairs, in the order of `SignalRow`."""

    pairs: int = 0
    x: float = 0.0
    y: float = 0.0
    xx: float = 0.0
    yy: float = 0.0
    xy: float = 0.0
    within: int = 0
    within_xx: float = 0.0
    within_yy: float = 0.0
    within_xy: float = 0.0

    def add(self, group: Sequence[Pair]) -> None:
        """Add the pairs of one group."""
        if not group:
            return
        count = len(group)
        mean_x, mean_y = sum(x for x, _ in group) / count, sum(y for _, y in group) / count
        for x, y in group:
            self.x, self.y = self.x + x, self.y + y
            self.xx, self.yy, self.xy = self.xx + x * x, self.yy + y * y, self.xy + x * y
            from_x, from_y = x - mean_x, y - mean_y
            self.within_xx, self.within_yy = self.within_xx + from_x * from_x, self.within_yy + from_y * from_y
            self.within_xy += from_x * from_y
        self.pairs += count
        self.within += count - 1

    def finite(self) -> bool:
        """Whether all sums are finite; huge rewards can overflow."""
        return all(map(math.isfinite, (self.xx, self.yy, self.xy, self.x, self.y)))


Signals = defaultdict[tuple[str, str], PairSums]


class _RewardedResponse(NamedTuple):
    planned: PlannedResponse
    reward: float | None
    scores: Mapping[str, float | None]


def signals_of(judged: JudgedRequest, project_id: str, run: str, request: bytes) -> list[SignalRow]:
    """Return the signals of a request, to be recorded under these keys."""
    step = judged.request.step
    if not run or step is None or not judged.rewards:
        return []
    sums: Signals = defaultdict(PairSums)
    place = 0
    for group in judged.groups:
        end = place + len(group.responses)
        responses = [
            _RewardedResponse(planned, reward, scores_of(planned, judged.outcomes))
            for planned, (reward, _) in zip(group.responses, judged.rewards[place:end], strict=True)
        ]
        if judged.compared:
            _add_gold(sums, responses, judged.compared[place:end])
        else:
            _add_group(sums, group.rubric.criteria, responses)
            _add_members(sums, group.responses, judged.outcomes)
        place = end
    if not judged.compared:
        sums["overlap", ""].add(overlaps(judged.groups))
    if len(sums) > MAX_CRITERIA:
        sums = defaultdict(
            PairSums, {key: one for key, one in sums.items() if key[0] in ("length", "overlap") or not key[1]}
        )
    return [
        SignalRow(
            project_id, run, request, signal, name, step, one.pairs, one.x, one.y, one.xx, one.yy, one.xy,
            one.within, one.within_xx, one.within_yy, one.within_xy,
        )
        for (signal, name), one in sums.items()
        if one.pairs and one.finite()
    ]  # fmt: skip


def scores_of(planned: PlannedResponse, outcomes: Outcomes) -> dict[str, float | None]:
    """Return the scores of a response by criterion, without those left out; None where judging failed."""
    scores: dict[str, float | None] = {}
    for pending in planned.plan.pending:
        if not pending.digests:
            continue
        votes = [outcomes.by_digest[digest] for digest in pending.digests]
        verdict = combine_votes(votes)
        scores[pending.criterion] = None if isinstance(verdict, CallFailure) else verdict.score
    return scores


def desirable(criterion: Criterion, score: float) -> float:
    """Return the score so that 1 is good: a pitfall, or a criterion of negative weight, is good if it is not met."""
    return 1.0 - score if criterion.kind == "pitfall" or criterion.weight < 0 else score


def _add_group(sums: Signals, criteria: Sequence[Criterion], responses: Sequence[_RewardedResponse]) -> None:
    unit = "tokens" if all(one.planned.response.tokens is not None for one in responses) else "characters"
    sums["length", unit].add([(one.reward, _length(one, unit)) for one in responses if one.reward is not None])
    for criterion in criteria:
        scored = [(one.reward, score) for one in responses if (score := one.scores.get(criterion.id)) is not None]
        if criterion.shadow:
            pairs = [(reward, desirable(criterion, score)) for reward, score in scored if reward is not None]
            sums["shadow", criterion.id].add(pairs)
        elif len(scored) > 1:
            low, high = min(score for _, score in scored), max(score for _, score in scored)
            met = high >= MET_FROM
            sums["criterion", criterion.id].add([(float(low == high and met), float(low == high and not met))])


def _add_members(sums: Signals, responses: Sequence[PlannedResponse], outcomes: Outcomes) -> None:
    """Add the verdicts of a cascade or panel, every vote counted."""
    pairs: defaultdict[str, list[Pair]] = defaultdict(list)
    for pending in [pending for planned in responses for pending in planned.plan.pending]:
        for digest in pending.digests:
            outcome = outcomes.by_digest[digest]
            if isinstance(outcome, JudgeResult) and outcome.members:
                scores = [member.score for member in outcome.members if member.score is not None]
                pairs[pending.criterion].append((float(len(scores) > 1), float(len(set(scores)) > 1)))
    for criterion, found in pairs.items():
        sums["members", criterion].add(found)
        sums["members", ""].add(found)


def _length(one: _RewardedResponse, unit: str) -> float:
    tokens = one.planned.response.tokens
    return float(len(one.planned.material.text) if unit == "characters" or tokens is None else tokens)


def _add_gold(
    sums: Signals,
    responses: Sequence[_RewardedResponse],
    first: Iterable[tuple[float | None, Mapping[str, float | None]]],
) -> None:
    for gold, (reward, scores) in zip(responses, first, strict=True):
        if reward is not None and gold.reward is not None:
            sums["gold", ""].add([(reward, gold.reward)])
        for name, score in scores.items():
            other = gold.scores.get(name)
            if score is not None and other is not None:
                sums["gold", name].add([(float(score >= MET_FROM), float(other >= MET_FROM))])


def overlaps(groups: Sequence[PlannedGroup]) -> list[Pair]:
    """Return for each compared response whether it is a duplicate, and whether it follows a template.

    It is compared with the responses of the same request to other prompts, by sequences of five words. Counting in how
    many prompts' responses a sequence occurs takes time proportional to the text; no pairs are compared. Responses of
    fewer than eight words are left out: short answers are alike without being templates.
    """
    shingles: list[tuple[str, set[tuple[str, ...]]]] = []
    prompts: dict[str, int] = {}
    for group in groups:
        prompt = repr(group.group.prompt)
        if prompt not in prompts and len(prompts) >= MAX_PROMPTS:
            continue
        for planned in group.responses:
            if prompts.setdefault(prompt, 0) >= MAX_PER_PROMPT:
                break
            prompts[prompt] += 1
            words = _WORD.findall(planned.material.text[:MAX_CHARACTERS].lower())
            if len(words) >= MIN_WORDS:
                shingles.append((prompt, {*zip(*(words[n:] for n in range(SHINGLE_WORDS)), strict=False)}))
    if len({prompt for prompt, _ in shingles}) < 2:
        return []
    owner: dict[tuple[str, ...], str] = {}
    shared: set[tuple[str, ...]] = set()
    for prompt, own in shingles:
        shared.update(one for one in own if owner.setdefault(one, prompt) != prompt)
    shares = [len(own & shared) / len(own) for _, own in shingles]
    return [(float(share >= DUPLICATE_FROM), float(share >= TEMPLATE_FROM)) for share in shares]
