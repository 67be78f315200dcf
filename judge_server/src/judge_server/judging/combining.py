"""Cascades and panels: how the verdicts of several judges on one criterion become one verdict. Pure.

In a cascade, the small judge's verdict stands where its probability lies outside a band; elsewhere the large judge is
asked, and its verdict stands. A panel asks all of its judges, and combines their probabilities by weights, or their
verdicts by what Dawid and Skene's model (1979, Appl. Statist. 28:20-28) says of each judge's errors.

A failed verdict is never filled in. A panel's verdict stands although some members failed if no verdict of theirs could
have turned it, which is the rule for votes (`judge_server.judging.replies.combine_votes`).
"""

import hashlib
import json
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import Field, model_validator

from judge_server.judging.calibration import SATISFIED_THRESHOLD, Fitted, sigmoid
from judge_server.judging.plan import PendingVerdict, ResponsePlan
from judge_server.judging.questions import PreparedConfig
from judge_server.judging.replies import probability_of
from judge_server.judging.results import CallOutcome
from judge_server.ports import Batch, CallFailure, JudgeResult
from trainer_client.wire import MemberVerdict

BY_JUDGE: Literal["judge"] = "judge"


def member_verdict(judge: str, outcome: CallOutcome) -> MemberVerdict:
    """Return what is kept of a member's outcome with the combined verdict."""
    if isinstance(outcome, CallFailure):
        return MemberVerdict(judge=judge, score=None, probability=None, failure=outcome.kind)
    return MemberVerdict(judge=judge, score=outcome.score, probability=outcome.probability, failure=None)


@dataclass(frozen=True, slots=True)
class Band:
    """The calibrated probabilities of the small judge, both ends included, at which the large judge is asked.

    Raises:
        ValueError: the ends are out of order or not probabilities.
    """

    low: float
    high: float

    def __post_init__(self) -> None:
        if not 0 <= self.low <= self.high <= 1:
            raise ValueError(f"the band [{self.low}, {self.high}] must have two rising ends between 0 and 1")


@dataclass(frozen=True, slots=True)
class CascadeRule:
    """Asks the large judge where the small one's probability lies in the band, or where it gave no verdict."""

    band: Band

    @property
    def numbers(self) -> tuple[Any, ...]:
        """What can change a verdict."""
        return ("cascade", self.band.low, self.band.high)

    def escalates(self, small: CallOutcome) -> bool:
        """Whether the large judge is needed. A verdict without a probability never decides."""
        if isinstance(small, CallFailure) or small.probability is None:
            return True
        return self.band.low <= small.probability <= self.band.high

    def combine(self, names: Sequence[str], outcomes: Sequence[CallOutcome | None]) -> CallOutcome:
        """Return the verdict of the judge that decides: the large one's if it was asked, whether or not it failed."""
        small, large = outcomes
        assert small is not None
        if large is None:
            assert isinstance(small, JudgeResult)
            return replace(small, members=(member_verdict(names[0], small),))
        if isinstance(large, CallFailure):
            said = "failed" if isinstance(small, CallFailure) else f"said {small.probability}"
            detail = f"{names[0]!r} {said}, so {names[1]!r} was asked, which failed: {large.detail}"
            return replace(large, detail=detail)
        asked = zip(names, (small, large), strict=True)
        return replace(large, members=tuple([member_verdict(*one) for one in asked]))


class Posterior(NamedTuple):
    """The probability of a yes from the members that gave a verdict, and its bounds over what the others might say."""

    low: float
    value: float
    high: float


