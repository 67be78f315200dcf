"""`GET /v1/runs/{run}/monitors`, and fresh judging of a control set, over HTTP."""

from typing import Any

import httpx2

from tests.judge_server.api.http.test_bad_input import checked_problem
from tests.judge_server.api.test_ledger import post, recorded
from tests.judge_server.api.test_runs import get
from tests.judge_server.support import request

__all__ = ["recorded"]


async def test_the_monitors_of_a_run_are_returned(recorded: httpx2.AsyncClient) -> None:
    for step in range(3):
        await post(recorded, request("Yes.", "No.", run="team/r", step=step, on_failure="skip"))
    found = await get(recorded, "/v1/runs/team/r/monitors")
    assert (found["run"], found["first_step"], found["last_step"], found["findings"]) == ("team/r", 0, 2, [])
    assert {"unscored", "length_bias", "saturated_criterion"} <= set(found["monitors"])
    assert (await get(recorded, "/v1/runs/team/r/monitors", until_step=1))["last_step"] == 1
    assert (await get(recorded, "/v1/runs/team/r"))["run"]["requests"] == 3


async def test_a_run_whose_name_ends_like_the_route_is_read_with_its_slash_escaped(
    recorded: httpx2.AsyncClient,
) -> None:
    await post(recorded, request("Yes.", run="team/monitors", step=4, on_failure="skip"))
    await post(recorded, request("Yes.", run="team", step=7, on_failure="skip"))
    assert (await get(recorded, "/v1/runs/team%2Fmonitors"))["run"]["run"] == "team/monitors"
    assert (await get(recorded, "/v1/runs/team/monitors/monitors"))["last_step"] == 4
    assert (await get(recorded, "/v1/runs/team%2Fmonitors/monitors"))["last_step"] == 4
    assert (await get(recorded, "/v1/runs/team/monitors"))["last_step"] == 7


async def test_a_run_without_steps_has_no_monitors(recorded: httpx2.AsyncClient) -> None:
    await post(recorded, request("Yes.", run="r"))
    for run in ("r", "missing"):
        assert checked_problem(await recorded.get(f"/v1/runs/{run}/monitors"))["status"] == 404


async def test_a_control_set_is_judged_afresh_and_has_one_fingerprint(recorded: httpx2.AsyncClient) -> None:
    await post(recorded, request("Yes.", run="r", step=1, on_failure="skip"))
    asked: dict[str, Any] = request("Yes.", run="r/control", step=1, fresh=True)
    answers = [(await post(recorded, asked | {"step": step}, "/v1/verdicts")).json() for step in (1, 2)]
    assert [one["usage"]["cached"] for one in answers] == [0, 0]
    assert answers[0]["groups"] == answers[1]["groups"]
    found = await get(recorded, "/v1/runs/r/monitors")
    assert {"control_changed", "control_fingerprint"} <= set(found["monitors"])
    assert found["findings"] == []


async def test_a_gold_judge_that_does_not_exist_is_refused(recorded: httpx2.AsyncClient) -> None:
    answer = await recorded.post("/v1/rewards", json=request("Yes.", run="r", gold={"judge": "nobody"}))
    problem = checked_problem(answer)
    assert (problem["status"], problem["errors"][0]["field"]) == (422, "gold.judge")
