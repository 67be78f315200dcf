"""`POST /v1/compat/slime`: rewards for slime's `--rm-type remote_rm --rm-url`.

slime 0.3 sends `{prompt, response, label}` for each sample, and takes the whole answer as the reward: a number, or an
object of which `--reward-key` names the number. It waits for 120 s, tries ten times, and then raises, which stops
training.
"""

from typing import Annotated, Literal

from fastapi import Query, Request, Response
from pydantic import Field

from judge_server.api.compat.scoring import (
    CompatParameters,
    JudgeInputs,
    Label,
    read_group,
    score_responses,
)
from judge_server.api.http.problems import problem_responses
from judge_server.api.http.requests import api_router
from judge_server.api.http.responses import run_while_connected
from trainer_client.wire import ResponseReward
from trainer_client.wire.base import AnswerModel, RequestModel, is_unset
from trainer_client.wire.groups import Prompt

router = api_router("compat", "score", prefix="/v1/compat")


class SlimeParameters(CompatParameters):
    """The query of the URL. slime waits for 120 s, so the deadline is below that.

    Attributes:
        answer: `number` answers with the reward alone; `object` with a `SlimeReward`, for `--reward-key reward`.
    """

    deadline_s: float = Field(default=60.0, gt=0, le=110)
    answer: Literal["number", "object"] = "number"


class SlimeRequest(RequestModel):
    """What slime sends.

    Attributes:
        prompt: the sample's prompt, as text or messages.
        response: the response.
        label: the judge's inputs as an object, or the ground truth.
    """

    prompt: Prompt
    response: str
    label: Label = JudgeInputs()


class SlimeReward(AnswerModel):
    """What slime reads with `--reward-key`.

    Attributes:
        reward: the reward.
        status: `scored`, or `partial` if a policy gave the reward.
        criteria: the score of each criterion; null for one that failed.
        components: the component rewards by name, if `components` is in the query.
    """

    reward: float
    status: str
    criteria: dict[str, float | None]
    components: dict[str, float] = Field(default={}, exclude_if=is_unset)


@router.post(
    "/slime",
    summary="A reward for slime's --rm-type remote_rm",
    response_model=float | SlimeReward,
    responses=problem_responses(404, 413, 422, 429, 502, 503),
)
async def slime(
    request: Request,
    body: SlimeRequest,
    parameters: Annotated[SlimeParameters, Query()],
) -> Response:
    """The query of the URL says how to judge, and the label has the judge's inputs or the ground truth.

    A response without a reward fails the request.
    """
    group = await read_group(request, body.prompt, parameters.judged_text(body.response), body.label, "prompt")
    (scored,) = await run_while_connected(request, score_responses(request, parameters.request((group,))))
    answer = _reward(scored)
    content = repr(answer.reward) if parameters.answer == "number" else answer.model_dump_json()
    return Response(content, media_type="application/json")


def _reward(scored: ResponseReward) -> SlimeReward:
    assert scored.reward is not None  # `score_responses` raises otherwise
    criteria = {verdict.criterion: verdict.score for verdict in scored.verdicts}
    return SlimeReward(
        reward=float(scored.reward), status=scored.status, criteria=criteria, components=scored.known_components
    )
