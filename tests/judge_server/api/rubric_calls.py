"""Helpers for tests of rubric changes: a service with a rubric of two versions, and moves of its alias."""

import httpx2
import pytest

from tests.judge_server.api.test_rubrics import FIRST, SECOND, publish
from tests.judge_server.conftest import Serve

PATH = "/v1/rubrics/team/a"
ALIAS = f"{PATH}/aliases/production"


@pytest.fixture
async def team_a(serve: Serve) -> httpx2.AsyncClient:
    """A client of a service whose rubric `team/a` has two versions."""
    http = await serve()
    await publish(http, "team/a", FIRST)
    await publish(http, "team/a", SECOND)
    return http


async def move(http: httpx2.AsyncClient, version: int, **headers: str) -> httpx2.Response:
    """Move `production` to a version; `if_match="1"` is sent as `If-Match: "1"`."""
    sent = {name.replace("_", "-"): value if value == "*" else f'"{value}"' for name, value in headers.items()}
    return await http.put(ALIAS, json={"version": version}, headers=sent)
