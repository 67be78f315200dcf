"""`/v1/rubrics`: metadata published with criteria, aliases, tags, retirement, histories and differences."""

from typing import Any

import httpx2
import pytest

from judge_server.api.rubrics import PUBLICATION_EXAMPLE
from tests.judge_server.api.http.test_bad_input import checked_problem
from tests.judge_server.api.rubric_calls import ALIAS, PATH, move, team_a
from tests.judge_server.api.test_rubrics import FIRST, publish
from tests.judge_server.golden_files import openapi
from tests.judge_server.support import CRITERIA

__all__ = ["team_a"]


@pytest.fixture
def http(team_a: httpx2.AsyncClient) -> httpx2.AsyncClient:
    """A client of a service whose rubric `team/a` has two versions."""
    return team_a


async def judged(http: httpx2.AsyncClient, path: str, rubric: str, **more: Any) -> httpx2.Response:
    """Judge something by a rubric reference."""
    group = {"id": "g", "prompt": "p", "responses": ["r"]}
    items = (
        {"pairs": [{"id": "g", "prompt": "p", "a": "r", "b": "s"}]} if "comparisons" in path else {"groups": [group]}
    )
    return await http.post(path, json={"rubric": rubric, **items, **more})


async def test_metadata_published_with_the_criteria_is_read_back(http: httpx2.AsyncClient) -> None:
    content = {"criteria": CRITERIA, "metadata": {"by": "Ada"}, "tags": ["x"], "lineage": {"author": "me"}, "parent": 1}
    made = await publish(http, "team/a", content)
    assert made.status_code == 201
    version = (await http.get(f"{PATH}@3")).json()
    assert version == made.json()
    assert (version["parent"], version["metadata"], version["lineage"]["author"]) == (1, {"by": "Ada"}, "me")
    assert version["retirement"] is None


@pytest.mark.parametrize(
    ("beside", "field"),
    [
        ({"parent": 9}, "parent"),
        ({"parent": 0}, "parent"),
        ({"metadata": {"a": "x" * 70_000}}, "metadata"),
        ({"metadata": [1]}, "metadata"),
        ({"tags": ["No Tag"]}, "tags.0"),
        ({"lineage": {"autor": "me"}}, "lineage.autor"),
        ({"tag": ["x"]}, "tag"),
    ],
)
async def test_invalid_metadata_is_refused_by_its_field(
    http: httpx2.AsyncClient, beside: dict[str, Any], field: str
) -> None:
    answer = await publish(http, "team/a", {"criteria": CRITERIA, **beside})
    assert answer.status_code == 422
    assert [error["field"] for error in checked_problem(answer)["errors"]] == [field]
    assert (await http.get(PATH)).json()["version"] == 2


async def test_the_tag_limit_holds_over_several_publications(http: httpx2.AsyncClient) -> None:
    await publish(http, "team/a", {**FIRST, "tags": [f"t{n}" for n in range(60)]})
    answer = await publish(http, "team/a", {"criteria": CRITERIA, "tags": [f"u{n}" for n in range(60)]})
    assert answer.status_code == 422
    assert "at most 64" in checked_problem(answer)["errors"][0]["message"]


@pytest.mark.parametrize("name", ["a/versions", "a/diff", "a/aliases/x"])
async def test_a_name_with_a_word_reserved_for_urls_is_refused_with_the_reason(
    http: httpx2.AsyncClient, name: str
) -> None:
    problem = checked_problem(await publish(http, name))
    assert "since URLs use this word" in problem["errors"][0]["message"]


async def test_rewards_by_an_alias_name_the_version_that_judged(http: httpx2.AsyncClient) -> None:
    await move(http, 1, if_none_match="*")
    [pinned] = (await judged(http, "/v1/rewards", "team/a@production")).json()["rubrics"]
    digest = (await http.get(f"{PATH}@1")).json()["digest"]
    assert pinned == {"digest": digest, "name": "team/a", "version": 1}


@pytest.mark.parametrize("path", ["/v1/rewards", "/v1/verdicts", "/v1/comparisons"])
async def test_a_retired_version_judges_only_where_the_request_allows_it(http: httpx2.AsyncClient, path: str) -> None:
    await move(http, 1, if_none_match="*")
    reason = {"reason": "Rewards guessing."}
    assert (await http.put(f"{PATH}@1/retirement", json=reason)).json()["retirement"]["reason"] == reason["reason"]
    digest = (await http.get(f"{PATH}@1")).json()["digest"]
    for reference in ("team/a@1", "team/a@production", digest):
        refused = await judged(http, path, reference)
        assert refused.status_code == 422
        problem = checked_problem(refused)
        assert problem["type"] == "urn:adjudge:retired-rubric"
        for part in ("team/a@1, which was retired on 20", "Rewards guessing.", "use team/a@2", "allow_retired"):
            assert part in problem["detail"]
        allowed = await judged(http, path, reference, allow_retired=True)
        assert allowed.json()["rubrics"][0]["digest"] == digest
    assert (await judged(http, path, "team/a")).status_code == 200
    await http.delete(f"{PATH}@1/retirement")
    assert (await judged(http, path, "team/a@1")).status_code == 200


