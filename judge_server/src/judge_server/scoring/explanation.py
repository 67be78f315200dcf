"""Why a response has its reward: a sentence and a formula, from its verdicts and the rules that were recorded."""

import math
from collections.abc import Sequence
from typing import NamedTuple

from judge_server.errors import ServiceError
from judge_server.scoring.rewards import reward_of
from trainer_client.dropout import CriteriaSample, read_sample
from trainer_client.modes import short
from trainer_client.penalties import explain_penalties
from trainer_client.rewards import ResponseFacts, explain_reward
from trainer_client.wire import Criterion, Verdict
from trainer_client.wire.ledger import RewardRules
from trainer_client.wire.rewards import NEEDS_NO_RUBRIC


class Explanation(NamedTuple):
    """Why a response has its reward.

    `formula` is `EXPRESSION = VALUE`, with the criterion of a term in brackets; it is empty if there is nothing to
    compute. `matches` tells whether its value is the recorded reward.
    """

    sentence: str
    formula: str = ""
    matches: bool = True


class RecordedReward(NamedTuple):
    """A reward as answered.

    Attributes:
        rules: how it was computed; None if only verdicts were asked for.
        reward, status: the reward and its status; both are None if the request was answered with an error.
        declared: the reward under the rubric's own weights, if others were used.
        facts: what it depends on beside the verdicts; the sample is that of the verdicts.
        complete: false if an older version recorded only the mode of the rules, so that the rest are defaults.
    """

    rules: RewardRules | None
    reward: float | None
    status: str | None
    facts: ResponseFacts
    complete: bool = True
    declared: float | None = None


def explain(recorded: RecordedReward, criteria: Sequence[Criterion] | None, verdicts: Sequence[Verdict]) -> Explanation:
    """Explain a recorded reward by its verdicts.

    Args:
        recorded: the reward as answered.
        criteria: the M criteria of the rubric; None if the ledger no longer has it. Empty without a rubric.
        verdicts: the M verdicts, or the single one on the whole response.
    """
    rules, reward = recorded.rules, recorded.reward
    if rules is None:
        return Explanation("Only verdicts were asked for, so there is no reward.")
    options = rules.reward
    if options.mode == "ranking":
        return _ranked(recorded, verdicts)
    if options.mode in NEEDS_NO_RUBRIC:
        criteria = ()
    if criteria is None or (criteria and len(criteria) != len(verdicts)):
        return Explanation("The rubric of this response is not in the ledger, so its reward cannot be explained.")
    counted = [verdict for i, verdict in enumerate(verdicts) if not criteria or _counts(criteria[i], rules)]
    failed = _missing_sentence(counted, rules)
    if recorded.status is None:
        return Explanation(f"The request was answered with an error, so it has no rewards{failed and ': '}{failed}.")
    if recorded.status == "unscored" and reward is None:
        return Explanation(
            f"There is no reward, because {failed}, which could have changed it. Neither a failed nor an uncertain "
            "verdict counts as a no."
        )
    if recorded.status == "unscored":
        return Explanation(f"The reward is {short(reward)} by the request's failure policy, because {failed}.")
    if options.weighting == "contrast":
        return _under_other_weights(recorded, rules, criteria, verdicts)
    facts = recorded.facts._replace(sample=read_sample(criteria, verdicts, rules.dropout) if criteria else None)
    matches, dropped = _computes(recorded, criteria, verdicts, facts)
    if facts.sample is not None:
        return Explanation(_estimated(facts.sample, verdicts), matches=matches)
    criteria = [criterion for criterion in criteria if _counts(criterion, rules)]
    scores = [verdict.value(options.use) for verdict in counted]
    format_ok = bool(facts.format_ok)
    told = explain_reward(criteria, scores, options, format_ok=format_ok, drop_failed=dropped)
    told = explain_penalties(told, options, tokens=facts.tokens, stopped=facts.stopped)
    if not matches:
        return Explanation(_mismatch(recorded), told.formula, matches=False)
    soft = " It is made of probabilities of yes, not of verdicts." if options.use == "probability" else ""
    treated = "left out, as the failure policy says" if dropped else "written as 0, since it cannot change the reward"
    missing = f" {failed[0].upper()}{failed[1:]}: {treated}." if failed else ""
    return Explanation(f"{told.sentence}{soft}{missing}", told.formula)


def _estimated(sample: CriteriaSample, verdicts: Sequence[Verdict]) -> str:
    """Say how dropout makes a reward of some of the verdicts."""
    judged = sum(verdict.status != "left_out" for verdict in verdicts)
    told = f"an unbiased estimate of that of the whole rubric: {judged} of its {len(verdicts)} criteria were judged"
    if sample.share is None:
        return f"The reward is {told}, and the others were left out at random for the whole group."
    if any(sample.left_out):
        told += ", and each of the others, which nearly all responses meet, counts as met"
    droppable = zip(verdicts, sample.droppable, strict=True)
    missed = [one.criterion for one, may_go in droppable if may_go and one.score is not None and one.score < 1]
    if missed:
        told += (
            f". What the response misses of {', '.join(missed)} counts {1 / sample.share:.4g} times, since a share of "
            f"{sample.share:.4g} of the groups is judged by it"
        )
    return f"The reward is {told}."


