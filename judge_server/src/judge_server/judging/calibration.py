"""Measured properties of judges: probability calibrations, and the protocols a judge is unfit for.

A calibration maps a judge's raw probability of yes to the frequency with which such verdicts are right. It is Platt
scaling in log-odds, fitted on labelled verdicts of one judge. It applies only to the weights, protocol and prompt
templates that it was fitted for; every other judge keeps its raw probability.
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
"""The lowest calibrated probability that counts as yes."""

_CLIP = 1e-9


@dataclass(frozen=True, slots=True)
class PlattScaling:
    """Platt scaling: calibrated = sigmoid(slope * logit(raw) + intercept), which preserves order.

    Raises:
        ValueError: the slope is not above 0, or a number is not finite.
    """

    slope: float = 1.0
    intercept: float = 0.0

    def __post_init__(self) -> None:
        if not (math.isfinite(self.slope) and math.isfinite(self.intercept)):
            raise ValueError(f"slope {self.slope} and intercept {self.intercept} must be finite numbers")
        if self.slope <= 0:
            raise ValueError(f"the slope {self.slope} must be above 0, or the order of probabilities is lost")

    def calibrate(self, raw: float) -> float:
        """Return the calibrated probability, in [0, 1]. The neutral scaling returns `raw` unchanged."""
        if self == UNSCALED:
            return raw
        clipped = min(max(raw, _CLIP), 1.0 - _CLIP)
        log_odds = self.slope * (math.log(clipped) - math.log1p(-clipped)) + self.intercept
        if log_odds >= 0:
            return 1.0 / (1.0 + math.exp(-log_odds))
        odds = math.exp(log_odds)
        return odds / (1.0 + odds)


UNSCALED = PlattScaling()
"""The neutral scaling."""


@dataclass(frozen=True, slots=True)
class Calibration:
    """The scalings of one judge, and the data they were fitted on.

    Attributes:
        name: a version, such as `2026-11-v2`.
        fitted_on: digest of the labelled data.
        items: the number of labelled verdicts.
        default: the scaling of every kind of criterion not in `by_kind`.
        by_kind: the scalings of particular kinds of criteria.
    """

    name: Annotated[str, Field(min_length=1)]
    fitted_on: Annotated[str, Field(min_length=1)]
    items: Annotated[int, Field(ge=1)]
    default: PlattScaling
    by_kind: Mapping[CriterionKind, PlattScaling] = field(default_factory=dict)

    def scaling_for(self, criterion: Criterion) -> PlattScaling:
        """Return the scaling of a criterion."""
        return self.by_kind.get(criterion.kind, self.default)

    @property
    def numbers(self) -> dict[str, tuple[float, float]]:
        """Slope and intercept of each scaling, which alone can change a verdict; empty if all are neutral."""
        if all(one == UNSCALED for one in (self.default, *self.by_kind.values())):
            return {}
        maps = [("default", self.default), *sorted(self.by_kind.items())]
        return {name: (one.slope, one.intercept) for name, one in maps}


NEUTRAL = Calibration("neutral", "nothing", 0, UNSCALED)
"""The calibration that changes nothing."""


WeightsDigests: TypeAlias = Annotated[tuple[Annotated[str, Field(min_length=1)], ...], Field(min_length=1)]
"""Digests of the same weights, one for each format in which engines load them (`weights_digest`)."""


class FittedCalibration(BaseModel):
    """A calibration and the judge that it was fitted for.

    Attributes:
        weights: digests of the judge's weights.
        protocol: the protocol of the labelled verdicts.
        templates: digest of the prompt templates that ask one criterion in that protocol.
        calibration: the scalings.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    weights: WeightsDigests
    protocol: Literal["binary", "stepwise"]
    templates: Annotated[str, Field(min_length=1)]
    calibration: Calibration


class UnfitProtocol(BaseModel):
    """A protocol that a judge was measured to be unfit for.

    Attributes:
        weights: digests of the judge's weights.
        protocol: the unfit protocol.
        reason: what was measured, as the end of a sentence that begins with the judge's name.
        instead: the protocol to use instead.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    weights: WeightsDigests
    protocol: JudgingProtocol
    reason: Annotated[str, Field(min_length=1)]
    instead: JudgingProtocol


class StepBlind(BaseModel):
    """A judge whose choice of a step was measured to be no better than a guess by the step's position.

    Attributes:
        weights: digests of the judge's weights.
        reason: what was measured.
    """

    model_config = ConfigDict(extra="forbid", frozen=True)

    weights: WeightsDigests
    reason: Annotated[str, Field(min_length=1)]


class CalibrationSet(BaseModel):
    """Measurements of judges, as stored in `judge_server/prompts/calibrations.json`.

    Attributes:
        maps: the calibrations, by judge.
        unfit: the protocols that judges refuse.
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
                raise ValueError(f"there are two calibrations for {key[1]} with the weights {key[0]}; remove one")
        return self

    def find(self, weights_digest: str, protocol: str, template_digest: str) -> Calibration:
        """Return the calibration for these weights, protocol and templates, or the neutral one."""
        for one in self.maps:
            if weights_digest in one.weights and (protocol, template_digest) == (one.protocol, one.templates):
                return one.calibration
        return NEUTRAL

    def why_unfit(self, weights_digest: str, protocol: str) -> UnfitProtocol | None:
        """Return why a judge with these weights is unfit for a protocol; None if it is not known to be."""
        return next((one for one in self.unfit if weights_digest in one.weights and one.protocol == protocol), None)

    def names_steps(self, weights_digest: str) -> bool:
        """Whether a judge with these weights is asked which step decides a criterion."""
        return not any(weights_digest in one.weights for one in self.step_blind)


@cache
def builtin_calibrations() -> CalibrationSet:
    """Return the calibrations that ship with the package."""
    path = files("judge_server.prompts") / "calibrations.json"
    return CalibrationSet.model_validate_json(path.read_bytes())
