"""Why a response has its reward: a sentence, and the formula of its mode with the numbers in it.

The reward itself is computed by `reward_of`, as in scoring. The ledger keeps a request's mode, but neither its other
reward options nor its failure policy. If the mode with default options and one of the policies gives the recorded
reward, the formula explains it; otherwise the explanation says that it does not, and names what is unknown.
"""

import math
from collections.abc import Sequence
from itertools import product
from typing import NamedTuple, get_args

from judge_server.errors import ServiceError
from judge_server.scoring.scorer import RewardResult, reward_of
from judge_server.scoring.verdicts import judge_failure_kind
from trainer_client.dropout import CriteriaSample, read_sample
from trainer_client.wire import Criterion, RewardMode, RewardOptions, UncertainPolicy, Verdict, VerdictUse
from trainer_client.wire.rewards import NEEDS_NO_RUBRIC

_POLICIES: tuple[UncertainPolicy, ...] = ("null", "skip", "zero")
"""The policies that can give a recorded reward; `zero_unparseable` gives what `zero` or `null` gives."""

_UNKNOWN_OPTIONS = (
    "kinds, format_weight, gate_fraction, a penalty on length, a penalty near the generation limit, or a truncation "
    "factor"
)


class Explanation(NamedTuple):
    """Why a response has its reward.

    `formula` is `EXPRESSION = VALUE`, empty if there is nothing to compute. `matches` tells whether its value is the
    recorded reward.
    """

    sentence: str
    formula: str = ""
    matches: bool = True


class RecordedReward(NamedTuple):
    """What the ledger keeps of a response's reward."""

    mode: RewardMode | None
    reward: float | None
    status: str | None
    format_ok: bool


def explain(recorded: RecordedReward, criteria: Sequence[Criterion] | None, verdicts: Sequence[Verdict]) -> Explanation:
    """Explain a recorded reward by its verdicts.

    Args:
        recorded: the reward as answered.
        criteria: the M criteria of the rubric; None if the ledger no longer has it. Empty without a rubric.
        verdicts: the M verdicts, or the single one on the whole response.
    """
    mode = recorded.mode
    if mode is None:
        return Explanation("Only verdicts were asked for, so there is no reward.")
    if mode in NEEDS_NO_RUBRIC:
        criteria = ()
    if criteria is not None and len(criteria) == len(verdicts):
        rewarded = [index for index, criterion in enumerate(criteria) if not criterion.shadow]
        criteria, verdicts = [criteria[index] for index in rewarded], [verdicts[index] for index in rewarded]
    if criteria is None or (criteria and len(criteria) != len(verdicts)):
        return Explanation("The rubric of this response is not in the ledger, so its reward cannot be explained.")
    found = _reproduced(recorded, criteria, verdicts)
    failed = _missing_sentence(verdicts)
    if recorded.status == "unscored":
        if recorded.reward is None:
            return Explanation(
                f"There is no reward, because {failed}, which could have changed it. Neither a failed nor an "
                "uncertain verdict counts as a no."
            )
        return Explanation(f"The reward is {_n(recorded.reward)} by the request's failure policy, because {failed}.")
    if (sample := _sample(criteria, verdicts)) is not None:
        judged = sum(not gone for gone in sample.left_out)
        return Explanation(
            f"The reward is an unbiased estimate of that of the whole rubric: {judged} of its {len(criteria)} criteria "
            "were judged, and the others were left out at random for the whole group.",
            matches=found is not None,
        )
    soft = found is not None and found.use == "probability"
    scores = [verdict.value("probability" if soft else "verdict") for verdict in verdicts]
    dropped = found is not None and found.result.outcome.policy_applied == "skip"
    sentence, formula = _formula(mode, criteria, scores, format_ok=recorded.format_ok, drop_failed=dropped)
    if found is not None:
        sentence += " It is made of probabilities of yes, not of verdicts." if soft else ""
        treated = (
            "left out, as the failure policy says" if dropped else "written as 0, since it cannot change the reward"
        )
        return Explanation(f"{sentence} {failed[0].upper()}{failed[1:]}: {treated}." if failed else sentence, formula)
    return Explanation(
        f"The answered reward is {_n(recorded.reward)}, and mode {mode} with default options gives another one. The "
        f"request used an option that the ledger does not keep: {_UNKNOWN_OPTIONS}.",
        formula,
        matches=False,
    )


