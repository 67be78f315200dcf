"""The reward modes: which verdicts each takes, what it asks of a rubric, its formula, and how it explains a reward.

A mode is a class, a name in `RewardMode` and a line in `MODES`; everything else follows from these.

Each class gives its formula, in which s is the score of a criterion in [0, 1] and w its weight.

A criterion is *satisfied* if its score is 1. A high grade or probability below 1 does not satisfy it.

Every formula is monotone in each score. The completions of the missing scores that are worst and best for the response
therefore bound all others.

A reward has components, each of some of the criteria. In a linear mode, the component C has the reward
sum over C of w_j s_j / sum over C of |w_j|, or the mean of its s_j in `graded_mean` and `stepwise`, and the weight that
makes the reward the sum of weight times component: sum over C of |w_j| / the mode's own denominator, or C's share of
the criteria that count. `stepwise` multiplies that by 1 - lambda, and its format is a component of weight lambda. In
the other modes a component is the mode's formula over its criteria, and has no weight.
"""

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Literal, NamedTuple

__all__ = [
    "MODES",
    "UNTAGGED",
    "Explained",
    "Given",
    "JudgingProtocol",
    "Mode",
    "RewardMode",
    "ScoredTerms",
    "Term",
    "UnsuitableRubric",
    "UsedProtocol",
    "short",
]

JudgingProtocol = Literal["binary", "stepwise", "graded", "checklist", "likert"]
UsedProtocol = Literal["binary", "stepwise", "graded", "checklist", "likert", "comparison"]
"""A protocol that verdicts are given under: one that a request may name, or the comparison of two responses."""

RewardMode = Literal[
    "weighted_mean",
    "factual_override",
    "points",
    "clipped_points",
    "absolute_points",
    "partial_credit",
    "stepwise",
    "graded_mean",
    "likert",
    "outcome",
    "gate",
    "ranking",
]


UNTAGGED = "untagged"
"""The component by tag of the criteria without a tag."""


class Term(NamedTuple):
    """The fields of a criterion that the formulas need: its label, kind, weight, whether it is a shadow, its first tag.

    Shadow criteria are judged but not rewarded, so every formula leaves them out.
    """

    label: str
    kind: str
    weight: float
    shadow: bool = False
    tag: str = UNTAGGED


ScoredTerms = Sequence[tuple[Term, float]]
"""Criteria and their scores in [0, 1]."""

_ROUNDING = 1e-9


class UnsuitableRubric(ValueError):
    """The rubric does not suit the mode; the message says what to change."""


class Given(NamedTuple):
    """What a formula needs beside the scores; `trainer_client.rewards.reward_outcome` says what each field is.

    `only_mistakes` says that no criterion that counts has a positive weight. It must not depend on which scores are
    missing.
    """

    format_ok: bool | None = None
    format_weight: float = 0.1
    gate_fraction: float = 0.5
    only_mistakes: bool = False


class Explained(NamedTuple):
    """A reward in words: a sentence, and an expression with its value, where a criterion stands behind its score."""

    sentence: str
    expression: str
    value: float

    @property
    def formula(self) -> str:
        """`EXPRESSION = VALUE`."""
        return f"{self.expression} = {short(self.value)}"


