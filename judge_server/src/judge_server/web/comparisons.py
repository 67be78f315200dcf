"""`POST /v1/comparisons`."""

from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Request, Response

from judge_server.comparing import compare
from judge_server.telemetry.about import bind_log_context
from judge_server.web.access import RequiredScope, project_of
from judge_server.web.disconnect import respond_while_connected
from judge_server.web.problems import problem_responses
from judge_server.web.service import service_of
from judge_server.web.strict_json import StrictRoute
from trainer_client.wire import ComparisonAnswer, ComparisonRequest

router = APIRouter(
    prefix="/v1", tags=["comparisons"], route_class=StrictRoute, dependencies=[Depends(RequiredScope("score"))]
)

EXAMPLE: dict[str, Any] = {
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


@router.post(
    "/comparisons",
    summary="Say which of two responses is better, judged in both orders",
    response_model=ComparisonAnswer,
    responses=problem_responses(404, 413, 422, 429, 503),
)
async def comparisons(
    request: Request,
    body: Annotated[ComparisonRequest, Body(openapi_examples={"pair": {"summary": "One pair", "value": EXAMPLE}})],
) -> Response:
    """Each pair is judged twice, with either response first; where the orders disagree the pair is a tie."""
    service = service_of(request)
    bind_log_context(run=body.run)
    work = compare(
        service.ready_judge(body.judge),
        service.rubrics,
        body,
        request_id=request.state.request_id,
        project_id=project_of(request),
    )
    return await respond_while_connected(request, work)
