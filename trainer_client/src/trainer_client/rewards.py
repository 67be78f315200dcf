"""Turn verdicts into a reward: one number per response, from its criteria and their scores.

A score of None means that judging failed; it never counts as 0. Only the caller's failure policy decides what happens
then. `trainer_client.modes` has the formulas, and says which rubrics suit a mode. Shadow criteria (`shadow: true`) are
judged and recorded, and left out of every formula.

Every formula is monotone in each score. If the completions of the missing scores that are worst and best for the
response give the same reward, no missing score can change it.
"""

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, Literal, NamedTuple, TypedDict, TypeVar, Unpack, get_args

from trainer_client.dropout import CriteriaSample
from trainer_client.modes import MODES, UNTAGGED, Explained, Given, Mode, RewardMode, Term, UnsuitableRubric
from trainer_client.wire.criteria import Criterion, CriterionKind
from trainer_client.wire.rewards import (
    NEEDS_NO_RUBRIC,
    ZERO_POLICIES,
    AppliedPolicy,
    ComponentsBy,
    FailurePolicy,
    RewardOptions,
    RewardRules,
    UncertainPolicy,
)
from trainer_client.wire.verdicts import Failure, FailureKind, Verdict

__all__ = [
    "ResponseFacts",
    "RewardOutcome",
    "ScoreFacts",
    "Term",
    "UnscoredCriteria",
    "UnsuitableRubric",
    "check_rubric",
    "component_names",
    "component_weights",
    "explain_reward",
    "read_criteria",
    "reward",
    "reward_outcome",
    "reward_verdicts",
]

Score = Any
"""A number in [0, 1] (float, int, bool, a numpy or tensor scalar), or None if judging failed."""

_KINDS = frozenset(get_args(CriterionKind))

CriterionLike = Criterion | Mapping[str, Any]
"""A `Criterion`, or a mapping with its `kind` (default `point`), `weight` (default 1), `shadow` (default False), `tags`
(default none) and, for messages, `id`."""


def read_criteria(criteria: Sequence[CriterionLike | Term]) -> list[Term]:
    """Read criteria in order. Terms stay as they are, so that a rubric can be read once for many responses.

    Raises:
        ValueError: a kind is unknown, or a weight is not a finite number; the message names the index.
    """
    return [_term(index, criterion) for index, criterion in enumerate(criteria)]


def _term(index: int, criterion: CriterionLike | Term) -> Term:
    if isinstance(criterion, Term):
        return criterion
    if isinstance(criterion, Criterion):  # a check for Mapping would be slow
        label, kind, given, shadow = criterion.id, criterion.kind, criterion.weight, criterion.shadow
        tags: Sequence[str] = criterion.tags
    else:
        label = criterion.get("id", f"criteria[{index}]")
        kind, given = criterion.get("kind", "point"), criterion.get("weight", 1.0)
        shadow, tags = bool(criterion.get("shadow", False)), criterion.get("tags") or ()
    if kind not in _KINDS:
        raise ValueError(f"criteria[{index}].kind is {kind!r}; use one of {', '.join(sorted(_KINDS))}")
    weight = given if type(given) is float else as_number(given)
    if not math.isfinite(weight):
        raise ValueError(f"criteria[{index}].weight is {given!r}; a weight must be a finite number")
    return Term(str(label), kind, weight, shadow, str(tags[0]) if tags else UNTAGGED)


def read_scores(scores: Sequence[Score], count: int) -> list[float | None]:
    """Read the scores of `count` criteria; None stays None.

    Raises:
        ValueError: there are not `count` scores, or one is not a number in [0, 1]; the message names the index.
    """
    if len(scores) != count:
        raise ValueError(
            f"{len(scores)} scores for {count} criteria; give one for each criterion, None where judging failed"
        )
    return [None if score is None else _score(index, score) for index, score in enumerate(scores)]


def _score(index: int, given: Score) -> float:
    score = given if type(given) is float else as_number(given)
    if not 0.0 <= score <= 1.0:
        raise ValueError(f"scores[{index}] is {given!r}; use a number in [0, 1], or None if judging failed")
    return score


