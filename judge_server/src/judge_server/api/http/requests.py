"""Reading requests: bodies with limits, their validation off the event loop, cursors."""

import asyncio
import re
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine, Iterator, Sequence
from typing import Annotated, Any, TypeVar

from fastapi import APIRouter, Depends, Query, Request, Response
from fastapi._compat import ModelField
from fastapi.routing import APIRoute
from pydantic import ValidationError
from starlette.requests import ClientDisconnect

from judge_server.api.auth import RequiredScope, project_of
from judge_server.api.http.bodies import (
    MessageType,
    ReadBody,
    assemble,
    init_worker,
    parse_strict_json,
    read_in_worker,
    validated,
)
from judge_server.api.http.responses import ClientDisconnected, run_while_connected
from judge_server.errors import NotReady, Overloaded, TooLarge, UnsupportedMediaType, invalid_field
from judge_server.scheduling.checker import Checker, CheckOwner, CheckScheduler
from judge_server.scheduling.time_sharing import run_in_thread
from judge_server.scheduling.worker_pool import WorkerExited, WorkerPool
from trainer_client.wire import Criterion, RubricContent
from trainer_client.wire.criteria import RegexVerification
from trainer_client.wire.tenants import Scope as KeyScope

T = TypeVar("T")

LIMIT_DESCRIPTION = "The most entries of the page."

After = Annotated[
    str | None,
    Query(description="The `next_cursor` of the previous page; the first page by default.", max_length=2000),
]
Limit = Annotated[int, Query(ge=1, le=500, description=LIMIT_DESCRIPTION)]


async def reject_unknown_cursor(page: Awaitable[T]) -> T:
    """Read a page; raises `InvalidRequest` for a cursor that no page has given, which stores report as `ValueError`."""
    try:
        return await page
    except ValidationError:  # of what is stored
        raise
    except ValueError as error:
        raise invalid_field("after", str(error)) from None


INLINE_PARSE_MAX_BYTES = 32 * 1024
"""A body of up to this size is parsed on the event loop; that takes a few milliseconds, whatever it contains."""

WORKER_PARSE_MIN_BYTES = 256 * 1024
"""A body above this size is parsed and validated in a worker process."""

LONG_READ_MIN_BYTES = 4 * 2**20
"""Bodies above this size leave one worker to the others."""

READ_TIMEOUT_S = 60.0
"""The maximum time in seconds that a worker may take to read a body."""

MAX_BODIES = 8
"""Large bodies in progress may have this many times the maximum size of one body together."""

_WORKERS = 2
_WORKER_MEMORY_MB = 2048
_BODIES_PER_WORKER = 32
_RETRY_AFTER_S = 2