@dataclass(frozen=True, slots=True)
class WeightedMean:
    """p = sum w_m p_m / sum w_m over members m, where p_m is the probability, or the score where there is none.

    Raises:
        ValueError: a weight is not above 0.
    """

    weights: tuple[float, ...]

    def __post_init__(self) -> None:
        if not self.weights or not all(math.isfinite(weight) and weight > 0 for weight in self.weights):
            raise ValueError("the weights of a panel must be numbers above 0, one for each judge")

    @property
    def numbers(self) -> tuple[Any, ...]:
        """What can change a verdict: the weights, relative to their sum."""
        total = math.fsum(self.weights)
        return ("mean", *(weight / total for weight in self.weights))

    def posterior(self, outcomes: Sequence[CallOutcome]) -> Posterior:
        """Combine the outcomes, of which at least one is a verdict."""
        pairs = list(zip(self.weights, outcomes, strict=True))
        given = [(w, probability_of(one)) for w, one in pairs if isinstance(one, JudgeResult)]
        known, total = math.fsum(w for w, _ in given), math.fsum(self.weights)
        yes = math.fsum(w * p for w, p in given)
        missing = math.fsum(w for w, one in pairs if isinstance(one, CallFailure))  # total - known would round
        return Posterior(yes / total, yes / known, (yes + missing) / total)


@dataclass(frozen=True, slots=True)
class DawidSkene:
    """The model of Dawid and Skene for yes and no: judges err independently of each other, given the truth.

    log-odds(yes) = logit(prevalence) + sum over members of log(Se / (1 - Sp)) for a yes, log((1 - Se) / Sp) for a no.

    Attributes:
        prevalence: how often a criterion is met, in (0, 1).
        sensitivity: for each member, how often it says yes where the criterion is met (Se); in (0, 1).
        specificity: for each member, how often it says no where the criterion is not met (Sp); in (0, 1).

    Raises:
        ValueError: a number is not in (0, 1), or the lengths differ.
    """

    prevalence: float
    sensitivity: tuple[float, ...]
    specificity: tuple[float, ...]

    def __post_init__(self) -> None:
        if len(self.sensitivity) != len(self.specificity) or not self.sensitivity:
            raise ValueError("give one sensitivity and one specificity for each judge")
        if not all(0 < rate < 1 for rate in (self.prevalence, *self.sensitivity, *self.specificity)):
            raise ValueError("prevalence, sensitivities and specificities must lie between 0 and 1, both excluded")

    @property
    def numbers(self) -> tuple[Any, ...]:
        """What can change a verdict."""
        return ("dawid-skene", self.prevalence, self.sensitivity, self.specificity)

    def log_odds(self, member: int, yes: bool) -> float:
        """Return what a member's verdict adds to the log-odds of a yes."""
        hit, right = self.sensitivity[member], self.specificity[member]
        return math.log(hit / (1 - right)) if yes else math.log((1 - hit) / right)

    def posterior(self, outcomes: Sequence[CallOutcome]) -> Posterior:
        """Combine the outcomes, of which at least one is a verdict."""
        known, low, high = math.log(self.prevalence / (1 - self.prevalence)), 0.0, 0.0
        for member, outcome in enumerate(outcomes):
            if isinstance(outcome, JudgeResult):
                known += self.log_odds(member, outcome.score >= SATISFIED_THRESHOLD)
            else:
                either = self.log_odds(member, True), self.log_odds(member, False)
                low, high = low + min(either), high + max(either)
        return Posterior(sigmoid(known + low), sigmoid(known), sigmoid(known + high))


