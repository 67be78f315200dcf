"""The routes that judge: rewards, verdicts, comparisons and recompute.

- `POST /v1/rewards` responds with all groups together, or with one line per group as each is done.
- `POST /v1/verdicts` and `POST /v1/comparisons` return verdicts without rewards.
- `POST /v1/rewards/recompute` computes rewards from recorded verdicts, without the judge, and responds line by line.
"""

from collections.abc import Coroutine
from typing import Any

from fastapi import Request, Response
from pydantic import BaseModel

from judge_server.api.auth import identity_of, project_of
from judge_server.api.http.problems import event_line, lines_response, problem_responses
from judge_server.api.http.requests import api_router, refuse_unusable_patterns
from judge_server.api.http.responses import NDJSON, BlocksResponse, encode_json, run_while_connected
from judge_server.api.idempotency import IdempotencyKey, record_id_of
from judge_server.api.service import service_of
from judge_server.ledger.recorder import AttemptRecorder
from judge_server.observability.logs import bind_log_context
from judge_server.operations.worker_tokens import WORKER_ACTOR
from judge_server.ports.operations import WILL_RETRY_HEADER
from judge_server.scoring.planner import RecordSink
from judge_server.scoring.recompute import recompute
from judge_server.scoring.scorer import Scorer, StreamPart
from trainer_client.wire import (
    ComparisonAnswer,
    ComparisonRequest,
    GroupRewards,
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

rewards_router = api_router("rewards", "score")


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
    body: RewardRequest,
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
    scorer, ids = await prepare(request, body, idempotency_key)
    if NDJSON in request.headers.get("accept", ""):
        return await lines_response(request, scorer.stream(body, **ids), RewardEvent, _reward_line)
    return await _respond(request, scorer.score(body, **ids))


async def prepare(
    request: Request, body: RewardRequest | VerdictRequest, idempotency_key: str | None = None
) -> tuple[Scorer, dict[str, Any]]:
    """Prepare to judge a request: return a scorer, and the ids under which its work runs and is recorded.

    Raises:
        InvalidRequest: a pattern cannot be used, a judge is unknown, or the `Idempotency-Key` was used otherwise.
        NotReady: the judge has not started.
        Overloaded: the workers were too busy to compile the patterns.
    """
    service, project_id = service_of(request), project_of(request)
    bind_log_context(run=body.run)
    own = [group.rubric for group in body.groups]
    await refuse_unusable_patterns(service.checker, project_id, body.rubric, own, deadline_s=body.deadline_s)
    recorder: RecordSink | None = service.recorder
    if service.recorder is not None and _is_of_worker(request):
        will_retry = request.headers[WILL_RETRY_HEADER] == "true"
        recorder = AttemptRecorder(service.recorder, will_retry=will_retry)
    if isinstance(body, RewardRequest):
        recorder = service.recorder_for(body, recorder)
    scorer = service.scorer(body.judge, recorder)
    record_id = await record_id_of(request, idempotency_key)
    return scorer, {"request_id": request.state.request_id, "project_id": project_id, "record_id": record_id}


async def _respond(request: Request, work: Coroutine[Any, Any, BaseModel]) -> Response:
    """Respond with the answer; to a worker, whose chunk is then done, when its verdicts are in the ledger's spool."""

    async def encoded() -> list[bytes]:
        answer = await work
        recorder = service_of(request).recorder
        if recorder is not None and _is_of_worker(request):
            await recorder.spooled()
        return await encode_json(answer, take_apart=True)

    return BlocksResponse(await run_while_connected(request, encoded()))


def _is_of_worker(request: Request) -> bool:
    """Whether a worker asks, whose header says whether it will retry what fails."""
    return WILL_RETRY_HEADER in request.headers and identity_of(request).actor == WORKER_ACTOR


async def _reward_line(part: StreamPart) -> list[bytes]:
    if not isinstance(part, GroupRewards):
        return [event_line(RewardEvent, summary=part)]
    blocks = await encode_json(part, exclude_unset=True)
    blocks[0] = b'{"group":' + blocks[0]
    blocks[-1] += b"}\n"
    return blocks


verdicts_router = api_router("verdicts", "score")


@verdicts_router.post(
    "/verdicts",
    summary="Judge groups of responses by a rubric, without rewards",
    response_model=VerdictAnswer,
    responses=problem_responses(404, 413, 422, 429, 503),
)
async def verdicts(
    request: Request,
    body: VerdictRequest,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """One verdict per criterion and response. Any rubric can be used, since no reward is computed.

    As for rewards, a request that is repeated with its `Idempotency-Key` is recorded once.
    """
    scorer, ids = await prepare(request, body, idempotency_key)
    return await _respond(request, scorer.verdicts(body, **ids))


comparisons_router = api_router("comparisons", "score")


@comparisons_router.post(
    "/comparisons",
    summary="Judge which of two responses is better, in both orders",
    response_model=ComparisonAnswer,
    responses=problem_responses(404, 413, 422, 429, 503),
)
async def comparisons(
    request: Request,
    body: ComparisonRequest,
) -> Response:
    """Each pair is judged twice, with either response first; if the two orders disagree, the pair is a tie."""
    bind_log_context(run=body.run)
    scorer = service_of(request).scorer(body.judge, None)
    work = scorer.compare(body, request_id=request.state.request_id, project_id=project_of(request))
    return await _respond(request, work)


recompute_router = api_router("rewards", "score", checks_budget=False)


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
    bind_log_context(run=body.run)
    stream = recompute(service_of(request).readable_ledger(), body, project_id=project_of(request))
    return await lines_response(request, stream, RecomputeEvent, _recompute_line)


RecomputePart = RecomputeStart | RecomputedGroup | RecomputeSummary
_FIELD_OF = {RecomputeStart: "start", RecomputedGroup: "group", RecomputeSummary: "summary"}


async def _recompute_line(part: RecomputePart) -> list[bytes]:
    return [event_line(RecomputeEvent, **{_FIELD_OF[type(part)]: part})]
