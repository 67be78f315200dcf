"""Contextual calibration: judge by what a response changes in the judge's answer (Zhao et al. 2021).

Whether a small judge says yes depends on the criterion more than on the response: it says yes to most questions about
style, and no to most claims about a source. So each criterion is asked once more about an empty response to the same
prompt, which the responses of a group share, and the verdict is relative to that answer:

    logit(raw_probability) = logit(p | response) - weight * logit(p | empty response)

Zhao et al. have a weight of 1; for a judge whose calibration ships with the package, it is fitted. The calibration's
map then applies to `raw_probability`. Both calls are cached like any other; the verdict made of them is not.
"""

import hashlib
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import NamedTuple

from judge_server.judging.calibration import ProbabilityMap
from judge_server.ports import CallFailure, JudgeResult

CONTENT_FREE_WEIGHT = 1.0
"""The weight of the answer about an empty response for a judge that none was fitted for."""

EMPTY_RESPONSE = ""
"""The response without content, shown between markers as any other."""

_CLIP = 1e-9


class RelativeVerdict(NamedTuple):
    """A verdict that is made of two: its digest, those of the calls about both responses, the weight, and the map."""

    digest: bytes
    asked: bytes
    content_free: bytes
    weight: float
    scaling: ProbabilityMap

    @classmethod
    def of(cls, asked: bytes, content_free: bytes, weight: float, scaling: ProbabilityMap) -> "RelativeVerdict":
        """Return the verdict under the digest of its parts, the weight and the map."""
        parts = b"contextual" + asked + content_free + repr((weight, *scaling.numbers)).encode()
        return cls(hashlib.sha256(parts).digest(), asked, content_free, weight, scaling)

    @property
    def parts(self) -> tuple[bytes, bytes]:
        """The digests of both calls."""
        return self.asked, self.content_free

    def combine(self, outcomes: Sequence[JudgeResult | CallFailure]) -> JudgeResult | CallFailure:
        """Return the verdict from the outcomes of both calls; see `relate`."""
        asked, content_free = outcomes
        return relate(asked, content_free, self.weight, self.scaling)


def relate(
    asked: JudgeResult | CallFailure,
    content_free: JudgeResult | CallFailure,
    weight: float,
    scaling: ProbabilityMap,
) -> JudgeResult | CallFailure:
    """Return the verdict on a response relative to that on an empty one; a failure if either failed.

    Args:
        asked: the outcome for the response, uncalibrated.
        content_free: the outcome for the empty response, uncalibrated.
        weight: the weight of the latter's log-odds.
        scaling: the map from raw to calibrated probabilities.
    """
    if isinstance(asked, CallFailure):
        return asked
    if isinstance(content_free, CallFailure):
        detail = f"contextual calibration needs a verdict on an empty response, which failed: {content_free.detail}"
        return CallFailure(content_free.kind, detail)
    given, without = asked.raw_probability, content_free.raw_probability
    if given is None or without is None:
        return CallFailure("engine", "contextual calibration needs probabilities, and the judge gave none")
    raw = relative_probability(given, without, weight)
    probability = scaling.calibrate(raw)
    return replace(
        asked,
        score=1.0 if probability >= scaling.threshold else 0.0,
        probability=probability,
        raw_probability=raw,
        content_free_probability=without,
    )


def relative_probability(given: float, without: float, weight: float = CONTENT_FREE_WEIGHT) -> float:
    """Return the probability whose log-odds are those of `given` less `weight` times those of `without`.

    Probabilities closer to 0 or 1 than 1e-9 count as that far away.
    """
    return 1.0 / (1.0 + math.exp(weight * _log_odds(without) - _log_odds(given)))


def _log_odds(probability: float) -> float:
    clipped = min(max(probability, _CLIP), 1.0 - _CLIP)
    return math.log(clipped) - math.log1p(-clipped)
