"""Measures of a policy's responses: accuracy, faithfulness of steps, looping, diversity, best of n, win rates.

These are pure functions of judged responses; `trainer_client.measures` defines the measures for plain numbers. The
intervals resample whole problems, since the responses to one problem are not independent of each other.

`step_groups` prepares the judging of steps: is each step of a solution correct, given the problem, its answer and the
steps before (SRaR, appendix 7.5)? Each step becomes a response to a binary criterion, with the steps before it in the
conversation. `win_rates` compares two policies from comparisons in both orders (DRO, pairwise win rate).
"""

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import fmean, pvariance
from typing import Any, NamedTuple, TypeVar

from judge_server.intervals import wilson
from trainer_client.measures import (
    LoopSigns,
    Novelty,
    average_at_k,
    best_of_n,
    faithfulness,
    loop_statistics,
    novelty,
    pass_at_k,
    point_biserial,
)
from trainer_client.steps import split_steps
from trainer_client.wire import Comparison

RESAMPLES = 500
_TAILS = (0.025, 0.975)

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A judged response.

    Attributes:
        loops: signs of looping in the text; None if the text is unknown.
        correct: 1 if the final answer is right, 0 if not; None if unknown.
        steps: 1 or 0 for each parsed step, or None for a step on which the judge failed; None if steps were not judged.
        reward: the reward by the rubric; None without a rubric.
        satisfied: mean satisfaction of the criteria in [0, 1], as computed by `satisfied`; None without criteria.
        by_kind: mean score per kind of criterion, as computed by `by_kind`.
        likelihoods: mean log-likelihoods per token, in nats, under the trained policy and under the policy before
            training; None if unknown.
    """

    loops: LoopSigns | None
    correct: float | None = None
    steps: tuple[float | None, ...] | None = None
    reward: float | None = None
    satisfied: float | None = None
    by_kind: Mapping[str, float] = field(default_factory=dict)
    likelihoods: tuple[float, float] | None = None


@dataclass(frozen=True, slots=True)
class ProblemResponses:
    """The responses to a problem.

    Attributes:
        trajectories: the judged responses.
        self_bleu: self-BLEU of the texts; None with fewer than two.
        semantic_distance: mean cosine distance in [0, 2]; None with fewer than two texts or if it was not measured.
    """

    trajectories: tuple[Trajectory, ...]
    self_bleu: float | None = None
    semantic_distance: float | None = None


class LoopLimits(NamedTuple):
    """Limits beyond which a text counts as looping; the parameters of `trainer_client.measures.loops`."""

    max_corrections: int = 20
    max_duplicate_share: float = 0.1
    min_paragraph_words: int = 5


class MeasureEstimate(NamedTuple):
    """The value of a measure, its 95% interval over problems, and the number of problems.

    `low` and `high` are None if there are too few problems for an interval: see `interval`.
    """

    value: float
    low: float | None
    high: float | None
    problems: int


Measure = Callable[[Sequence[ProblemResponses]], float | None]


def satisfied(scores: Sequence[tuple[str, float, float | None]]) -> float | None:
    """Compute the mean score of a response's criteria in [0, 1], oriented so that higher is better.

    A criterion of kind `pitfall` or with a negative weight counts as 1 - score. Criteria of kind `answer` are left out,
    since the result is correlated with the answer's correctness.

    Args:
        scores: kind, weight and score of each criterion; a score of None is a failed verdict.

    Returns:
        The mean; None without criteria, or if a verdict failed.
    """
    signed = [(kind == "pitfall" or weight < 0, score) for kind, weight, score in scores if kind != "answer"]
    known = [1.0 - score if inverted else score for inverted, score in signed if score is not None]
    return fmean(known) if known and len(known) == len(signed) else None


def by_kind(scores: Sequence[tuple[str, float, float | None]]) -> dict[str, float]:
    """Compute the mean score of a response's criteria per kind, in [0, 1] (SRaR, Table 7).

    For `pitfall`, this is how often the mistake was made. Any other criterion with a negative weight counts as
    1 - score. The kind `answer` and kinds with a failed verdict are left out. The argument is that of `satisfied`.
    """
    kinds: dict[str, list[float | None]] = {}
    for kind, weight, score in scores:
        inverted = kind != "pitfall" and weight < 0
        kinds.setdefault(kind, []).append(1.0 - score if inverted and score is not None else score)
    known = {kind: [one for one in values if one is not None] for kind, values in kinds.items() if kind != "answer"}
    return {kind: fmean(values) for kind, values in known.items() if len(values) == len(kinds[kind])}


def count_alignment(problems: Sequence[ProblemResponses]) -> dict[str, int]:
    """Count trajectories by the correctness of answer and steps, as in SRaR's Table 2 and Figure 2 (b).

    `without_steps` counts trajectories without a parsed step, `undecided` those that a missing verdict or an unknown
    answer leaves unclassified.
    """
    names = ["right_faithful", "right_unfaithful", "wrong_faithful", "wrong_unfaithful", "without_steps", "undecided"]
    counts = Counter(
        _alignment_class(one) for problem in problems for one in problem.trajectories if one.steps is not None
    )
    return {name: counts[name] for name in names}


def _alignment_class(one: Trajectory) -> str:
    steps = one.steps or ()
    if not steps:
        return "without_steps"
    if one.correct is None or (None in steps and 0.0 not in steps):
        return "undecided"
    return f"{'right' if one.correct == 1.0 else 'wrong'}_{'unfaithful' if 0.0 in steps else 'faithful'}"


def estimate_measures(
    problems: Sequence[ProblemResponses], *, ks: Sequence[int] = (1, 2, 4, 8), resamples: int = RESAMPLES
) -> dict[str, MeasureEstimate]:
    """Compute every measure for which there is data.

    Args:
        problems: the judged responses to each problem.
        ks: the values of k for pass@k and best of k; a k for which no problem has enough samples is left out.
        resamples: number of resamples for the intervals; 0 computes no intervals.

    Raises:
        ValueError: a k is below 1.
    """
    if any(k < 1 for k in ks):
        raise ValueError(f"k is {min(ks)}; it must be at least 1")
    estimates: dict[str, MeasureEstimate] = {}
    kinds = dict.fromkeys(kind for p in problems for one in p.trajectories for kind in one.by_kind)
    correlations = _correlations(list(kinds) if len(kinds) > 1 else [])
    shares = _share_measures(ks)
    for name, measure in {**shares, **_unbounded_measures(ks), **correlations}.items():
        used = [problem for problem in problems if name in correlations or measure([problem]) is not None]
        value = measure(used)
        if value is not None and math.isfinite(value):
            low, high = interval(used, measure, value, share=name in shares, resamples=resamples)
            estimates[name] = MeasureEstimate(value, low, high, len(used))
    if "accuracy_looping" not in estimates:  # nothing loops, so this would repeat the overall accuracy
        estimates.pop("accuracy_not_looping", None)
    return estimates


def measure_values(problems: Sequence[ProblemResponses], *, ks: Sequence[int] = (1, 2, 4, 8)) -> dict[str, float]:
    """Compute every measure for which there is data, without intervals. Arguments and errors as `estimate_measures`."""
    return {name: one.value for name, one in estimate_measures(problems, ks=ks, resamples=0).items()}


def _correlations(kinds: Sequence[str]) -> dict[str, Measure]:
    """Return the correlations with a right answer, which need more than one problem."""

    def correlation(problems: Sequence[ProblemResponses], score: Callable[[Trajectory], float | None]) -> float | None:
        every = [one for problem in problems for one in problem.trajectories]
        return point_biserial([one.correct for one in every], [score(one) for one in every])

    kind_scores = {f"correlation_with_{kind}": partial(_kind_score, kind=kind) for kind in kinds}
    scores: dict[str, Callable[[Trajectory], float | None]] = {
        "correlation_with_satisfaction": lambda one: one.satisfied,
        **kind_scores,
    }
    return {name: partial(correlation, score=score) for name, score in scores.items()}


def _kind_score(one: Trajectory, kind: str) -> float | None:
    return one.by_kind.get(kind)


def _share_measures(ks: Sequence[int]) -> dict[str, Measure]:
    """Return the measures that are means of values in [0, 1]."""
    steps = ("faithful_reasoning_rate", "misaligned_trajectory_rate", "step_accuracy")
    loops = {
        "loop_rate": "loop_rate",
        "accuracy_looping": "accuracy_looping",
        "accuracy_not_looping": "accuracy_other",
    }
    return {
        "answer_accuracy": lambda problems: average_at_k([[one.correct for one in p.trajectories] for p in problems]),
        **{f"pass_at_{k}": partial(_pass_at_k, k=k) for k in ks},
        **{name: partial(_faithfulness_rate, name=name) for name in steps},
        **{name: partial(_loop_rate, name=statistic) for name, statistic in loops.items()},
        "zero_reward_share": lambda problems: _mean([float(r <= 0) for p in problems for r in _rewards(p)]),
        **{f"novelty_above_{limit}": partial(_novel_share, limit=limit) for limit in _NOVEL_ABOVE},
    }


def _unbounded_measures(ks: Sequence[int]) -> dict[str, Measure]:
    return {
        "mean_self_corrections": partial(_loop_rate, name="mean_self_corrections"),
        "diversity": lambda problems: _mean([1.0 - p.self_bleu for p in problems if p.self_bleu is not None]),
        "semantic_distance": lambda problems: _mean([d for p in problems if (d := p.semantic_distance) is not None]),
        **{f"best_of_{k}": partial(_best_of_k, k=k) for k in ks},
        "novelty_mean": lambda problems: (ratios := _novelty(problems)) and ratios.mean,
        "novelty_median": lambda problems: (ratios := _novelty(problems)) and ratios.median,
    }


_NOVEL_ABOVE = (2, 10, 100)
"""Thresholds of the importance ratio above which responses count as novel (RuscaRL, appendix D.4)."""


def _novelty(problems: Sequence[ProblemResponses]) -> Novelty | None:
    known = [one.likelihoods for p in problems for one in p.trajectories if one.likelihoods is not None]
    return novelty([new for new, _ in known], [old for _, old in known], thresholds=_NOVEL_ABOVE) if known else None


def _novel_share(problems: Sequence[ProblemResponses], limit: int) -> float | None:
    ratios = _novelty(problems)
    known = sum(one.likelihoods is not None for p in problems for one in p.trajectories)
    return None if ratios is None else ratios.counts[limit] / known


def _pass_at_k(problems: Sequence[ProblemResponses], k: int) -> float | None:
    known = [[one.correct for one in p.trajectories if one.correct is not None] for p in problems]
    return _mean([pass_at_k(len(row), sum(score == 1.0 for score in row), k) for row in known if len(row) >= k])


def _best_of_k(problems: Sequence[ProblemResponses], k: int) -> float | None:
    return _mean([best for p in problems if (best := best_of_n(_rewards(p), k)) is not None])


def _rewards(problem: ProblemResponses) -> list[float]:
    return [one.reward for one in problem.trajectories if one.reward is not None]


def _faithfulness_rate(problems: Sequence[ProblemResponses], name: str) -> float | None:
    judged = [(one.correct, one.steps) for p in problems for one in p.trajectories if one.steps is not None]
    rate: float | None = faithfulness([a for a, _ in judged], [s for _, s in judged])[name]  # type: ignore[literal-required]
    return rate


def _loop_rate(problems: Sequence[ProblemResponses], name: str) -> float | None:
    known = [(one.loops, one.correct) for p in problems for one in p.trajectories if one.loops is not None]
    statistics = loop_statistics([loops for loops, _ in known], [correct for _, correct in known])
    value: float | None = statistics[name]  # type: ignore[literal-required]
    return value


def interval(
    items: Sequence[_Item],
    measure: Callable[[Sequence[_Item]], float | None],
    value: float,
    *,
    share: bool,
    resamples: int = RESAMPLES,
) -> tuple[float, float] | tuple[None, None]:
    """Compute the 95% interval of a measure by resampling items with replacement.

    For a share p, this is Wilson's interval with n = p (1 - p) / v, where v is the variance of the resampled shares: n
    is the number of independent answers that would vary as much. If the shares do not vary, n is the number of items,
    so ten problems that are all right give 0.72 to 1. For any other measure, it is the percentiles of the resampled
    values.

    Args:
        measure: computes the measure of any items; None if there is no data.
        value: the measure of all items.
        share: whether the measure is a mean of values in [0, 1].

    Returns:
        The bounds; (None, None) with 0 resamples, and for a measure other than a share if all resampled values are
        equal, since the items are then too few or too similar to estimate how much it varies.
    """
    if not resamples:
        return None, None
    draw = random.Random(0)  # noqa: S311 - statistics, not a secret
    resampled = [measure(draw.choices(items, k=len(items))) for _ in range(resamples)]
    known = sorted(one for one in resampled if one is not None and math.isfinite(one))
    spread = pvariance(known) if known and known[0] < known[-1] else 0.0
    if share:
        variance = value * (1.0 - value)
        effective = variance / spread if spread and variance > 0 else len(items)
        return wilson(value * effective, effective)
    if not spread:
        return None, None
    low, high = (known[min(int(tail * len(known)), len(known) - 1)] for tail in _TAILS)
    return low, high


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


STEP_CRITERION = {
    "id": "correct",
    "description": (
        "This one step of a solution is correct: its operations, its calculations and its deductions hold. The steps "
        "before it are taken as correct, and it need not reach the final answer."
    ),
}
"""The criterion by which each step is judged: the paper's three questions, in our words."""


