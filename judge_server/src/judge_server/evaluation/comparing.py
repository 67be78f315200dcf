"""How the rewards and advantages of a run would have moved under another judge.

Each of two judges is asked about the responses of a run, or has judged them in a run of the ledger: the run itself, or
one that `adjudge reverify` made. Recorded rewards are taken as they are; those of a judge that is asked are computed
from its verdicts by the run's options. An advantage is the reward's distance from its group's mean in standard
deviations (GRPO).

The responses are read back from the ledger.
"""

import hashlib
import json
import math
from collections import defaultdict
from collections.abc import Hashable, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from itertools import islice
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from judge_server.evaluation.corrected_rates import BY_JUDGE
from judge_server.evaluation.judging import Judgement
from judge_server.evaluation.labelled import MET_FROM, DatasetError, LabelledResponse, json_lines, read_labels
from judge_server.evaluation.labelling import digests_of, material_of, read_texts
from judge_server.evaluation.metrics import Estimate, RowBootstrap, as_json, weighted_spearman
from judge_server.ports import LedgerReader
from judge_server.scoring.recorded import recorded_verdicts, response_pages
from judge_server.scoring.rewards import effective_weights, reward_of
from rubric_store.ledger.rows import ResponseFilter, UseRecord
from trainer_client.advantages import group_advantages
from trainer_client.rewards import ResponseFacts
from trainer_client.wire import Criterion, RewardOptions, Verdict
from trainer_client.wire.rewards import RewardRules

_PAGE = 1000


class Answer(NamedTuple):
    """What is said of a response: the verdicts by criterion id, and the reward that they give; None without one."""

    verdicts: Mapping[str, Verdict]
    reward: float | None


@dataclass(frozen=True, slots=True)
class RunGroup:
    """A group of a run with the responses whose texts the ledger has.

    Attributes:
        id: the request's id and the group's id.
        options, protocol: how its rewards were computed and its verdicts asked for.
        criteria: all criteria of its rubric.
        responses: the responses by position, without labels, with the criteria that the judge decides.
        facts: what the rewards of the responses depend on besides verdicts.
        answers: for each response, what was recorded of it.
        keys: for each response, what names it in every run that judged it by the same rubric.
    """

    id: str
    options: RewardOptions
    protocol: str
    criteria: tuple[Criterion, ...]
    responses: tuple[LabelledResponse, ...]
    facts: tuple[ResponseFacts, ...]
    answers: tuple[Answer, ...]
    keys: tuple[Hashable, ...]


async def run_groups(ledger: LedgerReader, project_id: str, run: str, most: int | None = None) -> list[RunGroup]:
    """Read the groups of a run, oldest first, and no more once there are `most`.

    Groups without texts, without a rubric, or whose criteria are all verified by programs are left out.

    Raises:
        DatasetError: the run does not exist, or none of its groups can be judged again.
    """
    found: dict[tuple[bytes, int], list[UseRecord]] = {}
    async with aclosing(response_pages(ledger, ResponseFilter(project_id, run, limit=_PAGE))) as pages:
        async for page in pages:
            for one in page:
                found.setdefault(one.group, []).append(one)
            if most is not None and len(found) > most:
                break
    if not found:
        raise DatasetError(f"the ledger has nothing of run {run!r}; `adjudge runs` lists the runs")
    usable = [group for group in found.values() if group[0].request.protocol in ("binary", "stepwise", "graded")][:most]
    texts = await read_texts(ledger, project_id, [one.response for group in usable for one in group])
    groups = [group for one in usable if (group := _group(one, texts)) is not None]
    if not groups:
        raise DatasetError(
            f"no group of run {run!r} can be judged again: the ledger has no texts of it (ADJUDGE_LEDGER=all keeps "
            "them), programs verify all of its criteria, or it was judged as checklist, likert or ranking"
        )
    return groups


