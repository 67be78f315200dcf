"""Read requests: strict JSON bodies, and the regular expressions in them.

Bodies of requests: read as strict JSON in UTF-8 and validated, and refused as problems where they are neither.

A large body is read and validated in a thread, and in pieces between which the event loop has its turn. Knows sizes
and scopes; what a body means is the route's.

Regular expressions that a request brings along: refused before anything else is done, compiled in a worker process.

Compiling one may take minutes, so that never happens on the event loop. Patterns of published rubrics were looked at
when those were published.
"""

import asyncio
import re
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any

from fastapi import Request, Response
from fastapi._compat import ModelField
from fastapi.routing import APIRoute
from starlette.requests import ClientDisconnect

from judge_server.api.auth import RequiredScope
from judge_server.api.problems import invalid_request
from judge_server.api.responses import ClientDisconnected
from judge_server.errors import Overloaded, TooLarge
from judge_server.verifiers import Checker, CheckOwner
from trainer_client.wire import Criterion, FieldError, RubricContent
from trainer_client.wire.criteria import RegexVerification
from trainer_client.wire.problems import field_errors
from trainer_client.wire.strict_json import NotStrictJsonError, strict_json

_JSON = re.compile(r"\s*application/([\w.+-]+\+)?json\s*(;|$)", re.IGNORECASE)

INLINE_PARSE_MAX_BYTES = 32 * 1024
"""A body of up to so many bytes is read on the event loop: in a few milliseconds, whatever it holds."""

CHUNKED_PARSE_MIN_BYTES = 512 * 1024
"""A larger body than this is read in Python rather than in C, whose reader lets no other thread run meanwhile."""

MAX_VALUES = 1_000_000
"""How many entries all lists and objects of a body may have together."""

_SCAN_BLOCK_BYTES = 2**20


class StrictRoute(APIRoute):
    """A route whose body is read strictly. Give it to a router as its `route_class`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The route's handler, which is handed a request that reads strictly."""
        handle, body = super().get_route_handler(), self.body_field
        scopes = [one.dependency for one in self.dependencies if isinstance(one.dependency, RequiredScope)]

        async def strict_handler(request: Request) -> Response:
            strict = _StrictRequest(request.scope, request.receive)
            if body is not None:
                for scope in scopes:
                    await scope.require_scope(request)
                strict.body_field = body
                try:
                    sent = await strict.body()
                except ClientDisconnect:
                    raise ClientDisconnected from None
                if sent and not _JSON.match(request.headers.get("content-type", "")):
                    message = "this takes JSON; send Content-Type: application/json"
                    raise invalid_request((FieldError(field="Content-Type", message=message),))
            return await handle(strict)

        return strict_handler


class _StrictRequest(Request):
    body_field: ModelField

    async def json(self) -> Any:
        """The body's value, and the message itself where the body is large.

        Raises:
            InvalidRequest: it is not JSON, or not the message that this route takes.
            TooLarge: it holds too many values.
        """
        if not hasattr(self, "_json"):
            body = await self.body()
            if len(body) <= INLINE_PARSE_MAX_BYTES:
                self._json = parse_strict_json(body)
            else:
                self._json = await asyncio.to_thread(_parse_and_validate, body, self.body_field)
        return self._json


def _parse_and_validate(body: bytes, field: ModelField) -> Any:
    """The message that a large body holds; FastAPI, which is given it, finds nothing left to validate."""
    value, errors = field.validate(parse_strict_json(body), loc=("body",))
    if errors:
        raise invalid_request(field_errors(errors))
    return value


def parse_strict_json(body: bytes) -> Any:
    """The value that a body holds.

    Raises:
        InvalidRequest: it is not JSON in UTF-8; the error says where, and names the field of a number that is none.
        TooLarge: it holds more than `MAX_VALUES`.
    """
    if len(body) > MAX_VALUES:
        _refuse_many_values(body)
    try:
        return strict_json(body.decode("utf-8"), incremental=len(body) > CHUNKED_PARSE_MIN_BYTES)
    except UnicodeDecodeError as error:
        message, field = f"not UTF-8 at byte {error.start}; encode the body as UTF-8", ""
    except NotStrictJsonError as error:
        message, field = str(error), error.field
    raise invalid_request((FieldError(field=field, message=message),))