@dataclass(frozen=True, slots=True)
class PanelRule:
    """Combines the verdicts of all members; they are met from a combined probability of one half on."""

    combination: WeightedMean | DawidSkene

    @property
    def numbers(self) -> tuple[Any, ...]:
        """What can change a verdict."""
        return ("panel", *self.combination.numbers)

    def combine(self, names: Sequence[str], outcomes: Sequence[CallOutcome | None]) -> CallOutcome:
        """Return the panel's verdict. It fails if what the failed members might have said could turn it.

        Step and rationale come from the members on the winning side, or from all if none is: the step that they name
        most often, and the first rationale. The probability is that of the members that gave a verdict.
        """
        asked = [one for one in outcomes if one is not None]
        given = [one for one in asked if isinstance(one, JudgeResult)]
        failed = [(name, one) for name, one in zip(names, asked, strict=True) if isinstance(one, CallFailure)]
        if not given:
            name, first = failed[0]
            return replace(first, detail=f"every judge of the panel failed; {name!r}: {first.detail}")
        low, probability, high = self.combination.posterior(asked)
        if (low >= SATISFIED_THRESHOLD) != (high >= SATISFIED_THRESHOLD):
            name, first = failed[0]
            others = f"{len(failed)} of {len(asked)} judges of the panel failed and could have turned the verdict"
            return replace(first, detail=f"{others}; {name!r}: {first.detail}")
        score = 1.0 if probability >= SATISFIED_THRESHOLD else 0.0
        side = [one for one in given if (one.score >= SATISFIED_THRESHOLD) == bool(score)] or given
        return JudgeResult(
            score,
            probability,
            step=Counter([one.step for one in side]).most_common(1)[0][0],
            rationale=next((one.rationale for one in side if one.rationale is not None), None),
            raw_probability=probability,
            members=tuple([member_verdict(name, one) for name, one in zip(names, asked, strict=True)]),
        )


CombinationRule = CascadeRule | PanelRule


@dataclass(frozen=True, slots=True)
class CombinedConfig(PreparedConfig):
    """A judging configuration made ready by the members of a cascade or panel, and how their verdicts are combined.

    The templates are the first member's.
    """

    rule: CombinationRule = CascadeRule(Band(0.0, 1.0))

    @classmethod
    def of(cls, members: Sequence[PreparedConfig], rule: CombinationRule, model: str) -> "CombinedConfig":
        """Return the configuration of the whole, with its own fingerprint and no calibration."""
        first = members[0]
        return cls(
            first.config,
            first.single_templates,
            first.multi_templates,
            combined_fingerprint(rule, [one.fingerprint for one in members]),
            declaration=first.declaration,
            min_choice_mass=first.min_choice_mass,
            members=tuple(members),
            model=model,
            rule=rule,
        )


@dataclass(frozen=True, slots=True)
class CombinedPlan(ResponsePlan):
    """How the members of a cascade or panel judge one response: a plan each, in their order, and the rule.

    Pending verdicts that judges decide have digests of their own. The checks by programs are its own, not the members'.
    """

    members: tuple[ResponsePlan, ...] = ()
    rule: CombinationRule = CascadeRule(Band(0.0, 1.0))


class FittedRule(Fitted):
    """A version of a rule that was fitted and stored, and the judges that it holds for.

    Attributes:
        name, version: what it is called; a version never changes.
        judges: the fingerprints of the judges, calibrations included.
        models: the names of their models, for messages.
        config: the judging configuration, by field.
        fitted_on: digest of the verdicts that it was fitted on; `items` is their number.
        measured: figures on rows that it was not fitted on, by name, each with `value`, `low`, `high` and `n`.
    """

    name: str
    version: Annotated[int, Field(ge=1)]
    judges: tuple[str, ...]
    models: tuple[str, ...]
    config: Mapping[str, Any]
    fitted_on: str
    items: int
    measured: Mapping[str, Mapping[str, float | None]] = {}


class StoredBand(FittedRule):
    """The band of a cascade of a small and a large judge, which `adjudge cascade` fitted for a wanted `error`.

    The error is the rate of verdicts that differ from the large judge's.
    """

    kind: Literal["band"] = "band"
    judges: tuple[str, str]
    models: tuple[str, str]
    low: float
    high: float
    error: float

    @model_validator(mode="after")
    def _is_a_band(self) -> "StoredBand":
        Band(self.low, self.high)
        return self

    @property
    def rule(self) -> CascadeRule:
        """The cascade with this band."""
        return CascadeRule(Band(self.low, self.high))