def _group(recorded: Sequence[UseRecord], texts: Mapping[bytes, str]) -> RunGroup | None:
    request, rows = recorded[0].request, [one.response for one in recorded]
    name = f"{request.request_id}/{rows[0].group_id}"
    if any(digest not in texts for row in rows for digest in digests_of(row)) or rows[0].rubric is None:
        return None
    criteria = tuple([Criterion.model_validate(one) for one in json.loads(texts[rows[0].rubric])])
    answers = [Answer({v.criterion: v for v in recorded_verdicts(one)}, one.response.own_reward) for one in recorded]
    programs = {one.criterion for answer in answers for one in answer.verdicts.values() if one.method not in BY_JUDGE}
    judged = tuple([one for one in criteria if one.id not in programs])
    if not judged:
        return None
    responses = []
    for row in rows:
        response: Any = json.loads(texts[row.response])
        if not isinstance(response, str):
            return None
        prompt = json.loads(texts[row.prompt])
        responses.append(LabelledResponse(name, prompt, response, judged, {}, **material_of(row, texts)))
    facts = [ResponseFacts(row.format_ok, row.tokens, row.stopped) for row in rows]
    keys = [(request.step, row.group_id, row.prompt, row.response, row.rubric) for row in rows]
    rules, mode = RewardRules.read(request.reward_rules), request.mode or "weighted_mean"
    options = RewardOptions.model_validate({"mode": mode}) if rules is None else rules.reward  # of an older version
    return RunGroup(
        name, options, request.protocol, criteria, tuple(responses), tuple(facts), tuple(answers), tuple(keys)
    )


def labelled_by_judge(groups: Sequence[RunGroup]) -> list[LabelledResponse]:
    """Return the responses of a run, labelled by the verdicts of the judge that judged it; a row is a prompt.

    Raises:
        DatasetError: no verdict of the judge is known.
    """
    found = [
        replace(response, row=_digest(response.prompt), labels=scores)
        for group in groups
        for response, answer in zip(group.responses, group.answers, strict=True)
        if (scores := _scores(answer))
    ]
    if not found:
        raise DatasetError("all verdicts of the run's judge failed, so there is nothing to learn from")
    return found


def _scores(answer: Answer) -> dict[str, float]:
    """The scores that the judge gave a response, by criterion id."""
    given = answer.verdicts.values()
    return {one.criterion: one.score for one in given if one.method == "judge" and one.score is not None}


def with_labels(groups: Sequence[RunGroup], file: Path) -> list[LabelledResponse]:
    """Return the responses of a run that a JSONL file labels.

    A line has `group` (the group's id), `response` (its position, from 0), `labels` (by criterion id, true, false or a
    number in [0, 1]) and, where group ids repeat, `request` (the request's id).

    Raises:
        DatasetError: a line cannot be read, or names a response that the run does not have.
    """
    by_name: dict[str, RunGroup] = {}
    for group in groups:
        by_name[group.id] = group
        by_name.setdefault(group.id.partition("/")[2], group)
    found = []
    for number, row in json_lines(file):
        name, place = row.get("group"), row.get("response")
        name = f"{row['request']}/{name}" if "request" in row else name
        group_of = by_name.get(str(name))
        if group_of is None or type(place) is not int or not 0 <= place < len(group_of.responses):
            raise DatasetError(f"{file}:{number}: the run has no response {place!r} of group {name!r}")
        response = group_of.responses[place]
        try:
            numbers = read_labels(row.get("labels"), {one.id for one in response.criteria}, "labels")
        except ValueError as error:
            raise DatasetError(f"{file}:{number}: {error}") from None
        found.append(replace(response, labels=numbers))
    if not found:
        raise DatasetError(f"{file} has no labels")
    return found


def _digest(prompt: Any) -> str:
    """Name a prompt, which a run has in every epoch, so that its responses are never on both sides of a split."""
    return hashlib.sha256(json.dumps(prompt, sort_keys=True).encode()).hexdigest()


