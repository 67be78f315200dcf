"""`POST /v1/verdicts`."""

from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Request, Response

from judge_server.telemetry.about import bind_log_context
from judge_server.verdicts import judge_responses
from judge_server.web.access import RequiredScope, project_of
from judge_server.web.disconnect import respond_while_connected
from judge_server.web.idempotency import IdempotencyKey, record_id_of, recorder_of
from judge_server.web.patterns import refuse_unusable_patterns
from judge_server.web.problems import problem_responses
from judge_server.web.service import service_of
from judge_server.web.strict_json import StrictRoute
from trainer_client.wire import VerdictAnswer, VerdictRequest

router = APIRouter(
    prefix="/v1", tags=["verdicts"], route_class=StrictRoute, dependencies=[Depends(RequiredScope("score"))]
)

EXAMPLE: dict[str, Any] = {
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


@router.post(
    "/verdicts",
    summary="Judge groups of responses by a rubric, without making a reward",
    response_model=VerdictAnswer,
    responses=problem_responses(404, 413, 422, 429, 503),
)
async def verdicts(
    request: Request,
    body: Annotated[VerdictRequest, Body(openapi_examples={"reasons": {"summary": "With reasons", "value": EXAMPLE}})],
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """One verdict per criterion and response; any rubric will do, since no reward is made of it.

    `Idempotency-Key` is as with rewards: sent again, this is recorded once.
    """
    service = service_of(request)
    bind_log_context(run=body.run)
    own = [group.rubric for group in body.groups]
    project_id = project_of(request)
    await refuse_unusable_patterns(service.checker, project_id, body.rubric, own, deadline_s=body.deadline_s)
    work = judge_responses(
        service.ready_judge(body.judge),
        service.rubrics,
        body,
        request_id=request.state.request_id,
        project_id=project_id,
        recorder=recorder_of(request),
        record_id=await record_id_of(request, idempotency_key),
    )
    return await respond_while_connected(request, work)
