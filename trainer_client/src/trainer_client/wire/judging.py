"""How the judge is asked: protocols, and the options that go with them."""

from typing import Annotated, Literal

from pydantic import Discriminator, Field, StringConstraints, Tag, model_validator

from trainer_client.wire.base import STRICT_NUMBER, Flag, RequestModel, SafeInt

JudgingProtocol = Literal["binary", "stepwise", "graded", "checklist", "likert"]
ReasoningPart = Literal["strip", "keep", "only"]
Priority = Literal["online", "bulk"]
"""`online`: somebody waits for it, such as a training step. `bulk`: it may wait for those."""

JudgeName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]
"""What a service calls one of its judges."""

DEFAULT_JUDGE = "default"
"""The judge of whoever names none."""

TemplateName = Annotated[str, StringConstraints(pattern=r"^[a-z0-9][a-z0-9._-]{0,63}$")]

CriteriaPerCall = Annotated[
    Annotated[int, Field(ge=1, le=512), Tag("(number)")] | Annotated[Literal["all"], Tag("(all)")],
    Discriminator(lambda value: "(all)" if isinstance(value, str) else "(number)"),
]
"""A number of criteria, or all of a rubric's."""

RATIONALE_TOKENS = 160
"""How much a judge may write before its verdict, in its tokens."""

VOTING_TEMPERATURE = 0.7
"""The temperature votes are sampled at unless the request gives one."""


class JudgingOptions(RequestModel):
    """How the judge is asked.

    Attributes:
        protocol: the mode's own unless given.
        criteria_per_call: how many criteria share a call; `checklist` puts all in one unless told otherwise, the
            others one. `likert` asks once about the whole response.
        rationale: have the judge write its reasons before the verdict, and return them.
        votes: how many verdicts are sampled for each criterion; the answer says how they agreed.
        temperature: of the judge; 0 unless there are several votes, then 0.7.
        think_tokens: what a thinking judge may think before it answers, in its tokens; the thoughts are not kept.
        reasoning: what of the judged response's own thinking block the judge sees: none of it (`strip`), all
            (`keep`), or nothing else (`only`).
        truncate: let a response that exceeds the judge's context be judged with its middle left out, which the
            answer reports; without it such a response fails as `truncated_input`.
        grounding_characters: show at most this much of a grounding, ended at a sentence, or at a word where no
            sentence ends near; the answer reports what was left out. All of it unless given.
        template: the name of a set of prompt templates that the server has; its own unless given.
    """

    protocol: JudgingProtocol | None = None
    criteria_per_call: CriteriaPerCall | None = None
    rationale: Flag = False
    votes: SafeInt = Field(default=1, ge=1, le=32)
    temperature: Annotated[float, Field(ge=0, le=2), STRICT_NUMBER] | None = None
    think_tokens: SafeInt = Field(default=0, ge=0, le=32_768)
    reasoning: ReasoningPart = "strip"
    truncate: Flag = False
    grounding_characters: Annotated[int, Field(ge=1), STRICT_NUMBER] | None = None
    template: TemplateName | None = None

    @model_validator(mode="after")
    def _votes_differ(self) -> "JudgingOptions":
        if self.votes > 1 and self.temperature == 0:
            raise ValueError(
                f"votes is {self.votes} and temperature 0, so all votes would be the same; "
                "leave temperature out (0.7) or give one above 0"
            )
        return self

    @property
    def sampling_temperature(self) -> float:
        """The temperature in force."""
        if self.temperature is not None:
            return self.temperature
        return VOTING_TEMPERATURE if self.votes > 1 else 0.0

    def per_call(self, protocol: JudgingProtocol, criteria: int) -> int:
        """How many of `criteria` criteria share a call under a protocol."""
        if self.criteria_per_call == "all" or (self.criteria_per_call is None and protocol == "checklist"):
            return max(criteria, 1)
        return self.criteria_per_call or 1
