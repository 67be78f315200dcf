"""`POST /v1/systemone`: any judge of this service as a decision model, in the form of the System One protocol."""

from typing import Annotated, Any

from fastapi import APIRouter, Body, Depends, Request, Response

from judge_server.api.auth import RequiredScope, project_of
from judge_server.api.http.problems import problem_responses
from judge_server.api.http.requests import StrictRoute
from judge_server.api.http.responses import run_while_connected
from judge_server.api.idempotency import IdempotencyKey, record_id_of, recorder_of
from judge_server.api.service import Service, service_of
from judge_server.errors import InvalidRequest
from judge_server.observability.logs import bind_log_context
from judge_server.scoring.decisions import answer_questions
from trainer_client.wire import FieldError
from trainer_client.wire.decisions import SystemOneAnswer, SystemOneRequest

decisions_router = APIRouter(
    prefix="/v1", tags=["decisions"], route_class=StrictRoute, dependencies=[Depends(RequiredScope("score"))]
)

SYSTEM_ONE_EXAMPLE: dict[str, Any] = {
    "model": "default",
    "state": {"prompt": "Is 7 prime?", "response": "Yes: neither 2 nor 3 divides it."},
    "questions": {
        "prime": {"type": "noul", "instructions": "Does the response say that 7 is prime?"},
        "reason": {"type": "score", "instructions": "How good is its reason?", "criteria": ["none", "partial", "full"]},
    },
}


@decisions_router.post(
    "/systemone",
    summary="Answer typed questions about a state, in the form of System One",
    response_model=SystemOneAnswer,
    responses=problem_responses(413, 422, 429, 502, 503),
)
async def systemone(
    request: Request,
    body: Annotated[
        SystemOneRequest, Body(openapi_examples={"rubric": {"summary": "Two questions", "value": SYSTEM_ONE_EXAMPLE}})
    ],
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Each question is judged by criteria that the judge answers with yes or no, and answered with probabilities.

    A `choice` is asked option by option, and a `score` level by level. A question that the judge failed to answer is
    missing from `answers` and named in `failures`; if no question is answered, the request fails. As for verdicts, a
    request that is repeated with its `Idempotency-Key` is recorded once.
    """
    bind_log_context(run=body.run)
    service = service_of(request)
    name = _judge_name(service, body.model)
    work = answer_questions(
        service.ready_judge(name),
        name,
        service.rubrics,
        body,
        request_id=request.state.request_id,
        project_id=project_of(request),
        recorder=recorder_of(request),
        record_id=await record_id_of(request, idempotency_key),
    )
    answer = await run_while_connected(request, work)
    return Response(answer.model_dump_json(exclude_none=True), media_type="application/json")


def _judge_name(service: Service, model: str) -> str:
    """Return the name of the judge that `model` means: its own name, or that of the model it judges with."""
    by_model = {judge.identity.model: name for name, judge in service.judges.items()}
    if model in service.names or model in by_model:
        return model if model in service.names else by_model[model]
    message = f"there is no judge {model!r}; use one of {', '.join(service.names)}"
    raise InvalidRequest(f"model: {message}", errors=(FieldError(field="model", message=message),))
