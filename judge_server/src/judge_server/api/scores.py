"""`POST /v1/score` and `POST /v1/rerank`: rewards by a published rubric, in the formats of vLLM and Cohere."""

import time
from typing import Annotated, Literal

from fastapi import Request, Response
from pydantic import Field, ValidationError, model_validator

from judge_server.api.http.problems import problem_responses
from judge_server.api.http.requests import api_router
from judge_server.api.http.responses import run_while_connected
from judge_server.api.idempotency import IdempotencyKey
from judge_server.api.scoring import prepare
from judge_server.errors import JudgingFailed, ServiceError
from trainer_client.wire import FieldError, RewardAnswer
from trainer_client.wire.base import AnswerModel, BoundedFloat, Flag, RequestModel, SafeInt
from trainer_client.wire.groups import Group, RubricRef, RunName
from trainer_client.wire.judging import DEFAULT_JUDGE, JudgeName, JudgingOptions
from trainer_client.wire.rewards import RewardOptions, RewardRequest

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


scores_router = api_router("scores", "score")

PROBLEM_RESPONSES = problem_responses(404, 413, 422, 429, 502, 503)

MISSING_SCORE_DETAIL = (
    "a score is missing, which this response format cannot express; POST /v1/rewards returns the other scores"
)


@scores_router.post(
    "/score",
    summary="Score responses by a published rubric, in vLLM's format",
    response_model=ScoreAnswer,
    responses=PROBLEM_RESPONSES,
)
async def score(
    request: Request,
    body: ScoreRequest,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """A score is the reward of a response: `model` names the rubric, `text_1` is the prompt, `text_2` the responses.

    A failed verdict fails the request, since this format cannot express a missing score.
    """
    answer = await _compute_rewards(request, body, idempotency_key)
    rewards = _rewards(answer)
    return _json(
        ScoreAnswer(
            id=answer.request_id,
            created=int(time.time()),
            model=_model(answer),
            data=tuple(ScoreData(index=n, score=reward) for n, reward in enumerate(rewards)),
            usage=_usage(answer),
        )
    )


@scores_router.post(
    "/rerank",
    summary="Rank responses by a published rubric, in the format of Cohere and vLLM",
    response_model=RerankAnswer,
    responses=PROBLEM_RESPONSES,
)
async def rerank(
    request: Request,
    body: RerankRequest,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """The best response comes first: `model` names the rubric, `query` is the prompt, `documents` are the responses.

    A failed verdict fails the request, since this format cannot express a missing score.
    """
    answer = await _compute_rewards(request, body, idempotency_key)
    rewards = _rewards(answer)
    best_first = sorted(range(len(rewards)), key=lambda n: -rewards[n])
    results = [
        RankedDocument(
            index=n,
            document=RankedText(text=body.documents[n]) if body.return_documents else None,
            relevance_score=rewards[n],
        )
        for n in best_first[: body.top_n or None]
    ]
    ranked = RerankAnswer(id=answer.request_id, model=_model(answer), usage=_usage(answer), results=tuple(results))
    return _json(ranked)


async def _compute_rewards(request: Request, body: ScoreRequest | RerankRequest, key: str | None) -> RewardAnswer:
    asked = body.rewards()
    scorer, ids = await prepare(request, asked, key)
    try:
        return await run_while_connected(request, scorer.score(asked, **ids))
    except JudgingFailed as error:
        raise JudgingFailed(f"{MISSING_SCORE_DETAIL}. {error.detail}") from None
    except ServiceError as error:
        error.errors = tuple(_relabel_as_model(each) for each in error.errors)
        raise


def _relabel_as_model(error: FieldError) -> FieldError:
    return error.model_copy(update={"field": "model"}) if error.field == "rubric" else error


def _rewards(answer: RewardAnswer) -> list[float]:
    rewards = [response.reward for group in answer.groups for response in group.responses]
    present = [reward for reward in rewards if reward is not None]
    assert len(present) == len(rewards)  # `on_failure` is `error`
    return present


def _model(answer: RewardAnswer) -> str:
    (rubric,) = answer.rubrics
    return rubric.digest if rubric.name is None else f"{rubric.name}@{rubric.version}"


def _usage(answer: RewardAnswer) -> ScoreUsage:
    prompt = answer.usage.prompt_tokens_computed + answer.usage.prompt_tokens_reused
    written = answer.usage.tokens_written
    return ScoreUsage(prompt_tokens=prompt, completion_tokens=written, total_tokens=prompt + written)


def _json(answer: ScoreAnswer | RerankAnswer) -> Response:
    return Response(answer.model_dump_json(exclude_none=True), media_type="application/json")
