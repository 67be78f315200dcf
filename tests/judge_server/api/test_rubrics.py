"""`/v1/rubrics`: versions, aliases, tags, retirement, histories and differences."""

from typing import Any

import httpx2
import pytest

from judge_server.api.app import example_requests
from tests.judge_server.api.problems import checked_problem
from tests.judge_server.conftest import Serve
from tests.judge_server.golden_files import openapi
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


async def test_an_alias_is_created_read_moved_and_removed(team_a: httpx2.AsyncClient) -> None:
    made = await move(team_a, 1, if_none_match="*")
    assert (made.status_code, made.headers["ETag"]) == (200, '"1"')
    assert made.json() == {"name": "team/a", "alias": "production", "version": 1}
    read = await team_a.get(ALIAS)
    assert (read.json(), read.headers["ETag"]) == (made.json(), '"1"')
    assert (await team_a.get(f"{PATH}@production")).json()["version"] == 1
    moved = await team_a.put(ALIAS, json={"version": 2}, headers={"If-Match": read.headers["ETag"]})
    assert (moved.json()["version"], moved.headers["ETag"]) == (2, '"2"')
    assert (await team_a.get(f"{PATH}/aliases")).json() == {"name": "team/a", "aliases": {"production": 2}}
    gone = await team_a.delete(ALIAS, headers={"If-Match": '"2"'})
    assert (gone.status_code, gone.json()["aliases"]) == (200, {})
    assert (await team_a.get(ALIAS)).status_code == 404


async def test_a_move_of_a_just_moved_alias_is_refused_with_its_current_version(team_a: httpx2.AsyncClient) -> None:
    await move(team_a, 1, if_none_match="*")
    await publish(team_a, "team/a", {"criteria": CRITERIA})
    await move(team_a, 2, if_match="1")
    late = await move(team_a, 3, if_match="1")
    assert late.status_code == 412
    problem = checked_problem(late)
    assert (problem["type"], problem["current_version"]) == ("urn:adjudge:alias-moved", 2)
    assert 'If-Match: "2"' in problem["detail"]
    assert (await team_a.delete(ALIAS, headers={"If-Match": '"1"'})).status_code == 412
    assert (await team_a.get(ALIAS)).json()["version"] == 2
    assert (await move(team_a, 3, if_none_match="*")).status_code == 412


async def test_a_move_of_a_missing_alias_says_so(team_a: httpx2.AsyncClient) -> None:
    problem = checked_problem(await move(team_a, 2, if_match="1"))
    assert (problem["status"], problem.get("current_version")) == (412, None)
    assert "If-None-Match: *" in problem["detail"]


async def test_a_move_sent_twice_succeeds_twice(team_a: httpx2.AsyncClient) -> None:
    await move(team_a, 1, if_none_match="*")
    assert [(await move(team_a, 2, if_match="1")).status_code for _ in range(2)] == [200, 200]


async def test_a_move_without_a_condition_is_refused_with_instructions(team_a: httpx2.AsyncClient) -> None:
    for answer in (await team_a.put(ALIAS, json={"version": 1}), await team_a.delete(ALIAS)):
        assert answer.status_code == 428
        detail = checked_problem(answer)["detail"]
        assert "If-Match" in detail
        assert "If-None-Match: *" in detail


@pytest.mark.parametrize(
    ("headers", "field"),
    [
        ({"If-Match": "1"}, "If-Match"),
        ({"If-Match": 'W/"1"'}, "If-Match"),
        ({"If-Match": "*"}, "If-Match"),
        ({"If-None-Match": '"1"'}, "If-None-Match"),
        ({"If-Match": '"1"', "If-None-Match": "*"}, "If-None-Match"),
    ],
)
async def test_an_invalid_condition_is_refused(team_a: httpx2.AsyncClient, headers: dict[str, str], field: str) -> None:
    answer = await team_a.put(ALIAS, json={"version": 1}, headers=headers)
    assert answer.status_code == 422
    assert checked_problem(answer)["errors"][0]["field"] == field


async def test_an_alias_cannot_be_moved_to_a_missing_or_retired_version(team_a: httpx2.AsyncClient) -> None:
    assert (await move(team_a, 9, if_none_match="*")).status_code == 404
    await team_a.put(f"{PATH}@1/retirement", json={"reason": "Wrong."})
    refused = await move(team_a, 1, if_none_match="*")
    assert refused.status_code == 422
    assert "restore it first" in checked_problem(refused)["detail"]
    latest = await team_a.put(f"{PATH}/aliases/latest", json={"version": 1}, headers={"If-None-Match": "*"})
    assert latest.status_code == 422
    assert "newest" in checked_problem(latest)["detail"]


async def test_an_unknown_alias_is_refused_with_the_closest_match(team_a: httpx2.AsyncClient) -> None:
    await move(team_a, 1, if_none_match="*")
    for path in (f"{PATH}@producton", f"{PATH}/aliases/producton"):
        assert "Did you mean 'team/a@production'?" in checked_problem(await team_a.get(path))["detail"]
    assert (await team_a.get("/v1/rubrics/team/b/aliases")).status_code == 404