def step_groups(
    prompt: str | Sequence[Any], text: str, *, ground_truth: str | None, reference_answer: str | None = None
) -> list[dict[str, Any]]:
    """Build a group of one response for each parsed step of a solution, in order; none if it has no step headers."""
    messages: list[Any] = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    known = {"ground_truth": ground_truth, "reference_answer": reference_answer}
    shown = {name: value for name, value in known.items() if value is not None}
    groups = []
    before = ""
    for step in split_steps(text):
        earlier = [{"role": "assistant", "content": before.strip()}] if before.strip() else []
        current = text[step.start : step.end].strip()
        groups.append({"id": f"step-{step.number}", "prompt": [*messages, *earlier], "responses": [current], **shown})
        before += f"{current}\n"
    return groups


def win_rates(problems: Sequence[Sequence[Comparison]]) -> dict[str, MeasureEstimate]:
    """Measure the wins of `a` over `b`, with equal weight for each problem.

    `win_rate` is the mean score of `a` in [0, 1]: each order of a pair is a win (1), a loss (0) or a tie (0.5), and a
    pair's score is the mean of its two orders. `tie_rate` is the share of tied pairs. `order_agreement` is the share of
    pairs whose two orders agree; the rest were decided by the position of the responses. Failed comparisons are left
    out; there are no measures if none succeeded.
    """
    judged = [[pair for pair in pairs if pair.score is not None] for pairs in problems]
    rows = [
        (
            fmean(pair.score for pair in pairs if pair.score is not None),
            fmean(pair.preferred == "tie" for pair in pairs),
            fmean(bool(pair.consistent) for pair in pairs),
        )
        for pairs in judged
        if pairs
    ]
    if not rows:
        return {}
    estimates = {}
    for name, column in zip(("win_rate", "tie_rate", "order_agreement"), zip(*rows, strict=True), strict=True):
        value = fmean(column)
        low, high = interval(column, fmean, value, share=True)
        estimates[name] = MeasureEstimate(value, low, high, len(rows))
    return estimates