class JudgeComparison(NamedTuple):
    """What changes from judge a to judge b, over the responses that both could judge.

    Attributes:
        groups, responses, verdicts: their numbers.
        unscored_a, unscored_b: responses without a reward under each judge.
        turned: the share of verdicts that turn.
        by_criterion: the same by criterion, largest first, with the number of verdicts.
        reward_a, reward_b: mean rewards.
        reward_shift: mean of b's reward minus a's.
        reward_correlation: Spearman's rank correlation of rewards; nan if all rewards of one judge are equal.
        advantage_distance: mean absolute change of the advantage.
        advantage_flipped: the share of responses whose advantage changes its sign, vanishes, or appears where there
            was none. A response that a rewards and b does not loses its advantage.
        spread_lost, spread_gained: the share of groups in which only a's, or only b's, rewards differ.
        best_changed: the share of groups in which b's best response is not one of a's best.
    """

    groups: int
    responses: int
    verdicts: int
    unscored_a: int
    unscored_b: int
    turned: Estimate
    by_criterion: Mapping[str, tuple[Estimate, int]]
    reward_a: Estimate
    reward_b: Estimate
    reward_shift: Estimate
    reward_correlation: Estimate
    advantage_distance: Estimate
    advantage_flipped: Estimate
    spread_lost: Estimate
    spread_gained: Estimate
    best_changed: Estimate

    def exceeds(self, most_flipped: float) -> str:
        """Return why the switch is not shown to be harmless, as a sentence; empty if it is.

        The advantage of a share of at most `most_flipped` of the responses, in [0, 1], may change.
        """
        if math.isnan(self.advantage_flipped.high):
            return "all responses with a reward are of one group, which does not show how others would change"
        if self.advantage_flipped.high > most_flipped:
            return (
                f"{self.advantage_flipped.value:.0%} of the advantages change their sign, vanish or appear (95% "
                f"interval up to {self.advantage_flipped.high:.0%}; at most {most_flipped:.0%} are allowed)"
            )
        if math.isnan(self.reward_correlation.value) and self.advantage_distance.value + abs(self.reward_shift.value):
            return "one judge gives every response the same reward, so their rewards have no correlation"
        return ""

    def as_json(self) -> dict[str, Any]:
        """Return the comparison as JSON."""
        criteria = {name: {**as_json(one), "n": n} for name, (one, n) in self.by_criterion.items()}
        return {**as_json(self), "by_criterion": criteria}


Answers = Sequence[Sequence[Answer]]
"""What a judge says of the responses of groups."""


def judged_by_all(groups: Sequence[RunGroup], others: Sequence[Sequence[RunGroup]]) -> list[RunGroup]:
    """Return the groups of a run of which each of the other runs judged all responses, by the same rubric."""
    known = [{key for group in other for key in group.keys} for other in others]
    return [group for group in groups if all(keys.issuperset(group.keys) for keys in known)]


def recorded_answers(groups: Sequence[RunGroup], other: Sequence[RunGroup]) -> Answers:
    """Return what another run recorded of each group of a run; it judged all of their responses."""
    known = {key: answer for group in other for key, answer in zip(group.keys, group.answers, strict=True)}
    return [[known[key] for key in group.keys] for group in groups]


def asked_answers(groups: Sequence[RunGroup], judgements: Sequence[Judgement]) -> Answers:
    """Return what a judge says that was asked; a judgement for each response, in the order of the groups."""
    rest = iter(judgements)
    answers = []
    for group in groups:
        judged = list(islice(rest, len(group.responses)))
        rewards = _rewards(group, judged)
        answers.append([Answer(one.verdicts, reward) for one, reward in zip(judged, rewards, strict=True)])
    return answers


def compare_judges(groups: Sequence[RunGroup], a: Answers, b: Answers) -> JudgeComparison:
    """Compare two judges on groups of a run, by what each says of them.

    Raises:
        ValueError: no response was judged by both, or a group was ranked.
    """
    if any(group.options.mode == "ranking" for group in groups):
        raise ValueError(
            "the run has groups of mode 'ranking', whose responses were compared and not judged one by one; judge them "
            "by another mode to compare judges"
        )
    found = _Samples()
    for group, before, after in zip(groups, a, b, strict=True):
        found.add(group, before, after)
    if not found.rewards:
        raise ValueError("no response has a reward under both judges, so there is nothing to compare")
    bootstrap = RowBootstrap([group.id for group in groups])
    by_criterion: dict[str, list[tuple[str, float]]] = defaultdict(list)
    for row, name, turned in found.turned:
        by_criterion[name].append((row, turned))
    criteria = {name: (bootstrap.means(some, 1)[0], len(some)) for name, some in by_criterion.items()}
    rows, rewards_a, rewards_b, *_ = zip(*found.rewards, strict=True)
    reward_a, reward_b, shift, distance = bootstrap.means(found.rewards, 4)
    return JudgeComparison(
        len(groups),
        len(found.rewards),
        len(found.turned),
        *found.unscored,
        bootstrap.means([(row, turned) for row, _, turned in found.turned], 1)[0],
        dict(sorted(criteria.items(), key=lambda one: -one[1][0].value)),
        reward_a,
        reward_b,
        shift,
        bootstrap.statistic(rows, weighted_spearman(rewards_a, rewards_b)),
        distance,
        *bootstrap.means(found.changed, 1),
        *bootstrap.means(found.groups, 3),
    )


