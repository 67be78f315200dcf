"""`POST /v1/rewards/recompute`, answered line by line."""

import logging
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import aclosing
from typing import Any

from fastapi import APIRouter, Depends, Request, Response
from fastapi.responses import StreamingResponse

from judge_server.errors import NotReady, ServiceError
from judge_server.recomputing import recompute
from judge_server.telemetry.about import bind_log_context
from judge_server.web.access import RequiredScope, project_of
from judge_server.web.problems import INTERNAL_ERROR_DETAIL, problem_of, problem_responses
from judge_server.web.service import service_of
from judge_server.web.strict_json import StrictRoute
from trainer_client.wire.recompute import (
    RecomputedGroup,
    RecomputeEvent,
    RecomputeRequest,
    RecomputeStart,
    RecomputeSummary,
)

log = logging.getLogger("adjudge")

NDJSON = "application/x-ndjson"

router = APIRouter(
    prefix="/v1",
    tags=["rewards"],
    route_class=StrictRoute,
    dependencies=[Depends(RequiredScope("score", checks_budget=False))],
)


class _NdjsonResponse(Response):
    media_type = NDJSON


@router.post(
    "/rewards/recompute",
    summary="Reward a run again under another mode, other weights or budgets, from verdicts that are there",
    response_class=_NdjsonResponse,
    responses={
        200: {"model": RecomputeEvent, "description": "Lines of JSON."},
        **problem_responses(404, 413, 422, 502, 503),
    },
)
async def recompute_rewards(request: Request, body: RecomputeRequest) -> Response:
    """Asks no judge. A verdict that failed stays failed, and `on_failure` says what that makes of its response.

    Every line is a JSON object with one of these: `start` says how much there is, each `group` is one group as one
    request sent it, in the order they were judged, and last comes a `summary`, or a `problem` if something broke it
    off. What was judged twice comes twice.
    """
    ledger = service_of(request).readable_ledger()
    bind_log_context(run=body.run)
    stream = recompute(ledger, body, project_id=project_of(request))
    try:
        start = await anext(stream)  # what is wrong with the request is no 200
    except ConnectionError as error:
        raise _unreadable(error) from error
    return StreamingResponse(_lines(start, stream, request.state.request_id), media_type=NDJSON)


RecomputePart = RecomputeStart | RecomputedGroup | RecomputeSummary


async def _lines(
    start: RecomputePart, stream: AsyncGenerator[RecomputePart, None], request_id: str
) -> AsyncIterator[bytes]:
    async with aclosing(stream):
        yield _line(start=start)
        try:
            async for part in stream:
                yield _line(group=part) if isinstance(part, RecomputedGroup) else _line(summary=part)
        except (ServiceError, ConnectionError) as error:
            known = error if isinstance(error, ServiceError) else _unreadable(error)
            yield _line(problem=problem_of(known, request_id))
        except Exception:
            log.exception("request %s failed", request_id)
            yield _line(problem=problem_of(ServiceError(INTERNAL_ERROR_DETAIL), request_id))


def _unreadable(error: ConnectionError) -> NotReady:
    return NotReady(f"The ledger cannot be read now: {error}", retry_after_s=5)


def _line(**part: Any) -> bytes:
    return RecomputeEvent.model_construct(**part).model_dump_json(exclude_unset=True).encode() + b"\n"
