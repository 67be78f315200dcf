"""Read requests: strict JSON bodies, and the regular expressions in them.

A body is parsed as strict JSON in UTF-8 and validated; errors become problems. A large body is parsed and validated in
a thread, in pieces that let the event loop run in between.

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
"""A body of up to this size is parsed on the event loop; that takes a few milliseconds, whatever it contains."""

CHUNKED_PARSE_MIN_BYTES = 512 * 1024
"""A body above this size is parsed in Python, because the parser in C does not release the interpreter lock."""

MAX_VALUES = 1_000_000
"""The maximum number of entries in all lists and objects of a body together."""

PATTERN_TIMEOUT_S = 30.0
"""The maximum time in seconds that a request waits for its patterns to be compiled."""

_SCAN_BLOCK_BYTES = 2**20


class StrictRoute(APIRoute):
    """A route that parses its body as strict JSON; pass it to a router as `route_class`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """Wrap the route's handler to pass it a request with strict parsing."""
        handle, body = super().get_route_handler(), self.body_field
        scopes = [item.dependency for item in self.dependencies if isinstance(item.dependency, RequiredScope)]

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
                    message = "this route takes JSON; send Content-Type: application/json"
                    raise invalid_request((FieldError(field="Content-Type", message=message),))
            return await handle(strict)

        return strict_handler


class _StrictRequest(Request):
    body_field: ModelField

    async def json(self) -> Any:
        """Parse the body; a large body is returned as the validated message.

        Raises:
            InvalidRequest: the body is not JSON, or not the message that this route takes.
            TooLarge: the body has too many values.
        """
        if not hasattr(self, "_json"):
            body = await self.body()
            if len(body) <= INLINE_PARSE_MAX_BYTES:
                self._json = parse_strict_json(body)
            else:
                self._json = await asyncio.to_thread(_parse_and_validate, body, self.body_field)
        return self._json


def _parse_and_validate(body: bytes, field: ModelField) -> Any:
    """Parse and validate a large body, so that FastAPI has nothing left to validate."""
    value, errors = field.validate(parse_strict_json(body), loc=("body",))
    if errors:
        raise invalid_request(field_errors(errors))
    return value


def parse_strict_json(body: bytes) -> Any:
    """Parse a body as strict JSON.

    Raises:
        InvalidRequest: the body is not JSON in UTF-8; the error says where, and names the field of an invalid number.
        TooLarge: the body has more than `MAX_VALUES` values.
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
    """Raise `TooLarge` for a body with too many commas outside of strings.

    All commas are counted first, which is fast; strings are skipped only if that count is too high.
    """
    if _count_commas(body, 0, len(body)) <= MAX_VALUES:
        return
    commas = at = 0
    while at < len(body):
        opening = body.find(b'"', at)
        commas += _count_commas(body, at, len(body) if opening < 0 else opening)
        if commas > MAX_VALUES:
            raise TooLarge(
                f"the body has more than {MAX_VALUES:,} values (strings, numbers, objects and so on); send fewer "
                "groups at once"
            )
        at = len(body) if opening < 0 else _end_of_string(body, opening)


def _count_commas(body: bytes, start: int, end: int) -> int:
    return sum(body.count(b",", at, min(at + _SCAN_BLOCK_BYTES, end)) for at in range(start, end, _SCAN_BLOCK_BYTES))


def _end_of_string(body: bytes, opening: int) -> int:
    """The index behind the closing quote of the string that opens at `opening`."""
    closing = opening
    while (closing := body.find(b'"', closing + 1)) >= 0:
        backslashes = closing
        while body[backslashes - 1] == 0x5C:
            backslashes -= 1
        if (closing - backslashes) % 2 == 0:
            return closing + 1
    return len(body)


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
