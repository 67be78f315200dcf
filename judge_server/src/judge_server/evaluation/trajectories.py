"""What a policy's responses are worth: accuracy, faithfulness of steps, looping, win rates.

What a policy's responses are worth as a whole: accuracy, faithfulness of steps, looping, diversity, best of n.

Pure functions of what was judged; the measures themselves are those of `trainer_client.measures`. Intervals resample
problems, since the samples of one are not independent of each other.

Is each step of a solution correct, given the problem, its answer and the steps before? (SRaR, appendix 7.5)

The question is put to a judge as a binary criterion about one step: the steps before stand in the conversation.

How often one policy's responses beat another's, from comparisons in both orders (DRO, pairwise win rate).
"""

import math
import random
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from statistics import NormalDist, fmean, pvariance
from typing import Any, NamedTuple, TypeVar

from trainer_client._loops import LoopSigns, loop_statistics
from trainer_client.measures import Novelty, average_at_k, best_of_n, faithfulness, novelty, pass_at_k, point_biserial
from trainer_client.steps import split_steps
from trainer_client.wire import Comparison

RESAMPLES = 500
_TAILS = (0.025, 0.975)
_Z = NormalDist().inv_cdf(_TAILS[1])

_Item = TypeVar("_Item")


@dataclass(frozen=True, slots=True)
class Trajectory:
    """A judged response.

    Attributes:
        loops: the signs of looping in its text; None where the text is not known.
        correct: 1 if its final answer is right, else 0; None where that is not known.
        steps: 1 or 0 for each parsed step, None where the judge failed; None where steps were not judged.
        reward: by the rubric; None without one.
        satisfied: how far it does what its criteria ask for, in [0, 1], as `satisfied` computes it; None without any.
        by_kind: the same for the criteria of each kind, as `by_kind` computes it.
        likelihoods: mean log-likelihoods per token, in nats, under the trained policy and under the one before
            training; None where they are not known.
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
        self_bleu: of their texts; None where there are not two.
        semantic_distance: their mean cosine distance in [0, 2]; None where there are not two, or none was measured.
    """

    trajectories: tuple[Trajectory, ...]
    self_bleu: float | None = None
    semantic_distance: float | None = None


class LoopLimits(NamedTuple):
    """From where a text counts as looping; the parameters of `trainer_client.measures.loops`."""

    max_corrections: int = 20
    max_duplicate_share: float = 0.1
    min_paragraph_words: int = 5


class MeasureEstimate(NamedTuple):
    """A measure, its 95% interval over problems, and of how many problems it was taken.

    `low` and `high` are None where the problems are too few to tell: see `interval`.
    """

    value: float
    low: float | None
    high: float | None
    problems: int


Measure = Callable[[Sequence[ProblemResponses]], float | None]


def satisfied(scores: Sequence[tuple[str, float, float | None]]) -> float | None:
    """Compute the mean score of a response's criteria in [0, 1], each so that higher is better.

    A criterion of kind `pitfall` or of negative weight counts 1 less its score. One of kind `answer` is left out: it is
    what the others are correlated with.

    Args:
        scores: kind, weight and score of each criterion; a score of None is a failed verdict.

    Returns:
        None without criteria, and where a verdict failed.
    """
    good = [(kind == "pitfall" or weight < 0, score) for kind, weight, score in scores if kind != "answer"]
    known = [1.0 - score if bad else score for bad, score in good if score is not None]
    return fmean(known) if known and len(known) == len(good) else None


def by_kind(scores: Sequence[tuple[str, float, float | None]]) -> dict[str, float]:
    """Compute the mean score of a response's criteria of each kind, in [0, 1] (SRaR, Table 7).

    That of a `pitfall` is how often the mistake was made; any other criterion of negative weight counts 1 less its
    score. Kinds of which a verdict failed are left out, and so is `answer`. Arguments are those of `satisfied`.
    """
    kinds: dict[str, list[float | None]] = {}
    for kind, weight, score in scores:
        bad = kind != "pitfall" and weight < 0
        kinds.setdefault(kind, []).append(1.0 - score if bad and score is not None else score)
    known = {kind: [one for one in found if one is not None] for kind, found in kinds.items() if kind != "answer"}
    return {kind: fmean(found) for kind, found in known.items() if len(found) == len(kinds[kind])}