class _Reproduced(NamedTuple):
    result: RewardResult
    use: VerdictUse


def _reproduced(
    recorded: RecordedReward, criteria: Sequence[Criterion], verdicts: Sequence[Verdict]
) -> _Reproduced | None:
    """The result with default options, and the first use and policies that give the recorded reward, if any do."""
    assert recorded.mode is not None
    for use, on_failure, on_uncertain in product(get_args(VerdictUse), _POLICIES, _POLICIES):
        try:
            result = reward_of(
                criteria,
                [verdict.value(use) for verdict in verdicts],
                RewardOptions(mode=recorded.mode, use=use),
                on_failure,
                failures=[judge_failure_kind(verdict) for verdict in verdicts],
                on_uncertain=on_uncertain,
                uncertain=[verdict.status == "uncertain" for verdict in verdicts],
                sample=_sample(criteria, verdicts),
                format_ok=recorded.format_ok,
                tokens=None,
                stopped=None,
            )
        except (ValueError, ServiceError):
            continue
        if result.outcome.status == recorded.status and _equal(result.reward, recorded.reward):
            return _Reproduced(result, use)
    return None


def _equal(one: float | None, other: float | None) -> bool:
    return one is other if one is None or other is None else math.isclose(one, other, rel_tol=1e-9, abs_tol=1e-9)


def _sample(criteria: Sequence[Criterion], verdicts: Sequence[Verdict]) -> CriteriaSample | None:
    """The sample of criteria that were judged; None if all were."""
    if len(criteria) != len(verdicts):
        return None
    return read_sample(
        criteria,
        by_program=[verdict.method != "judge" for verdict in verdicts],
        left_out=[verdict.status == "left_out" for verdict in verdicts],
    )


def _missing_sentence(verdicts: Sequence[Verdict]) -> str:
    """Which verdicts are missing, such as `the verdict on c1 failed (timeout)`; empty if none are."""
    failed = [verdict for verdict in verdicts if verdict.failure is not None]
    uncertain = [verdict for verdict in verdicts if verdict.status == "uncertain"]
    kinds = ", ".join(sorted({verdict.failure.kind for verdict in failed if verdict.failure is not None}))
    parts = [f"{_named(failed)} failed ({kinds})"] if failed else []
    if uncertain:
        parts.append(f"{_named(uncertain)} {'is' if len(uncertain) == 1 else 'are'} uncertain")
    return " and ".join(parts)


def _named(verdicts: Sequence[Verdict]) -> str:
    names = ", ".join(verdict.criterion for verdict in verdicts[:5]) + (" and others" if len(verdicts) > 5 else "")
    return f"the verdict{'s' if len(verdicts) > 1 else ''} on {names}"


_Term = tuple[Criterion, float]


