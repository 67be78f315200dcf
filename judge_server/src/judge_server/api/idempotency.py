"""`Idempotency-Key`: a repeated request is processed once, and its first response is sent again.

A failed request releases its key, so that it may be tried again. Requests that judge are judged again, which repeats no
call that succeeded, and are recorded once.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from hashlib import sha256
from math import ceil
from typing import Annotated

from fastapi import Header, Request, Response

from judge_server.api.auth import project_of
from judge_server.api.service import service_of
from judge_server.errors import InProgress, invalid_field
from rubric_store.tenants.rows import KeyClaim, StoredAnswer

log = logging.getLogger("adjudge")

IDEMPOTENCY_HEADER = "Idempotency-Key"
HOLD_S = 10.0
"""The seconds after which a request that has neither succeeded nor failed loses its claim on the key."""

_LOOKUP_TIMEOUT_S = 5.0
"""How long judging waits for a key: a loaded SQLite takes seconds, and without the key a repetition counts twice."""

IdempotencyKey = Annotated[
    str | None,
    Header(
        alias=IDEMPOTENCY_HEADER,
        description="Requests with the same key within 24 hours count as one; "
        "a key that was used for a different request is rejected.",
        min_length=1,
        max_length=256,
        examples=["0123456789abcdef"],
    ),
]


async def run_idempotent(request: Request, key: str | None, work: Callable[[], Awaitable[Response]]) -> Response:
    """Do the work, or replay the response to an earlier request with this key; without a key, just do the work.

    Raises:
        InvalidRequest: the key was used for a different request.
        InProgress: the same request is still being processed.
        ConnectionError: the key cannot be looked up now.
    """
    keys = service_of(request).idempotency_keys
    if key is None or keys is None:
        return await work()
    project_id = project_of(request)
    claim = await _claim(request, key, HOLD_S)
    if claim.answer is not None:
        return _replay(claim.answer)
    if claim.wait_s:
        raise InProgress(
            "The same request is still being processed; send it again when it is done.",
            retry_after_s=ceil(claim.wait_s),
        )
    try:
        response = await work()
    except Exception:
        with suppress(ConnectionError):  # if it cannot be released, the claim expires
            await keys.release(project_id, key)
        raise
    answer = StoredAnswer(response.status_code, response.headers.get("Location"), bytes(response.body))
    try:
        await keys.store_answer(project_id, key, answer)
    except ConnectionError as error:
        log.warning("the response for an %s could not be stored: %s", IDEMPOTENCY_HEADER, error)
    return response


async def record_id_of(request: Request, key: str | None) -> bytes | None:
    """The id under which this request is recorded, which is the same for every request with the key.

    It is None if there is no key, or if the key cannot be looked up now: judging does not wait for the database.

    Raises:
        InvalidRequest: the key was used for a different request.
    """
    if key is None or service_of(request).idempotency_keys is None:
        return None
    try:
        async with asyncio.timeout(_LOOKUP_TIMEOUT_S):
            claim = await _claim(request, key, 0.0)
    except (ConnectionError, TimeoutError) as error:
        why = error or f"the store did not answer within {_LOOKUP_TIMEOUT_S:g} s"
        log.warning("request %s is judged and its %s ignored: %s", request.state.request_id, IDEMPOTENCY_HEADER, why)
        return None
    first_at = int(claim.first_at.timestamp() * 1e6).to_bytes(8, "big")
    return first_at + sha256(f"{project_of(request)}\0{key}".encode()).digest()[:8]


async def _claim(request: Request, key: str, hold_s: float) -> KeyClaim:
    keys = service_of(request).idempotency_keys
    assert keys is not None  # checked by the callers
    request_line = f"{request.method} {request.url.path}?{request.url.query}\n".encode()
    request_digest = sha256(request_line + await request.body()).digest()
    try:
        return await keys.claim(project_of(request), key, request_digest, hold_s=hold_s)
    except ValueError as error:
        raise invalid_field(IDEMPOTENCY_HEADER, str(error)) from None


def _replay(answer: StoredAnswer) -> Response:
    headers = {"Idempotent-Replayed": "true"}
    if answer.location is not None:
        headers["Location"] = answer.location
    return Response(answer.body, answer.status, headers, "application/json")