def as_number(given: Any) -> float:
    """Convert a scalar to a float; NaN if it is not a number. Text is never a number."""
    if isinstance(given, str | bytes | bytearray):
        return math.nan
    try:
        return float(given)
    except (TypeError, ValueError, OverflowError):
        return math.nan


Reward = Any
"""A finite number (float, int, a numpy or tensor scalar), or None where there is no reward."""


def read_finite(name: str, given: Any) -> float:
    """Convert a scalar to a float. Raises ValueError, which calls it `name`, if it is no finite number."""
    number = given if type(given) is float else as_number(given)
    if not math.isfinite(number):
        raise ValueError(f"{name} is {given!r}; use a finite number, or None or no entry where there is no value")
    return number


def read_finite_or_none(name: str, given: Any) -> float | None:
    """Convert a scalar to a float, as `read_finite`; None stays None."""
    return None if given is None else read_finite(name, given)


_FAILURE_POLICIES, _UNCERTAIN_POLICIES = map(get_args, (FailurePolicy, UncertainPolicy))


class UnscoredCriteria(ValueError):
    """Judging failed on criteria that the reward needs, and the failure policy is `error`.

    `criteria` holds their ids, and `uncertain` those on which the judge was uncertain, if `on_uncertain` is `error`.
    """

    def __init__(self, criteria: tuple[str, ...], uncertain: tuple[str, ...] = ()) -> None:
        problems = []
        if criteria:
            problems.append(
                f"the judge gave no score for {', '.join(criteria)}; judge again, or use on_failure "
                "'null' (no reward), 'zero' (reward 0), 'zero_unparseable' (reward 0 where the judge's output was "
                "invalid) or 'skip' (reward from the rest)"
            )
        if uncertain:
            problems.append(
                f"the judge was uncertain about {', '.join(uncertain)}; use on_uncertain 'null' (no reward), 'zero' "
                "(reward 0) or 'skip' (reward from the rest), or a narrower uncertain_band"
            )
        super().__init__("; ".join(problems))
        self.criteria = criteria
        self.uncertain = uncertain


class RewardOutcome(NamedTuple):
    """A reward and how it was determined.

    `status` is `scored` if every criterion has a score, `partial` if some have none but there is a reward, and
    `unscored` if the scores give no reward; `reward` is then None, or 0.0 under a policy of zero. `policy_applied` is
    the policy that determined the reward, if any. `dropped` is the number of criteria that `skip` left out.
    `components` holds the component rewards by name, if they were asked for.
    """

    reward: float | None
    status: Literal["scored", "partial", "unscored"]
    policy_applied: AppliedPolicy | None = None
    dropped: int = 0
    components: Mapping[str, float | None] = {}


FORMAT_COMPONENT = "format"
"""The component of the response's format, in a mode that rewards it."""

_T = TypeVar("_T")

_WHOLE_RESPONSE = Term("(response)", "point", 1.0)


class ScoreFacts(TypedDict, total=False):
    """What else a reward of scores may depend on.

    Attributes:
        failures: M kinds of failure, where `parse` is invalid output; None for a criterion with a score, or if no judge
            was called. Required for `zero_unparseable` if a score is missing.
        on_uncertain: what an uncertain verdict does to the reward: `null` (the default), `error`, `zero` or `skip`, as
            for failures. If a reward needs failed and uncertain verdicts, `skip` drops its own first; of the policies
            of those that are still needed, `error` wins over `null`, and `null` over zero.
        uncertain: M flags: whether the score is missing because the judge was uncertain, and did not fail.
        sample: which criteria rubric dropout left out. The reward is then the estimate of `trainer_client.dropout`,
            which is not clipped. `skip` takes the criteria that it drops out of the rubric that is estimated. Only for
            linear modes.
        kinds: the kinds of criteria that count, as if the rubric had no others; the other scores may be missing. None
            for all. Not for `likert` and `outcome`.
        format_ok: whether the response has step headers and a boxed answer (`trainer_client.steps.has_format`). Only
            for `stepwise`, where it is required.
        format_weight: lambda, in [0, 1] (SRaR: 0.1, the default). Only for `stepwise`.
        gate_fraction: rho, in [0, 1]. Only for `gate`. DRO's value is not known; 0.5, the default, is ours. A rounding
            error of 1e-9 in rho * M is tolerated, so that 0.1 * 3 of ten criteria requires three.
    """

    failures: Sequence[FailureKind | None] | None
    on_uncertain: UncertainPolicy
    uncertain: Sequence[bool] | None
    sample: CriteriaSample | None
    kinds: Collection[str] | None
    format_ok: bool | None
    format_weight: float
    gate_fraction: float