@dataclass(slots=True)
class _Samples:
    """What two judges said, each with the group that it is about.

    Attributes:
        turned: for each verdict of both, its criterion and whether it turns.
        rewards: for each response with both rewards, these, their difference, and the distance of its advantages.
        changed: for each response that the first judge rewards, whether its advantage changes.
        groups: for each group with two such responses, whether its spread is lost or gained, and its best one changes.
        unscored: the numbers of responses without a reward under each judge.
    """

    turned: list[tuple[str, str, float]] = field(default_factory=list)
    rewards: list[tuple[str, float, float, float, float]] = field(default_factory=list)
    changed: list[tuple[str, float]] = field(default_factory=list)
    groups: list[tuple[str, float, float, float]] = field(default_factory=list)
    unscored: tuple[int, int] = (0, 0)

    def add(self, group: RunGroup, a: Sequence[Answer], b: Sequence[Answer]) -> None:
        """Add what both judges say of a group."""
        for response, first, second in zip(group.responses, a, b, strict=True):
            self.turned += _turned(group.id, response, first, second)
        before, after = [one.reward for one in a], [one.reward for one in b]
        self.unscored = (self.unscored[0] + before.count(None), self.unscored[1] + after.count(None))
        self.changed += [(group.id, float(one)) for one in _advantages_changed(before, after)]
        both = [(x, y) for x, y in zip(before, after, strict=True) if x is not None and y is not None]
        if not both:
            return
        kept = np.array(both, dtype=float)
        advantages = [group_advantages(own.tolist()) for own in kept.T]
        distances = np.abs(advantages[1] - advantages[0]).tolist()
        self.rewards += [(group.id, x, y, y - x, far) for (x, y), far in zip(both, distances, strict=True)]
        if len(both) > 1:
            was, does = np.ptp(kept, axis=0) > 0
            same_best = (kept == kept.max(axis=0)).all(axis=1).any()
            self.groups.append((group.id, float(was and not does), float(does and not was), float(not same_best)))


def _advantages_changed(a: Sequence[float | None], b: Sequence[float | None]) -> list[bool]:
    """Return, for each response of a group that a rewards, whether its advantage's sign (or lack of one) changes."""
    before, after = (np.sign(np.round(group_advantages(rewards), 6)) for rewards in (a, b))
    return [bool(was != does) for was, does, reward in zip(before, after, a, strict=True) if reward is not None]


def _turned(row: str, response: LabelledResponse, a: Answer, b: Answer) -> list[tuple[str, str, float]]:
    """Return, for each criterion of which both have a score, whether the verdict turns."""
    found = []
    for name in [one.id for one in response.criteria]:
        scores = [own.verdicts[name].score if name in own.verdicts else None for own in (a, b)]
        if None not in scores:
            met = [score >= MET_FROM for score in scores if score is not None]
            found.append((row, name, float(met[0] != met[1])))
    return found


def _rewards(group: RunGroup, judged: Sequence[Judgement]) -> list[float | None]:
    """Return the reward of each response by the run's options; None where a failed verdict leaves none."""
    asked = {one.id for one in group.responses[0].criteria}
    verdicts = [
        [(one.verdicts if c.id in asked else own.verdicts).get(c.id) or _failed(c.id) for c in group.criteria]
        for one, own in zip(judged, group.answers, strict=True)
    ]
    rules, weights = RewardRules(reward=group.options), effective_weights(group.criteria, verdicts, group.options)
    return [
        reward_of(group.criteria, own, rules, facts, weights).reward
        for own, facts in zip(verdicts, group.facts, strict=True)
    ]


def _failed(criterion: str) -> Verdict:
    """Return the verdict on a criterion without one."""
    return Verdict(criterion=criterion, status="failed", score=None, method="judge")