async def judged(http: httpx2.AsyncClient, path: str, rubric: str, **more: Any) -> httpx2.Response:
    """Judge something by a rubric reference."""
    group = {"id": "g", "prompt": "p", "responses": ["r"]}
    items = (
        {"pairs": [{"id": "g", "prompt": "p", "a": "r", "b": "s"}]} if "comparisons" in path else {"groups": [group]}
    )
    return await http.post(path, json={"rubric": rubric, **items, **more})


async def test_metadata_published_with_the_criteria_is_read_back(team_a: httpx2.AsyncClient) -> None:
    content = {"criteria": CRITERIA, "metadata": {"by": "Ada"}, "tags": ["x"], "lineage": {"author": "me"}, "parent": 1}
    made = await publish(team_a, "team/a", content)
    assert made.status_code == 201
    version = (await team_a.get(f"{PATH}@3")).json()
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
    team_a: httpx2.AsyncClient, beside: dict[str, Any], field: str
) -> None:
    answer = await publish(team_a, "team/a", {"criteria": CRITERIA, **beside})
    assert answer.status_code == 422
    assert [error["field"] for error in checked_problem(answer)["errors"]] == [field]
    assert (await team_a.get(PATH)).json()["version"] == 2


async def test_the_tag_limit_holds_over_several_publications(team_a: httpx2.AsyncClient) -> None:
    await publish(team_a, "team/a", {**FIRST, "tags": [f"t{n}" for n in range(60)]})
    answer = await publish(team_a, "team/a", {"criteria": CRITERIA, "tags": [f"u{n}" for n in range(60)]})
    assert answer.status_code == 422
    assert "at most 64" in checked_problem(answer)["errors"][0]["message"]


@pytest.mark.parametrize("name", ["a/versions", "a/diff", "a/aliases/x"])
async def test_a_name_with_a_word_reserved_for_urls_is_refused_with_the_reason(
    team_a: httpx2.AsyncClient, name: str
) -> None:
    problem = checked_problem(await publish(team_a, name))
    assert "since URLs use this word" in problem["errors"][0]["message"]


async def test_rewards_by_an_alias_name_the_version_that_judged(team_a: httpx2.AsyncClient) -> None:
    await move(team_a, 1, if_none_match="*")
    [pinned] = (await judged(team_a, "/v1/rewards", "team/a@production")).json()["rubrics"]
    digest = (await team_a.get(f"{PATH}@1")).json()["digest"]
    assert pinned == {"digest": digest, "name": "team/a", "version": 1}


@pytest.mark.parametrize("path", ["/v1/rewards", "/v1/verdicts", "/v1/comparisons"])
async def test_a_retired_version_judges_only_where_the_request_allows_it(team_a: httpx2.AsyncClient, path: str) -> None:
    await move(team_a, 1, if_none_match="*")
    reason = {"reason": "Rewards guessing."}
    assert (await team_a.put(f"{PATH}@1/retirement", json=reason)).json()["retirement"]["reason"] == reason["reason"]
    digest = (await team_a.get(f"{PATH}@1")).json()["digest"]
    for reference in ("team/a@1", "team/a@production", digest):
        refused = await judged(team_a, path, reference)
        assert refused.status_code == 422
        problem = checked_problem(refused)
        assert problem["type"] == "urn:adjudge:retired-rubric"
        for part in ("team/a@1, which was retired on 20", "Rewards guessing.", "use team/a@2", "allow_retired"):
            assert part in problem["detail"]
        allowed = await judged(team_a, path, reference, allow_retired=True)
        assert allowed.json()["rubrics"][0]["digest"] == digest
    assert (await judged(team_a, path, "team/a")).status_code == 200
    await team_a.delete(f"{PATH}@1/retirement")
    assert (await judged(team_a, path, "team/a@1")).status_code == 200


async def test_a_rubric_with_only_retired_versions_can_be_read_but_not_used(team_a: httpx2.AsyncClient) -> None:
    for version in (1, 2):
        await team_a.put(f"{PATH}@{version}/retirement", json={"reason": "Wrong."})
    assert (await team_a.get(PATH)).json()["version"] == 2
    [summary] = (await team_a.get("/v1/rubrics")).json()["rubrics"]
    assert (summary["latest_version"], summary["retired"]) == (2, True)
    detail = checked_problem(await judged(team_a, "/v1/rewards", "team/a"))["detail"]
    assert "use team/a" not in detail
    assert "allow_retired" in detail


@pytest.mark.parametrize("reference", ["team/a", "team/a@production", "team/a@latest"])
async def test_only_a_pinned_version_can_be_retired(team_a: httpx2.AsyncClient, reference: str) -> None:
    await move(team_a, 2, if_none_match="*")
    refused = await team_a.put(f"/v1/rubrics/{reference}/retirement", json={"reason": "Wrong."})
    assert refused.status_code == 422
    assert "write 'team/a@2'" in checked_problem(refused)["detail"]
    assert (await team_a.put(f"{PATH}@9/retirement", json={"reason": "Wrong."})).status_code == 404
    assert (await team_a.put(f"{PATH}@2/retirement", json={"reason": " "})).status_code == 422