def count_alignment(problems: Sequence[ProblemResponses]) -> dict[str, int]:
    """Count trajectories by answer and steps, as SRaR's Table 2 and Figure 2 (b) do.

    `without_steps` has no parsed step. `undecided` is one where a missing verdict, or an unknown answer, leaves open
    which it is.
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
    problems: Sequence[ProblemResponses], *, ks: Sequence[int] = (1, 2, 4, 8), seed: int = 0, resamples: int = RESAMPLES
) -> dict[str, MeasureEstimate]:
    """Take every measure that there is something to take of.

    Args:
        problems: with their judged responses.
        ks: of pass@k and best of k; a k that no problem has samples for is left out.
        seed: of the bootstrap.
        resamples: how many the intervals rest on; 0 takes none.

    Raises:
        ValueError: a k is below 1.
    """
    if any(k < 1 for k in ks):
        raise ValueError(f"k is {min(ks)}; of a problem at least one sample is drawn")
    found: dict[str, MeasureEstimate] = {}
    kinds = dict.fromkeys(kind for p in problems for one in p.trajectories for kind in one.by_kind)
    correlations = _correlations(list(kinds) if len(kinds) > 1 else [])
    shares = _share_measures(ks)
    for name, measure in {**shares, **_unbounded_measures(ks), **correlations}.items():
        used = [problem for problem in problems if name in correlations or measure([problem]) is not None]
        value = measure(used)
        if value is not None and math.isfinite(value):
            low, high = interval(used, measure, value, share=name in shares, seed=seed, resamples=resamples)
            found[name] = MeasureEstimate(value, low, high, len(used))
    if "accuracy_looping" not in found:  # nothing loops: those that do not loop are all there are
        found.pop("accuracy_not_looping", None)
    return found


def measure_values(problems: Sequence[ProblemResponses], *, ks: Sequence[int] = (1, 2, 4, 8)) -> dict[str, float]:
    """Take every measure that there is something to take of, without intervals; arguments and errors as `figures`."""
    return {name: one.value for name, one in estimate_measures(problems, ks=ks, resamples=0).items()}


def _correlations(kinds: Sequence[str]) -> dict[str, Measure]:
    """Correlations of a right answer, which one problem alone cannot give."""

    def correlation(given: Sequence[ProblemResponses], of: Callable[[Trajectory], float | None]) -> float | None:
        every = [one for problem in given for one in problem.trajectories]
        return point_biserial([one.correct for one in every], [of(one) for one in every])

    of_kinds = {f"correlation_with_{kind}": partial(_of_kind, kind=kind) for kind in kinds}
    measures: dict[str, Callable[[Trajectory], float | None]] = {
        "correlation_with_satisfaction": lambda one: one.satisfied,
        **of_kinds,
    }
    return {name: partial(correlation, of=of) for name, of in measures.items()}


def _of_kind(one: Trajectory, kind: str) -> float | None:
    return one.by_kind.get(kind)


def _share_measures(ks: Sequence[int]) -> dict[str, Measure]:
    """Measures that are means of values in [0, 1]."""
    steps = ("faithful_reasoning_rate", "misaligned_trajectory_rate", "step_accuracy")
    loops = {
        "loop_rate": "loop_rate",
        "accuracy_looping": "accuracy_looping",
        "accuracy_not_looping": "accuracy_other",
    }
    return {
        "answer_accuracy": lambda given: average_at_k([[one.correct for one in p.trajectories] for p in given]),
        **{f"pass_at_{k}": partial(_pass_at_k, k=k) for k in ks},
        **{name: partial(_faithfulness_rate, name=name) for name in steps},
        **{name: partial(_loop_rate, name=found) for name, found in loops.items()},
        "zero_reward_share": lambda given: _mean([float(r <= 0) for p in given for r in _rewards(p)]),
        **{f"novelty_above_{limit}": partial(_novel_share, limit=limit) for limit in _NOVEL_ABOVE},
    }


def _unbounded_measures(ks: Sequence[int]) -> dict[str, Measure]:
    return {
        "mean_self_corrections": partial(_loop_rate, name="mean_self_corrections"),
        "diversity": lambda given: _mean([1.0 - p.self_bleu for p in given if p.self_bleu is not None]),
        "semantic_distance": lambda given: _mean([d for p in given if (d := p.semantic_distance) is not None]),
        **{f"best_of_{k}": partial(_best_of_k, k=k) for k in ks},
        "novelty_mean": lambda given: (found := _novelty(given)) and found.mean,
        "novelty_median": lambda given: (found := _novelty(given)) and found.median,
    }


_NOVEL_ABOVE = (2, 10, 100)
"""Importance ratios above which responses are counted (RuscaRL, appendix D.4)."""


def _novelty(given: Sequence[ProblemResponses]) -> Novelty | None:
    known = [one.likelihoods for p in given for one in p.trajectories if one.likelihoods is not None]
    return novelty([new for new, _ in known], [old for _, old in known], thresholds=_NOVEL_ABOVE) if known else None


def _novel_share(given: Sequence[ProblemResponses], limit: int) -> float | None:
    found = _novelty(given)
    known = sum(one.likelihoods is not None for p in given for one in p.trajectories)
    return None if found is None else found.counts[limit] / known


def _pass_at_k(given: Sequence[ProblemResponses], k: int) -> float | None:
    known = [[one.correct for one in p.trajectories if one.correct is not None] for p in given]
    return _mean([pass_at_k(len(row), sum(score == 1.0 for score in row), k) for row in known if len(row) >= k])


def _best_of_k(given: Sequence[ProblemResponses], k: int) -> float | None:
    return _mean([best for p in given if (best := best_of_n(_rewards(p), k)) is not None])


def _rewards(problem: ProblemResponses) -> list[float]:
    return [one.reward for one in problem.trajectories if one.reward is not None]


def _faithfulness_rate(given: Sequence[ProblemResponses], name: str) -> float | None:
    judged = [(one.correct, one.steps) for p in given for one in p.trajectories if one.steps is not None]
    rate: float | None = faithfulness([a for a, _ in judged], [s for _, s in judged])[name]  # type: ignore[literal-required]
    return rate


def _loop_rate(given: Sequence[ProblemResponses], name: str) -> float | None:
    known = [(one.loops, one.correct) for p in given for one in p.trajectories if one.loops is not None]
    loop_figures = loop_statistics([found for found, _ in known], [correct for _, correct in known])
    value: float | None = loop_figures[name]  # type: ignore[literal-required]
    return value


def interval(
    items: Sequence[_Item],
    measure: Callable[[Sequence[_Item]], float | None],
    value: float,
    *,
    share: bool,
    seed: int,
    resamples: int = RESAMPLES,
) -> tuple[float, float] | tuple[None, None]:
    """Compute the 95% interval of a measure over items, by resampling them with replacement.

    A share p gets Wilson's interval with n = p (1 - p) / v, v being the variance of the resampled shares: how many
    independent answers would vary as much. Where they do not vary, n is the number of items, so ten problems that are
    all right give 0.72 to 1. Any other measure gets the percentiles of the resampled values.

    Args:
        items: the problems.
        measure: of any of them; None where there is nothing to take it of.
        value: of all of them.
        share: whether the measure is a mean of values in [0, 1].
        seed: of the resampling.
        resamples: how many; 0 takes no interval.

    Returns:
        (None, None) without resamples, and for a measure that is not a share where the resampled values are all equal:
        the items are too few, or too alike, to tell how far it would vary.
    """
    if not resamples:
        return None, None
    draw = random.Random(seed)  # noqa: S311 - resamples, no secret
    drawn = [measure(draw.choices(items, k=len(items))) for _ in range(resamples)]
    known = sorted(one for one in drawn if one is not None and math.isfinite(one))
    spread = pvariance(known) if known and known[0] < known[-1] else 0.0
    if share:
        vary = value * (1.0 - value)
        return wilson(value, vary / spread if spread and vary > 0 else len(items))
    if not spread:
        return None, None
    low, high = (known[min(int(tail * len(known)), len(known) - 1)] for tail in _TAILS)
    return low, high


def wilson(share: float, count: float) -> tuple[float, float]:
    """Compute Wilson's 95% interval of a share of `count` independent items, in [0, 1] (Wilson 1927)."""
    weight = _Z * _Z / count
    middle = (share + weight / 2) / (1 + weight)
    half = _Z / (1 + weight) * math.sqrt(share * (1 - share) / count + weight / (4 * count))
    return min(share, max(0.0, middle - half)), max(share, min(1.0, middle + half))  # rounding keeps it inside


