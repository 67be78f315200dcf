"""`/v1/compat/roll/…`: rewards for ROLL's `RemoteRewardSystemWorker`, which submits a response and then polls.

ROLL 0.3 posts a task to `submit_url` and reads `errcode` and `reward_request_id`; then it asks `get_result_url`, by a
GET with a JSON body, every 2 s until `errcode` is 0 (done; 1 means in progress) or the task's `timeout` has passed. It
submits a task whose `reward_score` is null again, five times, and then counts it as 0. A response that could not be
judged therefore gets the reason as its `reward_score`: ROLL cannot make a tensor of text, so the step fails.

The results are kept for a day in the database that all replicas share, since a poll may reach another replica.
"""

import asyncio
import logging
import secrets
from hashlib import sha256
from typing import Annotated, Literal

from fastapi import Body, FastAPI, Query, Request
from pydantic import Field, JsonValue

from judge_server.api.auth import project_of
from judge_server.api.compat.scoring import (
    CompatParameters,
    JudgeInputs,
    Label,
    read_group,
    score_responses,
)
from judge_server.api.http.problems import INTERNAL_ERROR_DETAIL, problem_responses
from judge_server.api.http.requests import api_router
from judge_server.api.service import required, service_of
from judge_server.errors import NotReady, ServiceError, invalid_field
from judge_server.ports import IdempotencyKeys
from rubric_store.tenants.rows import StoredAnswer
from trainer_client.wire import RewardRequest
from trainer_client.wire.base import AnswerModel, RequestModel

log = logging.getLogger("adjudge")

POLL_MARGIN_S = 10.0
"""The seconds before ROLL's timeout at which a task ends at the latest, so that a poll still gets its result."""

MAX_TASKS = 20_000
"""The maximum number of tasks in progress in one process."""

_PREFIX = "roll-"
_DIGEST = sha256(b"POST /v1/compat/roll/submit_task").digest()

router = api_router("compat", "score", prefix="/v1/compat/roll")


class RollTask(RequestModel):
    """What ROLL submits.

    Attributes:
        prompt: the prompt.
        response: the response.
        reward_info: the judge's inputs as an object, or the ground truth.
        project_id: not used: the key says which project it is.
        experiment_id: not used: `run` in the query of the URL names the run.
        global_step: the training step to record.
        data_id: not used.
        rollout_id: not used.
        priority: not used.
        reward_manager: must be empty; options belong into the query of the URL.
        timeout: seconds that ROLL waits for the result.
    """

    prompt: str
    response: str
    reward_info: Label = JudgeInputs()
    project_id: str = ""
    experiment_id: str = ""
    global_step: int | str = 0
    data_id: JsonValue = None
    rollout_id: JsonValue = None
    priority: int = 1
    reward_manager: tuple[dict[str, JsonValue], ...] = Field(default=(), max_length=64)
    timeout: float = Field(default=300, gt=POLL_MARGIN_S, le=3600)


class RollSubmission(AnswerModel):
    """The answer to a submitted task.

    Attributes:
        errcode: 0: the task is accepted.
        reward_request_id: the task's id, for `GET` or `POST` of its result.
    """

    errcode: Literal[0] = 0
    reward_request_id: str


class RollPoll(RequestModel):
    """The task whose result ROLL asks for.

    Attributes:
        reward_request_id: the id that the submission returned.
    """

    reward_request_id: Annotated[str, Field(pattern=r"^roll-[0-9a-f]{32}$")]


class RollResult(AnswerModel):
    """The state of a task.

    Attributes:
        errcode: 0 if it has ended, 1 if it is in progress.
        errmsg: why it has no reward; empty otherwise.
        reward_score: the reward; the reason, as text, if judging failed; null if the task is lost, so that ROLL submits
            it again.
        dimention_reward_score: the score of each criterion, or of each component if `components` is in the query, under
            the name that ROLL reads.
    """

    errcode: Literal[0, 1]
    errmsg: str = ""
    reward_score: float | str | None = None
    dimention_reward_score: dict[str, dict[str, float | None]] = Field(default_factory=dict)