def _under_other_weights(
    recorded: RecordedReward, rules: RewardRules, criteria: Sequence[Criterion], verdicts: Sequence[Verdict]
) -> Explanation:
    """Explain the reward under the rubric's own weights; the others follow from the verdicts on the whole group."""
    reward = rules.reward.model_copy(update={"weighting": "declared"})
    own = recorded._replace(rules=rules.model_copy(update={"reward": reward}), reward=recorded.declared)
    told = explain(own, criteria, verdicts)
    return told._replace(
        sentence=f"The reward is {short(recorded.reward)} under the weights of its group, which favour criteria that "
        f"tell its responses apart. The rubric's own weights give {short(recorded.declared)}, as follows. "
        + told.sentence
    )


def _computes(
    recorded: RecordedReward, criteria: Sequence[Criterion], verdicts: Sequence[Verdict], facts: ResponseFacts
) -> tuple[bool, bool]:
    """Whether the verdicts give the recorded reward by its rules, and whether its policy dropped missing ones."""
    assert recorded.rules is not None
    try:
        result = reward_of(criteria, verdicts, recorded.rules, facts)
    except (ValueError, ServiceError):
        return False, False
    given, computed = recorded.reward, result.reward
    if given is None or computed is None:
        equal = given is computed
    else:
        equal = math.isclose(given, computed, rel_tol=1e-9, abs_tol=1e-9)
    return equal and result.outcome.status == recorded.status, result.outcome.policy_applied == "skip"


def _ranked(recorded: RecordedReward, verdicts: Sequence[Verdict]) -> Explanation:
    """Explain a reward that follows from the comparisons of a whole group, of which the verdicts are one part."""
    preferred = sum(verdict.score == 1.0 for verdict in verdicts)
    known = sum(verdict.status == "ok" for verdict in verdicts)
    shown = f"Shown first, the response was preferred in {preferred} of the {known} comparisons that were answered"
    if recorded.status is None:
        return Explanation("The request was answered with an error, so it has no rewards.")
    if recorded.status == "unscored":
        given = (
            "no reward" if recorded.reward is None else f"the reward {short(recorded.reward)}, by the failure policy,"
        )
        return Explanation(f"The response has {given} because too few of its comparisons were answered. {shown}.")
    return Explanation(
        "The reward is a Bradley-Terry score: the probability of being preferred over an average response of the same "
        f"group, by all comparisons of the group. {shown}; the others are at the responses that it was compared with."
    )


def _counts(criterion: Criterion, rules: RewardRules) -> bool:
    """Whether a criterion enters the reward."""
    return not criterion.shadow and (rules.reward.kinds is None or criterion.kind in rules.reward.kinds)


def _mismatch(recorded: RecordedReward) -> str:
    """Why the recorded reward is not that of the verdicts in the ledger."""
    assert recorded.rules is not None
    if not recorded.complete:
        return (
            f"The answered reward is {short(recorded.reward)}, and mode {recorded.rules.reward.mode} with default "
            "options gives another one. The request used options or a failure policy that were not recorded."
        )
    return (
        f"The answered reward is {short(recorded.reward)}, and the request's options with the verdicts shown here give "
        "another one. The ledger shows the first verdict on a question; this request was probably rewarded by a later "
        "one that differs."
    )


def _missing_sentence(verdicts: Sequence[Verdict], rules: RewardRules) -> str:
    """Which verdicts are missing, such as `the verdict on c1 failed (timeout)`; empty if none are."""
    failed = [verdict for verdict in verdicts if verdict.failure is not None]
    uncertain = [verdict for verdict in verdicts if verdict.status == "uncertain"]
    kinds = ", ".join(sorted({verdict.failure.kind for verdict in failed if verdict.failure is not None}))
    parts = [f"{_named(failed)} failed ({kinds})"] if failed else []
    if uncertain:
        band = rules.uncertain_band
        between = "" if band is None else f" (its probability is from {short(band[0])} to {short(band[1])})"
        parts.append(f"{_named(uncertain)} {'is' if len(uncertain) == 1 else 'are'} uncertain{between}")
    return " and ".join(parts)


def _named(verdicts: Sequence[Verdict]) -> str:
    names = ", ".join(verdict.criterion for verdict in verdicts[:5]) + (" and others" if len(verdicts) > 5 else "")
    return f"the verdict{'s' if len(verdicts) > 1 else ''} on {names}"
