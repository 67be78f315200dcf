"""Measure a judge on judged examples: one report of agreement, calibration, steps, pairs, votes, sensitivity and cost.

`evaluate` computes every figure with its interval and sample size. A failed or uncertain verdict is counted and
never enters a figure of agreement.
"""

from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence, Set
from dataclasses import replace
from functools import partial
from typing import Any, Literal, NamedTuple, TypeAlias

import numpy as np

from judge_server.evaluation.corrected_rates import measure_error
from judge_server.evaluation.judging import Judgement, Variant
from judge_server.evaluation.labelled import MET_FROM, LabelledPair, LabelledResponse, first_unmet
from judge_server.evaluation.metrics import (
    LEVEL,
    RESAMPLES,
    SEED,
    Bools,
    Estimate,
    Figure,
    Floats,
    ReliabilityBin,
    RowBootstrap,
    VerdictArrays,
    as_json,
    none_if_nan,
    reliability,
    roc,
    weighted_spearman,
)
from trainer_client.wire.runs import JudgeError

SliceKind: TypeAlias = Literal["all", "task", "kind", "criterion"]

MAX_SLICES = 200
"""The maximum number of criteria or tasks with figures of their own; with more, only the totals are reported."""

CHANCE_DRAWS = 20
"""How often labels are drawn from the probabilities to find out what calibration error chance alone makes."""

FEW_ROWS = 20
"""With fewer rows than this, bootstrap intervals are too narrow, which the report says."""


class Measured(NamedTuple):
    """A verdict on a labelled criterion. `score` is None if judging failed or the verdict was uncertain."""

    row: str
    criterion: str
    label: float
    score: float | None
    probability: float | None = None
    raw_probability: float | None = None
    kind: str = ""
    task: str = ""

    @property
    def met(self) -> bool:
        """Whether the judge says yes; false without a score."""
        return self.score is not None and self.score >= MET_FROM

    @property
    def is_labelled_met(self) -> bool:
        """Whether the label says yes."""
        return self.label >= MET_FROM

    @property
    def uncertain(self) -> bool:
        """Whether the verdict was uncertain: a failed one has no probability either."""
        return self.score is None and self.probability is not None

    @property
    def likelihood(self) -> float:
        """The probability of yes, or the score of a verdict without one; the verdict must not have failed."""
        value = self.score if self.probability is None else self.probability
        assert value is not None
        return value


class Slice(NamedTuple):
    """The figures of a part of the judgements.

    Attributes:
        by, name: what the part is, such as `kind` and `pitfall`; `all` and '' for all judgements.
        n, rows: the number of verdicts with a score, and of rows of the data set that they come from.
        failed, uncertain: the numbers of verdicts that failed, and that were uncertain.
        figures: every figure of `FIGURES`.
    """

    by: SliceKind
    name: str
    n: int
    rows: int
    failed: int
    uncertain: int
    figures: Mapping[Figure, Estimate]


class WithinFigures(NamedTuple):
    """The calibration error within tasks, kinds or criteria: what a user of one of them meets.

    Over all verdicts at once, a judge that is too ready to say yes to one criterion and no to another looks calibrated.

    Attributes:
        by: what the verdicts are divided by.
        parts, n: the numbers of parts with several verdicts, and of verdicts in them.
        ece: the mean of the parts' errors, each weighted by its verdicts.
        by_chance: what the same would be, on as many verdicts, if every probability were right: few verdicts have an
            error by chance alone.
    """

    by: SliceKind
    parts: int
    n: int
    ece: Estimate
    by_chance: float


class GradeFigures(NamedTuple):
    """How scores follow labels between 0 and 1: Spearman's rank correlation and the mean absolute error."""

    n: int
    spearman: Estimate
    mean_error: Estimate


class StepFigures(NamedTuple):
    """How often the judge finds the first wrong step of a solution.

    Attributes:
        n, wrong: the number of solutions, and of those with a wrong step.
        found: the share of wrong solutions in which the judge's first unmet step is the labelled one.
        accepted: the share of right solutions in which the judge finds no wrong step.
        f1: the harmonic mean of the two (ProcessBench's F1).
    """

    n: int
    wrong: int
    found: Estimate
    accepted: Estimate
    f1: Estimate


