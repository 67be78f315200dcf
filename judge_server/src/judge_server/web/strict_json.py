"""Bodies read as the JSON of RFC 8259 and nothing looser: UTF-8, no name twice, no NaN, one value and no more.

Python's reader takes the last of two equal names, so that whoever looks at a request before us may read another one
than we do. Knows JSON; refuses to know what a body should say.
"""

import json
import re
from collections.abc import Callable, Coroutine
from functools import partial
from math import isfinite
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from judge_server.web.problems import invalid_request
from trainer_client.wire import FieldError

_JSON = re.compile(r"\s*application/([\w.+-]+\+)?json\s*(;|$)", re.IGNORECASE)


class StrictRoute(APIRoute):
    """A route whose body is read strictly. Give it to a router as its `route_class`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The route's handler, which is handed a request that reads strictly."""
        handle, takes_body = super().get_route_handler(), self.body_field is not None

        async def read_strictly(request: Request) -> Response:
            strict = _StrictRequest(request.scope, request.receive)
            if takes_body and not _JSON.match(request.headers.get("content-type", "")) and await strict.body():
                message = "this takes JSON; send Content-Type: application/json"
                raise invalid_request((FieldError(field="Content-Type", message=message),))
            return await handle(strict)

        return read_strictly


class _StrictRequest(Request):
    async def json(self) -> Any:
        """The body's value; raises `InvalidRequest` where it is not JSON."""
        if not hasattr(self, "_json"):
            self._json = strict_json(await self.body())
        return self._json


def strict_json(body: bytes) -> Any:
    """The value that a body holds.

    Raises:
        InvalidRequest: it is not JSON; the error says where, and names the field of a number that is none.
    """
    try:
        text = body.decode("utf-8")
    except UnicodeDecodeError as error:
        raise _refused(f"not UTF-8 at byte {error.start}; encode the body as UTF-8") from None
    if text.startswith("\ufeff"):
        raise _refused("this begins with a byte order mark; leave it out")
    try:
        found: list[float] = []
        value = json.loads(
            text,
            object_pairs_hook=_object,
            parse_constant=partial(_number, found),
            parse_float=partial(_number, found),
        )
    except json.JSONDecodeError as error:
        raise _refused(f"not JSON: {error.msg} at character {error.pos}") from None
    except RecursionError:
        raise _refused("this is nested too deeply to be read") from None
    except _NotStrictError as error:
        raise _refused(str(error)) from None
    except ValueError:
        raise _refused("this holds a number with more digits than anybody can use") from None
    if found:
        raise _refused("JSON has no infinite numbers and no NaN; write a finite number, or null", _where(value))
    return value


class _NotStrictError(Exception):
    pass


def _object(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        twice = next(name for name in names if names.count(name) > 1)
        raise _NotStrictError(f"this says {twice[:100]!r} twice in one object; say it once")
    return made


def _number(found: list[float], text: str) -> float:
    """A number, which is noted if it is none that JSON has."""
    number = float(text)
    if not isfinite(number):
        found.append(number)
    return number


def _where(value: Any) -> str:
    """The dotted path of the first number in a value that is not finite."""
    inside = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, inner in inside:
        if isinstance(inner, float) and not isfinite(inner):
            return str(key)
        if isinstance(inner, dict | list) and (path := _where(inner)):
            return f"{key}.{path}"
    return ""


def _refused(message: str, field: str = "") -> Exception:
    return invalid_request((FieldError(field=field, message=message),))