class BodyReader:
    """Reads bodies. Its worker processes start with the first large body.

    Args:
        max_bytes: how many bytes the large bodies of all requests in progress may have together. A project
            that holds less than its equal share may exceed it, up to twice the limit in all.
        worker_min_bytes: the size above which a body is large, and is parsed and validated in a worker process.
    """

    def __init__(self, max_bytes: int, worker_min_bytes: int = WORKER_PARSE_MIN_BYTES) -> None:
        self._max_bytes = max_bytes
        self.worker_min_bytes = worker_min_bytes
        self._held: Counter[str] = Counter()
        self._pool = WorkerPool(_WORKERS, init_worker, (_WORKER_MEMORY_MB,), tasks_per_worker=_BODIES_PER_WORKER)
        self._scheduler = CheckScheduler(_WORKERS)

    async def close(self) -> None:
        """End the worker processes."""
        await self._pool.close()

    async def receive(self, request: Request, project_id: str) -> "ReceivedBody":
        """Receive a body; the caller releases it when the request is done.

        Raises:
            ClientDisconnect: the caller disconnected before the body was complete.
            Overloaded: too many bytes of large bodies are in progress.
        """
        received = ReceivedBody(self._held, project_id)
        parts: list[bytes] = []
        size = 0
        try:
            async for part in request.stream():
                parts.append(part)
                size += len(part)
                if size > self.worker_min_bytes:
                    self._hold(received, size)
            large = size > self.worker_min_bytes
            received.content = await run_in_thread(b"".join, parts) if large else b"".join(parts)
        except BaseException:
            received.release()
            raise
        return received

    async def read(self, body: bytes, kind: MessageType, project_id: str) -> Any:
        """Parse and validate a body that is too large for the event loop.

        Raises:
            InvalidRequest: the body is not JSON, or not the message.
            TooLarge: the body has too many values, or takes too long or too much memory to read.
            NotReady: the worker processes could not be started.
        """
        if len(body) <= self.worker_min_bytes:
            return await run_in_thread(lambda: validated(parse_strict_json(body), kind))
        try:
            async with self._scheduler.acquire(CheckOwner(project_id), long=len(body) > LONG_READ_MIN_BYTES):
                result = await self._pool.execute(read_in_worker, (body, kind), READ_TIMEOUT_S)
        except WorkerExited as exited:
            limit = f"{READ_TIMEOUT_S:g} s" if exited.timed_out else f"{_WORKER_MEMORY_MB} MB of memory"
            raise TooLarge(f"the body takes more than {limit} to read; send fewer groups at once") from None
        if result is None:
            raise NotReady(
                "Large bodies cannot be read now: the worker processes ended before they could begin. See the "
                "service's log.",
                retry_after_s=_RETRY_AFTER_S,
            )
        return await run_in_thread(_message_of, result[0])

    def _hold(self, received: "ReceivedBody", size: int) -> None:
        own, more = self._held[received.project_id], size - received.size
        total = self._held.total()
        if total + more > self._max_bytes:
            projects = len(self._held) + (not own)
            if (own + more) * projects > self._max_bytes or total + more > 2 * self._max_bytes:
                raise Overloaded(
                    f"the large request bodies in progress have {total:,} bytes, and this one exceeds the limit of "
                    f"{self._max_bytes:,}; try again later, or send fewer groups at once",
                    retry_after_s=_RETRY_AFTER_S,
                )
        self._held[received.project_id] += more
        received.size = size


class ReceivedBody:
    """A body whose bytes are counted until it is released. `size` is 0 unless it is large."""

    def __init__(self, held: Counter[str], project_id: str) -> None:
        self.content = b""
        self.size = 0
        self.project_id = project_id
        self._held = held

    def release(self) -> None:
        """Stop counting the body."""
        self._held[self.project_id] -= self.size
        self.size = 0
        if not self._held[self.project_id]:
            del self._held[self.project_id]


def body_reader_of(request: Request) -> BodyReader:
    """The application's body reader."""
    reader: BodyReader = request.app.state.body_reader
    return reader


def _message_of(read: ReadBody) -> Any:
    if read.refusal is not None:
        error, detail, fields = read.refusal
        raise error(detail, errors=fields)
    return assemble(read.pieces)


_JSON = re.compile(r"\s*application/([\w.+-]+\+)?json\s*(;|$)", re.IGNORECASE)
_COMPRESSED = re.compile(r"\b(gzip|deflate|br|zstd|compress)\b", re.IGNORECASE)

PATTERN_TIMEOUT_S = 30.0
"""The maximum time in seconds that a request waits for its patterns to be compiled."""


class StrictRoute(APIRoute):
    """A route that parses its body, if it has one, as strict JSON."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap the route's handler to pass it a request with strict parsing."""
        handle, body = super().get_route_handler(), self.body_field
        if body is None:
            return handle
        kind = MessageType(body.field_info.annotation, _discriminator(body))
        scopes = [item.dependency for item in self.dependencies if isinstance(item.dependency, RequiredScope)]

        async def strict_handler(request: Request) -> Response:
            for scope in scopes:
                await scope.require_scope(request)
            reader, project_id = body_reader_of(request), project_of(request)
            try:
                received = await reader.receive(request, project_id)
            except ClientDisconnect:
                raise ClientDisconnected from None
            try:
                content = received.content
                if content:
                    _refuse_other_media(request)
                strict = _StrictRequest(request.scope, request.receive)
                strict._body = content
                if len(content) > INLINE_PARSE_MAX_BYTES:
                    reading = reader.read(content, kind, project_id)
                    waits = len(content) > reader.worker_min_bytes
                    strict._json = await (run_while_connected(strict, reading) if waits else reading)
                return await handle(strict)
            finally:
                received.release()

        return strict_handler


