"""Bodies of requests read as strict JSON in UTF-8, and refused as problems where they are none."""

import re
from collections.abc import Callable, Coroutine
from typing import Any

from fastapi import Request, Response
from fastapi.routing import APIRoute

from judge_server.web.problems import invalid_request
from trainer_client.wire import FieldError
from trainer_client.wire.strict_json import NotStrictJsonError, strict_json

_JSON = re.compile(r"\s*application/([\w.+-]+\+)?json\s*(;|$)", re.IGNORECASE)


class StrictRoute(APIRoute):
    """A route whose body is read strictly. Give it to a router as its `route_class`."""

    def get_route_handler(self) -> Callable[[Request], Coroutine[Any, Any, Response]]:
        """The route's handler, which is handed a request that reads strictly."""
        handle, takes_body = super().get_route_handler(), self.body_field is not None

        async def handle_strictly(request: Request) -> Response:
            strict = _StrictRequest(request.scope, request.receive)
            if takes_body and not _JSON.match(request.headers.get("content-type", "")) and await strict.body():
                message = "this takes JSON; send Content-Type: application/json"
                raise invalid_request((FieldError(field="Content-Type", message=message),))
            return await handle(strict)

        return handle_strictly


class _StrictRequest(Request):
    async def json(self) -> Any:
        """The body's value; raises `InvalidRequest` where it is not JSON."""
        if not hasattr(self, "_json"):
            self._json = read_strictly(await self.body())
        return self._json


def read_strictly(body: bytes) -> Any:
    """The value that a body holds.

    Raises:
        InvalidRequest: it is not JSON in UTF-8; the error says where, and names the field of a number that is none.
    """
    try:
        return strict_json(body.decode("utf-8"))
    except UnicodeDecodeError as error:
        message, field = f"not UTF-8 at byte {error.start}; encode the body as UTF-8", ""
    except NotStrictJsonError as error:
        message, field = str(error), error.field
    raise invalid_request((FieldError(field=field, message=message),))
