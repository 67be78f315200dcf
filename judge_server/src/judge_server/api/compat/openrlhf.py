"""`POST /v1/compat/openrlhf`: rewards for OpenRLHF's `--reward.remote_url`.

OpenRLHF 0.11 sends `{query, prompts, labels}` with one response in each list: a query is the prompt and the response as
one text, with the chat template and special tokens. It reads `rewards`, `scores` (in [0, 1], for its dynamic filter)
and `extra_logs`. It waits for 180 s, tries five times, and then stops training, because a reward is missing.
"""

from typing import Annotated

from fastapi import Query, Request
from pydantic import Field, model_validator

from judge_server.api.compat.scoring import CompatParameters, Label, read_group, score_responses
from judge_server.api.http.problems import problem_responses
from judge_server.api.http.requests import api_router
from judge_server.api.http.responses import run_while_connected
from judge_server.errors import invalid_field
from judge_server.scheduling.time_sharing import TimeSlicer
from trainer_client.wire.base import AnswerModel, RequestList, RequestModel

router = api_router("compat", "score", prefix="/v1/compat")


class OpenRLHFParameters(CompatParameters):
    """The query of the URL. OpenRLHF waits for 180 s, so the deadline is below that."""

    deadline_s: float = Field(default=60.0, gt=0, le=170)


class OpenRLHFRequest(RequestModel):
    """What OpenRLHF sends: one element of each list for every response.

    Attributes:
        query: prompt and response as one text; each begins with its prompt.
        prompts: the prompts.
        labels: the judge's inputs as an object, or the ground truth.
    """

    query: RequestList[str] = Field(min_length=1, max_length=4096)
    prompts: RequestList[str] = Field(min_length=1, max_length=4096)
    labels: RequestList[Label] = Field(min_length=1, max_length=4096)

    @model_validator(mode="after")
    def _lists_are_equally_long(self) -> "OpenRLHFRequest":
        if not len(self.query) == len(self.prompts) == len(self.labels):
            raise ValueError(
                f"query, prompts and labels have {len(self.query)}, {len(self.prompts)} and {len(self.labels)} "
                "elements; send one of each for every response"
            )
        return self


class OpenRLHFAnswer(AnswerModel):
    """What OpenRLHF reads.

    Attributes:
        rewards: the reward of each response.
        scores: the same between 0 and 1, for its dynamic filter.
        extra_logs: figures for its log, one for each response: the reward as `rubric`, and as `rubric/NAME` each
            component that all responses of the request have.
    """

    rewards: tuple[float, ...]
    scores: tuple[float, ...]
    extra_logs: dict[str, tuple[float, ...]]


@router.post(
    "/openrlhf",
    summary="Rewards for OpenRLHF's --reward.remote_url",
    responses=problem_responses(404, 413, 422, 429, 502, 503),
)
async def openrlhf(
    request: Request,
    body: OpenRLHFRequest,
    parameters: Annotated[OpenRLHFParameters, Query()],
) -> OpenRLHFAnswer:
    """The query of the URL says how to judge, and a label has the judge's inputs or the ground truth.

    A query that does not begin with its prompt is refused. A response without a reward fails the request.
    """
    groups, slicer = [], TimeSlicer()
    for place, (query, prompt, label) in enumerate(zip(body.query, body.prompts, body.labels, strict=True)):
        await slicer.yield_if_due()
        response = parameters.judged_text(_response_of(query, prompt, place))
        groups.append(await read_group(request, prompt, response, label, f"prompts.{place}"))
    distinct = tuple(group.model_copy(update={"id": f"{group.id}-{n}"}) for n, group in enumerate(groups))
    work = parameters.request(tuple(groups) if len(groups) == 1 else distinct)
    scored = await run_while_connected(request, score_responses(request, work))
    rewards = tuple(response.reward for response in scored if response.reward is not None)
    components = [response.known_components for response in scored]
    names = [name for name in components[0] if all(name in own for own in components)]
    logs = {f"rubric/{name}": tuple([own[name] for own in components]) for name in names}
    return OpenRLHFAnswer(
        rewards=rewards,
        scores=tuple(min(max(r, 0.0), 1.0) for r in rewards),
        extra_logs={"rubric": rewards, **logs},
    )


def _response_of(query: str, prompt: str, place: int) -> str:
    if prompt and query.startswith(prompt):
        return query[len(prompt) :]
    message = (
        "does not begin with its prompt, so the response cannot be told from it; the prompt was cut to fit "
        "--data.max_len, or the tokenizer does not give its text back. Use a reward_func file "
        "(docs/how-to/train-with-openrlhf.md)"
        if prompt
        else "has an empty prompt, so the response cannot be told from it"
    )
    raise invalid_field(f"query.{place}", message)