async def test_a_history_lists_versions_with_their_aliases_in_pages(team_a: httpx2.AsyncClient) -> None:
    await move(team_a, 1, if_none_match="*")
    first = (await team_a.get(f"{PATH}/versions", params={"limit": 1})).json()
    second = (await team_a.get(f"{PATH}/versions", params={"limit": 1, "after": first["next_cursor"]})).json()
    seen = [(v["version"], v["parent"], v["aliases"]) for page in (first, second) for v in page["versions"]]
    assert seen == [(2, 1, []), (1, None, ["production"])]
    assert second["next_cursor"] is None
    assert "criteria" not in first["versions"][0]
    made_up = await team_a.get(f"{PATH}/versions", params={"after": "made-up"})
    assert checked_problem(made_up)["errors"][0]["field"] == "after"
    assert "Did you mean 'team/a'" in checked_problem(await team_a.get("/v1/rubrics/team/aa/versions"))["detail"]


async def test_versions_are_compared_by_number_and_by_alias(team_a: httpx2.AsyncClient) -> None:
    await publish(
        team_a, "team/a", {"criteria": [{**CRITERIA[0], "weight": 9, "description": "Other."}, *CRITERIA[2:3]]}
    )
    await move(team_a, 1, if_none_match="*")
    for params in ({"from": "1", "to": "3"}, {"from": "production"}, {"from": "production", "to": "latest"}):
        diff = (await team_a.get(f"{PATH}/diff", params=params)).json()
        assert (diff["before"]["version"], diff["after"]["version"]) == (1, 3)
        assert [added["criterion"]["id"] for added in diff["added"]] == [CRITERIA[2]["id"]]
        assert [removed["criterion"]["id"] for removed in diff["removed"]] == [CRITERIA[1]["id"]]
        assert [(r["before"], r["after"]) for r in diff["reweighted"]] == [(3.0, 9.0)]
        assert [r["after"] for r in diff["reworded"]] == ["Other."]


@pytest.mark.parametrize(
    ("query", "status"), [("", 422), ("?from=1&to=9", 404), ("?from=producton", 404), ("?from=1&to=A", 422)]
)
async def test_an_invalid_comparison_of_versions_is_refused(
    team_a: httpx2.AsyncClient, query: str, status: int
) -> None:
    answer = await team_a.get(f"{PATH}/diff{query}")
    assert answer.status_code == status
    checked_problem(answer)


async def test_rubrics_are_found_by_tag_and_words(team_a: httpx2.AsyncClient) -> None:
    assert (await team_a.put(f"{PATH}/tags", json={"tags": ["b", "a", "b"]})).json() == {
        "name": "team/a",
        "tags": ["a", "b"],
    }
    await publish(team_a, "team/b", {"criteria": [{"id": "x", "description": "Names Canberra."}], "tags": ["a"]})

    async def found(**params: str) -> list[str]:
        return [s["name"] for s in (await team_a.get("/v1/rubrics", params=params)).json()["rubrics"]]

    assert await found(tag="a") == ["team/a", "team/b"]
    assert await found(tag="b") == ["team/a"]
    assert await found(text="CANBERRA names") == ["team/b"]
    assert await found(text="canberra", tag="b") == []
    assert (await team_a.put("/v1/rubrics/team/c/tags", json={"tags": []})).status_code == 404
    assert (await team_a.put(f"{PATH}/tags", json={"tags": ["No Tag"]})).status_code == 422


async def test_tags_of_a_version_are_refused(team_a: httpx2.AsyncClient) -> None:
    problem = checked_problem(await team_a.put(f"{PATH}@1/tags", json={"tags": ["a"]}))
    assert "send them to its name, 'team/a'" in problem["errors"][0]["message"]
    assert (await team_a.put(f"{PATH}@9/tags", json={"tags": ["a"]})).status_code == 404


async def test_the_examples_of_changes_in_the_api_document_are_accepted(team_a: httpx2.AsyncClient) -> None:
    paths = openapi()["paths"]

    def example(method: str, path: str) -> Any:
        [value] = paths[path][method]["requestBody"]["content"]["application/json"]["examples"].values()
        return value["value"]

    publication = example("post", "/v1/rubrics/{name}/versions")
    assert publication == example_requests()["publish_version"]["speed"]["value"]
    assert (await publish(team_a, "team/a", publication)).status_code == 201
    alias = example("put", "/v1/rubrics/{name}/aliases/{alias}")
    assert (await team_a.put(ALIAS, json=alias, headers={"If-None-Match": "*"})).status_code == 200
    assert (await team_a.put(f"{PATH}/tags", json=example("put", "/v1/rubrics/{name}/tags"))).status_code == 200
    retirement = example("put", "/v1/rubrics/{reference}/retirement")
    assert (await team_a.put(f"{PATH}@1/retirement", json=retirement)).status_code == 200
