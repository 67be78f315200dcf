"""`/v1/rubrics/{name}/aliases`: moves use If-Match, so that no concurrent move is lost."""

import httpx2
import pytest

from tests.judge_server.api.http.test_bad_input import checked_problem
from tests.judge_server.api.rubric_calls import ALIAS, PATH, move, team_a
from tests.judge_server.api.test_rubrics import publish
from tests.judge_server.support import CRITERIA

__all__ = ["team_a"]


@pytest.fixture
def http(team_a: httpx2.AsyncClient) -> httpx2.AsyncClient:
    """A client of a service whose rubric `team/a` has two versions."""
    return team_a


async def test_an_alias_is_created_read_moved_and_removed(http: httpx2.AsyncClient) -> None:
    made = await move(http, 1, if_none_match="*")
    assert (made.status_code, made.headers["ETag"]) == (200, '"1"')
    assert made.json() == {"name": "team/a", "alias": "production", "version": 1}
    read = await http.get(ALIAS)
    assert (read.json(), read.headers["ETag"]) == (made.json(), '"1"')
    assert (await http.get(f"{PATH}@production")).json()["version"] == 1
    moved = await http.put(ALIAS, json={"version": 2}, headers={"If-Match": read.headers["ETag"]})
    assert (moved.json()["version"], moved.headers["ETag"]) == (2, '"2"')
    assert (await http.get(f"{PATH}/aliases")).json() == {"name": "team/a", "aliases": {"production": 2}}
    gone = await http.delete(ALIAS, headers={"If-Match": '"2"'})
    assert (gone.status_code, gone.json()["aliases"]) == (200, {})
    assert (await http.get(ALIAS)).status_code == 404


async def test_a_move_of_a_just_moved_alias_is_refused_with_its_current_version(http: httpx2.AsyncClient) -> None:
    await move(http, 1, if_none_match="*")
    await publish(http, "team/a", {"criteria": CRITERIA})
    await move(http, 2, if_match="1")
    late = await move(http, 3, if_match="1")
    assert late.status_code == 412
    problem = checked_problem(late)
    assert (problem["type"], problem["current_version"]) == ("urn:adjudge:alias-moved", 2)
    assert 'If-Match: "2"' in problem["detail"]
    assert (await http.delete(ALIAS, headers={"If-Match": '"1"'})).status_code == 412
    assert (await http.get(ALIAS)).json()["version"] == 2
    assert (await move(http, 3, if_none_match="*")).status_code == 412


async def test_a_move_of_a_missing_alias_says_so(http: httpx2.AsyncClient) -> None:
    problem = checked_problem(await move(http, 2, if_match="1"))
    assert (problem["status"], problem.get("current_version")) == (412, None)
    assert "If-None-Match: *" in problem["detail"]


async def test_a_move_sent_twice_succeeds_twice(http: httpx2.AsyncClient) -> None:
    await move(http, 1, if_none_match="*")
    assert [(await move(http, 2, if_match="1")).status_code for _ in range(2)] == [200, 200]


async def test_a_move_without_a_condition_is_refused_with_instructions(http: httpx2.AsyncClient) -> None:
    for answer in (await http.put(ALIAS, json={"version": 1}), await http.delete(ALIAS)):
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
async def test_an_invalid_condition_is_refused(http: httpx2.AsyncClient, headers: dict[str, str], field: str) -> None:
    answer = await http.put(ALIAS, json={"version": 1}, headers=headers)
    assert answer.status_code == 422
    assert checked_problem(answer)["errors"][0]["field"] == field


async def test_an_alias_cannot_be_moved_to_a_missing_or_retired_version(http: httpx2.AsyncClient) -> None:
    assert (await move(http, 9, if_none_match="*")).status_code == 404
    await http.put(f"{PATH}@1/retirement", json={"reason": "Wrong."})
    refused = await move(http, 1, if_none_match="*")
    assert refused.status_code == 422
    assert "restore it first" in checked_problem(refused)["detail"]
    latest = await http.put(f"{PATH}/aliases/latest", json={"version": 1}, headers={"If-None-Match": "*"})
    assert latest.status_code == 422
    assert "newest" in checked_problem(latest)["detail"]


async def test_an_unknown_alias_is_refused_with_the_closest_match(http: httpx2.AsyncClient) -> None:
    await move(http, 1, if_none_match="*")
    for path in (f"{PATH}@producton", f"{PATH}/aliases/producton"):
        assert "Did you mean 'team/a@production'?" in checked_problem(await http.get(path))["detail"]
    assert (await http.get("/v1/rubrics/team/b/aliases")).status_code == 404
