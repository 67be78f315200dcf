"""The routes that judge: rewards, verdicts, comparisons, scores, rerank and recompute.

- `POST /v1/rewards` responds with all groups together, or with one line per group as each is done.
- `POST /v1/verdicts` and `POST /v1/comparisons` return verdicts without rewards.
- `POST /v1/rewards/recompute` computes rewards from recorded verdicts, without the judge, and responds line by line.
- `POST /v1/score` and `POST /v1/rerank` return rewards by a published rubric in the formats of vLLM and Cohere.
"""

import logging
import time
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Request, Response
from fastapi.responses import StreamingResponse

from judge_server.api.auth import RequiredScope, project_of
from judge_server.api.http.problems import INTERNAL_ERROR_DETAIL, problem_of, problem_responses
from judge_server.api.http.requests import StrictRoute, refuse_unusable_patterns
from judge_server.api.http.responses import encode_json, respond_while_connected, run_while_connected
from judge_server.api.idempotency import IdempotencyKey, record_id_of, recorded, recorder_of
from judge_server.api.service import service_of
from judge_server.errors import JudgingFailed, NotReady, ServiceError
from judge_server.observability.logs import bind_log_context
from judge_server.scoring.ranking import compare
from judge_server.scoring.recompute import recompute
from trainer_client.wire import (
    ComparisonAnswer,
    ComparisonRequest,
    FieldError,
    GroupRewards,
    RewardAnswer,
    RewardEvent,
    RewardRequest,
    RewardSummary,
    VerdictAnswer,
    VerdictRequest,
)
from trainer_client.wire.ledger import (
    RecomputedGroup,
    RecomputeEvent,
    RecomputeRequest,
    RecomputeStart,
    RecomputeSummary,
)
from trainer_client.wire.verdicts import (
    RankedDocument,
    RankedText,
    RerankAnswer,
    RerankRequest,
    ScoreAnswer,
    ScoreData,
    ScoreRequest,
    ScoreUsage,
)

log = logging.getLogger("adjudge")

NDJSON = "application/x-ndjson"

rewards_router = APIRouter(
    prefix="/v1", tags=["rewards"], route_class=StrictRoute, dependencies=[Depends(RequiredScope("score"))]
)

REWARDS_EXAMPLE: dict[str, Any] = {
    "run": "llama-srar-3",
    "step": 120,
    "rubric": {
        "criteria": [
            {"id": "product", "kind": "suggest", "description": "Multiplies the two equations."},
            {"id": "dropped", "kind": "pitfall", "description": "Loses the constant 2 in the expansion."},
            {"id": "answer", "kind": "answer", "description": "The final answer is 10."},
        ]
    },
    "reward": {"mode": "stepwise"},
    "groups": [
        {
            "id": "q17",
            "prompt": "x + 1/y = 3 and y + 1/x = 4. Find xy + 1/(xy).",
            "responses": [
                "### Step 1: multiply\n(x + 1/y)(y + 1/x) = 12\n"
                "### Step 2: expand\nxy + 2 + 1/(xy) = 12, so \\boxed{10}"
            ],
            "ground_truth": "10",
        }
    ],
}


