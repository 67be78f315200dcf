"""`POST /v1/verdicts` and `/v1/comparisons`: other requests for a judgement.

`/v1/verdicts` judges without computing a reward. `/v1/comparisons` asks which of two responses is better, in both
orders.
"""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, model_validator

from trainer_client.modes import JudgingProtocol
from trainer_client.wire.base import (
    AnswerModel,
    BoundedFloat,
    Flag,
    RequestList,
    RequestModel,
    is_unset,
)
from trainer_client.wire.groups import (
    Group,
    GroupId,
    JudgingRequest,
    Prompt,
    ResponseLike,
    RubricChoice,
    check_given_steps,
)
from trainer_client.wire.judging import (
    ComparisonOptions,
    JudgingOptions,
    Priority,
)
from trainer_client.wire.options import Option
from trainer_client.wire.rewards import Failure, PinnedRubric, UncertainBand, Verdict, why_no_probability
from trainer_client.wire.usage import JudgeInfo, Usage


class VerdictRequest(JudgingRequest):
    """Judge groups of responses by rubrics, without computing rewards.

    The fields are the same as in `RewardRequest`. `judging.protocol` defaults to `binary`. Only `likert` works without
    a rubric. With `fresh`, the judge is asked even where its verdict is known already, which shows whether it still
    gives the same one.

    Attributes:
        fresh: ask the judge even where its verdict is known.
    """

    judging: JudgingOptions = JudgingOptions()
    uncertain_band: Annotated[UncertainBand | None, Option("Reward", metavar="LOW HIGH")] = None
    deadline_s: Annotated[BoundedFloat, Option("Service and load")] = Field(default=60.0, gt=0, le=3600)
    priority: Annotated[Priority, Option("Service and load")] = "online"
    fresh: Annotated[Flag, Option("Service and load")] = False
    groups: RequestList[Group] = Field(min_length=1, max_length=4096)

    @property
    def protocol(self) -> JudgingProtocol:
        """The judging protocol in force."""
        return self.judging.protocol or "binary"

    @model_validator(mode="after")
    def _verdicts_have_probabilities(self) -> "VerdictRequest":
        reason = why_no_probability(self.protocol, self.judging) if self.uncertain_band is not None else None
        if reason is not None:
            raise ValueError(f"uncertain_band is set, but {reason}, or leave out uncertain_band")
        return self

    @model_validator(mode="after")
    def _every_group_has_a_rubric(self) -> "VerdictRequest":
        check_given_steps(self.groups, self.judging.steps)
        if self.rubric is None and self.protocol != "likert":
            missing = [g.id for g in self.groups if g.rubric is None]
            if missing:
                raise ValueError(f"group {missing[0]!r} has no rubric; give it one, or give the request one")
        return self


class ResponseVerdicts(AnswerModel):
    """One response's verdicts, and how many characters of the response the judge did not see.

    `suspicious` says whether the judge said that the response meets a decoy criterion; null if none was asked.

    Attributes:
        characters_hidden: the characters of the response that `judging.reasoning` left out, tags included.
    """

    verdicts: tuple[Verdict, ...]
    characters_omitted: int = 0
    characters_hidden: int = 0
    suspicious: bool | None = None


class GroupVerdicts(AnswerModel):
    """The responses of one group in the request's order, and the digest of the rubric that they were judged by.

    `grounding_characters_omitted` says how many characters of the grounding the judge did not see.

    Attributes:
        id: the group's id.
        rubric: the digest of the rubric that they were judged by.
    """

    id: str
    rubric: str | None = None
    grounding_characters_omitted: int = 0
    responses: tuple[ResponseVerdicts, ...]


class VerdictAnswer(AnswerModel):
    """The answer to a `VerdictRequest`. Groups are in the request's order.

    `uncertain_band` is the band in force; it is left out if there is none.
    """

    request_id: str
    run: str | None = None
    step: int | None = None
    uncertain_band: UncertainBand | None = Field(default=None, exclude_if=is_unset)
    judge: JudgeInfo | None = None
    rubrics: tuple[PinnedRubric, ...]
    usage: Usage
    groups: tuple[GroupVerdicts, ...]


class Pair(RequestModel):
    """Two responses to one prompt. Only the judge sees `grounding` and `reference_answer`.

    Attributes:
        id: a name of your own, which the answer repeats.
        a, b: a response to the prompt.
    """

    id: GroupId
    prompt: Prompt
    a: ResponseLike
    b: ResponseLike
    grounding: str | None = None
    reference_answer: str | None = None
    rubric: RubricChoice | None = None


class ComparisonRequest(JudgingRequest):
    """Compare pairs of responses. An optional rubric tells the judge what to look at.

    `question` replaces the default question to the judge, which response is better. The other fields are the same as in
    `RewardRequest`.

    Attributes:
        question: what to ask the judge instead of which response is better.
        pairs: the pairs to compare.
        rubric: criteria that tell the judge what to look at.
    """

    question: Annotated[str, StringConstraints(strip_whitespace=True, min_length=1, max_length=2_000)] | None = None
    judging: ComparisonOptions = ComparisonOptions()
    deadline_s: Annotated[BoundedFloat, Option("Service and load")] = Field(default=60.0, gt=0, le=3600)
    priority: Annotated[Priority, Option("Service and load")] = "online"
    pairs: RequestList[Pair] = Field(min_length=1, max_length=4096)


class OrderVerdict(AnswerModel):
    """The judge's verdict in one order. `probability` is always that `a` is better; `first` says which came first.

    Attributes:
        first: the response that the judge saw first.
        probability: the probability that `a` is better.
        preferred: the response that the judge preferred, or `tie`.
    """

    first: Literal["a", "b"]
    status: Literal["ok", "failed"]
    probability: float | None = None
    preferred: Literal["a", "b", "tie"] | None = None
    choice_mass: float | None = None
    rationale: str | None = None
    failure: Failure | None = None
    cached: bool = False


class Comparison(AnswerModel):
    """The comparison of one pair. `score` is the win of `a` averaged over both orders (1 win, 0 loss).

    `score` and `preferred` are null if judging failed in either order. If the orders disagree, `preferred` is `tie`.

    Attributes:
        id: the pair's id.
        status: `failed` if judging failed in either order.
        score: the win of `a`, averaged over both orders: 1 for a win, 0 for a loss.
        preferred: the better response, or `tie`.
        probability: the probability that `a` is better, averaged over both orders.
        consistent: whether both orders agree.
        orders: the verdict in each order.
    """

    id: str
    status: Literal["ok", "failed"]
    score: float | None = None
    preferred: Literal["a", "b", "tie"] | None = None
    probability: float | None = None
    consistent: bool | None = None
    orders: tuple[OrderVerdict, ...]


class ComparisonAnswer(AnswerModel):
    """The answer to a `ComparisonRequest`. Pairs are in the request's order.

    Attributes:
        win_rate: the mean score of `a` over the pairs that have a score; null if none has.
        pairs: the comparisons, in the order of the request.
    """

    request_id: str
    run: str | None = None
    step: int | None = None
    judge: JudgeInfo
    rubrics: tuple[PinnedRubric, ...]
    usage: Usage
    win_rate: float | None
    pairs: tuple[Comparison, ...]
