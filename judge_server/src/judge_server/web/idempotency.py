"""`Idempotency-Key`: a request that is sent again is done once, and answered as it was.

What fails is forgotten, so that it may be tried again. Requests that are judged are done again, which costs no call
that succeeded, and are recorded once. Knows keys and digests; refuses to know what is asked.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from hashlib import sha256
from math import ceil
from typing import Annotated

from fastapi import Header, Request, Response

from judge_server.errors import InProgress
from judge_server.operations.passes import WORKERS
from judge_server.recording import Records
from judge_server.recording.tries import Tries
from judge_server.web.access import identity_of, project_of
from judge_server.web.problems import invalid_request
from judge_server.web.service import service_of
from trainer_client.wire import FieldError
from trainer_client.wire.idempotency import Claim, KeptAnswer
from trainer_client.wire.operation_rows import WILL_TRY_AGAIN

log = logging.getLogger("adjudge")

HEADER = "Idempotency-Key"
HOLD_S = 10.0
"""Seconds after which who began a request and neither ended nor failed is taken for dead."""

_PATIENCE_S = 1.0

IdempotencyKey = Annotated[
    str | None,
    Header(
        alias=HEADER,
        description="Requests with the same key are one, for 24 hours; a key that came with another one is refused.",
        min_length=1,
        max_length=256,
        examples=["0123456789abcdef"],
    ),
]


async def once(request: Request, key: str | None, work: Callable[[], Awaitable[Response]]) -> Response:
    """Do the work, or answer as it was answered when this request came before; without a key, just do it.

    Raises:
        InvalidRequest: the key came with another request.
        InProgress: the same request is being done now.
        ConnectionError: what the key stands for cannot be looked up now.
    """
    keys = service_of(request).keys
    if key is None or keys is None:
        return await work()
    project_id = project_of(request)
    claim = await _claimed(request, key, HOLD_S)
    if claim.answer is not None:
        return _replayed(claim.answer)
    if claim.wait_s:
        raise InProgress(
            "The same request is being worked on; send it again when it is done.", retry_after_s=ceil(claim.wait_s)
        )
    try:
        response = await work()
    except Exception:
        with suppress(ConnectionError):  # else it is free when its time is over
            await keys.let_go(project_id, key)
        raise
    answer = KeptAnswer(response.status_code, response.headers.get("Location"), bytes(response.body))
    try:
        await keys.keep(project_id, key, answer)
    except ConnectionError as error:
        log.warning("the answer to an %s is not kept: %s", HEADER, error)
    return response


async def record_of(request: Request, key: str | None) -> bytes | None:
    """The id that what is judged for this request is recorded under: the same each time that the key comes.

    None where there is no key, or none can be looked up now: judging does not wait for the database.

    Raises:
        InvalidRequest: the key came with another request.
    """
    if key is None or service_of(request).keys is None:
        return None
    try:
        async with asyncio.timeout(_PATIENCE_S):
            claim = await _claimed(request, key, 0.0)
    except (ConnectionError, TimeoutError) as error:
        why = error or f"the store has not answered within {_PATIENCE_S:g} s"
        log.warning("request %s is judged without regard to its %s: %s", request.state.request_id, HEADER, why)
        return None
    began = int(claim.first_at.timestamp() * 1e6).to_bytes(8, "big")
    return began + sha256(f"{project_of(request)}\0{key}".encode()).digest()[:8]


def recorder_of(request: Request) -> Records | None:
    """What takes over what is judged for this request, if anything; a worker is believed that it will ask again."""
    recorder, again = service_of(request).recorder, request.headers.get(WILL_TRY_AGAIN)
    if recorder is None or again is None or identity_of(request).actor != WORKERS:
        return recorder
    return Tries(recorder, again=again == "true")


async def _claimed(request: Request, key: str, hold_s: float) -> Claim:
    keys = service_of(request).keys
    assert keys is not None  # those who call this have looked
    about = f"{request.method} {request.url.path}?{request.url.query}\n".encode()
    asked = sha256(about + await request.body()).digest()
    try:
        return await keys.claim(project_of(request), key, asked, hold_s=hold_s)
    except ValueError as error:
        raise invalid_request((FieldError(field=HEADER, message=str(error)),)) from None


def _replayed(answer: KeptAnswer) -> Response:
    headers = {"Idempotent-Replayed": "true"}
    if answer.location is not None:
        headers["Location"] = answer.location
    return Response(answer.body, answer.status, headers, "application/json")
