"""An unreachable or unresponsive store: requests that need it get a retryable 503."""

import asyncio
from typing import Any

import httpx2
import pytest

from rubric_store import RubricStore
from tests.judge_server.support import advance_time, request

PAIR = {"id": "p", "prompt": "Is 7 prime?", "a": "Yes.", "b": "No."}
GROUP = {"id": "g", "prompt": "Is 7 prime?", "responses": ["Yes."]}


async def away(*_: Any, **__: Any) -> None:
    """Fail as a store whose database is unreachable."""
    raise ConnectionError("nobody there")


@pytest.mark.parametrize(
    ("method", "path", "needs"),
    [
        ("GET", "/v1/rubrics", "list"),
        ("GET", "/v1/rubrics/team/a/versions", "history"),
        ("POST", "/v1/rubrics/team/a/versions", "publish"),
        ("GET", "/v1/rubrics/team/a", "find"),
    ],
)
async def test_a_request_that_needs_an_unreachable_store_gets_a_retryable_503(
    http: httpx2.AsyncClient, store: RubricStore, monkeypatch: pytest.MonkeyPatch, method: str, path: str, needs: str
) -> None:
    monkeypatch.setattr(store, needs, away)
    body = {"criteria": [{"id": "a", "description": "Is right."}]} if method == "POST" else None
    answer = await http.request(method, path, json=body)
    assert (answer.status_code, answer.headers["Content-Type"]) == (503, "application/problem+json")
    assert (answer.json()["type"], answer.json()["retryable"]) == ("urn:adjudge:not-ready", True)
    assert int(answer.headers["Retry-After"]) > 0


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("/v1/rewards", request(rubric="team/a")),
        ("/v1/verdicts", {"rubric": "team/a", "groups": [GROUP]}),
        ("/v1/comparisons", {"rubric": "team/a", "pairs": [PAIR]}),
    ],
)
async def test_waiting_for_an_unresponsive_store_ends_at_the_requests_deadline(
    http: httpx2.AsyncClient, store: RubricStore, monkeypatch: pytest.MonkeyPatch, path: str, body: dict[str, Any]
) -> None:
    asked = asyncio.Event()

    async def silent(*_: Any, **__: Any) -> None:
        asked.set()
        await asyncio.Event().wait()

    monkeypatch.setattr(store, "find", silent)
    asking = asyncio.create_task(http.post(path, json=body | {"deadline_s": 60}))
    await asyncio.wait_for(asked.wait(), 10)
    advance_time()
    answer = await asyncio.wait_for(asking, 300)
    assert (answer.status_code, answer.json()["retryable"]) == (503, True)
    assert "within the request's deadline" in answer.json()["detail"]