class Mode(ABC):
    """A way from scores to a reward.

    Attributes:
        protocols: the judging protocols whose verdicts it takes, its default first; none if it calls no judge.
        not_linear: why the reward is not linear in the scores of criteria; empty if it is.
        reads: whether it reads the scores of a response's criteria, a single score of the whole response, or the
            comparisons of a group of responses, which must then be judged in one request.
        weighs: whether the reward is the sum of weights times scores, divided by a size of the rubric.
    """

    reads: Literal["criteria", "response", "group"] = "criteria"
    not_linear: str = ""
    weighs: bool = False

    def __init__(self, *protocols: UsedProtocol) -> None:
        self.protocols = protocols

    @abstractmethod
    def check(self, terms: Sequence[Term], name: RewardMode) -> None:
        """Refuse criteria that do not suit the mode, whose name is for messages.

        Raises:
            UnsuitableRubric: the message says what to change.
        """

    def counts(self, term: Term) -> bool:
        """Whether a criterion enters the reward."""
        return True

    def rises(self, term: Term) -> bool:
        """Whether the reward is nondecreasing in the score of the criterion; otherwise it is nonincreasing."""
        return term.weight >= 0

    @abstractmethod
    def value(self, scored: ScoredTerms, given: Given) -> float | None:
        """The reward of criteria that all have a score; None if it would divide by zero."""

    def estimate(self, scored: ScoredTerms, given: Given) -> float | None:
        """The reward of scores that are divided by their probability of being judged: not clipped."""
        return self.value(scored, given)

    @abstractmethod
    def explain(self, scored: ScoredTerms, given: Given) -> Explained:
        """Say how the reward follows from the scores."""

    def of_component(self) -> "Mode":
        """The mode whose formula gives the reward of a component from its criteria, with a `format_weight` of 0."""
        return self

    def component_weight(self, part: Sequence[Term], counted: Sequence[Term], given: Given) -> float:
        """The weight of a component, some of the criteria that count, in the reward of a linear mode."""
        return len(part) / len(counted)

    def format_component(self, given: Given) -> tuple[float, float] | None:
        """The weight and the reward of the response's format; None if the mode does not reward it."""
        return None


class _Points(Mode):
    """The sum of weights times scores, divided by a size of the rubric."""

    weighs = True
    sentence: str

    @abstractmethod
    def sizes(self, terms: Sequence[Term]) -> list[float]:
        """What adds up to the size."""

    def value(self, scored: ScoredTerms, given: Given) -> float | None:
        size = sum(self.sizes([term for term, _ in scored]))
        return _points(scored) / size if size > 0 else None

    def explain(self, scored: ScoredTerms, given: Given) -> Explained:
        return _quotient(self.sentence, scored, self.sizes([term for term, _ in scored]))

    def of_component(self) -> Mode:
        return AbsolutePoints()

    def component_weight(self, part: Sequence[Term], counted: Sequence[Term], given: Given) -> float:
        return sum(_absolute(part)) / sum(self.sizes(counted))


class WeightedMean(_Points):
    """The mean of the scores, weighted by the criteria.

    Reward: Σ w s / Σ w, clipped to [0, 1] (RGR-GRPO, eq. 4). With rubric dropout it is not clipped, and may exceed 1.

    It refuses a pitfall of positive weight, a negative weight, and a rubric without a positive weight.
    """

    sentence = "The reward is the mean of the scores, weighted by the criteria."

    def sizes(self, terms: Sequence[Term]) -> list[float]:
        return [term.weight for term in terms]

    def check(self, terms: Sequence[Term], name: RewardMode) -> None:
        _refuse_rewarded_pitfalls(terms, name)
        _refuse_negative_weights(terms, name)
        _require_positive_weight(terms, name)

    def value(self, scored: ScoredTerms, given: Given) -> float | None:
        mean = self.estimate(scored, given)
        return None if mean is None else min(1.0, max(0.0, mean))

    def estimate(self, scored: ScoredTerms, given: Given) -> float | None:
        return super().value(scored, given)


class PartialCredit(WeightedMean):
    """The mean of the shares of points awarded, weighted by the criteria.

    Reward: Σ w s / Σ w, clipped to [0, 1], where s is the points awarded divided by w, or the grade divided by its
    scale (Rubric-Grounded RL, eqs. 2 and 11). With rubric dropout it is not clipped, and may exceed 1.

    It refuses what `weighted_mean` refuses.
    """


