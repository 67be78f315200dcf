"""Ways of asking: everything a request may choose about how the judge is asked, and what a judge has ready for each."""

from dataclasses import dataclass
from typing import Literal

from judge_server.judging.calibration import NEUTRAL, Calibration
from judge_server.judging.replies import MIN_CHOICE_MASS
from judge_server.prompts import PromptTemplates
from judge_server.prompts.declaration import DEFAULT_DECLARATION, Declaration
from trainer_client.wire import JudgingOptions, JudgingProtocol


@dataclass(frozen=True, slots=True)
class JudgingConfig:
    """What of a request's options can change a verdict, beyond the texts that are shown."""

    protocol: JudgingProtocol | Literal["comparison"]
    per_call: int | Literal["all"] = 1
    rationale: bool = False
    think_tokens: int = 0
    temperature: float = 0.0
    template: str | None = None

    @classmethod
    def of(cls, options: JudgingOptions, protocol: JudgingProtocol) -> "JudgingConfig":
        """The way that options ask for."""
        default: int | Literal["all"] = "all" if protocol == "checklist" else 1
        return cls(
            protocol,
            1 if protocol == "likert" else options.criteria_per_call or default,
            options.rationale,
            options.think_tokens,
            options.sampling_temperature,
            options.template,
        )

    @property
    def plain(self) -> bool:
        """Whether a call asks for one verdict and nothing else: no reasons, no thoughts, no other criterion."""
        return not self.rationale and not self.think_tokens and self.per_call == 1


@dataclass(frozen=True, slots=True)
class PreparedConfig:
    """A way of asking made ready: templates for one criterion and for several, fingerprint, and calibration.

    `names_steps` is whether the judge is asked, under `stepwise`, which step decides a criterion. Where it is not, its
    verdicts are about the whole response.
    `declared` is what the set of templates declares, such as what it withholds from the judge. `min_choice_mass` is
    the least mass on its choices that a verdict is read from.
    """

    config: JudgingConfig
    single_templates: PromptTemplates
    multi_templates: PromptTemplates
    fingerprint: str
    calibration: Calibration = NEUTRAL
    names_steps: bool = True
    declaration: Declaration = DEFAULT_DECLARATION
    min_choice_mass: float = MIN_CHOICE_MASS

    def per_call(self, criteria: int) -> int:
        """How many of `criteria` criteria share a call."""
        return max(criteria, 1) if self.config.per_call == "all" else self.config.per_call

    def asks_individually(self, criteria: int) -> bool:
        """Whether each of `criteria` criteria is a question by itself: a checklist is always written as one."""
        if self.config.protocol == "checklist":
            return False
        return self.config.protocol == "likert" or min(self.per_call(criteria), criteria) <= 1