def reward(
    criteria: Sequence[CriterionLike],
    scores: Sequence[Score],
    mode: RewardMode,
    on_failure: FailurePolicy = "null",
    **facts: Unpack[ScoreFacts],
) -> float | None:
    """Compute the reward of one response; see `reward_outcome` for the parameters and errors."""
    return reward_outcome(criteria, scores, mode, on_failure, **facts).reward


def reward_outcome(
    criteria: Sequence[CriterionLike | Term],
    scores: Sequence[Score],
    mode: RewardMode,
    on_failure: FailurePolicy = "null",
    **facts: Unpack[ScoreFacts],
) -> RewardOutcome:
    """Compute the reward of one response from its scores, and say how it was determined.

    The failure policy applies only if a missing score could change the reward, that is, if two ways of filling in the
    missing scores give different rewards. A missing score therefore has no effect if the criterion has weight 0, if it
    is a process criterion and `factual_override` is already 1, or if it can no longer change a `gate`. `skip` drops the
    unscored criteria and applies the formula to the rest; there is no reward if that would divide by zero, or if no
    criterion is left for a gate.

    Args:
        criteria: M criteria, as `Criterion` models or mappings. `likert` and `outcome` do not use them; they may be
            empty there. Without criteria, every response passes a `gate`.
        scores: M numbers in [0, 1]; None where judging failed. A single score for `likert` and `outcome`.
        mode: the formula, see `trainer_client.modes`.
        on_failure: `null` (no reward), `error`, `zero` (reward 0.0), `zero_unparseable` (reward 0.0 if all missing
            scores are due to invalid output of the judge, else no reward; Rubric-Grounded RL, section 3.2) or `skip`.
        facts: what else the reward may depend on, see `ScoreFacts`.

    Raises:
        UnsuitableRubric: the criteria of `kinds` do not suit the mode.
        UnscoredCriteria: `on_failure` is `error` and a criterion that the reward needs has no score. For `likert` and
            `outcome` it is called `(response)`.
        ValueError: an unknown mode or policy, a wrong number of scores, a weight or score out of range, a sample in a
            mode that is not linear.
        TypeError: there is no such fact.
    """
    if unknown := facts.keys() - ScoreFacts.__annotations__.keys():
        raise TypeError(f"there is no argument {min(unknown)!r}; use {', '.join(ScoreFacts.__annotations__)}")
    if mode in NEEDS_NO_RUBRIC and len(scores) != 1:
        raise ValueError(f"{len(scores)} scores in mode {mode!r}; give one, that of the whole response")
    terms = [_WHOLE_RESPONSE] if mode in NEEDS_NO_RUBRIC else read_criteria(criteria)
    verdicts = _verdicts_of(terms, read_scores(scores, len(terms)), facts)
    options = RewardOptions.model_construct(
        mode=mode,
        kinds=facts.get("kinds"),  # type: ignore[arg-type]  # `check_rubric` refuses others
        format_weight=facts.get("format_weight", 0.1),
        gate_fraction=facts.get("gate_fraction", 0.5),
    )
    on_uncertain = facts.get("on_uncertain", "null")
    rules = RewardRules.model_construct(reward=options, on_failure=on_failure, on_uncertain=on_uncertain)
    known = ResponseFacts(format_ok=facts.get("format_ok"), sample=facts.get("sample"))
    return reward_verdicts(criteria, verdicts, rules, known)