class PairFigures(NamedTuple):
    """How often the judge prefers the response that people prefer.

    Attributes:
        n, failed: the number of compared pairs, and of failed comparisons.
        accuracy: the share of pairs judged right, with disagreement of the two orders counted as half.
        better_first, better_second: the share judged right if the better response comes first, or second.
        consistent: the share of pairs on which both orders agree.
        position_bias: the share of verdicts for the first response, minus one half; 0 without bias, in [-0.5, 0.5].
    """

    n: int
    failed: int
    accuracy: Estimate
    better_first: Estimate
    better_second: Estimate
    consistent: Estimate
    position_bias: Estimate


class VoteFigures(NamedTuple):
    """How far votes on one criterion agree: the share in the majority, and the share of unanimous verdicts."""

    n: int
    votes: int
    in_majority: Estimate
    unanimous: Estimate


class SensitivityFigures(NamedTuple):
    """How verdicts move under a change that must not move them.

    Attributes:
        variant: the change.
        n: the number of verdicts compared.
        flipped: the share of verdicts that turned.
        shift: the mean change of the probability of yes.
        distance: the mean absolute change.
    """

    variant: Variant
    n: int
    flipped: Estimate
    shift: Estimate
    distance: Estimate


USAGE_FIELDS: Mapping[str, str] = {
    "calls": "judge_calls",
    "tokens_computed": "prompt_tokens_computed",
    "tokens_reused": "prompt_tokens_reused",
    "tokens_written": "tokens_written",
    "seconds": "seconds_judging",
}
"""The costs of a judgement, and the field of a request's usage that each is the mean of."""


class CostFigures(NamedTuple):
    """What a judgement costs, over the requests that asked the judge.

    Attributes:
        requests, judgements: their numbers, without those answered from a cache.
        calls, tokens_computed, tokens_reused, tokens_written, seconds: means per judgement; seconds are those that the
            judge worked.
    """

    requests: int
    judgements: int
    calls: Estimate
    tokens_computed: Estimate
    tokens_reused: Estimate
    tokens_written: Estimate
    seconds: Estimate


class Evaluation(NamedTuple):
    """The report on a judge. Parts for which the data set has no examples are None or empty."""

    agreement: tuple[Slice, ...]
    calibration_within: tuple[WithinFigures, ...] = ()
    reliability: tuple[ReliabilityBin, ...] = ()
    raw_reliability: tuple[ReliabilityBin, ...] = ()
    roc: tuple[tuple[float, float], ...] = ()
    grades: GradeFigures | None = None
    steps: StepFigures | None = None
    pairs: PairFigures | None = None
    votes: VoteFigures | None = None
    sensitivity: tuple[SensitivityFigures, ...] = ()
    length_bias: Estimate | None = None
    cost: CostFigures | None = None
    judge_error: JudgeError | None = None
    refused: Mapping[str, int] = {}

    @property
    def overall(self) -> Slice:
        """The figures of all judgements."""
        return self.agreement[0]

    def as_json(self) -> dict[str, Any]:
        """Return the report as JSON; undefined numbers are null."""
        return {"level": LEVEL, "resamples": RESAMPLES, **as_json(self._asdict())}


def evaluate(judgements: Sequence[Judgement]) -> Evaluation:
    """Measure a judge by what it answered about labelled examples.

    Raises:
        ValueError: there is no judgement, or the service refused every example; the message quotes the first refusal.
    """
    plain = [one for one in judgements if not one.variant]
    accepted = [one for one in plain if not one.problem]
    if not accepted:
        raise ValueError(f"no example was judged{': ' + plain[0].problem if plain else ''}")
    bootstrap = RowBootstrap([one.example.row for one in accepted])
    measured = [verdict for one in accepted for verdict in measured_verdicts(one)]
    scored = [one for one in measured if one.score is not None]
    arrays = verdict_arrays(scored)
    responses = [one for one in accepted if isinstance(one.example, LabelledResponse)]
    refused: dict[str, int] = defaultdict(int)
    for one in plain:
        if one.problem:
            refused[one.problem] += 1
    return Evaluation(
        **agreement(measured, bootstrap, _recurring(responses)),
        steps=_steps([one for one in responses if one.example.in_steps], bootstrap),  # type: ignore[union-attr]
        pairs=_pairs([one for one in accepted if isinstance(one.example, LabelledPair)], bootstrap),
        votes=_votes(responses, bootstrap),
        sensitivity=tuple(_sensitivity(judgements, bootstrap)),
        length_bias=_length(responses, bootstrap),
        cost=_cost(accepted, bootstrap),
        judge_error=measure_error([one.row for one in scored], arrays.labels.tolist(), arrays.satisfied.tolist()),
        refused=refused,
    )


