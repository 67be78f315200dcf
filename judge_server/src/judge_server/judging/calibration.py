"""Measured properties of judges: probability calibrations, and the protocols a judge is unfit for.

A calibration maps a judge's raw probability of yes to the frequency with which such verdicts are right. It is Platt
scaling in log-odds, fitted on labelled verdicts of one judge. It applies only to the weights, protocol and prompt
templates that it was fitted for; every other judge keeps its raw probability.

Under contextual calibration (Zhao et al. 2021), a judge is asked what a response changes in its answer. Whether a small
judge says yes depends on the criterion more than on the response: it says yes to most questions about style, and no to
most claims about a source. So each criterion is asked once more about an empty response to the same prompt, which the
responses of a group share, and the verdict is relative to that answer:

    logit(raw_probability) = logit(p | response) - logit(p | empty response)

A stored calibration's map then applies to `raw_probability`; the shipped maps hold without contextual calibration only.
Both calls are cached like any other; the verdict made of them is not.
"""

import hashlib
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from importlib.resources import files
from typing import Annotated, Any, Literal, NamedTuple, TypeAlias, get_args

from pydantic import BaseModel, ConfigDict, Field, model_validator

from judge_server.ports import CallFailure, JudgeResult
from trainer_client.wire import Criterion, JudgingProtocol, UncertainBand
from trainer_client.wire.criteria import CriterionKind
from trainer_client.wire.names import Name

SATISFIED_THRESHOLD = 0.5
"""The lowest calibrated probability that counts as yes."""

_CLIP = 1e-9


def sigmoid(log_odds: float) -> float:
    """Return the probability with these log-odds, without overflow."""
    if log_odds >= 0:
        return 1.0 / (1.0 + math.exp(-log_odds))
    odds = math.exp(log_odds)
    return odds / (1.0 + odds)


@dataclass(frozen=True, slots=True)
class ProbabilityMap:
    """A map from raw to calibrated probabilities that keeps their order, and the threshold of a yes.

    Without points, logit(calibrated) = slope * ln(raw) - slope_of_no * ln(1 - raw) + intercept: beta calibration (Kull
    et al. 2017). With slope_of_no equal to slope, its default, this is Platt scaling in log-odds, and temperature
    scaling if the intercept is 0. With points, the map is isotonic: linear between points (raw, calibrated).

    Attributes:
        slope, intercept, slope_of_no: the coefficients; not used with points.
        points: points of an isotonic map, with rising raw and never falling calibrated probabilities.
        threshold: the lowest calibrated probability that counts as yes.

    Raises:
        ValueError: the map does not keep the order of probabilities, or a number is out of range or not finite.
    """

    slope: float = 1.0
    intercept: float = 0.0
    slope_of_no: float | None = None
    points: tuple[tuple[float, float], ...] = ()
    threshold: float = SATISFIED_THRESHOLD

    def __post_init__(self) -> None:
        slopes = (self.slope, self._slope_of_no)
        if not all(math.isfinite(number) for number in (*slopes, self.intercept)):
            raise ValueError(f"slope {self.slope} and intercept {self.intercept} must be finite numbers")
        if min(slopes) < 0 or max(slopes) <= 0:
            raise ValueError(f"the slope {min(slopes)} must be above 0, or the order of probabilities is lost")
        if not 0 < self.threshold < 1:
            raise ValueError(f"the threshold {self.threshold} must lie between 0 and 1")
        raws, calibrated = [raw for raw, _ in self.points], [p for _, p in self.points]
        if raws != sorted(set(raws)) or calibrated != sorted(calibrated):
            raise ValueError("the points of an isotonic map must rise, or the order of probabilities is lost")
        if any(not 0 <= number <= 1 for number in (*raws, *calibrated)):
            raise ValueError("the points of an isotonic map must lie between 0 and 1")

    @property
    def _slope_of_no(self) -> float:
        return self.slope if self.slope_of_no is None else self.slope_of_no

    def calibrate(self, raw: float) -> float:
        """Return the calibrated probability, in [0, 1]. The neutral map returns `raw` unchanged."""
        if self is UNSCALED:
            return raw
        if self.points:
            return self._interpolate(raw)
        if (self.slope, self.intercept, self._slope_of_no) == (1.0, 0.0, 1.0):
            return raw
        clipped = min(max(raw, _CLIP), 1.0 - _CLIP)
        return sigmoid(self.slope * math.log(clipped) - self._slope_of_no * math.log1p(-clipped) + self.intercept)

    def _interpolate(self, raw: float) -> float:
        after = bisect_right(self.points, raw, key=lambda point: point[0])
        if after == 0:
            return self.points[0][1]
        if after == len(self.points):
            return self.points[-1][1]
        (x0, y0), (x1, y1) = self.points[after - 1], self.points[after]
        return min(max(y0 + (y1 - y0) * (raw - x0) / (x1 - x0), y0), y1)

    @property
    def numbers(self) -> tuple[Any, ...]:
        """What can change a verdict: slope and intercept, and whatever else is not its default."""
        shape: tuple[Any, ...] = self.points or (self.slope, self.intercept)
        if not self.points and self._slope_of_no != self.slope:
            shape = (*shape, self.slope_of_no)
        return shape if self.threshold == SATISFIED_THRESHOLD else (*shape, "from", self.threshold)


