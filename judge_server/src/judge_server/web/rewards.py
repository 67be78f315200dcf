"""`POST /v1/rewards`."""

from typing import Annotated, Any

from fastapi import APIRouter, Body, Request, Response

from judge_server.rubrics import PROJECT_ID
from judge_server.web.problems import documented
from judge_server.web.service import service_of
from trainer_client.wire import RewardAnswer, RewardRequest

router = APIRouter(prefix="/v1", tags=["rewards"])

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
    responses=documented(404, 413, 422, 429, 502, 503),
)
async def rewards(
    request: Request,
    body: Annotated[RewardRequest, Body(openapi_examples={"stepwise": {"summary": "Step-wise", "value": EXAMPLE}})],
) -> Response:
    """Answers when every response is judged or the deadline has passed, whichever comes first.

    A verdict that the judge failed to give has `status: failed` and no score, and by default leaves its response
    without a reward: `on_failure` says what else to do.
    """
    answer = await service_of(request).scorer().score(body, request_id=request.state.request_id, project_id=PROJECT_ID)
    return Response(answer.model_dump_json(), media_type="application/json")