def _recurring(judged: Sequence[Judgement]) -> set[str]:
    """Return the ids that always name the same criterion; figures of others by criterion would mean nothing."""
    texts: dict[str, set[str]] = defaultdict(set)
    for one in judged:
        assert isinstance(one.example, LabelledResponse)
        for criterion in one.example.criteria:
            texts[criterion.id].add(criterion.description)
    return {name for name, found in texts.items() if len(found) == 1}


def agreement(
    measured: Sequence[Measured], bootstrap: RowBootstrap, criteria: Set[str] | None = None
) -> dict[str, Any]:
    """Compute the parts of an `Evaluation` that only need verdicts and labels, by name.

    `criteria` are the ids of criteria with figures of their own; None for all.
    """
    slices, divided = [_slice("all", "", measured, bootstrap)], []
    parts: Sequence[tuple[SliceKind, Any]] = (
        ("task", lambda one: one.task),
        ("kind", lambda one: one.kind),
        ("criterion", lambda one: one.criterion),
    )
    for by, key in parts:
        found: dict[str, list[Measured]] = defaultdict(list)
        for one in measured:
            if by != "criterion" or criteria is None or one.criterion in criteria:
                found[key(one)].append(one)
        if within := _within(by, list(found.values()), bootstrap):
            divided.append(within)
        if 1 < len(found) <= MAX_SLICES:
            slices += [_slice(by, name, some, bootstrap) for name, some in sorted(found.items())]
    known = [one for one in measured if one.probability is not None and not one.uncertain]
    labels = [one.is_labelled_met for one in known]
    calibrated = [one.likelihood for one in known]
    raw = [one.likelihood if one.raw_probability is None else one.raw_probability for one in known]
    scored = [one for one in measured if one.score is not None]
    return {
        "agreement": tuple(slices),
        "calibration_within": tuple(divided),
        "reliability": reliability(calibrated, labels) if known else (),
        "raw_reliability": reliability(raw, labels) if known and raw != calibrated else (),
        "roc": roc([one.likelihood for one in scored], [one.is_labelled_met for one in scored]) if scored else (),
        "grades": _grades(scored, bootstrap),
    }


def measured_verdicts(judgement: Judgement) -> list[Measured]:
    """Return the judge's verdicts on labelled criteria; on a response that says nothing, the judge gave none."""
    example = judgement.example
    if not isinstance(example, LabelledResponse):
        return []
    kinds = {one.id: one.kind for one in example.criteria}
    return [
        Measured(example.row, name, label, v.score, v.probability, v.raw_probability, kinds.get(name, ""), example.task)
        for name, label in example.labels.items()
        if (v := judgement.verdicts.get(name)) is not None and v.method != "no_content"
    ]


def common_verdicts(answered: Sequence[Sequence[Judgement]]) -> list[tuple[Measured, ...]]:
    """Return the verdicts on labelled criteria that every judge gave a score, each judge's in turn.

    `answered` has each judge's judgements of the same examples, in the same order.
    """
    found = []
    for judgements in zip(*answered, strict=True):
        by_judge = [
            {one.criterion: one for one in measured_verdicts(each) if one.score is not None} for each in judgements
        ]
        names = [name for name in by_judge[0] if all(name in own for own in by_judge)]
        found += [tuple([own[name] for own in by_judge]) for name in names]
    return found


def verdict_arrays(scored: Sequence[Measured]) -> VerdictArrays:
    """Return verdicts with a score as arrays."""
    return VerdictArrays(
        np.array([one.is_labelled_met for one in scored], dtype=bool),
        np.array([one.met for one in scored], dtype=bool),
        np.array([one.likelihood for one in scored], dtype=float),
        all(one.probability is not None for one in scored),
    )


def _slice(by: SliceKind, name: str, measured: Sequence[Measured], bootstrap: RowBootstrap) -> Slice:
    scored = [one for one in measured if one.score is not None]
    rows = [one.row for one in scored]
    figures = bootstrap.figures(rows, verdict_arrays(scored))
    uncertain = sum(one.uncertain for one in measured)
    failed = len(measured) - len(scored) - uncertain
    return Slice(by, name, len(scored), len(set(rows)), failed, uncertain, figures)