UNSCALED = ProbabilityMap()
"""The neutral map."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """The maps of one judge, and the data they were fitted on.

    Attributes:
        name: a version, such as `2026-11-v2`.
        fitted_on: digest of the labelled data.
        items: the number of labelled verdicts.
        default: the map of every criterion that none of the others is for.
        by_kind: the maps of particular kinds of criteria.
        by_criterion: the maps of particular criteria, by the digest of their description (`criterion_key`).
        uncertain_band: two calibrated probabilities between which a verdict is uncertain, for requests that set none.
    """

    name: Annotated[str, Field(min_length=1)]
    fitted_on: Annotated[str, Field(min_length=1)]
    items: Annotated[int, Field(ge=1)]
    default: ProbabilityMap
    by_kind: Mapping[CriterionKind, ProbabilityMap] = field(default_factory=dict)
    by_criterion: Mapping[str, ProbabilityMap] = field(default_factory=dict)
    uncertain_band: UncertainBand | None = None

    def scaling_for(self, criterion: Criterion) -> ProbabilityMap:
        """Return the map of a criterion."""
        own = self.by_criterion.get(criterion_key(criterion.description)) if self.by_criterion else None
        return own or self.by_kind.get(criterion.kind, self.default)

    @property
    def numbers(self) -> dict[str, tuple[Any, ...]]:
        """The numbers of each map, which alone can change a verdict; empty if all are neutral."""
        if all(one == UNSCALED for one in (self.default, *self.by_kind.values(), *self.by_criterion.values())):
            return {}
        maps = [("default", self.default), *sorted(self.by_kind.items()), *sorted(self.by_criterion.items())]
        return {name: one.numbers for name, one in maps}


def criterion_key(description: str) -> str:
    """Return the key of a criterion's own map: a digest of its description, so that it holds in every rubric."""
    return "text:" + hashlib.sha256(description.encode()).hexdigest()[:32]


NEUTRAL = Calibration("neutral", "nothing", 0, UNSCALED)
"""The calibration that changes nothing."""


WeightsDigests: TypeAlias = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=1)]
"""Digests of the same weights, one for each format in which engines load them (`weights_digest`)."""


class Fitted(BaseModel):
    """What was fitted or measured, as it is stored: it has no other fields, and never changes."""

    model_config = ConfigDict(extra="forbid", frozen=True)


class FittedCalibration(Fitted):
    """A calibration and the judge that it was fitted for.

    Attributes:
        weights: digests of the judge's weights.
        protocol: the protocol of the labelled verdicts.
        templates: digest of the prompt templates that ask one criterion in that protocol.
        calibration: the maps.
    """

    weights: WeightsDigests
    protocol: Literal["binary", "stepwise"]
    templates: Annotated[str, Field(min_length=1)]
    calibration: Calibration


class StoredCalibration(Fitted):
    """A version of a calibration that `adjudge calibrate` fitted and stored, and the judge that it holds for.

    Attributes:
        name, version: what it is called; a version never changes.
        judge: the fingerprint of the judge without a calibration. It covers weights, engine, templates and options.
        model: the model's name, for messages.
        config: the judging configuration, by field.
        method: `platt`, `beta` or `isotonic`; `temperature` in versions of earlier releases.
        calibration: the maps, and the digest of the data that they were fitted on.
        measured: figures on rows that nothing was fitted on, by name, each with `value`, `low`, `high` and `n`;
            `sensitivity` and `specificity` also with `labels` and `effective_labels`.
        fingerprint: the fingerprint of the judge with this calibration; None if a service's judge was fitted by name.
    """

    name: Name
    version: Annotated[int, Field(ge=1)]
    judge: Annotated[str, Field(min_length=1)]
    model: str
    config: Mapping[str, Any]
    method: Literal["temperature", "platt", "beta", "isotonic"]
    calibration: Calibration
    measured: Mapping[str, Mapping[str, float | None]] = {}
    fingerprint: str | None = None

    @property
    def reference(self) -> str:
        """`NAME@VERSION`."""
        return f"{self.name}@{self.version}"


class UnfitProtocol(Fitted):
    """A protocol that a judge was measured to be unfit for.

    Attributes:
        weights: digests of the judge's weights.
        protocol: the unfit protocol.
        reason: what was measured, as the end of a sentence that begins with the judge's name.
        instead: the protocol to use instead.
    """

    weights: WeightsDigests
    protocol: JudgingProtocol
    reason: Annotated[str, Field(min_length=1)]
    instead: JudgingProtocol


