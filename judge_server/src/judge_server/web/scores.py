"""`POST /v1/score` and `POST /v1/rerank`: the rewards of a published rubric, as vLLM and Cohere answer scores."""

import time
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Request, Response

from judge_server.errors import JudgingFailed, ServiceError
from judge_server.telemetry.about import bind_log_context
from judge_server.web.access import RequiredScope, project_of
from judge_server.web.disconnect import run_while_connected
from judge_server.web.idempotency import IdempotencyKey, record_id_of, recorder_of
from judge_server.web.problems import problem_responses
from judge_server.web.service import service_of
from judge_server.web.strict_json import StrictRoute
from trainer_client.wire import FieldError, RewardAnswer
from trainer_client.wire.scores import (
    RankedDocument,
    RankedText,
    RerankAnswer,
    RerankRequest,
    ScoreAnswer,
    ScoreData,
    ScoreRequest,
    ScoreUsage,
)

router = APIRouter(
    prefix="/v1", tags=["scores"], route_class=StrictRoute, dependencies=[Depends(RequiredScope("score"))]
)

PROBLEM_RESPONSES = problem_responses(404, 413, 422, 429, 502, 503)

MISSING_SCORE_DETAIL = (
    "a score is missing, and this answer has no place for that; POST /v1/rewards gives those that there are"
)

SCORE_EXAMPLE: dict[str, Any] = {"model": "math/primes", "text_1": "Is 7 prime?", "text_2": ["Yes.", "No."]}
RERANK_EXAMPLE: dict[str, Any] = {
    "model": "math/primes",
    "query": "Is 7 prime?",
    "documents": ["No.", "Yes."],
    "top_n": 1,
}


@router.post(
    "/score",
    summary="Score responses by a published rubric, in vLLM's shape",
    response_model=ScoreAnswer,
    responses=PROBLEM_RESPONSES,
)
async def score(
    request: Request,
    body: Annotated[ScoreRequest, Body(openapi_examples={"pair": {"summary": "One prompt", "value": SCORE_EXAMPLE}})],
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """A score is the reward of that response: `model` names the rubric, `text_1` is the prompt, `text_2` the responses.

    A failed judgement fails the request, since this shape has no place for a score that is missing.
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


@router.post(
    "/rerank",
    summary="Rank responses by a published rubric, in Cohere's and vLLM's shape",
    response_model=RerankAnswer,
    responses=PROBLEM_RESPONSES,
)
async def rerank(
    request: Request,
    body: Annotated[RerankRequest, Body(openapi_examples={"best": {"summary": "The best", "value": RERANK_EXAMPLE}})],
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """The best response comes first: `model` names the rubric, `query` is the prompt, `documents` are the responses.

    A failed judgement fails the request, since this shape has no place for a score that is missing.
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
    reward_request = body.rewards()
    bind_log_context(run=reward_request.run)
    scorer = service_of(request).scorer(reward_request.judge, recorder_of(request))
    project_id, record = project_of(request), await record_id_of(request, key)
    work = scorer.score(reward_request, request_id=request.state.request_id, project_id=project_id, record_id=record)
    try:
        return await run_while_connected(request, work)
    except JudgingFailed as error:
        raise JudgingFailed(f"{MISSING_SCORE_DETAIL}. {error.detail}") from None
    except ServiceError as error:
        error.errors = tuple(_relabel_as_model(each) for each in error.errors)
        raise


def _relabel_as_model(error: FieldError) -> FieldError:
    return error.model_copy(update={"field": "model"}) if error.field == "rubric" else error


def _rewards(answer: RewardAnswer) -> list[float]:
    rewards = [response.reward for group in answer.groups for response in group.responses]
    given = [reward for reward in rewards if reward is not None]
    assert len(given) == len(rewards)  # `on_failure` is `error`
    return given


def _model(answer: RewardAnswer) -> str:
    (rubric,) = answer.rubrics
    return rubric.digest if rubric.name is None else f"{rubric.name}@{rubric.version}"


def _usage(answer: RewardAnswer) -> ScoreUsage:
    prompt = answer.usage.prompt_tokens_computed + answer.usage.prompt_tokens_reused
    written = answer.usage.tokens_written
    return ScoreUsage(prompt_tokens=prompt, completion_tokens=written, total_tokens=prompt + written)


def _json(answer: ScoreAnswer | RerankAnswer) -> Response:
    return Response(answer.model_dump_json(exclude_none=True), media_type="application/json")