def _refuse_other_media(request: Request) -> None:
    """Raise `UnsupportedMediaType` for a body that is not JSON, or compressed, by its headers."""
    given, coding = request.headers.get("content-type", ""), request.headers.get("content-encoding", "")
    if not _JSON.match(given):
        sent = f"not {given[:100]!r}" if given else "and the request has no Content-Type"
        raise UnsupportedMediaType(f"This route takes JSON, {sent}; send Content-Type: application/json.")
    if _COMPRESSED.search(coding):
        raise UnsupportedMediaType(f"This route takes no body in {coding[:100]!r}; send it without Content-Encoding.")


def api_router(
    tag: str,
    read_scope: KeyScope,
    write_scope: KeyScope | None = None,
    *,
    prefix: str = "/v1",
    checks_budget: bool = True,
    route_class: type[APIRoute] = StrictRoute,
) -> APIRouter:
    """Create a router whose routes require a key with a scope, as `RequiredScope` says, and read bodies strictly."""
    scope = RequiredScope(read_scope, write_scope, checks_budget=checks_budget)
    return APIRouter(prefix=prefix, tags=[tag], route_class=route_class, dependencies=[Depends(scope)])


class _StrictRequest(Request):
    async def json(self) -> Any:
        """Parse the body; a large body has been parsed and validated, so that FastAPI has nothing left to validate.

        Raises:
            InvalidRequest: the body is not JSON.
        """
        if not hasattr(self, "_json"):
            self._json = parse_strict_json(await self.body())
        return self._json


def _discriminator(body: ModelField) -> str | None:
    discriminator = body.field_info.discriminator
    assert discriminator is None or isinstance(discriminator, str)
    return discriminator


async def refuse_unusable_patterns(
    checker: Checker,
    project_id: str,
    rubric: str | RubricContent | None,
    own: Sequence[str | RubricContent | None] = (),
    *,
    items: str = "groups",
    deadline_s: float = PATTERN_TIMEOUT_S,
) -> None:
    """Compile the patterns in the inline rubrics of a request and of its groups.

    Raises:
        InvalidRequest: a pattern is not a regular expression, or takes too long to compile; the error names it.
        Overloaded: the workers were too busy to compile them in time.
    """
    patterns = [*_patterns("rubric.", rubric)]
    for place, item_rubric in enumerate(own):
        patterns += _patterns(f"{items}.{place}.rubric.", item_rubric)
    await _reject_unusable(checker, project_id, patterns, deadline_s)


async def refuse_unusable_criteria(checker: Checker, project_id: str, rubric: RubricContent) -> None:
    """Compile the patterns of a rubric before it is published; raises as `refuse_unusable_patterns` does."""
    await _reject_unusable(checker, project_id, [*_patterns("", rubric)], PATTERN_TIMEOUT_S)


async def _reject_unusable(
    checker: Checker, project_id: str, patterns: Sequence[tuple[str, str]], deadline_s: float
) -> None:
    if not patterns:
        return
    deadline = asyncio.get_running_loop().time() + min(deadline_s, PATTERN_TIMEOUT_S)
    owner = CheckOwner(f"{project_id}\0patterns")
    try:
        unusable = await checker.first_unusable([pattern for _, pattern in patterns], deadline, owner)
    except TimeoutError:
        raise Overloaded(
            "the workers that compile regular expressions are too busy for this request's patterns; try again later",
            retry_after_s=5,
        ) from None
    if unusable is not None:
        place, why = unusable
        raise invalid_field(patterns[place][0], why)


def _patterns(where: str, rubric: str | RubricContent | None) -> Iterator[tuple[str, str]]:
    """The patterns of an inline rubric, each with the name of its request field."""
    criteria: Sequence[Criterion] = rubric.criteria if isinstance(rubric, RubricContent) else ()
    for place, criterion in enumerate(criteria):
        if isinstance(criterion.verification, RegexVerification):
            yield f"{where}criteria.{place}.verification.pattern", criterion.verification.pattern