class StoredDawidSkene(FittedRule):
    """A panel's error rates, which `adjudge panel` fitted: the numbers of `DawidSkene`, in the order of `judges`.

    Of the `items`, `labels` had a label that the fit used.
    """

    kind: Literal["dawid-skene"] = "dawid-skene"
    prevalence: float
    sensitivity: tuple[float, ...]
    specificity: tuple[float, ...]
    labels: int

    @model_validator(mode="after")
    def _is_a_model(self) -> "StoredDawidSkene":
        DawidSkene(self.prevalence, self.sensitivity, self.specificity)
        return self

    @property
    def rule(self) -> PanelRule:
        """The panel with these error rates."""
        return PanelRule(DawidSkene(self.prevalence, self.sensitivity, self.specificity))


StoredRule = StoredBand | StoredDawidSkene


def combined_fingerprint(rule: CombinationRule, members: Sequence[str]) -> str:
    """Hash the members' fingerprints and the rule's numbers."""
    whole = json.dumps([rule.numbers, list(members)])
    return "sha256:" + hashlib.sha256(whole.encode()).hexdigest()


def combine_plans(prepared: PreparedConfig, plans: Sequence[ResponsePlan]) -> ResponsePlan:
    """Return the plan of a cascade or panel from its members' plans of one response, in the members' order.

    The plan of a judge without members is its only one.
    """
    first = plans[0]
    if not isinstance(prepared, CombinedConfig):
        return first
    pending: list[PendingVerdict] = []
    for own in zip(*[plan.pending for plan in plans], strict=True):
        if own[0].method == BY_JUDGE:
            votes = zip(*[one.digests for one in own], strict=True)
            digests = tuple([_combined_digest(prepared.fingerprint, vote) for vote in votes])
            shown = [one.passages for one in own if one.passages is not None]
            passages = tuple(dict.fromkeys([each for of_one in shown for each in of_one])) if shown else None
            pending.append(PendingVerdict(own[0].criterion, BY_JUDGE, digests, passages=passages))
        else:
            pending.append(own[0])
    omitted = max(plan.characters_omitted for plan in plans)
    return CombinedPlan(
        tuple(pending),
        Batch("", "", ()),
        (),
        first.checks,
        steps=first.steps,
        characters_omitted=omitted,
        group=first.group,
        decided=first.decided,
        members=tuple([replace(plan, checks=(), pending=_asked(plan)) for plan in plans]),
        rule=prepared.rule,
    )


def _asked(plan: ResponsePlan) -> tuple[PendingVerdict, ...]:
    return tuple([one for one in plan.pending if one.method == BY_JUDGE])


def _combined_digest(fingerprint: str, digests: Sequence[bytes]) -> bytes:
    return hashlib.sha256(fingerprint.encode() + b"".join(digests)).digest()


def combined_verdicts(plan: CombinedPlan) -> Iterator[tuple[bytes, list[tuple[bytes, PendingVerdict]]]]:
    """Yield the digest of each verdict that judges decide, with its digest and verdict in each member's plan."""
    for whole, *own in zip(_asked(plan), *[_asked(member) for member in plan.members], strict=True):
        for vote, digest in enumerate(whole.digests):
            yield digest, [(one.digests[vote], one) for one in own]


def only_checks(plan: CombinedPlan) -> ResponsePlan:
    """Return a plan of what programs decide about a response."""
    pending = tuple([one for one in plan.pending if one.method != BY_JUDGE])
    return ResponsePlan(pending, Batch("", "", ()), (), plan.checks, steps=plan.steps, group=plan.group)


def only(plan: ResponsePlan, digests: set[bytes]) -> ResponsePlan:
    """Return a member's plan with only the calls for these verdicts, still in one batch."""
    combinations = tuple([one for one in plan.combinations if one.digest in digests])
    needed = digests.union([part for one in combinations for part in one.parts])
    content_free = plan.content_free and plan.content_free.with_calls_for(needed)
    wanted = [one._replace(digests=tuple([d for d in one.digests if d in digests])) for one in _asked(plan)]
    pending = tuple([one for one in wanted if one.digests])
    return replace(plan.with_calls_for(needed), pending=pending, content_free=content_free, combinations=combinations)