def _mean(values: Sequence[float]) -> float | None:
    return fmean(values) if values else None


STEP_CRITERION = {
    "id": "correct",
    "description": (
        "This one step of a solution is correct: its operations, its calculations and its deductions hold. The steps "
        "before it are taken as correct, and it need not reach the final answer."
    ),
}
"""What is asked of a step: the paper's three questions, in our words."""


def step_groups(
    prompt: str | Sequence[Any], text: str, *, ground_truth: str | None, reference_answer: str | None = None
) -> list[dict[str, Any]]:
    """Give a group of one response for each parsed step of a solution, in order; none where it has no step headers.

    Args:
        prompt: the problem, a text or messages.
        text: the solution.
        ground_truth, reference_answer: shown to the judge, where they are known.
    """
    asked: list[Any] = [{"role": "user", "content": prompt}] if isinstance(prompt, str) else list(prompt)
    known = {"ground_truth": ground_truth, "reference_answer": reference_answer}
    shown = {name: value for name, value in known.items() if value is not None}
    groups = []
    before = ""
    for step in split_steps(text):
        done = [{"role": "assistant", "content": before.strip()}] if before.strip() else []
        current = text[step.start : step.end].strip()
        groups.append({"id": f"step-{step.number}", "prompt": [*asked, *done], "responses": [current], **shown})
        before += f"{current}\n"
    return groups


def win_rates(problems: Sequence[Sequence[Comparison]], *, seed: int = 0) -> dict[str, MeasureEstimate]:
    """Measure wins of `a` over `b`; every problem weighs the same.

    `win_rate` is the mean score of `a` in [0, 1]: each order of a pair is a win (1), a loss (0) or a tie (one half),
    and a pair's score is the mean of its two. `tie_rate` is the share of pairs of score one half, `order_agreement` the
    share whose two orders say the same: what is missing to 1 went by the place where a response stood.

    Args:
        problems: the comparisons of each problem; those that failed are left out.
        seed: of the bootstrap behind the intervals.

    Returns:
        The measures; none where no comparison succeeded.
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
    found = {}
    for name, column in zip(("win_rate", "tie_rate", "order_agreement"), zip(*rows, strict=True), strict=True):
        value = fmean(column)
        low, high = interval(column, fmean, value, share=True, seed=seed)
        found[name] = MeasureEstimate(value, low, high, len(rows))
    return found