class FactualOverride(WeightedMean):
    """The full reward if every factual criterion is satisfied, else the weighted mean.

    Reward: 1 if there are criteria of kind `factual` and all of them have the score 1, else Σ w s / Σ w, clipped to
    [0, 1] (RGR-GRPO, eq. 5).

    It refuses what `weighted_mean` refuses.
    """

    not_linear = "gives the full reward only if every factual criterion is satisfied"
    weighs = False

    sentence = (
        "Not every factual criterion is satisfied, so the reward is the mean of the scores, weighted by the criteria."
    )

    def value(self, scored: ScoredTerms, given: Given) -> float | None:
        mean = super().value(scored, given)
        return 1.0 if mean is not None and self._satisfied(scored) else mean

    def explain(self, scored: ScoredTerms, given: Given) -> Explained:
        if satisfied := self._satisfied(scored):
            return Explained(f"The reward is 1, because every factual criterion ({satisfied}) is satisfied.", "1", 1.0)
        return super().explain(scored, given)

    def of_component(self) -> Mode:
        return self

    @staticmethod
    def _satisfied(scored: ScoredTerms) -> int:
        """The number of factual criteria if all are satisfied, else 0."""
        factual = [score for term, score in scored if term.kind == "factual"]
        return len(factual) if factual and min(factual) == 1.0 else 0


class Points(_Points):
    """The points earned, divided by the positive points of the rubric.

    Reward: Σ w s / Σ of the positive w (RuscaRL, eq. 4; HealthBench). It is at most 1, may be negative, and is not
    clipped.

    It refuses a pitfall of positive weight, and a rubric without a positive weight. A rubric that lists only mistakes
    has nothing to divide by: take `clipped_points` or `absolute_points`.
    """

    sentence = "The reward is the points earned, divided by the positive points of the rubric."

    def check(self, terms: Sequence[Term], name: RewardMode) -> None:
        _refuse_rewarded_pitfalls(terms, name)
        _require_positive_weight(terms, name)

    def sizes(self, terms: Sequence[Term]) -> list[float]:
        return _positive(terms)


class AbsolutePoints(_Points):
    """The points earned, divided by the size of all points.

    Reward: Σ w s / Σ |w|, in [-1, 1] (open-instruct's rubric verifier). A rubric may list only mistakes, with negative
    weights; a response that makes none of them gets 0.

    It refuses a pitfall of positive weight, and a rubric whose weights are all 0.
    """

    sentence = "The reward is the points earned, divided by the size of all points."

    def check(self, terms: Sequence[Term], name: RewardMode) -> None:
        _refuse_rewarded_pitfalls(terms, name)
        _require_any_weight(terms, name)

    def sizes(self, terms: Sequence[Term]) -> list[float]:
        return _absolute(terms)


class ClippedPoints(Mode):
    """The points between 0 and 1; for a list of mistakes, 1 minus the share of the mistakes that were made.

    Reward: Σ w s / Σ of the positive w, clipped to [0, 1]. For a rubric without a positive weight, 1 - Σ |w| s / Σ |w|,
    so that a response that makes none of the mistakes gets 1 (the per-criterion graders of the library `rubric`).

    It refuses a pitfall of positive weight, and a rubric whose weights are all 0.
    """

    not_linear = "clips the sum of points to [0, 1]"

    def check(self, terms: Sequence[Term], name: RewardMode) -> None:
        _refuse_rewarded_pitfalls(terms, name)
        _require_any_weight(terms, name)

    def value(self, scored: ScoredTerms, given: Given) -> float | None:
        if given.only_mistakes:
            points = AbsolutePoints().value(scored, given)
            points = None if points is None else 1.0 + points
        else:
            points = Points().value(scored, given)
        return None if points is None else min(1.0, max(0.0, points))

    def explain(self, scored: ScoredTerms, given: Given) -> Explained:
        points = _points(scored)
        if given.only_mistakes:
            sizes = _absolute([term for term, _ in scored])
            return Explained(
                "The reward is 1 minus the share of the mistakes that were made.",
                f"max(0, 1 + ({_sum(scored)}) / ({_added(sizes)}))",
                max(0.0, 1 + points / (sum(sizes) or 1.0)),
            )
        positive = _positive([term for term, _ in scored])
        return Explained(
            "The reward is the points earned, divided by the positive points of the rubric, and kept between 0 and 1.",
            f"min(1, max(0, ({_sum(scored)}) / ({_added(positive)})))",
            min(1.0, max(0.0, points / (sum(positive) or 1.0))),
        )