def _verdicts_of(terms: Sequence[Term], scores: Sequence[float | None], facts: ScoreFacts) -> list[Verdict]:
    """Return the verdicts behind the scores of M terms."""
    sample = facts.get("sample")
    beside: dict[str, Sequence[Any] | None] = {
        "failures": facts.get("failures"),
        "uncertain": facts.get("uncertain"),
        "droppable": None if sample is None else sample.droppable,
        "left_out": None if sample is None else sample.left_out,
    }
    for name, given in beside.items():
        if given is not None and len(given) != len(scores):
            raise ValueError(f"{len(given)} {name} for {len(scores)} scores; give one for each score")
    columns = [[None] * len(scores) if given is None else given for given in beside.values()]
    verdicts = []
    for index, (score, failure, uncertain, droppable, left_out) in enumerate(zip(scores, *columns, strict=True)):
        if uncertain and score is not None:
            raise ValueError(
                f"scores[{index}] is {score!r} and uncertain[{index}] true; an uncertain verdict has no score"
            )
        if left_out and (not droppable or score is not None):
            raise ValueError(f"the sample leaves out criterion {index}, which is not droppable or has a score")
        named = {"criterion": terms[index].label}
        if score is not None:
            verdicts.append(Verdict(**named, status="ok", score=score))
        elif uncertain or left_out:
            verdicts.append(Verdict(**named, status="uncertain" if uncertain else "left_out"))
        elif failure is not None:
            verdicts.append(Verdict(**named, status="failed", failure=Failure(kind=failure, detail="")))
        else:  # if others have a kind of failure, one without is a program's
            verdicts.append(Verdict(**named, status="failed", method="judge" if beside["failures"] is None else "math"))
    return verdicts


class ResponseFacts(NamedTuple):
    """What a reward may depend on beside the verdicts on a response.

    Attributes:
        format_ok: whether it has step headers and a boxed answer (`trainer_client.steps.has_format`); for `stepwise`.
        tokens: its length in tokens of the policy; for penalties on length.
        stopped: whether it ended by itself; for the truncation factor.
        sample: which criteria rubric dropout left out; None without dropout.
    """

    format_ok: bool | None = None
    tokens: int | None = None
    stopped: bool | None = None
    sample: CriteriaSample | None = None


def reward_verdicts(
    criteria: Sequence[CriterionLike | Term], verdicts: Sequence[Verdict], rules: RewardRules, facts: ResponseFacts
) -> RewardOutcome:
    """Compute the reward of one response before penalties, and its components, and say how it was determined.

    `reward_outcome` says what the rules mean. A component is the reward of its criteria alone, under the same policies
    and the same sample; `trainer_client.modes` has the formula. If a policy of zero determined the reward, every
    component is 0, so that they still add up to it. A component whose criteria all have weight 0 has no reward, and is
    left out.

    Args:
        criteria: the M criteria of the rubric; they do not enter the reward of `likert` and `outcome`.
        verdicts: the M verdicts on them, or the single one on the whole response.
        rules: the mode with its parameters, and the policies for failed and uncertain verdicts.
        facts: what else the formula may need.

    Raises:
        UnsuitableRubric, UnscoredCriteria, ValueError: as `reward_outcome`.
    """
    options, sample = rules.reward, facts.sample
    terms = read_criteria(criteria)
    check_rubric(terms, options.mode, options.kinds, options.components)
    if rules.on_failure not in _FAILURE_POLICIES:
        raise ValueError(f"on_failure is {rules.on_failure!r}; use one of {', '.join(_FAILURE_POLICIES)}")
    if rules.on_uncertain not in _UNCERTAIN_POLICIES:
        raise ValueError(f"on_uncertain is {rules.on_uncertain!r}; use one of {', '.join(_UNCERTAIN_POLICIES)}")
    mode = MODES[options.mode]
    if sample is not None and mode.not_linear:
        raise ValueError(
            f"mode {options.mode!r} {mode.not_linear}, so it is not linear in the scores and some of them give no "
            "unbiased reward; take a linear mode such as 'weighted_mean' or 'points', or judge all criteria"
        )
    if mode.reads == "response":
        terms = [_WHOLE_RESPONSE]
    if len(terms) != len(verdicts):
        raise ValueError(f"there are {len(verdicts)} verdicts for {len(terms)} criteria; give one for each")
    droppable = (False,) * len(terms) if sample is None else sample.droppable
    if_left_out = 0.0 if sample is None else sample.left_out_value
    rewarded = [
        _Counted(term, if_left_out if verdict.status == "left_out" else verdict.value(options.use), verdict, may_go)
        for term, verdict, may_go in zip(terms, verdicts, droppable, strict=True)
        if not term.shadow
    ]
    counted = [
        each
        for each in rewarded
        if (options.kinds is None or each.term.kind in options.kinds) and mode.counts(each.term)
    ]
    formula = _Formula(mode, _given(options, facts.format_ok, [each.term for each in counted]), rules, sample)
    status: Literal["scored", "partial"] = "partial" if any(each.score is None for each in rewarded) else "scored"
    outcome = formula.outcome(counted, status)
    return outcome if options.components is None else outcome._replace(components=formula.components(counted, outcome))


