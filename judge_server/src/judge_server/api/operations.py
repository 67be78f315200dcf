"""The routes of `/v1/operations`: submit, follow, read, cancel and retry long-running operations.

The routes use `Operations` and do no work themselves. The changes of an operation are sent as server-sent
events.
"""

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from typing import Annotated, Any

from fastapi import Header, Path, Query, Request, Response
from fastapi.responses import StreamingResponse

from judge_server.api.auth import identity_of, project_of
from judge_server.api.http.problems import problem_responses
from judge_server.api.http.requests import (
    LIMIT_DESCRIPTION,
    After,
    Limit,
    api_router,
    refuse_unusable_patterns,
    reject_unknown_cursor,
)
from judge_server.api.http.responses import NDJSON
from judge_server.api.idempotency import IdempotencyKey, run_idempotent
from judge_server.api.service import service_of
from judge_server.auth.authenticator import require_scope
from judge_server.errors import NotFound, invalid_field
from judge_server.observability.logs import bind_log_context
from judge_server.operations.service import Operations
from judge_server.ports.operations import MAX_PAGE_RESULTS
from trainer_client.wire.operations import (
    DiscriminateOperation,
    EvaluateOperation,
    Operation,
    OperationList,
    OperationRequest,
    ResultPage,
    ReverifyOperation,
    ScoreOperation,
)

log = logging.getLogger("adjudge")

EVENT_STREAM_MEDIA_TYPE = "text/event-stream"
SHUTDOWN_STATE_KEY = "stopping"
"""The key of an `asyncio.Event` in a request's state, which is set when the server begins to shut down."""

SSE_HEARTBEAT_INTERVAL_S = 15.0
"""The seconds without an event after which a comment is sent to keep the connection alive. If it is longer than a
proxy's idle limit (60), streams break."""

_HEARTBEAT = b": still here\n\n"

EVENT_SCHEMA: dict[str, Any] = {
    "type": "object",
    "description": "One event of the stream. Its data is an `Operation`, as JSON in one line.",
    "required": ["id", "event", "data"],
    "properties": {
        "id": {"type": "string", "pattern": "^[0-9]+$"},
        "event": {"const": "operation"},
        "data": {
            "type": "string",
            "contentMediaType": "application/json",
            "contentSchema": {"$ref": "#/components/schemas/Operation"},
        },
    },
}
"""The schema of an event in the OpenAPI document."""

router = api_router("operations", "read", "score", prefix="/v1/operations")

OperationId = Annotated[str, Path(pattern=r"^[A-Za-z0-9._-]{1,64}$", examples=["op-0123456789abcdef"])]


@router.post(
    "",
    name="submit_operation",
    summary="Submit an operation",
    status_code=202,
    responses={202: {"headers": {"Location": {"schema": {"type": "string"}}}}, **problem_responses(404, 413, 422, 503)},
)
async def submit(
    request: Request,
    response: Response,
    body: OperationRequest,
    idempotency_key: Annotated[
        str | None,
        Header(description="Submissions with the same key count as one.", min_length=1, max_length=256),
    ] = None,
) -> Operation:
    """The operation is stored before the response is sent, and a free worker runs it; `Location` is its URL.

    The request contains the inputs: a list, or the text of a JSONL file. If a line cannot be read, the whole request is
    rejected. Rubric references are resolved now, so versions published later have no effect.
    """
    if body.kind in ("generate_rubrics", "validate_rubrics"):
        require_scope(identity_of(request), "rubrics:write")
    if isinstance(body, ScoreOperation | ReverifyOperation | EvaluateOperation | DiscriminateOperation):
        own = [] if isinstance(body, ReverifyOperation) else [group.rubric for group in body.groups]
        await refuse_unusable_patterns(service_of(request).checker, project_of(request), body.rubric, own)
    parameters = await asyncio.to_thread(body.model_dump, mode="json", exclude_unset=True, exclude={"kind"})
    try:
        operations = service_of(request).running_operations()
        operation = await operations.submit(project_of(request), body.kind, parameters, submission=idempotency_key)
    except ValueError as error:
        raise invalid_field("", str(error)) from None
    bind_log_context(operation_id=operation.id)
    response.headers["Location"] = f"/v1/operations/{operation.id}"
    return operation


@router.get("", summary="List operations", responses=problem_responses(422, 503))
async def list_operations(request: Request, after: After = None, limit: Limit = 100) -> OperationList:
    """Newest first. A `request` of more than 16 KiB is returned empty."""
    work = service_of(request).running_operations().list(project_of(request), after=after, limit=limit)
    return await reject_unknown_cursor(work)


@router.get("/{id}", summary="Read an operation", responses=problem_responses(404, 422, 503))
async def read_operation(request: Request, id: OperationId) -> Operation:
    """Its state, progress and usage, and its error if it failed."""
    return await service_of(request).running_operations().get(project_of(request), id)


@router.delete("/{id}", summary="Cancel an operation", responses=problem_responses(404, 422, 503))
async def cancel_operation(request: Request, id: OperationId) -> Operation:
    """Results that exist are kept. An operation that has ended is left as it is."""
    return await service_of(request).running_operations().cancel(project_of(request), id)