class Stepwise(Mode):
    """The mean score of the answer criteria, and a share for the format; other criteria act on steps.

    Reward: (1 - λ) · accuracy + λ · format, in [0, 1] (SRaR, eq. 6). Accuracy is the mean score of the criteria of kind
    `answer`, without weights. Format is 1 if the response has a step header and a non-empty `\\boxed{}` answer, else 0.
    λ is `reward.format_weight`, 0.1 by default. The other criteria act through `trainer_client.steps.step_deltas`
    alone.

    It refuses a rubric without a criterion of kind `answer`.
    """

    def check(self, terms: Sequence[Term], name: RewardMode) -> None:
        if not any(term.kind == "answer" for term in terms):
            raise UnsuitableRubric(
                "no criterion has kind 'answer', so mode 'stepwise' has no accuracy to start from; "
                "add a criterion of kind 'answer' that checks the final answer"
            )

    def counts(self, term: Term) -> bool:
        return term.kind == "answer"

    def rises(self, term: Term) -> bool:
        return True

    def value(self, scored: ScoredTerms, given: Given) -> float | None:
        share = given.format_weight
        if not 0.0 <= share <= 1.0:
            raise ValueError(f"format_weight is {share!r}; use a share in [0, 1]")
        if given.format_ok is None and share > 0:
            raise ValueError("mode 'stepwise' needs format_ok; pass steps.has_format(text), or format_weight=0")
        accuracy = _mean(scored)
        return None if accuracy is None else (1.0 - share) * accuracy + share * bool(given.format_ok)

    def explain(self, scored: ScoredTerms, given: Given) -> Explained:
        share, form = given.format_weight, "has" if given.format_ok else "lacks"
        return Explained(
            f"The reward is the mean score of the answer criteria, and a share for the form, which the response "
            f"{form}. The other criteria act on its steps.",
            f"{short(1 - share)} × {_written_mean(scored)} + {short(share)} × {int(bool(given.format_ok))}",
            self.value(scored, given) or 0.0,
        )

    def component_weight(self, part: Sequence[Term], counted: Sequence[Term], given: Given) -> float:
        return (1.0 - given.format_weight) * super().component_weight(part, counted, given)

    def format_component(self, given: Given) -> tuple[float, float] | None:
        return (given.format_weight, float(bool(given.format_ok))) if given.format_weight else None


class GradedMean(Mode):
    """The plain mean of the scores, with negative criteria turned round.

    Reward: the mean of s, or of 1 - s for a pitfall or a criterion of negative weight, in [0, 1] (DRO, appendix G). The
    size of the weights is ignored.

    It refuses a rubric without criteria.
    """

    def check(self, terms: Sequence[Term], name: RewardMode) -> None:
        if not terms:
            raise UnsuitableRubric("there are no criteria, so graded_mean has no grade to average; add a criterion")

    def rises(self, term: Term) -> bool:
        return term.weight >= 0 and term.kind != "pitfall"

    def value(self, scored: ScoredTerms, given: Given) -> float | None:
        return _mean(self._turned(scored))

    def explain(self, scored: ScoredTerms, given: Given) -> Explained:
        return Explained(
            "The reward is the mean of the scores; a pitfall or a criterion of negative weight counts 1 minus its "
            "score.",
            _written_mean(self._turned(scored)),
            self.value(scored, given) or 0.0,
        )

    def _turned(self, scored: ScoredTerms) -> ScoredTerms:
        return [(term, score if self.rises(term) else 1.0 - score) for term, score in scored]