class RollTasks:
    """The tasks in progress in this process."""

    def __init__(self) -> None:
        self._running: set[asyncio.Task[None]] = set()

    def start(self, request: Request, keys: IdempotencyKeys, name: str, work: RewardRequest) -> None:
        """Judge a response and store its result; raises `NotReady` if too many tasks are in progress."""
        if len(self._running) >= MAX_TASKS:
            raise NotReady(f"{MAX_TASKS:,} tasks are in progress here already; try again later", retry_after_s=5)
        task = asyncio.create_task(_judge(request, keys, name, work))
        self._running.add(task)
        task.add_done_callback(self._running.discard)

    async def close(self) -> None:
        """Cancel the tasks. ROLL submits them again when their claims have expired."""
        running = list(self._running)
        for task in running:
            task.cancel()
        await asyncio.gather(*running, return_exceptions=True)


@router.post(
    "/submit_task",
    summary="Submit a response for ROLL's reward system worker",
    responses=problem_responses(413, 422, 503),
)
async def submit_roll_task(
    request: Request,
    body: RollTask,
    parameters: Annotated[CompatParameters, Query()],
) -> RollSubmission:
    """The response is judged after the answer is sent. The query of the URL says how, as for the other trainers."""
    if body.reward_manager:
        message = "is not read here; leave reward_manager_config empty, and put the options into submit_url's query"
        raise invalid_field("reward_manager", message)
    group = await read_group(request, body.prompt, parameters.judged_text(body.response), body.reward_info, "prompt")
    deadline_s = min(parameters.deadline_s, body.timeout - POLL_MARGIN_S)
    work = parameters.request((group,), step=_step(body.global_step)).model_copy(update={"deadline_s": deadline_s})
    keys, name = _keys(request), f"{_PREFIX}{secrets.token_hex(16)}"
    await keys.claim(project_of(request), name, _DIGEST, hold_s=deadline_s + POLL_MARGIN_S)
    _tasks(request.app).start(request, keys, name, work)
    return RollSubmission(reward_request_id=name)


@router.get(
    "/task_result",
    summary="Read the reward of a task of ROLL's reward system worker",
    responses=problem_responses(413, 422, 503),
)
async def roll_task_result(request: Request, body: Annotated[RollPoll, Body()]) -> RollResult:
    """The reward if the response is judged. The task is named in a JSON body, as ROLL does for this GET."""
    claim = await _keys(request).claim(project_of(request), body.reward_request_id, _DIGEST)
    if claim.answer is not None:
        return RollResult.model_validate_json(claim.answer.body)
    if claim.wait_s:
        return RollResult(errcode=1, errmsg="in progress")
    return RollResult(errcode=0, errmsg="this task is unknown or was lost when a process ended; submit it again")


async def _judge(request: Request, keys: IdempotencyKeys, name: str, work: RewardRequest) -> None:
    project_id = project_of(request)
    try:
        (scored,) = await score_responses(request, work)
        scores: dict[str, float | None] = {verdict.criterion: verdict.score for verdict in scored.verdicts}
        if work.reward.components is not None:
            scores = {**scored.known_components}
        dimensions = {name: {"score": score} for name, score in scores.items()}
        result = RollResult(errcode=0, reward_score=scored.reward, dimention_reward_score=dimensions)
    except ServiceError as error:
        result = _failed(error.detail)
    except Exception:
        log.exception("the task %s failed", name)
        result = _failed(INTERNAL_ERROR_DETAIL)
    try:
        await keys.store_answer(project_id, name, StoredAnswer(200, None, result.model_dump_json().encode()))
    except ConnectionError as error:
        log.warning("the result of the task %s cannot be stored, so the trainer submits it again: %s", name, error)


def _failed(reason: str) -> RollResult:
    return RollResult(errcode=0, errmsg=reason, reward_score=f"no reward: {reason}")


def _tasks(app: FastAPI) -> RollTasks:
    tasks: RollTasks = app.state.roll_tasks
    return tasks


def _keys(request: Request) -> IdempotencyKeys:
    return required(service_of(request).idempotency_keys, "keeps no results")


def _step(step: int | str) -> int | None:
    try:
        return max(int(step), 0)
    except ValueError:
        return None