class _Counted(NamedTuple):
    """A criterion that counts, the number that enters the reward, and the verdict behind it.

    A criterion that dropout left out has the sample's score for these. `droppable` ones are judged with the probability
    of the sample.
    """

    term: Term
    score: float | None
    verdict: Verdict
    droppable: bool

    def policy(self, rules: RewardRules) -> FailurePolicy:
        """What the rules do about a missing score."""
        return rules.on_uncertain if self.verdict.status == "uncertain" else rules.on_failure


class _Formula(NamedTuple):
    """The formula of a mode with its parameters, the policies for missing scores, and the sample of rubric dropout."""

    mode: Mode
    given: Given
    rules: RewardRules
    sample: CriteriaSample | None

    def outcome(self, counted: Sequence[_Counted], status: Literal["scored", "partial"]) -> RewardOutcome:
        """Return the reward of the criteria that count, by the bounds of their missing scores and the policies."""
        worst, best = self._bounds(counted)
        if worst == best:
            return RewardOutcome(worst, status)
        missing = [each for each in counted if each.score is None]
        skipped = [each for each in missing if each.policy(self.rules) == "skip"]
        if skipped:
            rest = [each for each in counted if each not in skipped]
            removed = sum(each.droppable for each in skipped)
            estimable = self.sample is None or self.sample.inclusion_without(removed) > 0
            worst, best = self._bounds(rest, removed) if rest and estimable else (None, None)
            if worst == best:
                outcome = RewardOutcome(worst, status, "skip", len(skipped))
                return outcome if worst is not None else RewardOutcome(None, "unscored")
            missing = [each for each in rest if each.score is None]
        return _without_scores(missing, self.rules)

    def components(self, counted: Sequence[_Counted], outcome: RewardOutcome) -> dict[str, float | None]:
        """Return the component rewards of a response with this outcome.

        A verdict that the reward needs has raised an error by now, if that is the policy. One that only a component
        needs raises none.
        """
        options = self.rules.reward
        errors = {name: "null" for name in ("on_failure", "on_uncertain") if getattr(self.rules, name) == "error"}
        rules = self.rules.model_copy(update=errors)
        rewards: dict[str, float | None] = {}
        for name, part in _parted(counted, options.components, lambda each: each.term).items():
            terms = [each.term for each in part]
            alone = _given(options, self.given.format_ok, terms)._replace(format_weight=0.0)
            if _has_reward(self.mode, terms, alone):
                formula = _Formula(self.mode.of_component(), alone, rules, self.sample)
                rewards[name] = formula.outcome(part, "scored").reward
        if (form := self.mode.format_component(self.given)) is not None:
            rewards[FORMAT_COMPONENT] = form[1]
        return dict.fromkeys(rewards, 0.0) if outcome.policy_applied in ZERO_POLICIES else rewards

    def _bounds(self, counted: Sequence[_Counted], removed: int = 0) -> tuple[float | None, float | None]:
        """Return the rewards of the worst and of the best completion of the missing scores.

        With a sample, the reward is the estimate of `trainer_client.dropout` for the rubric without the `removed`
        droppable criteria that were judged.
        """
        value = self.mode.value if self.sample is None else self.mode.estimate

        def completed(good: bool) -> float | None:
            scored = []
            for each in counted:
                score = each.score if each.score is not None else float(good == self.mode.rises(each.term))
                if self.sample is not None and each.droppable:
                    score = self.sample.estimate(score, removed)
                scored.append((each.term, score))
            return value(scored, self.given)

        worst = completed(good=False)
        return worst, worst if all(each.score is not None for each in counted) else completed(good=True)