class Gate(Mode):
    """1 if enough criteria are satisfied, or if there are none; else 0.

    Reward: 1 if at least the share ρ of the criteria has the score 1, else 0 (DRO's consistency gate, section 4, for
    one response). ρ is `reward.gate_fraction`, 0.5 by default. Weights are ignored.

    It refuses a pitfall, and a negative weight.
    """

    not_linear = "compares the number of satisfied criteria with a threshold"

    def check(self, terms: Sequence[Term], name: RewardMode) -> None:
        _refuse_pitfalls([term for term in terms if term.kind == "pitfall"], name)
        _refuse_negative_weights(terms, name)

    def rises(self, term: Term) -> bool:
        return True

    def value(self, scored: ScoredTerms, given: Given) -> float | None:
        if not 0.0 <= given.gate_fraction <= 1.0:
            raise ValueError(f"gate_fraction is {given.gate_fraction!r}; use a share in [0, 1]")
        return float(self._satisfied(scored) >= math.ceil(given.gate_fraction * len(scored) - _ROUNDING))

    def explain(self, scored: ScoredTerms, given: Given) -> Explained:
        needed, passed = given.gate_fraction * len(scored), self.value(scored, given) or 0.0
        return Explained(
            f"{self._satisfied(scored)} of {len(scored)} criteria are satisfied, and the gate needs {short(needed)}: "
            f"the reward is {short(passed)}.",
            short(passed),
            passed,
        )

    @staticmethod
    def _satisfied(scored: ScoredTerms) -> int:
        return sum(score == 1.0 for _, score in scored)


class _WholeResponse(Mode):
    """The single score of the whole response; any rubric will do, since none is read."""

    reads = "response"
    what: str

    def check(self, terms: Sequence[Term], name: RewardMode) -> None:
        pass

    def rises(self, term: Term) -> bool:
        return True

    def value(self, scored: ScoredTerms, given: Given) -> float | None:
        return _mean(scored)

    def explain(self, scored: ScoredTerms, given: Given) -> Explained:
        ((_, score),) = scored
        return Explained(f"The reward is the {self.what}, from 0 to 1.", short(score), score)


class Likert(_WholeResponse):
    """The judge's rating of the whole response.

    Reward: (rating - 1) / 9, in [0, 1], where the rating is from 1 to 10: the expected rating if the judge gives
    probabilities (Likert-GRPO of RGR-GRPO, section 3). How the paper turns a rating into a reward is not known; this
    formula is ours.

    It needs no rubric. If you give one, it tells the judge what to consider.
    """

    what = "rating of the whole response"
    not_linear = "rates the whole response and has no criteria"


class Outcome(_WholeResponse):
    """Whether the final answer is right, by a program.

    Reward: 1 if the final answer equals the `ground_truth`, else 0 (Outcome-GRPO of RGR-GRPO, section 3).

    It ignores the rubric, and asks no judge. Every group needs a `ground_truth`.
    """

    what = "comparison of the final answer"
    not_linear = "compares the final answer by a program and has no criteria"


class Ranking(Mode):
    """Responses against each other: there is no formula for one of them.

    Reward: σ(θ), in (0, 1): the probability that the response is preferred over one of average strength (Bradley and
    Terry 1952). The strengths θ of a group maximise Σ [w log σ(θ_first - θ_second) + (1 - w) log σ(θ_second - θ_first)]
    over comparisons, minus Σ θ² / 2 over responses. Here w is what the response shown first won: 1, 0, one half for a
    tie, or a probability. The strengths of a group add up to 0, and a group of ties has 0.5 everywhere.

    A group has 2 to 512 responses, all in one request. It refuses a rubric without criteria, and `kinds`, `votes`,
    `temperature`, several criteria per call, `truncate`, `uncertain_band`, `dropout` and `gold`.
    """

    reads = "group"
    not_linear = "compares whole responses with each other, under all criteria together"

    def check(self, terms: Sequence[Term], name: RewardMode) -> None:
        if not terms:
            raise UnsuitableRubric("there are no criteria to compare responses by; add a criterion")

    def value(self, scored: ScoredTerms, given: Given) -> float | None:
        raise ValueError("mode 'ranking' rewards a group and not one response; use trainer_client.ranking.rank")

    def explain(self, scored: ScoredTerms, given: Given) -> Explained:
        raise ValueError("mode 'ranking' explains a group, not one response")