def _refuse_many_values(body: bytes) -> None:
    """Count the commas of a body: first all of them, and where those are too many, those outside of texts."""
    if _count_commas(body, 0, len(body)) <= MAX_VALUES:
        return
    commas = at = 0
    while at < len(body):
        opening = body.find(b'"', at)
        commas += _count_commas(body, at, len(body) if opening < 0 else opening)
        if commas > MAX_VALUES:
            raise TooLarge(
                f"the body holds more than {MAX_VALUES:,} values (texts, numbers, objects and so on); send fewer "
                "groups at once"
            )
        at = len(body) if opening < 0 else _end_of_string(body, opening)


def _count_commas(body: bytes, start: int, end: int) -> int:
    return sum(body.count(b",", at, min(at + _SCAN_BLOCK_BYTES, end)) for at in range(start, end, _SCAN_BLOCK_BYTES))


def _end_of_string(body: bytes, opening: int) -> int:
    """Where a text ends that begins with the quote at `opening`."""
    closing = opening
    while (closing := body.find(b'"', closing + 1)) >= 0:
        backslashes = closing
        while body[backslashes - 1] == 0x5C:
            backslashes -= 1
        if (closing - backslashes) % 2 == 0:
            return closing + 1
    return len(body)


PATTERN_TIMEOUT_S = 30.0
"""How long a request waits at most until a worker has compiled its patterns."""


async def refuse_unusable_patterns(
    checker: Checker,
    project_id: str,
    rubric: str | RubricContent | None,
    own: Sequence[str | RubricContent | None] = (),
    *,
    items: str = "groups",
    deadline_s: float = PATTERN_TIMEOUT_S,
) -> None:
    """Look at the patterns of a request's rubric and of those of its groups; criteria of one's own are in either.

    Raises:
        InvalidRequest: one of them is not a regular expression, or takes too long to compile; says which.
        Overloaded: the workers had no turn for them in time.
    """
    found = [*_patterns("rubric.", rubric)]
    for place, of_item in enumerate(own):
        found += _patterns(f"{items}.{place}.rubric.", of_item)
    await _reject_unusable(checker, project_id, found, deadline_s)


async def refuse_unusable_criteria(checker: Checker, project_id: str, rubric: RubricContent) -> None:
    """Look at the patterns of a rubric that is to be published; raises as `refuse_unusable_patterns` does."""
    await _reject_unusable(checker, project_id, [*_patterns("", rubric)], PATTERN_TIMEOUT_S)


async def _reject_unusable(
    checker: Checker, project_id: str, found: Sequence[tuple[str, str]], deadline_s: float
) -> None:
    if not found:
        return
    deadline = asyncio.get_running_loop().time() + min(deadline_s, PATTERN_TIMEOUT_S)
    owner = CheckOwner(f"{project_id}\0patterns")
    try:
        unusable = await checker.first_unusable([pattern for _, pattern in found], deadline, owner)
    except TimeoutError:
        raise Overloaded(
            "the programs that verify criteria have too much to do to compile this request's patterns; come back later",
            retry_after_s=5,
        ) from None
    if unusable is not None:
        place, why = unusable
        raise invalid_request((FieldError(field=found[place][0], message=why),))


def _patterns(where: str, rubric: str | RubricContent | None) -> Iterator[tuple[str, str]]:
    criteria: Sequence[Criterion] = rubric.criteria if isinstance(rubric, RubricContent) else ()
    for place, criterion in enumerate(criteria):
        if isinstance(criterion.verification, RegexVerification):
            yield f"{where}criteria.{place}.verification.pattern", criterion.verification.pattern
