"""`/v1/rubrics`: versions are published once, read in three ways, and listed by name."""

from typing import Any

import httpx2
import pytest

from tests.judge_server.api.http.test_bad_input import checked_problem
from tests.judge_server.support import CRITERIA

FIRST: dict[str, Any] = {"criteria": CRITERIA[:2]}
SECOND: dict[str, Any] = {"criteria": CRITERIA[2:]}


async def publish(http: httpx2.AsyncClient, name: str, content: dict[str, Any] = FIRST) -> httpx2.Response:
    """Publish a version."""
    return await http.post(f"/v1/rubrics/{name}/versions", json=content)


async def test_publishing_creates_version_1_and_the_same_content_again_returns_it(http: httpx2.AsyncClient) -> None:
    new = await publish(http, "primes")
    again = await publish(http, "primes")
    assert (new.status_code, again.status_code) == (201, 200)
    assert new.json() == again.json()
    assert (new.json()["name"], new.json()["version"]) == ("primes", 1)
    assert new.headers["Location"] == "/v1/rubrics/primes@1"
    assert (await http.get(new.headers["Location"])).json() == new.json()


async def test_other_content_becomes_the_next_version_and_the_old_one_stays(http: httpx2.AsyncClient) -> None:
    one, two = await publish(http, "a", FIRST), await publish(http, "a", SECOND)
    assert two.json()["version"] == 2
    assert (await http.get("/v1/rubrics/a")).json() == two.json()
    assert (await http.get("/v1/rubrics/a@1")).json() == one.json()
    assert (await http.get(f"/v1/rubrics/{one.json()['digest']}")).json() == one.json()


async def test_names_may_have_folders(http: httpx2.AsyncClient) -> None:
    made = await publish(http, "team/math/primes")
    assert made.status_code == 201
    for reference in ("team/math/primes", "team/math/primes@1", "team%2Fmath%2Fprimes@1"):
        assert (await http.get(f"/v1/rubrics/{reference}")).json() == made.json()


@pytest.mark.parametrize(
    "name", ["Upper", "a//b", "/a", "a/", "a b", "é", "a@1", "..", "sha256:1", "x" * 201, "x" * 10_000]
)
async def test_an_invalid_name_is_refused_with_the_allowed_characters(http: httpx2.AsyncClient, name: str) -> None:
    refused = await http.post(f"http://adjudge.test/v1/rubrics/{name.replace('.', '%2E')}/versions", json=FIRST)
    assert refused.status_code == 422
    problem = checked_problem(refused)
    assert problem["errors"][0]["field"] == "name"
    assert "lower-case" in problem["errors"][0]["message"]
    assert len(problem["detail"]) < 500
    assert (await http.get("/v1/rubrics")).json()["rubrics"] == []


async def test_bad_content_is_refused_by_its_field_and_publishes_nothing(http: httpx2.AsyncClient) -> None:
    for content, field in (({"criteria": []}, "criteria"), ({"criteria": [{"id": "a"}]}, "criteria.0.description")):
        problem = checked_problem(await publish(http, "a", content))
        assert [error["field"] for error in problem["errors"]] == [field]
    assert (await http.get("/v1/rubrics/a")).status_code == 404


@pytest.mark.parametrize("reference", ["a@0", "a@B", "sha256:12", "A", "a@1@2", "a" * 10_000])
async def test_a_malformed_reference_is_refused_with_the_valid_forms(http: httpx2.AsyncClient, reference: str) -> None:
    answer = await http.get(f"/v1/rubrics/{reference}")
    assert answer.status_code == 422
    assert "name@3" in checked_problem(answer)["errors"][0]["message"]


async def test_rubrics_are_listed_by_name_in_pages(http: httpx2.AsyncClient) -> None:
    for name in ("b/2", "a/1", "b/1", "b/3"):
        await publish(http, name)
    await publish(http, "b/1", SECOND)
    seen, cursor = [], None
    for _ in range(2):
        params = {"prefix": "b/", "limit": 2} | ({"after": cursor} if cursor else {})
        page = (await http.get("/v1/rubrics", params=params)).json()
        seen += [(row["name"], row["latest_version"], row["criteria_count"]) for row in page["rubrics"]]
        cursor = page["next_cursor"]
    assert seen == [("b/1", 2, 5), ("b/2", 1, 2), ("b/3", 1, 2)]
    assert cursor is None


@pytest.mark.parametrize(
    ("query", "field"), [("after=!", "after"), ("limit=0", "query.limit"), ("limit=501", "query.limit")]
)
async def test_an_invalid_page_is_refused(http: httpx2.AsyncClient, query: str, field: str) -> None:
    answer = await http.get(f"/v1/rubrics?{query}")
    assert answer.status_code == 422
    assert [error["field"] for error in checked_problem(answer)["errors"]] == [field]