MODES: dict[RewardMode, Mode] = {
    "weighted_mean": WeightedMean("binary", "stepwise", "graded", "checklist"),
    "factual_override": FactualOverride("binary", "stepwise"),
    "points": Points("binary", "stepwise"),
    "clipped_points": ClippedPoints("binary", "stepwise"),
    "absolute_points": AbsolutePoints("binary", "graded"),
    "partial_credit": PartialCredit("checklist", "graded"),
    "stepwise": Stepwise("stepwise"),
    "graded_mean": GradedMean("graded"),
    "likert": Likert("likert"),
    "outcome": Outcome(),
    "gate": Gate("binary", "stepwise"),
    "ranking": Ranking("comparison"),
}
"""Every mode by its name."""


def _points(scored: ScoredTerms) -> float:
    return sum(term.weight * score for term, score in scored)


def _positive(terms: Sequence[Term]) -> list[float]:
    return [term.weight for term in terms if term.weight > 0]


def _absolute(terms: Sequence[Term]) -> list[float]:
    return [abs(term.weight) for term in terms]


def _mean(scored: ScoredTerms) -> float | None:
    return sum(score for _, score in scored) / len(scored) if scored else None


def _refuse_rewarded_pitfalls(terms: Sequence[Term], name: RewardMode) -> None:
    """Refuse mistakes that a sum of weights would reward."""
    _refuse_pitfalls([term for term in terms if term.kind == "pitfall" and term.weight > 0], name)


def _refuse_pitfalls(pitfalls: Sequence[Term], name: RewardMode) -> None:
    for term in pitfalls:
        raise UnsuitableRubric(
            f"criterion {term.label!r} is a pitfall of weight {term.weight:g}, so {name} would reward the mistake; "
            "use mode 'stepwise' or 'graded_mean', or mode 'points' with a negative weight"
        )


def _refuse_negative_weights(terms: Sequence[Term], name: RewardMode) -> None:
    for term in terms:
        if term.weight < 0:
            raise UnsuitableRubric(
                f"the weight of criterion {term.label!r} is {term.weight:g}, and mode {name!r} does not allow "
                "negative weights; use mode 'points', or give it a weight of 0 or more"
            )


def _require_positive_weight(terms: Sequence[Term], name: RewardMode) -> None:
    if not any(term.weight > 0 for term in terms):
        raise UnsuitableRubric(
            f"no criterion has a positive weight, so mode {name!r} would divide by zero; "
            "give at least one criterion a weight above 0, or use mode 'clipped_points' for a list of mistakes"
        )
    _require_finite_sum(terms)


def _require_any_weight(terms: Sequence[Term], name: RewardMode) -> None:
    if not any(term.weight for term in terms):
        raise UnsuitableRubric(
            f"no criterion has a weight, so mode {name!r} would divide by zero; give at least one a weight other than 0"
        )
    _require_finite_sum(terms)


def _require_finite_sum(terms: Sequence[Term]) -> None:
    if not math.isfinite(sum(abs(term.weight) for term in terms)):
        raise UnsuitableRubric("the weights are too large to add up; divide them all by the same number")


def short(value: float | None) -> str:
    """Write a number with at most four significant digits."""
    return "none" if value is None else f"{value:.4g}"


def _quotient(sentence: str, scored: ScoredTerms, parts: Sequence[float]) -> Explained:
    return Explained(sentence, f"({_sum(scored)}) / ({_added(parts)})", _points(scored) / (sum(parts) or 1.0))


def _added(numbers: Sequence[float]) -> str:
    return " + ".join(map(short, numbers))


def _sum(scored: ScoredTerms) -> str:
    """Write the sum of weights times scores, as `3 × 1 [c0] − 2 × 0 [c1]`."""
    written = ""
    for term, score in scored:
        sign = "−" if term.weight < 0 else "+" if written else ""
        space = " " if written else ""
        written += f"{space}{sign}{space}{short(abs(term.weight))} × {short(score)} [{term.label}]"
    return written


def _written_mean(scored: ScoredTerms) -> str:
    return f"({' + '.join(f'{short(score)} [{term.label}]' for term, score in scored)}) / {len(scored)}"
