"""`/v1/judges/{name}`: sleep and weights, as callers, probes, the console and the audit log see them."""

import asyncio
from pathlib import Path
from typing import Any

import httpx2
import pytest

from judge_server.engines.scripted import ScriptedEngine
from tests.fixtures.migrated import NewSQLite
from tests.judge_server.api.problems import checked_problem
from tests.judge_server.auth.keyed import KeyedService
from tests.judge_server.conftest import Serve
from tests.judge_server.scheduling.test_changing_weights import ChangingEngine, adapters
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


PATH = "/v1/judges/default/weights"
CONTROL = {
    "groups": [{"id": "q", "prompt": "Say yes.", "responses": [f"Yes {n}." for n in range(10)]}],
    "rubric": {"criteria": [{"id": "yes", "description": "Says yes."}]},
}


async def change(http: httpx2.AsyncClient, version: str, adapter: str | None = None, **fields: Any) -> dict[str, Any]:
    """The answer to a change of weights."""
    answer = await http.put(PATH, json={"version": version, "adapter": adapter, **fields})
    assert answer.status_code == 200, answer.text
    found: dict[str, Any] = answer.json()
    assert answer.headers["etag"] == f'"{found["tag"]}"'
    return found


async def test_a_change_is_told_by_its_answer_and_by_later_ones(serve: Serve, tmp_path: Path) -> None:
    http = await serve(ScriptedEngine(), adapters=adapters(tmp_path, "a"))
    start = (await http.get(PATH)).json()
    assert (start["version"], start["model"], start["drift"]) == (None, "scripted", None)
    before = (await http.post("/v1/rewards", json=request("Yes."))).json()
    found = await change(http, "step-200", "a", step=200)
    assert (found["version"], found["adapter"], found["step"]) == ("step-200", "a", 200)
    assert (await http.get(PATH)).json() == found
    assert found["tag"] != start["tag"]
    after = (await http.post("/v1/rewards", json=request("Yes."))).json()
    assert after["judge"]["fingerprint"] != before["judge"]["fingerprint"]
    assert after["judge"]["model"] == found["model"]
    assert "<bdi>step-200</bdi>, step 200" in (await http.get("/console/judges")).text
    metrics = (await http.get("/metrics")).text
    assert 'adjudge_weights_changes_total{outcome="loaded"} 1.0' in metrics
    assert "adjudge_weights_step 200.0" in metrics


async def test_a_control_set_shows_the_drift_since_the_weights_that_it_was_first_judged_at(
    serve: Serve, tmp_path: Path
) -> None:
    http = await serve(ScriptedEngine(), adapters=adapters(tmp_path, "a"))
    start = (await http.get(PATH)).json()["tag"]
    drift = (await change(http, "one", "a", control=CONTROL))["drift"]
    assert (drift["since"], drift["since_tag"], drift["verdicts"], drift["missing"]) == (None, start, 10, 0)
    base, moved = [await probabilities(http, adapter) for adapter in (None, "a")]
    changes = [now - then for then, now in zip(base, moved, strict=True)]
    assert drift["probability_change"] == pytest.approx(sum(changes) / 10)
    assert drift["probability_distance"] == pytest.approx(sum(map(abs, changes)) / 10)
    flipped = sum((now >= 0.5) != (then >= 0.5) for then, now in zip(base, moved, strict=True))
    assert drift["changed"] == flipped / 10 > 0
    assert f'figure="changed"}} {flipped / 10}' in (await http.get("/metrics")).text
    back = (await change(http, "base", control=CONTROL))["drift"]
    assert (back["changed"], back["probability_distance"]) == (0, 0)
    assert (await change(http, "base"))["drift"] is None
    assert (await http.get(PATH)).json()["drift"] is None


async def probabilities(http: httpx2.AsyncClient, adapter: str | None) -> list[float]:
    """The probabilities that the control set gets under these weights."""
    await change(http, "v", adapter)
    answer = (await http.post("/v1/verdicts", json=CONTROL)).json()
    return [one["probability"] for response in answer["groups"][0]["responses"] for one in response["verdicts"]]


async def test_what_cannot_be_loaded_is_refused_and_the_judge_goes_on(serve: Serve, tmp_path: Path) -> None:
    engine = ChangingEngine(failing=["refuse"], load_s=0, delay_s=0)
    http = await serve(engine, adapters=adapters(tmp_path, "a"))
    start = (await http.get(PATH)).json()
    refused = checked_problem(await http.put(PATH, json={"version": "v", "adapter": "a"}))
    assert (refused["status"], "keeps its weights" in refused["detail"]) == (422, True)
    for wrong in ({"version": ""}, {"adapter": "a"}, {"version": "v", "step": -1}, {"version": "v", "wait_s": 0},
                  {"version": "v", "adapter": "../a"}, {"version": "v", "adapter": "\u0000"},
                  {"version": "v", "control": CONTROL | {"judge": "other"}}):  # fmt: skip
        assert checked_problem(await http.put(PATH, json=wrong))["status"] == 422, wrong
    changed = checked_problem(await http.put(PATH, json={"version": "v"}, headers={"If-Match": '"0000"'}))
    assert (changed["status"], changed["type"]) == (412, "urn:adjudge:weights-changed")
    assert checked_problem(await http.put(PATH, json={"version": "v"}, headers={"If-Match": "0000"}))["status"] == 422
    unknown = checked_problem(await http.get("/v1/judges/other/weights"))
    assert (unknown["status"], unknown["title"]) == (404, "Unknown judge")
    assert (await http.get(PATH)).json() == start
    found = await http.put(PATH, json={"version": "v", "adapter": "a"}, headers={"If-Match": f'"{start["tag"]}"'})
    assert found.status_code == 200


