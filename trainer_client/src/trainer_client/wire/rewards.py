"""The request of `POST /v1/rewards`: groups of responses, the rubric to judge them by, and how."""

from typing import Annotated, Literal

from pydantic import Discriminator, Field, StringConstraints, Tag, model_validator

from trainer_client.wire.base import Request
from trainer_client.wire.rubrics import RubricContent

RewardMode = Literal["weighted_mean", "factual_override", "points", "stepwise"]
Protocol = Literal["binary", "stepwise"]
FailurePolicy = Literal["null", "error", "zero", "skip"]

PROTOCOLS_FOR: dict[RewardMode, tuple[Protocol, ...]] = {
    "weighted_mean": ("binary", "stepwise"),
    "factual_override": ("binary", "stepwise"),
    "points": ("binary", "stepwise"),
    "stepwise": ("stepwise",),
}
"""Which protocols' verdicts can feed a mode, the mode's own protocol first."""

RubricRef = Annotated[str, StringConstraints(min_length=1, max_length=256)]
RubricChoice = Annotated[
    Annotated[RubricRef, Tag("(reference)")] | Annotated[RubricContent, Tag("(inline)")],
    Discriminator(lambda value: "(reference)" if isinstance(value, str) else "(inline)"),
]
"""A rubric by reference, or inline."""
GroupId = Annotated[str, StringConstraints(min_length=1, max_length=256)]


class Message(Request):
    """One message of a conversation."""

    role: Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_.-]{1,64}$")]
    content: str


Prompt = Annotated[
    Annotated[str, Tag("(text)")] | Annotated[tuple[Message, ...], Tag("(messages)")],
    Discriminator(lambda value: "(text)" if isinstance(value, str) else "(messages)"),
]
"""A prompt as text, or as the messages of a conversation."""


class Group(Request):
    """One prompt and the responses (rollouts) to it.

    `grounding`, `reference_answer` and `ground_truth` are shown to the judge only. `rubric` overrides the request's.
    """

    id: GroupId
    prompt: Prompt
    responses: tuple[str, ...] = Field(min_length=1, max_length=4096)
    grounding: str | None = None
    reference_answer: str | None = None
    ground_truth: str | None = None
    rubric: RubricChoice | None = None


class RewardOptions(Request):
    """How verdicts become a reward. `format_weight` is lambda of the stepwise base reward (SRaR, 0.1)."""

    mode: RewardMode = "weighted_mean"
    format_weight: float = Field(default=0.1, ge=0, le=1)


class JudgingOptions(Request):
    """How the judge is asked.

    `protocol` is the mode's own unless given. `truncate` lets a response that exceeds the judge's context be judged
    with its middle left out, which the answer reports; without it such a response fails as `truncated_input`.
    """

    protocol: Protocol | None = None
    truncate: bool = False


class RewardRequest(Request):
    """Judge groups of responses by rubrics and reward them."""

    run: Annotated[str, StringConstraints(min_length=1, max_length=256)] | None = None
    step: int | None = Field(default=None, ge=0)
    rubric: RubricChoice | None = None
    reward: RewardOptions = RewardOptions()
    judging: JudgingOptions = JudgingOptions()
    on_failure: FailurePolicy = "null"
    deadline_s: float = Field(default=60.0, gt=0, le=3600)
    groups: tuple[Group, ...] = Field(min_length=1, max_length=4096)

    @property
    def protocol(self) -> Protocol:
        """The judging protocol in force: the one asked for, else the mode's own."""
        return self.judging.protocol or PROTOCOLS_FOR[self.reward.mode][0]

    @model_validator(mode="after")
    def _protocol_feeds_mode(self) -> "RewardRequest":
        usable = PROTOCOLS_FOR[self.reward.mode]
        if self.protocol not in usable:
            raise ValueError(
                f"reward.mode {self.reward.mode!r} cannot be fed by judging.protocol {self.protocol!r}; "
                f"use {' or '.join(map(repr, usable))}, or leave judging.protocol out"
            )
        return self

    @model_validator(mode="after")
    def _every_group_has_a_rubric(self) -> "RewardRequest":
        if self.rubric is None:
            bare = [g.id for g in self.groups if g.rubric is None]
            if bare:
                raise ValueError(f"group {bare[0]!r} has no rubric; give it one, or give the request one")
        return self