def _formula(
    mode: RewardMode,
    criteria: Sequence[Criterion],
    scores: Sequence[float | None],
    *,
    format_ok: bool,
    drop_failed: bool,
) -> tuple[str, str]:
    """A sentence, and the formula with its numbers.

    A missing score is left out with `drop_failed`, and otherwise written as 0: it then cannot change the reward.
    """
    if mode in NEEDS_NO_RUBRIC:
        score = scores[0] or 0.0
        what = "rating of the whole response" if mode == "likert" else "comparison of the final answer"
        return f"The reward is the {what}, from 0 to 1.", f"{_n(score)} = {_n(score)}"
    terms = [(c, s or 0.0) for c, s in zip(criteria, scores, strict=True) if s is not None or not drop_failed]
    weights = [c.weight for c, _ in terms]
    match mode:
        case "weighted_mean" | "partial_credit":
            return "The reward is the mean of the scores, weighted by the criteria.", _quotient(terms, sum(weights))
        case "factual_override":
            factual = [s for c, s in terms if c.kind == "factual"]
            if factual and min(factual) == 1.0:
                return f"The reward is 1, because every factual criterion ({len(factual)}) is satisfied.", "1 = 1"
            return (
                "Not every factual criterion is satisfied, so the reward is the mean of the scores, weighted by the "
                "criteria.",
                _quotient(terms, sum(weights)),
            )
        case "points":
            positive = [w for w in weights if w > 0]
            return (
                "The reward is the points earned, divided by the positive points of the rubric.",
                _quotient(terms, sum(positive), positive),
            )
        case "absolute_points":
            sizes = [abs(w) for w in weights]
            return (
                "The reward is the points earned, divided by the size of all points.",
                _quotient(terms, sum(sizes), sizes),
            )
        case "clipped_points":
            return _clipped(terms, only_mistakes=not any(c.weight > 0 for c in criteria))
        case "stepwise":
            answers = [s for c, s in terms if c.kind == "answer"]
            share = RewardOptions().format_weight
            expression = f"{_n(1 - share)} × {_mean(answers)} + {_n(share)} × {int(format_ok)}"
            value = (1 - share) * sum(answers) / max(len(answers), 1) + share * format_ok
            form = "has" if format_ok else "lacks"
            return (
                f"The reward is the mean score of the answer criteria, and a share for the form, which the response "
                f"{form}. The other criteria act on its steps.",
                f"{expression} = {_n(value)}",
            )
        case "graded_mean":
            counted = [1 - s if c.weight < 0 or c.kind == "pitfall" else s for c, s in terms]
            return (
                "The reward is the mean of the scores; a pitfall or a criterion of negative weight counts 1 minus its "
                "score.",
                f"{_mean(counted)} = {_n(sum(counted) / max(len(counted), 1))}",
            )
        case _:
            assert mode == "gate", get_args(RewardMode)
            met, fraction = sum(s == 1.0 for _, s in terms), RewardOptions().gate_fraction
            passed = met >= fraction * len(terms) - 1e-9
            return (
                f"{met} of {len(terms)} criteria are satisfied, and the gate needs {_n(fraction * len(terms))}: the "
                f"reward is {int(passed)}.",
                f"{int(passed)} = {int(passed)}",
            )


def _clipped(terms: Sequence[_Term], *, only_mistakes: bool) -> tuple[str, str]:
    weights = [c.weight for c, _ in terms]
    if only_mistakes:
        sizes = [abs(w) for w in weights]
        expression = f"max(0, 1 + ({_sum(terms)}) / ({' + '.join(map(_n, sizes))}))"
        value = max(0.0, 1 + sum(c.weight * s for c, s in terms) / (sum(sizes) or 1.0))
        return "The reward is 1 minus the share of the mistakes that were made.", f"{expression} = {_n(value)}"
    positive = [w for w in weights if w > 0]
    expression = f"min(1, max(0, ({_sum(terms)}) / ({' + '.join(map(_n, positive))})))"
    value = min(1.0, max(0.0, sum(c.weight * s for c, s in terms) / (sum(positive) or 1.0)))
    return (
        "The reward is the points earned, divided by the positive points of the rubric, and kept between 0 and 1.",
        f"{expression} = {_n(value)}",
    )


def _quotient(terms: Sequence[_Term], total: float, parts: Sequence[float] | None = None) -> str:
    parts = [c.weight for c, _ in terms] if parts is None else parts
    value = sum(c.weight * s for c, s in terms) / (total or 1.0)
    return f"({_sum(terms)}) / ({' + '.join(map(_n, parts))}) = {_n(value)}"


def _sum(terms: Sequence[_Term]) -> str:
    written = ""
    for criterion, score in terms:
        sign = "−" if criterion.weight < 0 else "+" if written else ""
        space = " " if written else ""
        written += f"{space}{sign}{space}{_n(abs(criterion.weight))} × {_n(score)}"
    return written


def _mean(values: Sequence[float]) -> str:
    return f"({' + '.join(map(_n, values))}) / {len(values)}"


def _n(value: float | None) -> str:
    """A number with at most four significant digits."""
    return "none" if value is None else f"{value:.4g}"