async def test_unknown_weights_are_told_by_every_answer_and_by_readiness(serve: Serve, tmp_path: Path) -> None:
    http = await serve(ChangingEngine(failing=["break"], load_s=0, delay_s=0), adapters=adapters(tmp_path, "a"))
    failed = checked_problem(await http.put(PATH, json={"version": "v", "adapter": "a"}))
    asked = checked_problem(await http.post("/v1/rewards", json=request("Yes.")))
    for problem in (failed, asked):
        assert (problem["status"], "not known which weights" in problem["detail"]) == (503, True)
    assert (await http.get("/readyz")).status_code == 503
    assert 'outcome="failed"} 1.0' in (await http.get("/metrics")).text
    assert (await http.get(PATH)).json()["tag"] == "unknown"
    found = await change(http, "v", "a", control=CONTROL)
    assert (found["drift"]["since"], found["drift"]["changed"]) == ("v", 0)
    assert (await http.get("/readyz")).status_code == 200


async def test_an_engine_that_loads_nothing_says_so(serve: Serve) -> None:
    class Fixed(ScriptedEngine):
        load = None  # type: ignore[assignment]

    http = await serve(Fixed())
    problem = checked_problem(await http.put(PATH, json={"version": "v"}))
    assert (problem["status"], "cannot load other weights" in problem["detail"]) == (422, True)


async def test_changes_need_a_scope_and_are_audited_and_the_ledger_has_the_fingerprints_of_both(
    tmp_path: Path, new_sqlite: NewSQLite
) -> None:
    new_sqlite(tmp_path / "rubrics.db")
    service = await KeyedService.start(tmp_path, adapters=adapters(tmp_path, "a"))
    scoring, changing, both = [
        await service.key(*scopes)
        for scopes in (("score", "read"), ("judges:write", "read"), ("score", "read", "judges:write", "admin"))
    ]
    async with service.client(scoring) as http:
        assert (await http.put(PATH, json={"version": "v"})).status_code == 403
    async with service.client(changing) as http:
        assert (await http.put(PATH, json={"version": "v", "control": CONTROL})).status_code == 403
        one = await change(http, "one")
    async with service.client(both) as http:
        two = await change(http, "two", "a", control=CONTROL | {"run": "mine/control"})
        entries = (await http.get("/v1/audit")).json()["entries"]
        changes = [(entry["action"], entry["after"]) for entry in entries if entry["subject"] == "judge default"]
        assert changes == [
            ("judge.weights", f"two ({two['model']}, {two['tag']}) after {one['tag']}"),
            ("judge.weights", f"one (scripted, {one['tag']}) after {one['tag']}"),
        ]
        await service.recorded()
        rows = (await http.get("/v1/verdicts?run=mine/control")).json()["verdicts"]
    models = {(row["judge"], row["fingerprint"]) for row in rows}
    assert sorted(model for model, _ in models) == ["scripted", two["model"]]
    assert len({fingerprint for _, fingerprint in models}) == 2
    await service.close()


async def test_what_a_project_calls_its_weights_is_shown_only_to_keys_that_may_change_them(
    tmp_path: Path, new_sqlite: NewSQLite
) -> None:
    new_sqlite(tmp_path / "rubrics.db")
    service = await KeyedService.start(tmp_path, adapters=adapters(tmp_path, "a"))
    changing = await service.key("score", "judges:write")
    async with service.client(changing) as http:
        await change(http, "secret-1", control=CONTROL)
        loaded = await change(http, "secret-2", "a", step=200, control=CONTROL)
        assert (await http.get(PATH)).json() == loaded
        assert "secret-2" in (await http.get("/console/judges")).text
    for scope in ("read", "score", "admin"):
        async with service.client(await service.key(scope)) as http:
            seen, page = await http.get(PATH), await http.get("/console/judges")
        unnamed = {"version": None, "adapter": None, "step": None, "drift": loaded["drift"] | {"since": None}}
        assert seen.json() == loaded | unnamed
        assert seen.headers["etag"] == f'"{loaded["tag"]}"'
        assert (page.status_code, "secret" in seen.text + page.text) == (200, False)
    await service.close()
