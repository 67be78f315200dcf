"""`POST /v1/judges/{name}/sleep` and `/wake`: what callers, probes, the console and the audit log see."""

import asyncio
from pathlib import Path
from typing import Any

import httpx2

from judge_server.engines.scripted import ScriptedEngine
from tests.fixtures.migrated import NewSQLite
from tests.judge_server.api.http.test_bad_input import checked_problem
from tests.judge_server.auth.keyed import KeyedService
from tests.judge_server.conftest import Serve
from tests.judge_server.support import request


async def hold(http: httpx2.AsyncClient, verb: str, owner: str = "run", **fields: Any) -> dict[str, Any]:
    """The answer to a lease."""
    answer = await http.post(f"/v1/judges/default/{verb}", json={"owner": owner, **fields})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    return found


def rewards(answer: httpx2.Response) -> list[float | None]:
    """The rewards in an answer."""
    return [response["reward"] for response in answer.json()["groups"][0]["responses"]]


async def test_a_request_waits_for_a_sleeping_judge_and_gets_its_usual_reward(serve: Serve) -> None:
    body = request("Yes.", "No.")
    usual = rewards(await (await serve()).post("/v1/rewards", json=body))
    http = await serve(ScriptedEngine())
    assert await hold(http, "sleep") == {"judge": "default", "state": "asleep", "kept_awake_by": []}
    ready = await http.get("/readyz")
    assert (ready.status_code, ready.json()["sleep"]) == (200, {"default": "asleep"})
    assert (await http.get("/readyz?only=replica")).status_code == 200
    assert "asleep" in (await http.get("/console/judges")).text
    waiting = asyncio.create_task(http.post("/v1/rewards", json=body))
    await asyncio.sleep(0.05)
    assert not waiting.done()
    assert 'adjudge_judge_asleep{judge=""} 1.0' in (await http.get("/metrics")).text
    assert (await hold(http, "wake"))["state"] == "awake"
    assert rewards(await waiting) == usual
    assert "sleep" not in (await http.get("/readyz")).json()


async def test_a_request_that_no_awake_judge_sees_has_no_reward(serve: Serve) -> None:
    http = await serve()
    await hold(http, "sleep")
    answer = await http.post("/v1/rewards", json=request("Yes.", deadline_s=0.2))
    assert rewards(answer) == [None]
    failures = {one["failure"]["kind"] for one in answer.json()["groups"][0]["responses"][0]["verdicts"]}
    assert failures == {"timeout"}


async def test_leases_that_make_no_sense_are_refused(serve: Serve) -> None:
    http = await serve()
    for wrong in ({}, {"owner": ""}, {"owner": "a", "lease_s": 0}, {"owner": "a", "lease_s": 1e9}, {"owner": "\u0000"}):
        assert checked_problem(await http.post("/v1/judges/default/sleep", json=wrong))["status"] == 422
    unknown = checked_problem(await http.post("/v1/judges/other/wake", json={"owner": "a"}))
    assert (unknown["status"], unknown["title"]) == (404, "Unknown judge")
    assert (await http.post("/v1/judges/default/sleep", json={"owner": "é" * 200, "lease_s": 1})).status_code == 200


async def test_an_owner_is_of_a_project_and_the_audit_log_has_both_changes(
    tmp_path: Path, new_sqlite: NewSQLite
) -> None:
    new_sqlite(tmp_path / "rubrics.db")
    service = await KeyedService.start(tmp_path)
    await service.tenants.create_project("other")
    scopes = ("judges:write", "admin")
    async with (
        service.client(await service.key(*scopes)) as mine,
        service.client(await service.key(*scopes, project_id="other")) as theirs,
    ):
        await hold(theirs, "wake", lease_s=30)
        assert await hold(mine, "sleep") == {
            "judge": "default", "state": "awake", "kept_awake_by": ["another project"],
        }  # fmt: skip
        assert (await hold(theirs, "sleep"))["state"] == "asleep"
        assert (await hold(mine, "wake"))["kept_awake_by"] == ["run"]
        entries = (await mine.get("/v1/audit")).json()["entries"]
        changes = [(one["action"], one["subject"], one["after"]) for one in entries if "judge." in one["action"]]
        assert changes == [
            ("judge.wake", "judge default", "run for 600 s"), ("judge.sleep", "judge default", "run for 600 s"),
        ]  # fmt: skip
    await service.close()


async def test_a_judge_whose_engine_cannot_sleep_says_so(serve: Serve) -> None:
    class Sleepless(ScriptedEngine):
        sleep = None  # type: ignore[assignment]

    http = await serve(Sleepless())
    problem = checked_problem(await http.post("/v1/judges/default/sleep", json={"owner": "a"}))
    assert (problem["status"], "cannot release its memory" in problem["detail"]) == (422, True)
    assert (await hold(http, "wake"))["state"] == "awake"
