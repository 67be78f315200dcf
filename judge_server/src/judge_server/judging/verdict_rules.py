"""How a request takes the judge's verdicts: whether it needs probabilities, and which of them are uncertain.

The rules are applied when a verdict is read, not when it is judged, so that one cached verdict serves requests with
different rules.
"""

from dataclasses import dataclass

from judge_server.judging.questions import PreparedConfig
from judge_server.ports import CallFailure, JudgeResult
from trainer_client.wire import RewardRequest, UncertainBand, VerdictMethod, VerdictRequest

NO_PROBABILITY = "the judge gave no probability with this verdict, and the request needs one"


@dataclass(frozen=True, slots=True)
class VerdictRules:
    """How a request takes verdicts of the judge; a program's verdict is certain and stays as it is.

    Attributes:
        soft: whether the probability enters the reward.
        band: a verdict is uncertain if low <= probability < high; None if no verdict is.
    """

    soft: bool = False
    band: UncertainBand | None = None

    @classmethod
    def of(cls, request: RewardRequest | VerdictRequest, prepared: PreparedConfig | None) -> "VerdictRules":
        """Return the rules of a request: its own band, or else that of the judge's calibration."""
        soft = isinstance(request, RewardRequest) and request.reward.use == "probability"
        band = request.uncertain_band
        if band is None and prepared is not None:
            band = prepared.calibration.uncertain_band
        return cls(soft, band)

    def apply(self, outcome: JudgeResult | CallFailure, method: VerdictMethod) -> JudgeResult | CallFailure:
        """Return the outcome; a failure if the judge gave no probability and the request needs one."""
        if isinstance(outcome, CallFailure) or method != "judge" or outcome.probability is not None:
            return outcome
        needed = self.soft or self.band is not None
        return CallFailure("engine", NO_PROBABILITY) if needed else outcome

    def is_uncertain(self, outcome: JudgeResult | CallFailure, method: VerdictMethod) -> bool:
        """Whether the judge gave a verdict whose probability lies in the band."""
        if self.band is None or method != "judge" or isinstance(outcome, CallFailure) or outcome.probability is None:
            return False
        low, high = self.band
        return low <= outcome.probability < high


DEFAULT_RULES = VerdictRules()

ALWAYS_UNCERTAIN = VerdictRules(band=(0.0, 2.0))
"""The rules under which a verdict that was recorded as uncertain is read back."""