def _without_scores(missing: Sequence[_Counted], rules: RewardRules) -> RewardOutcome:
    """Return the outcome of a response whose reward needs the missing scores: no reward, or 0."""
    failed = [each for each in missing if each.verdict.status != "uncertain"]
    doubtful = [each for each in missing if each.verdict.status == "uncertain"]
    unscored = tuple(each.term.label for each in failed if rules.on_failure == "error")
    undecided = tuple(each.term.label for each in doubtful if rules.on_uncertain == "error")
    if unscored or undecided:
        raise UnscoredCriteria(unscored, undecided)
    applied: set[AppliedPolicy | None] = set()
    if failed:
        applied.add(_zero_policy(failed, rules.on_failure))
    if doubtful:
        applied.add("zero" if rules.on_uncertain == "zero" else None)
    if None in applied:
        return RewardOutcome(None, "unscored")
    return RewardOutcome(0.0, "unscored", "zero" if "zero" in applied else "zero_unparseable")


def _zero_policy(failed: Sequence[_Counted], on_failure: FailurePolicy) -> AppliedPolicy | None:
    """Return the policy under which these failures give the reward 0, if any."""
    if on_failure == "zero_unparseable":
        if any(each.verdict.failure is None and each.verdict.method == "judge" for each in failed):
            raise ValueError(
                "on_failure 'zero_unparseable' needs failures; give the kind of each missing score's failure"
            )
        return "zero_unparseable" if all(each.verdict.judge_failure == "parse" for each in failed) else None
    return "zero" if on_failure == "zero" else None


def component_weights(criteria: Sequence[CriterionLike | Term], options: RewardOptions) -> dict[str, float]:
    """Return the weight of each component of the rewards by a rubric.

    A reward before penalties is the sum of weight times component, unless the policy `skip` left out criteria.

    Args:
        criteria: the M criteria of the rubric.
        options: the mode, and what the components are made of.

    Returns:
        The weights by name; none for modes that are not linear, or without components.

    Raises:
        UnsuitableRubric, ValueError: as `check_rubric`.
    """
    mode = MODES[options.mode]
    if options.components is None or mode.not_linear:
        return {}
    check_rubric(criteria, options.mode, options.kinds, options.components)
    counted, given, parts = _rubric_parts(criteria, options)
    weights = {name: mode.component_weight(part, counted, given) for name, part in parts.items()}
    form = mode.format_component(given)
    return weights if form is None else weights | {FORMAT_COMPONENT: form[0]}


def component_names(criteria: Sequence[CriterionLike | Term] | None, options: RewardOptions) -> list[str]:
    """Return the names of the components of rewards by a rubric, in order; none without `options.components`.

    Args:
        criteria: the M criteria of the rubric. None if it is not known; the names are then all that there can be by
            kind, and none by criterion or tag.
        options: the mode, and what the components are made of.

    Raises:
        UnsuitableRubric, ValueError: no criterion is of `options.kinds`, or a criterion is invalid.
    """
    if criteria is None:
        criteria = [Term(kind, kind, 1.0) for kind in get_args(CriterionKind)] if options.components == "kind" else []
    if options.components is None or all(term.shadow for term in read_criteria(criteria)):
        return []
    _, given, parts = _rubric_parts(criteria, options)
    return [*parts] if MODES[options.mode].format_component(given) is None else [*parts, FORMAT_COMPONENT]


def _rubric_parts(
    criteria: Sequence[CriterionLike | Term], options: RewardOptions
) -> tuple[list[Term], Given, dict[str, list[Term]]]:
    """Return the terms that count, what the formula needs beside them, and the terms of each component."""
    mode = MODES[options.mode]
    counted = [term for term in _rewarded(criteria, options.kinds, options.mode) if mode.counts(term)]
    given = _given(options, None, counted)
    alone = given._replace(format_weight=0.0)
    parts = _parted(counted, options.components, lambda term: term)
    return counted, given, {name: part for name, part in parts.items() if _has_reward(mode, part, alone)}


def _parted(counted: Sequence[_T], by: ComponentsBy | None, term: Callable[[_T], Term]) -> dict[str, list[_T]]:
    """Deal what counts into components, in the order in which their names first occur."""
    parts: dict[str, list[_T]] = {}
    for each in counted:
        parts.setdefault(_component_of(term(each), by), []).append(each)
    return parts


