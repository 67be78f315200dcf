"""`POST /v1/verdicts`: judging without making a reward."""

from typing import Annotated

from pydantic import Field, model_validator

from trainer_client.wire.answers import JudgeInfo, PinnedRubric, Usage, Verdict
from trainer_client.wire.base import STRICT_NUMBER, AnswerModel, BoundedFloat, Flag, RequestList, RequestModel
from trainer_client.wire.groups import Group, RubricChoice, RunName
from trainer_client.wire.judging import DEFAULT_JUDGE, JudgeName, JudgingOptions, JudgingProtocol, Priority


class VerdictRequest(RequestModel):
    """Judge groups of responses by rubrics; the protocol is `binary` unless given."""

    run: RunName | None = None
    step: Annotated[int, Field(ge=0), STRICT_NUMBER] | None = None
    rubric: RubricChoice | None = None
    allow_retired: Flag = False
    judge: JudgeName = DEFAULT_JUDGE
    judging: JudgingOptions = JudgingOptions()
    deadline_s: BoundedFloat = Field(default=60.0, gt=0, le=3600)
    priority: Priority = "online"
    groups: RequestList[Group] = Field(min_length=1, max_length=4096)

    @property
    def protocol(self) -> JudgingProtocol:
        """The judging protocol in force."""
        return self.judging.protocol or "binary"

    @model_validator(mode="after")
    def _every_group_has_a_rubric(self) -> "VerdictRequest":
        if self.rubric is None and self.protocol != "likert":
            missing = [g.id for g in self.groups if g.rubric is None]
            if missing:
                raise ValueError(f"group {missing[0]!r} has no rubric; give it one, or give the request one")
        return self


class ResponseVerdicts(AnswerModel):
    """One response's verdicts, and how much of the response the judge did not see."""

    verdicts: tuple[Verdict, ...]
    characters_omitted: int = 0


class GroupVerdicts(AnswerModel):
    """The responses of one group in the order they were sent, and the digest of the rubric that judged them."""

    id: str
    rubric: str | None = None
    grounding_characters_omitted: int = 0
    responses: tuple[ResponseVerdicts, ...]


class VerdictAnswer(AnswerModel):
    """The answer to a `VerdictRequest`; groups stand in the request's order."""

    request_id: str
    run: str | None = None
    step: int | None = None
    judge: JudgeInfo | None = None
    rubrics: tuple[PinnedRubric, ...]
    usage: Usage
    groups: tuple[GroupVerdicts, ...]
