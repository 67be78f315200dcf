"""What was measured of a judge: maps of its probabilities, and the protocols that it is unfit for.

A calibration maps a judge's raw probability of yes to how often such verdicts are right. It is Platt scaling in
log-odds, fitted on labelled verdicts of one judge. It holds for the weights, the protocol and the prompt templates that
it was fitted for, and for no others: any other judge keeps its raw probability.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from typing import Annotated, Literal, TypeAlias

from pydantic import BaseModel, ConfigDict, Field, model_validator

from trainer_client.wire import Criterion, JudgingProtocol
from trainer_client.wire.criteria import CriterionKind

SATISFIED_THRESHOLD = 0.5
"""The least calibrated probability of a verdict that says yes."""

_CLIP = 1e-9


@dataclass(frozen=True, slots=True)
class PlattScaling:
    """A map of probabilities: calibrated = sigmoid(slope * logit(raw) + intercept), which keeps their order.

    Raises:
        ValueError: the slope is not above 0, or a number is not finite.
    """

    slope: float = 1.0
    intercept: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.slope) and math.isfinite(self.intercept)):
            raise ValueError(f"slope {self.slope} and intercept {self.intercept} must be finite numbers")
        if self.slope <= 0:
            raise ValueError(f"the slope {self.slope} must be above 0, else the order of probabilities is lost")

    def calibrate(self, raw: float) -> float:
        """The calibrated probability of a raw one; shape (), in [0, 1]. The neutral map returns `raw` unchanged."""
        if self == UNSCALED:
            return raw
        clipped = min(max(raw, _CLIP), 1.0 - _CLIP)
        log_odds = self.slope * (math.log(clipped) - math.log1p(-clipped)) + self.intercept
        if log_odds >= 0:
            return 1.0 / (1.0 + math.exp(-log_odds))
        odds = math.exp(log_odds)
        return odds / (1.0 + odds)


UNSCALED = PlattScaling()
"""The neutral map."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """The maps of one judge, and what they were fitted on.

    Attributes:
        name: a version, as in `2026-11-v2`.
        fitted_on: digest of the labelled data.
        items: how many labelled verdicts that were.
        default: the map of every kind of criterion that has none of its own.
        by_kind: the maps of some kinds of criteria.
    """

    name: Annotated[str, Field(min_length=1)]
    fitted_on: Annotated[str, Field(min_length=1)]
    items: Annotated[int, Field(ge=1)]
    default: PlattScaling
    by_kind: Mapping[CriterionKind, PlattScaling] = field(default_factory=dict)

    def scaling_for(self, criterion: Criterion) -> PlattScaling:
        """The map of a criterion."""
        return self.by_kind.get(criterion.kind, self.default)

    @property
    def numbers(self) -> dict[str, tuple[float, float]]:
        """Slope and intercept of each map, which is all that can change a verdict; empty if all maps are neutral."""
        if all(one == UNSCALED for one in (self.default, *self.by_kind.values())):
            return {}
        maps = [("default", self.default), *sorted(self.by_kind.items())]
        return {name: (one.slope, one.intercept) for name, one in maps}


NEUTRAL = Calibration("neutral", "nothing", 0, UNSCALED)
"""Leaves every probability as it is."""


WeightsDigests: TypeAlias = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=1)]
"""Digests of the same weights, one for each form in which engines load them (`weights_digest`)."""


class FittedCalibration(BaseModel):
    """A calibration, and the judge that it was fitted for.

    Attributes:
        weights: whose weights.
        protocol: the protocol in which they were asked.
        templates: digest of the prompt templates that ask one criterion in that protocol.
        calibration: the maps.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    weights: WeightsDigests
    protocol: Literal["binary", "stepwise"]
    templates: Annotated[str, Field(min_length=1)]
    calibration: Calibration


class UnfitProtocol(BaseModel):
    """A protocol that a judge was measured to be unfit for.

    Attributes:
        weights: whose weights.
        protocol: the protocol.
        reason: what was measured, as the end of a sentence that begins with the judge's name.
        instead: the protocol to use instead.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    weights: WeightsDigests
    protocol: JudgingProtocol
    reason: Annotated[str, Field(min_length=1)]
    instead: JudgingProtocol


class StepBlind(BaseModel):
    """A judge whose choice of a step was measured to be no better than a guess by the step's place.

    Attributes:
        weights: whose weights.
        reason: what was measured.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    weights: WeightsDigests
    reason: Annotated[str, Field(min_length=1)]


class CalibrationSet(BaseModel):
    """What was measured of judges, as `judge_server/prompts/calibrations.json` holds it.

    Attributes:
        maps: the calibrations that a judge may use.
        unfit: the protocols that a judge refuses.
        step_blind: the judges that are not asked which step decides a criterion.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    maps: tuple[FittedCalibration, ...] = ()
    unfit: tuple[UnfitProtocol, ...] = ()
    step_blind: tuple[StepBlind, ...] = ()

    @model_validator(mode="after")
    def _one_each(self) -> "CalibrationSet":
        keys = [(weights, one.protocol, one.templates) for one in self.maps for weights in one.weights]
        for key in keys:
            if keys.count(key) > 1:
                raise ValueError(f"two calibrations are for {key[1]} with the weights {key[0]}; leave one out")
        return self

    def find(self, weights_digest: str, protocol: str, template_digest: str) -> Calibration:
        """The calibration fitted for these weights, this protocol and these templates; else the neutral one."""
        for one in self.maps:
            if weights_digest in one.weights and (protocol, template_digest) == (one.protocol, one.templates):
                return one.calibration
        return NEUTRAL

    def why_unfit(self, weights_digest: str, protocol: str) -> UnfitProtocol | None:
        """Why a judge with these weights is unfit for a protocol; None where it is not known to be."""
        return next((one for one in self.unfit if weights_digest in one.weights and one.protocol == protocol), None)

    def names_steps(self, weights_digest: str) -> bool:
        """Whether a judge with these weights is asked which step decides a criterion."""
        return not any(weights_digest in one.weights for one in self.step_blind)


@cache
def builtin_calibrations() -> CalibrationSet:
    """The calibrations that the package brings."""
    shipped = files("judge_server.prompts") / "calibrations.json"
    return CalibrationSet.model_validate_json(shipped.read_bytes())
