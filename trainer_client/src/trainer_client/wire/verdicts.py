"""`POST /v1/verdicts`, `/v1/comparisons`, `/v1/score` and `/v1/rerank`: other requests for a judgement.

`/v1/verdicts` judges without computing a reward. `/v1/comparisons` asks which of two responses is better, in both
orders. `/v1/score` and `/v1/rerank` give rewards under a published rubric in the formats of vLLM and Cohere: the rubric
is the model, a response is a document, and its reward is the score. These formats cannot express a missing score, so a
failed judgement fails the request.
"""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints, ValidationError, model_validator

from trainer_client.modes import JudgingProtocol
from trainer_client.wire.base import (
    STRICT_NUMBER,
    AnswerModel,
    BoundedFloat,
    Flag,
    RequestList,
    RequestModel,
    SafeInt,
    is_unset,
)
from trainer_client.wire.groups import (
    Group,
    GroupId,
    Prompt,
    ResponseLike,
    RubricChoice,
    RubricRef,
    RunName,
    check_given_steps,
)
from trainer_client.wire.judging import (
    DEFAULT_JUDGE,
    JudgeName,
    JudgingOptions,
    Priority,
    PromptOpens,
    ReasoningPart,
    TemplateName,
)
from trainer_client.wire.rewards import (
    Failure,
    PinnedRubric,
    RewardOptions,
    RewardRequest,
    UncertainBand,
    Verdict,
    why_no_probability,
)
from trainer_client.wire.usage import (
    JudgeInfo,
    Usage,
)


class VerdictRequest(RequestModel):
    """Judge groups of responses by rubrics, without computing rewards.

    The fields are the same as in `RewardRequest`. `judging.protocol` defaults to `binary`. Only `likert` works without
    a rubric. With `fresh`, the judge is asked even where its verdict is known already, which shows whether it still
    gives the same one.

    Attributes:
        fresh: ask the judge even where its verdict is known.
    """

    run: RunName | None = None
    step: Annotated[int, Field(ge=0), STRICT_NUMBER] | None = None
    rubric: RubricChoice | None = None
    allow_retired: Flag = False
    judge: JudgeName = DEFAULT_JUDGE
    judging: JudgingOptions = JudgingOptions()
    uncertain_band: UncertainBand | None = None
    deadline_s: BoundedFloat = Field(default=60.0, gt=0, le=3600)
    priority: Priority = "online"
    fresh: Flag = False
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


class ComparisonOptions(RequestModel):
    """How the judge is asked. The fields are the same as in `JudgingOptions`."""

    rationale: Flag = False
    think_tokens: SafeInt = Field(default=0, ge=0, le=32_768)
    reasoning: ReasoningPart = "strip"
    prompt_opens: PromptOpens | None = None
    grounding_characters: Annotated[int, Field(ge=1), STRICT_NUMBER] | None = None
    template: TemplateName | None = None


class ComparisonRequest(RequestModel):
    """Compare pairs of responses. An optional rubric tells the judge what to look at.

    `question` replaces the default question to the judge, which response is better. The other fields are the same as in
    `RewardRequest`.

    Attributes:
        question: what to ask the judge instead of which response is better.
        pairs: the pairs to compare.
        rubric: criteria that tell the judge what to look at.
    """

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


MAX_TEXTS = 4096

Texts = Annotated[tuple[str, ...], Field(min_length=1, max_length=MAX_TEXTS)]


class _ScoringRequest(RequestModel):
    """The shared fields. `model` is a rubric reference; the other fields are the same as in `RewardRequest`.

    Attributes:
        model: a reference to a published rubric.
        reward: how verdicts become a reward.
    """

    model: RubricRef
    allow_retired: Flag = False
    run: RunName | None = None
    judge: JudgeName = DEFAULT_JUDGE
    reward: RewardOptions = RewardOptions()
    judging: JudgingOptions = JudgingOptions()
    deadline_s: BoundedFloat = Field(default=60.0, gt=0, le=3600)

    @model_validator(mode="after")
    def _can_be_rewarded(self) -> "_ScoringRequest":
        try:
            self.rewards()
        except ValidationError as error:
            reason = "; ".join(each["msg"].removeprefix("Value error, ") for each in error.errors())
            raise ValueError(f"{reason}; or use POST /v1/rewards, which takes every field") from None
        return self

    def groups(self) -> tuple[Group, ...]:
        """The prompts and their responses, in the order of the scores."""
        raise NotImplementedError

    def rewards(self) -> RewardRequest:
        """The equivalent request of `POST /v1/rewards`; raises `ValidationError` if the fields do not allow one."""
        return RewardRequest(
            run=self.run,
            rubric=self.model,
            allow_retired=self.allow_retired,
            judge=self.judge,
            reward=self.reward,
            judging=self.judging,
            on_failure="error",
            on_uncertain="error",
            deadline_s=self.deadline_s,
            groups=self.groups(),
        )


