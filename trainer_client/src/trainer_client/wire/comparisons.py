"""`POST /v1/comparisons`: which of two responses is better, asked in both orders."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from trainer_client.wire.answers import Failure, Judge, PinnedRubric, Usage
from trainer_client.wire.base import NUMERIC, Answer, Flag, Many, Number, Request, Whole
from trainer_client.wire.groups import GroupId, RubricChoice, RunName
from trainer_client.wire.judging import DEFAULT_JUDGE, JudgeName, Priority, ReasoningPart, TemplateName
from trainer_client.wire.messages import Prompt, ResponseLike


class Pair(Request):
    """Two responses to one prompt. `grounding` and `reference_answer` are shown to the judge only."""

    id: GroupId
    prompt: Prompt
    a: ResponseLike
    b: ResponseLike
    grounding: str | None = None
    reference_answer: str | None = None
    rubric: RubricChoice | None = None


class ComparisonOptions(Request):
    """How the judge is asked; the fields mean what they mean in `JudgingOptions`."""

    rationale: Flag = False
    think_tokens: Whole = Field(default=0, ge=0, le=32_768)
    reasoning: ReasoningPart = "strip"
    grounding_characters: Annotated[int, Field(ge=1), NUMERIC] | None = None
    template: TemplateName | None = None


class ComparisonRequest(Request):
    """Compare pairs of responses. A rubric, where there is one, tells the judge what to look at."""

    run: RunName | None = None
    step: Annotated[int, Field(ge=0), NUMERIC] | None = None
    rubric: RubricChoice | None = None
    allow_retired: Flag = False
    judge: JudgeName = DEFAULT_JUDGE
    question: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=2_000)] | None = None
    judging: ComparisonOptions = ComparisonOptions()
    deadline_s: Number = Field(default=60.0, gt=0, le=3600)
    priority: Priority = "online"
    pairs: Many[Pair] = Field(min_length=1, max_length=4096)


class OrderVerdict(Answer):
    """What the judge said in one order: the probability that `a` is better, wherever `a` stood."""

    first: Literal["a", "b"]
    status: Literal["ok", "failed"]
    probability: float | None = None
    preferred: Literal["a", "b", "tie"] | None = None
    menu_mass: float | None = None
    rationale: str | None = None
    failure: Failure | None = None
    cached: bool = False


class Comparison(Answer):
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


class ComparisonAnswer(Answer):
    """The answer to a `ComparisonRequest`; pairs stand in the request's order.

    `win_rate` is the mean score of `a` over the pairs that have one, null where none has.
    """

    request_id: str
    run: str | None = None
    step: int | None = None
    judge: Judge
    rubrics: tuple[PinnedRubric, ...]
    usage: Usage
    win_rate: float | None
    pairs: tuple[Comparison, ...]