@rewards_router.post(
    "/rewards",
    summary="Judge groups of responses by a rubric and reward them",
    response_model=RewardAnswer,
    responses={
        200: {"content": {NDJSON: {"schema": {"$ref": "#/components/schemas/RewardEvent"}}}},
        **problem_responses(404, 413, 422, 429, 502, 503),
    },
)
async def rewards(
    request: Request,
    body: Annotated[
        RewardRequest, Body(openapi_examples={"stepwise": {"summary": "Step-wise", "value": REWARDS_EXAMPLE}})
    ],
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Responds when every response is judged or the deadline has passed, whichever comes first.

    A verdict that the judge failed to give has `status: failed` and no score. By default its response then gets no
    reward; `on_failure` selects another policy.

    With `Accept: application/x-ndjson`, every group is a line, sent as soon as the group is done, in any order. The
    last line is a `summary`, or a `problem` if the request failed midway. If the caller disconnects, the remaining work
    is cancelled.

    A request that is repeated with its `Idempotency-Key` is judged again, without repeating judge calls that succeeded,
    and is recorded once, with its first result.
    """
    request_id = request.state.request_id
    bind_log_context(run=body.run)
    own = [group.rubric for group in body.groups]
    checker, project_id = service_of(request).checker, project_of(request)
    await refuse_unusable_patterns(checker, project_id, body.rubric, own, deadline_s=body.deadline_s)
    service = service_of(request)
    scorer = service.scorer(body.judge, service.recorder_for(body, recorder_of(request)))
    record_id = await record_id_of(request, idempotency_key)
    if NDJSON in request.headers.get("accept", ""):
        stream = scorer.stream(body, request_id=request_id, project_id=project_id, record_id=record_id)
        first = await run_while_connected(request, anext(stream))  # raise before the status 200 is sent
        return StreamingResponse(_reward_lines(first, stream, request_id), media_type=NDJSON)
    work = scorer.score(body, request_id=request_id, project_id=project_id, record_id=record_id)
    return await respond_while_connected(request, recorded(request, work))


async def _reward_lines(
    first: GroupRewards | RewardSummary,
    stream: AsyncGenerator[GroupRewards | RewardSummary, None],
    request_id: str,
) -> AsyncIterator[bytes]:
    async with aclosing(stream):
        for block in await _reward_line(first):
            yield block
        try:
            async for part in stream:
                for block in await _reward_line(part):
                    yield block
        except ServiceError as error:
            yield _encoded_line(RewardEvent(problem=problem_of(error, request_id)))
        except Exception:
            log.exception("request %s failed", request_id)
            yield _encoded_line(RewardEvent(problem=problem_of(ServiceError(INTERNAL_ERROR_DETAIL), request_id)))


async def _reward_line(part: GroupRewards | RewardSummary) -> list[bytes]:
    if isinstance(part, GroupRewards):
        blocks = await encode_json(part, exclude_unset=True)
        blocks[0] = b'{"group":' + blocks[0]
        blocks[-1] += b"}\n"
        return blocks
    return [_encoded_line(RewardEvent.model_construct(summary=part))]


def _encoded_line(line: RewardEvent) -> bytes:
    return line.model_dump_json(exclude_unset=True).encode() + b"\n"


verdicts_router = APIRouter(
    prefix="/v1", tags=["verdicts"], route_class=StrictRoute, dependencies=[Depends(RequiredScope("score"))]
)

VERDICTS_EXAMPLE: dict[str, Any] = {
    "rubric": {
        "criteria": [
            {"id": "sure", "description": "Is sure of itself."},
            {
                "id": "capital",
                "description": "Names Canberra.",
                "verification": {"method": "contains", "all_of": ["Canberra"]},
            },
        ]
    },
    "judging": {"protocol": "binary", "rationale": True},
    "groups": [
        {"id": "q1", "prompt": "What is the capital of Australia?", "responses": ["Canberra.", "Sydney, I think."]}
    ],
}


@verdicts_router.post(
    "/verdicts",
    summary="Judge groups of responses by a rubric, without rewards",
    response_model=VerdictAnswer,
    responses=problem_responses(404, 413, 422, 429, 503),
)
async def verdicts(
    request: Request,
    body: Annotated[
        VerdictRequest, Body(openapi_examples={"reasons": {"summary": "With reasons", "value": VERDICTS_EXAMPLE}})
    ],
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """One verdict per criterion and response. Any rubric can be used, since no reward is computed.

    As for rewards, a request that is repeated with its `Idempotency-Key` is recorded once.
    """
    service = service_of(request)
    bind_log_context(run=body.run)
    own = [group.rubric for group in body.groups]
    project_id = project_of(request)
    await refuse_unusable_patterns(service.checker, project_id, body.rubric, own, deadline_s=body.deadline_s)
    work = service.scorer(body.judge, recorder_of(request)).verdicts(
        body,
        request_id=request.state.request_id,
        project_id=project_id,
        record_id=await record_id_of(request, idempotency_key),
    )
    return await respond_while_connected(request, recorded(request, work))


comparisons_router = APIRouter(
    prefix="/v1", tags=["comparisons"], route_class=StrictRoute, dependencies=[Depends(RequiredScope("score"))]
)

COMPARISONS_EXAMPLE: dict[str, Any] = {
    "question": "Which response explains it better to a child?",
    "pairs": [
        {
            "id": "sky",
            "prompt": "Why is the sky blue?",
            "a": "Sunlight is made of all colours. Air scatters the blue part most, so blue comes from everywhere.",
            "b": "Rayleigh scattering goes with the inverse fourth power of the wavelength.",
        }
    ],
}


@comparisons_router.post(
    "/comparisons",
    summary="Judge which of two responses is better, in both orders",
    response_model=ComparisonAnswer,
    responses=problem_responses(404, 413, 422, 429, 503),
)
async def comparisons(
    request: Request,
    body: Annotated[
        ComparisonRequest, Body(openapi_examples={"pair": {"summary": "One pair", "value": COMPARISONS_EXAMPLE}})
    ],
) -> Response:
    """Each pair is judged twice, with either response first; if the two orders disagree, the pair is a tie."""
    service = service_of(request)
    bind_log_context(run=body.run)
    work = compare(
        service.ready_judge(body.judge),
        service.rubrics,
        body,
        request_id=request.state.request_id,
        project_id=project_of(request),
    )
    return await respond_while_connected(request, recorded(request, work))


recompute_router = APIRouter(
    prefix="/v1",
    tags=["rewards"],
    route_class=StrictRoute,
    dependencies=[Depends(RequiredScope("score", checks_budget=False))],
)


@recompute_router.post(
    "/rewards/recompute",
    summary="Recompute the rewards of a run under another mode, weights or budgets, from recorded verdicts",
    response_class=Response,
    responses={
        200: {
            "description": "Lines of JSON.",
            "content": {NDJSON: {"schema": {"$ref": "#/components/schemas/RecomputeEvent"}}},
        },
        **problem_responses(404, 413, 422, 502, 503),
    },
)
async def recompute_rewards(request: Request, body: RecomputeRequest) -> Response:
    """The judge is not called. A failed verdict stays failed, and `on_failure` decides what its response gets.

    Every line is a JSON object with one of these fields: `start` has the totals, each `group` is a group as one request
    sent it, in the order of judging, and the last line is a `summary`, or a `problem` if the request failed midway. A
    group that was judged twice appears twice.
    """
    ledger = service_of(request).readable_ledger()
    bind_log_context(run=body.run)
    stream = recompute(ledger, body, project_id=project_of(request))
    try:
        start = await anext(stream)  # raise before the status 200 is sent
    except ConnectionError as error:
        raise _unreadable(error) from error
    return StreamingResponse(_recompute_lines(start, stream, request.state.request_id), media_type=NDJSON)


RecomputePart = RecomputeStart | RecomputedGroup | RecomputeSummary


async def _recompute_lines(
    start: RecomputePart, stream: AsyncGenerator[RecomputePart, None], request_id: str
) -> AsyncIterator[bytes]:
    async with aclosing(stream):
        yield _recompute_line(start=start)
        try:
            async for part in stream:
                yield (
                    _recompute_line(group=part) if isinstance(part, RecomputedGroup) else _recompute_line(summary=part)
                )
        except (ServiceError, ConnectionError) as error:
            known = error if isinstance(error, ServiceError) else _unreadable(error)
            yield _recompute_line(problem=problem_of(known, request_id))
        except Exception:
            log.exception("request %s failed", request_id)
            yield _recompute_line(problem=problem_of(ServiceError(INTERNAL_ERROR_DETAIL), request_id))


def _unreadable(error: ConnectionError) -> NotReady:
    return NotReady(f"The ledger cannot be read now: {error}", retry_after_s=5)


def _recompute_line(**part: Any) -> bytes:
    return RecomputeEvent.model_construct(**part).model_dump_json(exclude_unset=True).encode() + b"\n"


scores_router = APIRouter(
    prefix="/v1", tags=["scores"], route_class=StrictRoute, dependencies=[Depends(RequiredScope("score"))]
)

PROBLEM_RESPONSES = problem_responses(404, 413, 422, 429, 502, 503)

MISSING_SCORE_DETAIL = (
    "a score is missing, which this response format cannot express; POST /v1/rewards returns the other scores"
)

SCORE_EXAMPLE: dict[str, Any] = {"model": "math/primes", "text_1": "Is 7 prime?", "text_2": ["Yes.", "No."]}
RERANK_EXAMPLE: dict[str, Any] = {
    "model": "math/primes",
    "query": "Is 7 prime?",
    "documents": ["No.", "Yes."],
    "top_n": 1,
}


@scores_router.post(
    "/score",
    summary="Score responses by a published rubric, in vLLM's format",
    response_model=ScoreAnswer,
    responses=PROBLEM_RESPONSES,
)
async def score(
    request: Request,
    body: Annotated[ScoreRequest, Body(openapi_examples={"pair": {"summary": "One prompt", "value": SCORE_EXAMPLE}})],
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
    body: Annotated[RerankRequest, Body(openapi_examples={"best": {"summary": "The best", "value": RERANK_EXAMPLE}})],
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
