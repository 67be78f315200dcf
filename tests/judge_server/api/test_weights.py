"""`PUT` and `GET /v1/judges/{name}/weights`: what trainers, the ledger, the audit log and metrics see."""

from pathlib import Path
from typing import Any

import httpx2
import pytest

from judge_server.engines.scripted import ScriptedEngine
from tests.fixtures.migrated import NewSQLite
from tests.judge_server.api.http.test_bad_input import checked_problem
from tests.judge_server.auth.keyed import KeyedService
from tests.judge_server.conftest import Serve
from tests.judge_server.support import request
from tests.judge_server.test_changing_weights import ChangingEngine, adapters

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