async def test_a_rubric_with_only_retired_versions_can_be_read_but_not_used(http: httpx2.AsyncClient) -> None:
    for version in (1, 2):
        await http.put(f"{PATH}@{version}/retirement", json={"reason": "Wrong."})
    assert (await http.get(PATH)).json()["version"] == 2
    [summary] = (await http.get("/v1/rubrics")).json()["rubrics"]
    assert (summary["latest_version"], summary["retired"]) == (2, True)
    detail = checked_problem(await judged(http, "/v1/rewards", "team/a"))["detail"]
    assert "use team/a" not in detail
    assert "allow_retired" in detail


@pytest.mark.parametrize("reference", ["team/a", "team/a@production", "team/a@latest"])
async def test_only_a_pinned_version_can_be_retired(http: httpx2.AsyncClient, reference: str) -> None:
    await move(http, 2, if_none_match="*")
    refused = await http.put(f"/v1/rubrics/{reference}/retirement", json={"reason": "Wrong."})
    assert refused.status_code == 422
    assert "write 'team/a@2'" in checked_problem(refused)["detail"]
    assert (await http.put(f"{PATH}@9/retirement", json={"reason": "Wrong."})).status_code == 404
    assert (await http.put(f"{PATH}@2/retirement", json={"reason": " "})).status_code == 422


async def test_a_history_lists_versions_with_their_aliases_in_pages(http: httpx2.AsyncClient) -> None:
    await move(http, 1, if_none_match="*")
    first = (await http.get(f"{PATH}/versions", params={"limit": 1})).json()
    second = (await http.get(f"{PATH}/versions", params={"limit": 1, "after": first["next_cursor"]})).json()
    seen = [(v["version"], v["parent"], v["aliases"]) for page in (first, second) for v in page["versions"]]
    assert seen == [(2, 1, []), (1, None, ["production"])]
    assert second["next_cursor"] is None
    assert "criteria" not in first["versions"][0]
    made_up = await http.get(f"{PATH}/versions", params={"after": "made-up"})
    assert checked_problem(made_up)["errors"][0]["field"] == "after"
    assert "Did you mean 'team/a'" in checked_problem(await http.get("/v1/rubrics/team/aa/versions"))["detail"]


async def test_versions_are_compared_by_number_and_by_alias(http: httpx2.AsyncClient) -> None:
    await publish(http, "team/a", {"criteria": [{**CRITERIA[0], "weight": 9, "description": "Other."}, *CRITERIA[2:3]]})
    await move(http, 1, if_none_match="*")
    for params in ({"from": "1", "to": "3"}, {"from": "production"}, {"from": "production", "to": "latest"}):
        diff = (await http.get(f"{PATH}/diff", params=params)).json()
        assert (diff["before"]["version"], diff["after"]["version"]) == (1, 3)
        assert [added["criterion"]["id"] for added in diff["added"]] == [CRITERIA[2]["id"]]
        assert [removed["criterion"]["id"] for removed in diff["removed"]] == [CRITERIA[1]["id"]]
        assert [(r["before"], r["after"]) for r in diff["reweighted"]] == [(3.0, 9.0)]
        assert [r["after"] for r in diff["reworded"]] == ["Other."]


@pytest.mark.parametrize(
    ("query", "status"), [("", 422), ("?from=1&to=9", 404), ("?from=producton", 404), ("?from=1&to=A", 422)]
)
async def test_an_invalid_comparison_of_versions_is_refused(http: httpx2.AsyncClient, query: str, status: int) -> None:
    answer = await http.get(f"{PATH}/diff{query}")
    assert answer.status_code == status
    checked_problem(answer)


async def test_rubrics_are_found_by_tag_and_words(http: httpx2.AsyncClient) -> None:
    assert (await http.put(f"{PATH}/tags", json={"tags": ["b", "a", "b"]})).json() == {
        "name": "team/a",
        "tags": ["a", "b"],
    }
    await publish(http, "team/b", {"criteria": [{"id": "x", "description": "Names Canberra."}], "tags": ["a"]})

    async def found(**params: str) -> list[str]:
        return [s["name"] for s in (await http.get("/v1/rubrics", params=params)).json()["rubrics"]]

    assert await found(tag="a") == ["team/a", "team/b"]
    assert await found(tag="b") == ["team/a"]
    assert await found(text="CANBERRA names") == ["team/b"]
    assert await found(text="canberra", tag="b") == []
    assert (await http.put("/v1/rubrics/team/c/tags", json={"tags": []})).status_code == 404
    assert (await http.put(f"{PATH}/tags", json={"tags": ["No Tag"]})).status_code == 422


async def test_the_examples_of_changes_in_the_api_document_are_accepted(http: httpx2.AsyncClient) -> None:
    paths = openapi()["paths"]

    def example(method: str, path: str) -> Any:
        [value] = paths[path][method]["requestBody"]["content"]["application/json"]["examples"].values()
        return value["value"]

    publication = example("post", "/v1/rubrics/{name}/versions")
    assert publication == PUBLICATION_EXAMPLE
    assert (await publish(http, "team/a", publication)).status_code == 201
    alias = example("put", "/v1/rubrics/{name}/aliases/{alias}")
    assert (await http.put(ALIAS, json=alias, headers={"If-None-Match": "*"})).status_code == 200
    assert (await http.put(f"{PATH}/tags", json=example("put", "/v1/rubrics/{name}/tags"))).status_code == 200
    retirement = example("put", "/v1/rubrics/{reference}/retirement")
    assert (await http.put(f"{PATH}@1/retirement", json=retirement)).status_code == 200
