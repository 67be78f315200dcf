"""Every error as `application/problem+json`: ours, the framework's, and those nobody foresaw."""

import asyncio
import logging
import re
from typing import Any

from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import Response
from starlette.exceptions import HTTPException

from judge_server.api.responses import ClientDisconnected, add_headers, client_closed_response
from judge_server.errors import InvalidRequest, NotReady, ServiceError
from trainer_client.wire import FieldError, Problem, ProblemType
from trainer_client.wire.problems import field_errors

log = logging.getLogger("adjudge")

_FRAMEWORK_TYPES: dict[int, ProblemType] = {
    404: "urn:adjudge:not-found",
    405: "urn:adjudge:method-not-allowed",
}


_PARAMETER = re.compile(r"{\w+}")

INTERNAL_ERROR_DETAIL = "Something went wrong on our side; the server's log has the reason under the request id."

STORE_UNAVAILABLE_DETAIL = "What this needs is kept in a store that cannot be reached now; ask again in a moment."


def problem_of(error: ServiceError, request_id: str) -> Problem:
    """The problem that one of our errors is answered with."""
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
    """The response for one of our errors."""
    problem = problem_of(error, request_id)
    headers = {} if error.retry_after_s is None else {"Retry-After": str(error.retry_after_s)}
    if error.challenge is not None:
        headers["WWW-Authenticate"] = error.challenge
    return _response(problem, headers)


def install_problem_handlers(app: FastAPI) -> None:
    """Make the application answer every error with a problem."""

    @app.exception_handler(ServiceError)
    async def service_error(request: Request, error: ServiceError) -> Response:
        return problem_response(error, request.state.request_id)

    @app.exception_handler(ClientDisconnected)
    async def client_disconnected(request: Request, error: ClientDisconnected) -> Response:
        return client_closed_response()

    @app.exception_handler(RequestValidationError)
    async def invalid(request: Request, error: RequestValidationError) -> Response:
        return problem_response(invalid_request(field_errors(error.errors())), request.state.request_id)

    @app.exception_handler(HTTPException)
    async def framework_error(request: Request, error: HTTPException) -> Response:
        if isinstance(error.__cause__, ServiceError):  # raised while the framework read the body
            return problem_response(error.__cause__, request.state.request_id)
        if error.status_code == 400:  # the framework says this of JSON that is nested too deeply, for one
            unreadable = FieldError(field="", message="this cannot be read as JSON")
            return problem_response(invalid_request((unreadable,)), request.state.request_id)
        problem = Problem(
            type=_FRAMEWORK_TYPES.get(error.status_code, "urn:adjudge:invalid-request"),
            title=str(error.detail),
            status=error.status_code,
            detail=f"{request.method} {request.url.path}: {error.detail}. GET /docs lists what there is.",
            request_id=request.state.request_id,
            retryable=False,
        )
        headers = dict(error.headers or {})
        if error.status_code == 405:
            methods = await asyncio.to_thread(_methods_of, request)  # the first one makes the document
            headers["Allow"] = ", ".join(methods) or headers.get("Allow", "")
        return _response(problem, headers)

    @app.exception_handler(ConnectionError)
    async def store_unavailable(request: Request, error: ConnectionError) -> Response:
        log.warning("request %s needs a store that is away: %s", request.state.request_id, error)
        return problem_response(NotReady(STORE_UNAVAILABLE_DETAIL, retry_after_s=2), request.state.request_id)

    @app.exception_handler(Exception)
    async def internal_error(request: Request, error: Exception) -> Response:
        return problem_response(ServiceError(INTERNAL_ERROR_DETAIL), request.state.request_id)


def _methods_of(request: Request) -> list[str]:
    """The methods that a request's path takes, by the document; the framework names those of one of its routes."""
    app: FastAPI = request.app
    paths = app.openapi()["paths"]
    matching_paths = [path for path in paths if re.fullmatch(_PARAMETER.sub(".+", path), request.url.path)]
    closest = max(matching_paths, key=lambda path: len(_PARAMETER.sub("", path)), default="")
    return sorted(method.upper() for method in paths.get(closest, ()))


def invalid_request(errors: tuple[FieldError, ...]) -> InvalidRequest:
    """An `InvalidRequest` whose detail names the first field and says how many more are wrong."""
    first = errors[0]
    more = f" ({len(errors) - 1} more)" if len(errors) > 1 else ""
    return InvalidRequest(f"{first.field or 'body'}: {first.message}{more}", errors=errors)


def problem_responses(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """OpenAPI `responses` for these problem statuses."""
    meanings = {
        401: "There is no key, or none that opens anything.",
        403: "The key lacks the scope that the problem names.",
        404: "Nothing is there under that name.",
        408: "The body came too slowly.",
        409: "The same request, under the same `Idempotency-Key`, is being done; `Retry-After` says when to come back.",
        412: "The alias stands for another version than `If-Match` says; `current_version` is which.",
        413: "The body is above the size limit.",
        414: "The path and query are too long.",
        422: "The request is wrong; `errors` names the fields.",
        428: "The request says neither `If-Match` nor `If-None-Match`.",
        429: "The judge's queue is full, or the project has had its share; `Retry-After` says when to come back.",
        431: "The headers are too many or too large.",
        502: "Verdicts failed and the failure policy is `error`.",
        503: "Not ready to judge.",
    }
    if 413 in statuses:  # what takes a body may be sent one that comes too slowly
        statuses = (408, *statuses)
    schema = {"$ref": "#/components/schemas/Problem"}
    return {
        s: {"description": meanings[s], "content": {"application/problem+json": {"schema": schema}}} for s in statuses
    }


def _response(problem: Problem, headers: dict[str, str]) -> Response:
    headers = headers | {"X-Request-Id": problem.request_id}  # an unforeseen error is answered outside the boundary
    response = Response(problem.model_dump_json(exclude_none=True), problem.status, headers, "application/problem+json")
    add_headers(response.headers, "")
    return response