class StepBlind(Fitted):
    """A judge whose choice of a step was measured to be no better than a guess by the step's position.

    Attributes:
        weights: digests of the judge's weights.
        kinds: the kinds of criteria that this was measured for; all if empty.
        reason: what was measured.
    """

    weights: WeightsDigests
    kinds: tuple[CriterionKind, ...] = ()
    reason: Annotated[str, Field(min_length=1)]


class CalibrationSet(Fitted):
    """Measurements of judges, as stored in `judge_server/judging/prompts/calibrations.json`.

    Attributes:
        maps: the calibrations, by judge.
        unfit: the protocols that judges refuse.
        step_blind: the judges that are not asked which step decides a criterion, or a criterion of some kinds.
    """

    maps: tuple[FittedCalibration, ...] = ()
    unfit: tuple[UnfitProtocol, ...] = ()
    step_blind: tuple[StepBlind, ...] = ()

    @model_validator(mode="after")
    def _one_each(self) -> "CalibrationSet":
        keys = [(weights, one.protocol, one.templates) for one in self.maps for weights in one.weights]
        for key in keys:
            if keys.count(key) > 1:
                raise ValueError(f"there are two calibrations for {key[1]} with the weights {key[0]}; remove one")
        return self

    def find(self, weights_digest: str, protocol: str, template_digest: str) -> FittedCalibration | None:
        """Return the calibration for these weights, protocol and templates; None if there is none."""
        wanted = (protocol, template_digest)
        found = [one for one in self.maps if weights_digest in one.weights and (one.protocol, one.templates) == wanted]
        return found[0] if found else None

    def why_unfit(self, weights_digest: str, protocol: str) -> UnfitProtocol | None:
        """Return why a judge with these weights is unfit for a protocol; None if it is not known to be."""
        return next((one for one in self.unfit if weights_digest in one.weights and one.protocol == protocol), None)

    def kinds_without_steps(self, weights_digest: str) -> frozenset[CriterionKind]:
        """Return the kinds of criteria for which a judge with these weights is not asked which step decides them."""
        found = [one for one in self.step_blind if weights_digest in one.weights]
        return frozenset([kind for one in found for kind in one.kinds or get_args(CriterionKind)])


@cache
def builtin_calibrations() -> CalibrationSet:
    """Return the calibrations that ship with the package."""
    path = files("judge_server.judging.prompts") / "calibrations.json"
    return CalibrationSet.model_validate_json(path.read_bytes())


EMPTY_RESPONSE = ""
"""The response without content, shown between markers as any other."""


class RelativeVerdict(NamedTuple):
    """A verdict that is made of two: its digest, those of the calls about both responses, and the map."""

    digest: bytes
    asked: bytes
    content_free: bytes
    scaling: ProbabilityMap

    @classmethod
    def of(cls, asked: bytes, content_free: bytes, scaling: ProbabilityMap) -> "RelativeVerdict":
        """Return the verdict under the digest of its parts and the map."""
        parts = b"contextual" + asked + content_free + repr(scaling.numbers).encode()
        return cls(hashlib.sha256(parts).digest(), asked, content_free, scaling)

    @property
    def parts(self) -> tuple[bytes, bytes]:
        """The digests of both calls."""
        return self.asked, self.content_free

    def combine(self, outcomes: Sequence[JudgeResult | CallFailure]) -> JudgeResult | CallFailure:
        """Return the verdict from the uncalibrated outcomes of both calls; a failure if either failed."""
        asked, content_free = outcomes
        if isinstance(asked, CallFailure):
            return asked
        if isinstance(content_free, CallFailure):
            detail = f"contextual calibration needs a verdict on an empty response, which failed: {content_free.detail}"
            return CallFailure(content_free.kind, detail)
        given, without = asked.raw_probability, content_free.raw_probability
        if given is None or without is None:
            return CallFailure("engine", "contextual calibration needs probabilities, and the judge gave none")
        raw = relative_probability(given, without)
        probability = self.scaling.calibrate(raw)
        return replace(
            asked,
            score=1.0 if probability >= self.scaling.threshold else 0.0,
            probability=probability,
            raw_probability=raw,
            content_free_probability=without,
        )


def relative_probability(given: float, without: float) -> float:
    """Return the probability whose log-odds are those of `given` less those of `without`.

    Probabilities closer to 0 or 1 than 1e-9 count as that far away.
    """
    return 1.0 / (1.0 + math.exp(_log_odds(without) - _log_odds(given)))


def _log_odds(probability: float) -> float:
    clipped = min(max(probability, _CLIP), 1.0 - _CLIP)
    return math.log(clipped) - math.log1p(-clipped)
