"""Every error as `application/problem+json`: the service's own, the framework's, and unexpected ones."""

import asyncio
import logging
import re
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Mapping
from contextlib import aclosing
from typing import Any, TypeVar

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response, StreamingResponse
from pydantic import BaseModel
from starlette.exceptions import HTTPException

from judge_server.api.http.responses import (
    NDJSON,
    ClientDisconnected,
    add_headers,
    client_closed_response,
    run_while_connected,
)
from judge_server.errors import (
    AliasMoved,
    Forbidden,
    InProgress,
    InvalidRequest,
    JudgingFailed,
    MethodNotAllowed,
    NotFound,
    NotReady,
    Overloaded,
    PreconditionRequired,
    ServiceError,
    TooLarge,
    TooSlow,
    Unauthorized,
    UnsupportedMediaType,
    invalid_field,
    invalid_request,
)
from judge_server.observability.logs import describe_error
from trainer_client.wire import FieldError, Problem
from trainer_client.wire.problems import field_errors

log = logging.getLogger("adjudge")

PartT = TypeVar("PartT")

_FRAMEWORK_ERRORS: dict[int, type[ServiceError]] = {404: NotFound, 405: MethodNotAllowed}


_PARAMETER = re.compile(r"{\w+}")

INTERNAL_ERROR_DETAIL = "An unexpected error occurred; the server's log has the reason under the request id."


STORE_UNAVAILABLE_DETAIL = "The store that this request needs cannot be reached now; try again in a moment."


def problem_of(error: ServiceError, request_id: str) -> Problem:
    """The problem document of a service error."""
    return Problem(
        type=error.type,
        title=error.title,
        status=error.status,
        detail=error.detail,
        request_id=request_id,
        retryable=error.retryable,
        errors=error.errors,
        current_version=error.current_version,
    )


def problem_response(error: ServiceError, request_id: str) -> Response:
    """The response for a service error."""
    problem = problem_of(error, request_id)
    headers = {} if error.retry_after_s is None else {"Retry-After": str(error.retry_after_s)}
    if error.challenge is not None:
        headers["WWW-Authenticate"] = error.challenge
    return _response(problem, headers)


def install_problem_handlers(app: FastAPI) -> None:
    """Make the application return every error as a problem."""

    @app.exception_handler(ServiceError)
    async def service_error(request: Request, error: ServiceError) -> Response:
        return problem_response(error, request.state.request_id)

    @app.exception_handler(ClientDisconnected)
    async def client_disconnected(request: Request, error: ClientDisconnected) -> Response:
        return client_closed_response()

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        body = getattr(request.scope.get("route"), "body_field", None)
        message = None if body is None else body.field_info.annotation
        return problem_response(invalid_request(field_errors(error.errors(), message)), request.state.request_id)

    @app.exception_handler(HTTPException)
    async def framework_error(request: Request, error: HTTPException) -> Response:
        if isinstance(error.__cause__, ServiceError):  # raised while the framework read the body
            return problem_response(error.__cause__, request.state.request_id)
        if error.status_code == 400:  # such as for JSON that is nested too deeply
            unreadable = FieldError(field="", message="the body cannot be read as JSON")
            return problem_response(invalid_request((unreadable,)), request.state.request_id)
        problem = Problem(
            type=_FRAMEWORK_ERRORS.get(error.status_code, InvalidRequest).type,
            title=str(error.detail),
            status=error.status_code,
            detail=f"{request.method} {request.url.path}: {error.detail}. GET /docs lists the routes.",
            request_id=request.state.request_id,
            retryable=False,
        )
        headers = dict(error.headers or {})
        if error.status_code == 405:
            methods = await asyncio.to_thread(_methods_of, request)  # in a thread: the first call makes the document
            headers["Allow"] = ", ".join(methods) or headers.get("Allow", "")
        return _response(problem, headers)

    @app.exception_handler(ConnectionError)
    async def store_error(request: Request, error: ConnectionError) -> Response:
        request_id = request.state.request_id
        return problem_response(_store_unavailable(error, request_id), request_id)

    @app.exception_handler(Exception)
    async def internal_error(request: Request, error: Exception) -> Response:
        return problem_response(ServiceError(INTERNAL_ERROR_DETAIL), request.state.request_id)


def _methods_of(request: Request) -> list[str]:
    """The methods of a request's path in the OpenAPI document; the framework gives those of a single route."""
    app: FastAPI = request.app
    paths = app.openapi()["paths"]
    matching_paths = [path for path in paths if re.fullmatch(_PARAMETER.sub(".+", path), request.url.path)]
    closest = max(matching_paths, key=lambda path: len(_PARAMETER.sub("", path)), default="")
    return sorted(method.upper() for method in paths.get(closest, ()))


