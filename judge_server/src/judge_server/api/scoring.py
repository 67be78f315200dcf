"""The routes that judge: rewards, verdicts, comparisons and recompute.

- `POST /v1/rewards` responds with all groups together, or with one line per group as each is done.
- `POST /v1/verdicts` and `POST /v1/comparisons` return verdicts without rewards.
- `POST /v1/rewards/recompute` computes rewards from recorded verdicts, without the judge, and responds line by line.
"""

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Request, Response
from fastapi.responses import StreamingResponse

from judge_server.api.auth import RequiredScope, project_of
from judge_server.api.http.problems import problem_responses, stream_lines
from judge_server.api.http.requests import StrictRoute, refuse_unusable_patterns
from judge_server.api.http.responses import NDJSON, encode_json, respond_while_connected, run_while_connected
from judge_server.api.idempotency import IdempotencyKey, record_id_of, recorded, recorder_of
from judge_server.api.service import service_of
from judge_server.errors import NotReady
from judge_server.observability.logs import bind_log_context
from judge_server.ports import LedgerReader
from judge_server.scoring.recompute import recompute
from judge_server.scoring.scorer import StreamPart
from trainer_client.wire import (
    ComparisonAnswer,
    ComparisonRequest,
    GroupRewards,
    Problem,
    RewardAnswer,
    RewardEvent,
    RewardRequest,
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
        return StreamingResponse(stream_lines(first, stream, _reward_line, request_id), media_type=NDJSON)
    work = scorer.score(body, request_id=request_id, project_id=project_id, record_id=record_id)
    return await respond_while_connected(request, recorded(request, work))


async def _reward_line(part: StreamPart | Problem) -> list[bytes]:
    if isinstance(part, GroupRewards):
        blocks = await encode_json(part, exclude_unset=True)
        blocks[0] = b'{"group":' + blocks[0]
        blocks[-1] += b"}\n"
        return blocks
    return _line(RewardEvent, "problem" if isinstance(part, Problem) else "summary", part)


def _line(event: type[RewardEvent | RecomputeEvent], field: str, part: Any) -> list[bytes]:
    return [event.model_construct(**{field: part}).model_dump_json(exclude_unset=True).encode() + b"\n"]


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
    scorer = service.scorer(body.judge, None)
    work = scorer.compare(body, request_id=request.state.request_id, project_id=project_of(request))
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
    stream = _recomputed(ledger, body, project_of(request))
    start = await anext(stream)  # raise before the status 200 is sent
    return StreamingResponse(stream_lines(start, stream, _recompute_line, request.state.request_id), media_type=NDJSON)


RecomputePart = RecomputeStart | RecomputedGroup | RecomputeSummary
_FIELD_OF = {RecomputeStart: "start", RecomputedGroup: "group", RecomputeSummary: "summary", Problem: "problem"}


async def _recompute_line(part: RecomputePart | Problem) -> list[bytes]:
    return _line(RecomputeEvent, _FIELD_OF[type(part)], part)


async def _recomputed(
    ledger: LedgerReader, body: RecomputeRequest, project_id: str
) -> AsyncGenerator[RecomputePart, None]:
    try:
        async with aclosing(recompute(ledger, body, project_id=project_id)) as stream:
            async for part in stream:
                yield part
    except ConnectionError as error:
        raise NotReady(f"The ledger cannot be read now: {error}", retry_after_s=5) from error