def _component_of(term: Term, by: ComponentsBy | None) -> str:
    if by == "criterion":
        return term.label
    return term.kind if by == "kind" else term.tag


def _has_reward(mode: Mode, part: Sequence[Term], given: Given) -> bool:
    """Whether a component has a reward: not if its criteria all have weight 0 in a mode that divides by weights."""
    return mode.of_component().value([(term, 0.0) for term in part], given) is not None


def explain_reward(
    criteria: Sequence[CriterionLike],
    scores: Sequence[float | None],
    options: RewardOptions,
    *,
    format_ok: bool,
    drop_failed: bool,
) -> Explained:
    """Explain the reward of one response before penalties, by the formula of its mode with its numbers.

    Args:
        criteria: the M criteria that count; they are not read for `likert` and `outcome`.
        scores: M numbers; None where the verdict is missing. A single one for `likert` and `outcome`.
        options: the mode and its parameters.
        format_ok: as in `reward_outcome`.
        drop_failed: leave missing scores out, as `skip` does; otherwise they are written as 0, and cannot change the
            reward.
    """
    mode = MODES[options.mode]
    terms = [_WHOLE_RESPONSE] if options.mode in NEEDS_NO_RUBRIC else read_criteria(criteria)
    given = _given(options, format_ok, terms)
    counted = [(term, score) for term, score in zip(terms, scores, strict=True) if mode.counts(term)]
    return mode.explain(
        [(term, score or 0.0) for term, score in counted if score is not None or not drop_failed], given
    )


def _given(options: RewardOptions, format_ok: bool | None, terms: Sequence[Term]) -> Given:
    """What the formula needs beside the scores of the terms that count."""
    only_mistakes = not any(term.weight > 0 for term in terms)
    return Given(format_ok, options.format_weight, options.gate_fraction, only_mistakes)


def check_rubric(
    criteria: Sequence[CriterionLike | Term],
    mode: RewardMode,
    kinds: Collection[str] | None = None,
    components: ComponentsBy | None = None,
) -> None:
    """Refuse a rubric that does not suit a mode, before anything is judged. With `kinds`, only these criteria count.

    The classes in `trainer_client.modes` say what each mode refuses. With `components` by criterion or tag, `stepwise`
    also refuses an answer criterion whose id or first tag is `format`, the name of the component of the format.

    Raises:
        UnsuitableRubric: the mode refuses the rubric, or no criterion is of the given kinds.
        ValueError: an unknown mode or kind, kinds for `likert`, `outcome` or `ranking`, or a weight that is not a
            finite number.
    """
    terms = _rewarded(criteria, kinds, mode)
    if mode not in MODES:
        raise ValueError(f"mode is {mode!r}; use one of {', '.join(MODES)}")
    MODES[mode].check(terms, mode)
    if components is None or MODES[mode].format_component(Given()) is None:
        return
    for term in terms:
        if MODES[mode].counts(term) and _component_of(term, components) == FORMAT_COMPONENT:
            raise UnsuitableRubric(
                f"the component of criterion {term.label!r} would be called {FORMAT_COMPONENT!r}, as that of the "
                f"response's format in mode {mode!r}; rename the criterion or its first tag"
            )


def _rewarded(criteria: Sequence[CriterionLike | Term], kinds: Collection[str] | None, mode: RewardMode) -> list[Term]:
    """Return the criteria that are no shadows, and of the given kinds, if there are any; errors as `check_rubric`."""
    terms = [term for term in read_criteria(criteria) if not term.shadow]
    if kinds is None:
        return terms
    if mode in NEEDS_NO_RUBRIC or mode == "ranking":
        raise ValueError(f"mode {mode!r} rewards the whole response, not criteria of some kinds; leave out kinds")
    known = get_args(CriterionKind)
    for kind in kinds:
        if kind not in known:
            raise ValueError(f"kinds has {kind!r}; use {', '.join(known)}")
    kept = [term for term in terms if term.kind in kinds]
    if not kept:
        wanted = " or ".join(repr(kind) for kind in kinds)
        raise UnsuitableRubric(
            f"no criterion is of kind {wanted}, and only these count; add one, or name other kinds in reward.kinds"
        )
    return kept