class ScoreRequest(_ScoringRequest):
    """Score the responses `text_2` to the prompts `text_1` by the rubric `model`.

    A single prompt applies to all responses. Otherwise give one prompt for each response.

    Attributes:
        text_1: the prompt, or one for each response.
        text_2: the response, or the responses.
    """

    text_1: str | Texts
    text_2: str | Texts

    @model_validator(mode="after")
    def _texts_pair(self) -> "ScoreRequest":
        prompts, responses = len(_as_tuple(self.text_1)), len(_as_tuple(self.text_2))
        if prompts not in (1, responses):
            raise ValueError(
                f"text_1 and text_2 have {prompts} and {responses} texts; give one text_1, or one for each text_2"
            )
        return self

    def groups(self) -> tuple[Group, ...]:
        """One group with all responses if there is one prompt, else one group for each pair."""
        prompts, responses = _as_tuple(self.text_1), _as_tuple(self.text_2)
        if len(prompts) == 1:
            return (Group(id="0", prompt=prompts[0], responses=responses),)
        pairs = zip(prompts, responses, strict=False)
        return tuple(Group(id=str(n), prompt=prompt, responses=(text,)) for n, (prompt, text) in enumerate(pairs))


class RerankRequest(_ScoringRequest):
    """Rank the responses `documents` to the prompt `query` by the rubric `model`.

    Attributes:
        query: the prompt.
        documents: the responses.
        top_n: how many documents to return; 0 for all.
        return_documents: whether the answer repeats the documents.
    """

    query: str
    documents: Texts
    top_n: SafeInt = Field(default=0, ge=0)
    return_documents: Flag = True

    def groups(self) -> tuple[Group, ...]:
        """One group with all documents."""
        return (Group(id="0", prompt=self.query, responses=self.documents),)


class ScoreUsage(AnswerModel):
    """The judge's tokens: those of its prompts, cached prefixes included, and those it generated.

    Attributes:
        prompt_tokens: tokens of the judge's prompts, cached prefixes included.
        completion_tokens: tokens that the judge generated.
        total_tokens: both together.
    """

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int


class ScoreData(AnswerModel):
    """The reward of the response `text_2[index]`.

    Attributes:
        index: the response's position in the request, from 0.
        object: a score.
        score: the reward of the response.
    """

    index: int
    object: Literal["score"] = "score"
    score: float


class ScoreAnswer(AnswerModel):
    """The answer to a `ScoreRequest`. `id` is the request id, `model` the rubric version that was used.

    Attributes:
        id: the id of the request.
        object: a list.
        created: when it was answered, in seconds since 1970.
        model: the rubric version that was used.
        data: the scores, in the order of the responses.
    """

    id: str
    object: Literal["list"] = "list"
    created: int
    model: str
    data: tuple[ScoreData, ...]
    usage: ScoreUsage


class RankedText(AnswerModel):
    """A document as sent in the request."""

    text: str


class RankedDocument(AnswerModel):
    """The reward of `documents[index]`. `document` is left out if `return_documents` is false.

    Attributes:
        index: the document's position in the request, from 0.
        document: the document, if the request wants it back.
        relevance_score: its reward.
    """

    index: int
    document: RankedText | None = None
    relevance_score: float


class RerankAnswer(AnswerModel):
    """The answer to a `RerankRequest`: the best document first, documents of equal score in the request's order.

    Attributes:
        id: the id of the request.
        model: the rubric version that was used.
        results: the documents, the best one first.
    """

    id: str
    model: str
    usage: ScoreUsage
    results: tuple[RankedDocument, ...]


def _as_tuple(texts: str | tuple[str, ...]) -> tuple[str, ...]:
    return (texts,) if isinstance(texts, str) else texts
