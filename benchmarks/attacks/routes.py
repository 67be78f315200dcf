"""The application's own list of routes, and which of them a request asks for.

No list is kept here, so a new route of the application is one that no attack has asked for until one does.
"""

import re
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple, cast
from urllib.parse import unquote, urlsplit

from fastapi.routing import iter_route_contexts
from starlette.routing import Mount, compile_path

from judge_server.api.app import create_app
from judge_server.api.service import Service
from judge_server.ports import RubricSource


class Route(NamedTuple):
    """A method, and a path with its parameters in braces, such as `/v1/rubrics/{name}`."""

    method: str
    path: str


@cache
def routes() -> tuple[Route, ...]:
    """Return every route of the application, the console's included, in the order in which they are tried."""
    service = Service(rubrics=cast(RubricSource, None))  # it serves no request
    return tuple(dict.fromkeys(_routes(create_app(service).routes, "")))


def _routes(given: object, prefix: str) -> Iterator[Route]:
    for context in iter_route_contexts(given):  # type: ignore[arg-type] # a list of routes
        route = context.original_route
        if isinstance(route, Mount):
            yield from _routes(route.routes, prefix + route.path)
            continue
        for method in sorted((context.methods or set()) - {"HEAD"}):  # answered as GET is
            yield Route(method, prefix + (context.path or ""))


def route_of(method: str, path: str) -> Route | None:
    """Return the route that a path, with or without a query, is of; None if there is none."""
    asked = unquote(urlsplit(path).path)
    for route, pattern in _patterns():
        if route.method == method and pattern.match(asked):
            return route
    return None


@cache
def _patterns() -> list[tuple[Route, re.Pattern[str]]]:
    return [(route, compile_path(route.path)[0]) for route in routes()]