_DESCRIBED: Mapping[int, tuple[str, ServiceError]] = {
    401: (
        "The API key is missing or invalid.",
        Unauthorized("An API key is needed. Send it as Authorization: Bearer adj_…"),
    ),
    403: (
        "The key lacks the scope that the problem names.",
        Forbidden("This key lacks the scope 'score'. Its scopes are: read."),
    ),
    404: ("Not found.", NotFound("There is nothing under that name in this project.")),
    408: (
        "The body arrived too slowly.",
        TooSlow("the body arrived too slowly: 4096 bytes so far; send it within 30 s"),
    ),
    409: (
        "The same request, with the same `Idempotency-Key`, is in progress; `Retry-After` says when to try again.",
        InProgress("The same request is still being processed; send it again when it is done."),
    ),
    412: (
        "The alias does not point to the version in `If-Match`; `current_version` is the one it points to.",
        AliasMoved("math/primes@production points to version 3, not 2.", 3),
    ),
    413: ("The body exceeds the size limit.", TooLarge("the body is larger than the 67108864 bytes allowed")),
    414: (
        "The path and query are too long.",
        TooLarge("The path and query are too long; send long texts in a body."),
    ),
    415: (
        "The body is not JSON by its `Content-Type`.",
        UnsupportedMediaType("This route takes JSON, not 'text/plain'; send Content-Type: application/json."),
    ),
    422: (
        "The request is invalid; `errors` names the fields.",
        invalid_field("groups", "needs at least 1, has 0"),
    ),
    428: (
        "The request has neither `If-Match` nor `If-None-Match`.",
        PreconditionRequired("A precondition is required: send If-Match."),
    ),
    429: (
        "The queue is full, or the project has reached a limit; `Retry-After` says when to try again.",
        Overloaded("the queue of the judge is full; try again later"),
    ),
    431: ("The headers are too many or too large.", TooLarge("The headers are too many or too large.")),
    502: (
        "A verdict failed and the failure policy is `error`.",
        JudgingFailed("1 of 4 verdicts failed, and on_failure is 'error'"),
    ),
    503: (
        "The service, or a store it needs, is not ready.",
        NotReady("The judge is still loading; try again in a moment."),
    ),
}
"""By status: when a route responds with it, and an example."""


def problem_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI `responses` for these problem statuses, each with an example."""
    if 413 in statuses:  # every route with a body may also respond with 408 and 415
        statuses = (408, *statuses, 415)
    return {status: _described(status) for status in statuses}


def _described(status: int) -> dict[str, Any]:
    meaning, error = _DESCRIBED[status]
    example = problem_of(error, "req_5d41402abc4b2a76").model_copy(update={"status": status})
    content = {"schema": {"$ref": "#/components/schemas/Problem"}, "example": example.model_dump(exclude_none=True)}
    return {"description": meaning, "content": {"application/problem+json": content}}


def _response(problem: Problem, headers: dict[str, str]) -> Response:
    headers = headers | {"X-Request-Id": problem.request_id}  # unexpected errors are handled outside the boundary
    response = Response(problem.model_dump_json(exclude_none=True), problem.status, headers, "application/problem+json")
    add_headers(response.headers, "")
    return response


async def lines_response(
    request: Request,
    stream: AsyncGenerator[PartT, None],
    event: type[BaseModel],
    encode: Callable[[PartT], Awaitable[list[bytes]]],
) -> Response:
    """Respond with the parts of a stream as lines of JSON; if it fails midway, the last line is a problem.

    The first part is awaited before the response begins, so that a request that is refused has the status of its error.
    Each line is an `event`, whose field `problem` is that of an error; `encode` writes the others, in blocks.
    """
    request_id = request.state.request_id
    first = await run_while_connected(request, anext(stream))

    async def lines() -> AsyncIterator[bytes]:
        async with aclosing(stream):
            for block in await encode(first):
                yield block
            error: ServiceError
            try:
                async for part in stream:
                    for block in await encode(part):
                        yield block
                return
            except ServiceError as raised:
                error = raised
            except ConnectionError as raised:
                error = _store_unavailable(raised, request_id)
            except Exception:
                log.exception("request %s failed", request_id)
                error = ServiceError(INTERNAL_ERROR_DETAIL)
            yield event_line(event, problem=problem_of(error, request_id))

    return StreamingResponse(lines(), media_type=NDJSON)


def event_line(event: type[BaseModel], **part: object) -> bytes:
    """Encode an event with one field, which is not validated, as a line."""
    return event.model_construct(**part).model_dump_json(exclude_unset=True).encode() + b"\n"  # type: ignore[arg-type]


def _store_unavailable(error: ConnectionError, request_id: str) -> NotReady:
    log.warning("request %s needs a store that cannot be reached: %s", request_id, error)
    return NotReady(f"{STORE_UNAVAILABLE_DETAIL} ({describe_error(error)})", retry_after_s=2)
