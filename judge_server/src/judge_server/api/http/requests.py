"""Read requests: strict JSON bodies, and the regular expressions in them.

A body is parsed as strict JSON in UTF-8 and validated; errors become problems. `judge_server.api.http.body_reader`
reads large bodies off the event loop.

Regular expressions in a request are compiled in a worker process and rejected before any other work, because compiling
one may take minutes. Patterns of published rubrics were checked when they were published.
"""

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

from fastapi import Request, Response
from fastapi._compat import ModelField
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect

from judge_server.api.auth import RequiredScope, project_of
from judge_server.api.http.body_reader import INLINE_PARSE_MAX_BYTES, WORKER_PARSE_MIN_BYTES, body_reader_of
from judge_server.api.http.responses import ClientDisconnected, run_while_connected
from judge_server.bodies import MessageType, parse_strict_json
from judge_server.errors import Overloaded, invalid_request
from judge_server.verifiers import Checker, CheckOwner
from trainer_client.wire import Criterion, FieldError, RubricContent
from trainer_client.wire.criteria import RegexVerification

_JSON = re.compile(r"\s*application/([\w.+-]+\+)?json\s*(;|$)", re.IGNORECASE)

PATTERN_TIMEOUT_S = 30.0
"""The maximum time in seconds that a request waits for its patterns to be compiled."""


class StrictRoute(APIRoute):
    """A route that parses its body as strict JSON; pass it to a router as `route_class`."""

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
                if content and not _JSON.match(request.headers.get("content-type", "")):
                    message = "this route takes JSON; send Content-Type: application/json"
                    raise invalid_request((FieldError(field="Content-Type", message=message),))
                strict = _StrictRequest(request.scope, request.receive)
                strict._body = content
                if len(content) > INLINE_PARSE_MAX_BYTES:
                    reading = reader.read(content, kind, project_id)
                    waits = len(content) > WORKER_PARSE_MIN_BYTES
                    strict._json = await (run_while_connected(strict, reading) if waits else reading)
                return await handle(strict)
            finally:
                received.release()

        return strict_handler


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
        raise invalid_request((FieldError(field=patterns[place][0], message=why),))


def _patterns(where: str, rubric: str | RubricContent | None) -> Iterator[tuple[str, str]]:
    """The patterns of an inline rubric, each with the name of its request field."""
    criteria: Sequence[Criterion] = rubric.criteria if isinstance(rubric, RubricContent) else ()
    for place, criterion in enumerate(criteria):
        if isinstance(criterion.verification, RegexVerification):
            yield f"{where}criteria.{place}.verification.pattern", criterion.verification.pattern
