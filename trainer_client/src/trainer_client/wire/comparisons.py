"""`POST /v1/comparisons`: which of two responses is better, asked in both orders."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from trainer_client.wire.answers import Failure, JudgeInfo, PinnedRubric, Usage
from trainer_client.wire.base import STRICT_NUMBER, AnswerModel, BoundedFloat, Flag, RequestList, RequestModel, SafeInt
from trainer_client.wire.groups import GroupId, RubricChoice, RunName
from trainer_client.wire.judging import DEFAULT_JUDGE, JudgeName, Priority, ReasoningPart, TemplateName
from trainer_client.wire.messages import Prompt, ResponseLike


class Pair(RequestModel):
    """Two responses to one prompt. `grounding` and `reference_answer` are shown to the judge only."""

    id: GroupId
    prompt: Prompt
    a: ResponseLike
    b: ResponseLike
    grounding: str | None = None
    reference_answer: str | None = None
    rubric: RubricChoice | None = None


class ComparisonOptions(RequestModel):
    """How the judge is asked; the fields mean what they mean in `JudgingOptions`."""

    rationale: Flag = False
    think_tokens: SafeInt = Field(default=0, ge=0, le=32_768)
    reasoning: ReasoningPart = "strip"
    grounding_characters: Annotated[int, Field(ge=1), STRICT_NUMBER] | None = None
    template: TemplateName | None = None


class ComparisonRequest(RequestModel):
    """Compare pairs of responses. A rubric, where there is one, tells the judge what to look at."""

    run: RunName | None = None
    step: Annotated[int, Field(ge=0), STRICT_NUMBER] | None = None
    rubric: RubricChoice | None = None
    allow_retired: Flag = False
    judge: JudgeName = DEFAULT_JUDGE
    question: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=2_000)] | None = None
    judging: ComparisonOptions = ComparisonOptions()
    deadline_s: BoundedFloat = Field(default=60.0, gt=0, le=3600)
    priority: Priority = "online"
    pairs: RequestList[Pair] = Field(min_length=1, max_length=4096)


class OrderVerdict(AnswerModel):
    """What the judge said in one order: the probability that `a` is better, wherever `a` stood."""

    first: Literal["a", "b"]
    status: Literal["ok", "failed"]
    probability: float | None = None
    preferred: Literal["a", "b", "tie"] | None = None
    choice_mass: float | None = None
    rationale: str | None = None
    failure: Failure | None = None
    cached: bool = False


class Comparison(AnswerModel):
    """One pair. `score` is the win of `a` averaged over both orders (1 win, 0 loss); null if an order failed.

    `preferred` is null where an order failed, and `tie` where the orders disagree, which `consistent` says too.
    """

    id: str
    status: Literal["ok", "failed"]
    score: float | None = None
    preferred: Literal["a", "b", "tie"] | None = None
    probability: float | None = None
    consistent: bool | None = None
    orders: tuple[OrderVerdict, ...]


class ComparisonAnswer(AnswerModel):
    """The answer to a `ComparisonRequest`; pairs stand in the request's order.

    `win_rate` is the mean score of `a` over the pairs that have one, null where none has.
    """

    request_id: str
    run: str | None = None
    step: int | None = None
    judge: JudgeInfo
    rubrics: tuple[PinnedRubric, ...]
    usage: Usage
    win_rate: float | None
    pairs: tuple[Comparison, ...]