@router.post(
    "/{id}/retry",
    summary="Retry an operation",
    response_model=Operation,
    responses=problem_responses(404, 409, 422, 503),
)
async def retry_operation(request: Request, id: OperationId, idempotency_key: IdempotencyKey = None) -> Response:
    """Continue an operation that failed or was cancelled from where it stopped. Any other is left as it is.

    A request that is repeated with its `Idempotency-Key` gets the same response again and starts no further retry.
    """

    async def work() -> Response:
        operation = await service_of(request).running_operations().retry(project_of(request), id)
        return Response(operation.model_dump_json(), media_type="application/json")

    return await run_idempotent(request, idempotency_key, work)


class _EventStreamResponse(Response):
    media_type = EVENT_STREAM_MEDIA_TYPE


@router.get(
    "/{id}/events",
    summary="Follow an operation",
    response_class=_EventStreamResponse,
    responses={
        200: {"content": {EVENT_STREAM_MEDIA_TYPE: {"schema": EVENT_SCHEMA}}},
        **problem_responses(404, 422, 503),
    },
)
async def operation_events(
    request: Request,
    id: OperationId,
    last_event_id: Annotated[str | None, Header(description="The last revision that the client has seen.")] = None,
) -> Response:
    """Server-sent events: the operation, as `GET` returns it, after each change; the stream ends with the operation.

    The id of an event is the operation's revision, so a client that reconnects with `Last-Event-ID` misses nothing.
    Changes in quick succession are sent as one. A comment every 15 seconds keeps the connection alive.
    """
    after = _revision(last_event_id)
    operations, project_id = service_of(request).running_operations(), project_of(request)
    await operations.get(project_id, id)  # raise before the status 200 is sent
    stopping = getattr(request.state, SHUTDOWN_STATE_KEY, None) or asyncio.Event()
    stream = event_stream(operations.events(project_id, id, after=after), stopping)
    return StreamingResponse(
        stream, media_type=EVENT_STREAM_MEDIA_TYPE, headers={"Cache-Control": "no-store", "X-Accel-Buffering": "no"}
    )


@router.get(
    "/{id}/results",
    summary="Read the results of an operation",
    response_model=ResultPage,
    responses={
        200: {"content": {NDJSON: {"schema": {"type": "object"}}}},
        **problem_responses(404, 422, 503),
    },
)
async def operation_results(
    request: Request,
    id: OperationId,
    after: Annotated[int, Query(ge=0, le=2**63 - 1, description="The `next_cursor` of the previous page.")] = 0,
    limit: Annotated[int, Query(ge=1, le=MAX_PAGE_RESULTS, description=LIMIT_DESCRIPTION)] = 100,
) -> Response:
    """In the order of their creation; `index` is the position of the input.

    With `Accept: application/x-ndjson`, all results behind `after` are returned, one per line.
    """
    operations, project_id = service_of(request).running_operations(), project_of(request)
    as_lines = NDJSON in request.headers.get("accept", "")
    page = await operations.results(project_id, id, after=after, limit=MAX_PAGE_RESULTS if as_lines else limit)
    if as_lines:
        return StreamingResponse(_lines(operations, project_id, id, page), media_type=NDJSON)
    return Response(await asyncio.to_thread(page.model_dump_json), media_type="application/json")


async def event_stream(
    changes: AsyncIterator[Operation], stopping: asyncio.Event, heartbeat_s: float = SSE_HEARTBEAT_INTERVAL_S
) -> AsyncIterator[bytes]:
    """Encode an operation's changes as server-sent events, with heartbeat comments every `heartbeat_s` in between.

    The stream ends early if the store cannot be reached or the server begins to shut down; the client then reconnects
    to another server.
    """
    next_change = asyncio.ensure_future(anext(changes, None))
    shutdown = asyncio.ensure_future(stopping.wait())
    try:
        yield _HEARTBEAT
        while not stopping.is_set():
            done, _ = await asyncio.wait(
                {next_change, shutdown}, timeout=heartbeat_s, return_when=asyncio.FIRST_COMPLETED
            )
            if next_change not in done:
                yield _HEARTBEAT
                continue
            operation = next_change.result()
            if operation is None:
                return
            yield f"id: {operation.revision}\nevent: operation\ndata: {operation.model_dump_json()}\n\n".encode()
            next_change = asyncio.ensure_future(anext(changes, None))
    except (ConnectionError, NotFound) as error:
        log.warning("the event stream of an operation ends early: %s", error)
    finally:
        next_change.cancel()
        shutdown.cancel()
        await asyncio.gather(next_change, shutdown, return_exceptions=True)


def _revision(last_event_id: str | None) -> int:
    if last_event_id is None or not last_event_id.strip():
        return 0
    revision = last_event_id.strip()
    if not (revision.isascii() and revision.isdigit() and len(revision) < 19):
        message = f"{last_event_id[:50]!r} is not an event id; send the id of an event, or omit the header"
        raise invalid_field("Last-Event-ID", message)
    return int(revision)


async def _lines(operations: Operations, project_id: str, id_: str, page: ResultPage) -> AsyncIterator[bytes]:
    while page.results:
        yield await asyncio.to_thread(_encode_results, page)
        if page.next_cursor is None:
            return
        page = await operations.results(project_id, id_, after=int(page.next_cursor), limit=MAX_PAGE_RESULTS)


def _encode_results(page: ResultPage) -> bytes:
    return b"".join([json.dumps(result).encode() + b"\n" for result in page.results])