def _within(by: SliceKind, parts: Sequence[Sequence[Measured]], bootstrap: RowBootstrap) -> WithinFigures | None:
    """Return the calibration error within parts, if there are several with several verdicts that have a probability."""
    known = [[one for one in some if one.score is not None and one.probability is not None] for some in parts]
    several = [some for some in known if len(some) > 1]
    if len(several) < 2:
        return None
    scored = [one for some in several for one in some]
    arrays = verdict_arrays(scored)
    part = np.repeat(np.arange(len(several)), [len(some) for some in several])
    drawn = np.random.default_rng(SEED).random((CHANCE_DRAWS, len(scored))) < arrays.probabilities
    ones = np.ones((1, len(scored)))
    chance = [float(replace(arrays, labels=labels).calibration_error(ones, part)[0]) for labels in drawn]
    ece = bootstrap.statistic([one.row for one in scored], lambda w: arrays.calibration_error(w, part))
    return WithinFigures(by, len(several), len(scored), ece, float(np.mean(chance)))


def _grades(scored: Sequence[Measured], bootstrap: RowBootstrap) -> GradeFigures | None:
    if all(one.label in (0.0, 1.0) for one in scored):
        return None
    rows, labels, scores = [one.row for one in scored], [one.label for one in scored], [o.likelihood for o in scored]
    errors = [abs(score - label) for score, label in zip(scores, labels, strict=True)]
    spearman = bootstrap.statistic(rows, weighted_spearman(scores, labels))
    return GradeFigures(len(scored), spearman, bootstrap.mean(rows, errors))


def _steps(judged: Sequence[Judgement], bootstrap: RowBootstrap) -> StepFigures | None:
    rows, right, wrong = [], [], []
    for one in judged:
        example = one.example
        assert isinstance(example, LabelledResponse)
        scores = {name: verdict.score for name, verdict in one.verdicts.items()}
        if any(score is None for score in scores.values()):
            continue
        found = first_unmet(example.criteria, {n: s >= MET_FROM for n, s in scores.items() if s is not None})
        rows.append(example.row)
        wrong.append(example.first_wrong_step is not None)
        right.append(found == example.first_wrong_step)
    if not rows:
        return None
    is_wrong, is_right = np.array(wrong), np.array(right)

    def share(w: Floats, of: Bools) -> Floats:
        result: Floats = w[:, of] @ is_right[of] / w[:, of].sum(axis=1)
        return result

    def harmonic(w: Floats) -> Floats:
        found, accepted = share(w, is_wrong), share(w, ~is_wrong)
        return np.where(found + accepted == 0, 0.0, 2 * found * accepted / (found + accepted))

    return StepFigures(
        len(rows),
        int(is_wrong.sum()),
        bootstrap.statistic(rows, lambda w: share(w, is_wrong)),
        bootstrap.statistic(rows, lambda w: share(w, ~is_wrong)),
        bootstrap.statistic(rows, harmonic),
    )


def _pairs(judged: Sequence[Judgement], bootstrap: RowBootstrap) -> PairFigures | None:
    if not judged:
        return None
    samples = []
    for one in judged:
        comparison, example, right = one.comparison, one.example, one.pair_right
        assert isinstance(example, LabelledPair)
        if comparison is None or right is None:
            continue
        wins = {
            order.first: 0.5 if order.preferred == "tie" else float(order.preferred == example.preferred)
            for order in comparison.orders
        }
        first, second = wins[example.preferred], wins["b" if example.preferred == "a" else "a"]
        position = (first + 1 - second) / 2 - 0.5
        samples.append((example.row, right, first, second, float(bool(comparison.consistent)), position))
    return PairFigures(len(samples), len(judged) - len(samples), *bootstrap.means(samples, 5))


def _votes(judged: Sequence[Judgement], bootstrap: RowBootstrap) -> VoteFigures | None:
    samples, most = [], 0
    for one in judged:
        for verdict in one.verdicts.values():
            votes = [score >= MET_FROM for score in verdict.votes if score is not None]
            if len(votes) > 1:
                share = max(sum(votes), len(votes) - sum(votes)) / len(votes)
                samples.append((one.example.row, share, float(share == 1)))
                most = max(most, len(votes))
    return VoteFigures(len(samples), most, *bootstrap.means(samples, 2)) if samples else None


