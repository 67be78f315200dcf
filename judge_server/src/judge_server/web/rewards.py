"""`POST /v1/rewards`, answered whole or group by group."""

import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Request, Response
from fastapi.responses import StreamingResponse

from judge_server.errors import ServiceError
from judge_server.telemetry.about import bind_log_context
from judge_server.web.access import RequiredScope, project_of
from judge_server.web.disconnect import respond_while_connected, run_while_connected
from judge_server.web.idempotency import IdempotencyKey, record_id_of, recorder_of
from judge_server.web.patterns import refuse_unusable_patterns
from judge_server.web.problems import INTERNAL_ERROR_DETAIL, problem_of, problem_responses
from judge_server.web.service import service_of
from judge_server.web.strict_json import StrictRoute
from trainer_client.wire import GroupRewards, RewardAnswer, RewardEvent, RewardRequest, RewardSummary

log = logging.getLogger("adjudge")

NDJSON = "application/x-ndjson"

router = APIRouter(
    prefix="/v1", tags=["rewards"], route_class=StrictRoute, dependencies=[Depends(RequiredScope("score"))]
)

EXAMPLE: dict[str, Any] = {
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


@router.post(
    "/rewards",
    summary="Judge groups of responses by a rubric and reward them",
    response_model=RewardAnswer,
    responses={
        200: {"content": {NDJSON: {"schema": {"$ref": "#/components/schemas/RewardLine"}}}},
        **problem_responses(404, 413, 422, 429, 502, 503),
    },
)
async def rewards(
    request: Request,
    body: Annotated[RewardRequest, Body(openapi_examples={"stepwise": {"summary": "Step-wise", "value": EXAMPLE}})],
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Answers when every response is judged or the deadline has passed, whichever comes first.

    A verdict that the judge failed to give has `status: failed` and no score, and by default leaves its response
    without a reward: `on_failure` says what else to do.

    With `Accept: application/x-ndjson` every group is a line of its own, sent as soon as it is done, in whatever order
    that is; the last line is a `summary`, or a `problem` if something broke it off. Whoever hangs up cancels what is
    not done.

    A request that is sent again under its `Idempotency-Key` is judged again, which asks the judge for nothing that it
    has said already, and is recorded once, as it was answered first.
    """
    request_id = request.state.request_id
    bind_log_context(run=body.run)
    own = [group.rubric for group in body.groups]
    checker, project_id = service_of(request).checker, project_of(request)
    await refuse_unusable_patterns(checker, project_id, body.rubric, own, deadline_s=body.deadline_s)
    scorer = service_of(request).scorer(body.judge, recorder_of(request))
    record_id = await record_id_of(request, idempotency_key)
    if NDJSON in request.headers.get("accept", ""):
        stream = scorer.stream(body, request_id=request_id, project_id=project_id, record_id=record_id)
        first = await run_while_connected(request, anext(stream))  # what is wrong with the request is no 200
        return StreamingResponse(_lines(first, stream, request_id), media_type=NDJSON)
    work = scorer.score(body, request_id=request_id, project_id=project_id, record_id=record_id)
    return await respond_while_connected(request, work)


async def _lines(
    first: GroupRewards | RewardSummary,
    stream: AsyncGenerator[GroupRewards | RewardSummary, None],
    request_id: str,
) -> AsyncIterator[bytes]:
    async with aclosing(stream):
        yield _line(first)
        try:
            async for part in stream:
                yield _line(part)
        except ServiceError as error:
            yield _json_line(RewardEvent(problem=problem_of(error, request_id)))
        except Exception:
            log.exception("request %s failed", request_id)
            yield _json_line(RewardEvent(problem=problem_of(ServiceError(INTERNAL_ERROR_DETAIL), request_id)))


def _line(part: GroupRewards | RewardSummary) -> bytes:
    if isinstance(part, GroupRewards):
        return _json_line(RewardEvent.model_construct(group=part))
    return _json_line(RewardEvent.model_construct(summary=part))


def _json_line(line: RewardEvent) -> bytes:
    return line.model_dump_json(exclude_unset=True).encode() + b"\n"
