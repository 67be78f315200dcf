"""Unsupported content types, and HEAD requests."""

import httpx2
import pytest


@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", ""])
async def test_a_content_type_that_is_not_json_is_refused_with_415(http: httpx2.AsyncClient, content_type: str) -> None:
    answer = await http.post("/v1/rewards", content=b"{}", headers={"Content-Type": content_type})
    assert answer.status_code == 415
    problem = answer.json()
    assert problem["type"] == "urn:adjudge:unsupported-media-type"
    assert "send Content-Type: application/json" in problem["detail"]


@pytest.mark.parametrize("content_type", ["application/json", "application/json; charset=utf-8", "application/a+json"])
async def test_every_json_content_type_is_accepted(http: httpx2.AsyncClient, content_type: str) -> None:
    answer = await http.post("/v1/rewards", content=b"{}", headers={"Content-Type": content_type})
    assert answer.status_code == 422


async def test_health_routes_answer_head_like_get(http: httpx2.AsyncClient) -> None:
    for path in ("/healthz", "/readyz", "/readyz?only=nothing"):
        head, get = await http.head(path), await http.get(path)
        assert head.status_code == get.status_code, path
        assert head.headers["Content-Type"] == get.headers["Content-Type"]