def _sensitivity(judgements: Sequence[Judgement], bootstrap: RowBootstrap) -> Iterable[SensitivityFigures]:
    plain = {id(one.example): one for one in judgements if not one.variant}
    variants: dict[Variant, list[Judgement]] = defaultdict(list)
    for one in judgements:
        if one.variant and not one.problem:
            variants[one.variant].append(one)
    for variant, judged in variants.items():
        samples = []
        for one in judged:
            for name, verdict in one.verdicts.items():
                before = plain[id(one.example)].verdicts.get(name)
                if before is None or before.score is None or verdict.score is None:
                    continue
                flipped = float((before.score >= MET_FROM) != (verdict.score >= MET_FROM))
                old, new = before.probability, verdict.probability
                shift = verdict.score - before.score if old is None or new is None else new - old
                samples.append((one.example.row, flipped, shift, abs(shift)))
        yield SensitivityFigures(variant, len(samples), *bootstrap.means(samples, 3))


def _length(judged: Sequence[Judgement], bootstrap: RowBootstrap) -> Estimate | None:
    """Correlate the length of responses with how far the judge's probability exceeds the label."""
    rows, lengths, excess = [], [], []
    for one in judged:
        assert isinstance(one.example, LabelledResponse)
        for verdict in measured_verdicts(one):
            if verdict.score is not None:
                rows.append(verdict.row)
                lengths.append(float(len(one.example.response)))
                excess.append(verdict.likelihood - verdict.label)
    return bootstrap.statistic(rows, weighted_spearman(lengths, excess)) if len(set(lengths)) > 1 else None


def _cost(judged: Sequence[Judgement], bootstrap: RowBootstrap) -> CostFigures | None:
    asked = [one for one in judged if one.usage.judge_calls]
    if not asked:
        return None
    rows = [one.example.row for one in asked]
    judgements = sum(max(1, len(one.verdicts)) for one in asked)
    costs = [bootstrap.statistic(rows, partial(cost_of_judgement, asked, name)) for name in USAGE_FIELDS]
    return CostFigures(len(asked), judgements, *costs)


def cost_of_judgement(judged: Sequence[Judgement], cost: str, w: Floats) -> Floats:
    """Return the mean of a cost of `USAGE_FIELDS` per judgement for each row of weights, shape (R, n); shape (R,)."""
    totals = np.array([getattr(one.usage, USAGE_FIELDS[cost]) for one in judged], dtype=float)
    verdicts = np.array([max(1, len(one.verdicts)) for one in judged], dtype=float)
    mean: Floats = w @ totals / (w @ verdicts)
    return mean


def summary_of(measured: Sequence[Measured]) -> dict[str, Any]:
    """Summarize the verdicts of an operation `evaluate_judge` as JSON: plain figures, and the report with intervals.

    The plain figures are those of all verdicts and, unless there are more than `MAX_SLICES`, of each criterion.
    """
    evaluation = Evaluation(**agreement(measured, RowBootstrap([one.row for one in measured])))
    criteria: dict[str, list[Measured]] = defaultdict(list)
    for one in measured:
        criteria[one.criterion].append(one)
    few = len(criteria) <= MAX_SLICES
    return {
        **_plain_figures(measured),
        "criteria": {name: _plain_figures(some) for name, some in sorted(criteria.items())} if few else {},
        "report": evaluation.as_json(),
    }


def _plain_figures(measured: Sequence[Measured]) -> dict[str, Any]:
    scored = [one for one in measured if one.score is not None]
    arrays = verdict_arrays(scored)
    figures = arrays.figures() if scored else {}
    chosen: Sequence[Figure] = ("accuracy", "kappa", "auroc")
    uncertain = sum(one.uncertain for one in measured)
    return {
        "verdicts": len(scored),
        "failed": len(measured) - len(scored) - uncertain,
        **({"uncertain": uncertain} if uncertain else {}),
        **{name: none_if_nan(float(figures[name][0])) if scored else None for name in chosen},
        "yes_labels": int(arrays.labels.sum()),
        "yes_verdicts": int(arrays.satisfied.sum()),
    }
