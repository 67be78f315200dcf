"""Health, capabilities, request ids, errors that no route defines, and a store that is away."""

import asyncio
import logging
import re
import threading
from typing import Any, get_args

import httpx2
import pytest

from judge_server.api.app import create_app
from judge_server.api.service import Service
from judge_server.engines.scripted import ScriptedEngine
from judge_server.judging.prompts.library import builtin_sets
from rubric_store import RubricStore
from tests.judge_server.api.problems import checked_problem
from tests.judge_server.conftest import Serve
from tests.judge_server.support import advance_time, request
from trainer_client.wire import RewardMode


async def test_while_the_judge_loads_the_process_is_alive_but_not_ready(serve: Serve) -> None:
    http = await serve(loaded=False)
    assert (await http.get("/healthz")).json() == {"status": "ok"}
    for answer in (await http.get("/readyz"), await http.post("/v1/rewards", json=request())):
        assert answer.status_code == 503
        problem = checked_problem(answer)
        assert (problem["type"], problem["retryable"]) == ("urn:adjudge:not-ready", True)
        assert "still loading" in problem["detail"]
        assert int(answer.headers["Retry-After"]) > 0
    assert (await http.get("/v1")).json()["model"] is None


async def test_rubrics_can_be_read_while_the_judge_loads(serve: Serve) -> None:
    http = await serve(loaded=False)
    assert (await http.get("/v1/rubrics")).json() == {"rubrics": [], "next_cursor": None}


async def test_readiness_of_a_loaded_service_lists_each_check(http: httpx2.AsyncClient) -> None:
    answer = await http.get("/readyz")
    assert (answer.status_code, answer.json()) == (200, {"checks": {"store": True, "judge": True, "cache": True}})


async def test_a_service_without_its_engine_or_store_is_not_ready_and_names_the_failed_checks(
    serve: Serve, store: RubricStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = ScriptedEngine()
    http = await serve(engine)
    await engine.close()
    assert checked_problem(await http.get("/readyz"))["detail"] == "not ready: judge"

    async def unreadable() -> bool:
        return False

    monkeypatch.setattr(store, "ready", unreadable)
    assert checked_problem(await http.get("/readyz"))["detail"] == "not ready: store, judge"


async def test_readiness_can_be_limited_to_named_checks(
    serve: Serve, store: RubricStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    engine = ScriptedEngine()
    http = await serve(engine)

    async def hangs() -> bool:
        raise AssertionError("a check that was not requested must not run")

    monkeypatch.setattr(store, "ready", hangs)
    assert (await http.get("/readyz?only=judge")).json() == {"checks": {"judge": True}}
    assert (await http.get("/readyz?only=judge&only=cache")).json() == {"checks": {"judge": True, "cache": True}}
    assert checked_problem(await http.get("/readyz?only=judge&only=juge"))["detail"] == "not ready: juge"
    await engine.close()
    assert checked_problem(await http.get("/readyz?only=judge"))["detail"] == "not ready: judge"


async def test_a_replica_with_a_local_judge_is_ready_while_that_judge_is(serve: Serve) -> None:
    loading = await serve(loaded=False)
    assert checked_problem(await loading.get("/readyz?only=replica"))["detail"].startswith("not ready: replica (")
    engine = ScriptedEngine()
    http = await serve(engine)
    assert (await http.get("/readyz?only=replica")).json() == {"checks": {"replica": True}}
    assert "replica" not in (await http.get("/readyz")).json()["checks"]
    await engine.close()
    assert checked_problem(await http.get("/readyz?only=replica"))["detail"] == "not ready: replica"


async def test_the_service_lists_its_capabilities(http: httpx2.AsyncClient) -> None:
    known = (await http.get("/v1")).json()
    assert known["modes"] == list(get_args(RewardMode))
    assert known["protocols"] == ["binary", "stepwise", "graded", "checklist", "likert"]
    assert known["protocols_for"]["partial_credit"] == ["checklist", "graded"]
    assert known["protocols_for"]["outcome"] == []
    assert "math" in known["verification_methods"]
    assert known["templates"] == sorted(builtin_sets())
    assert known["engine"]["logprobs"] is True
    assert known["failure_policies"] == ["null", "error", "zero", "zero_unparseable", "skip"]
    assert known["model"] == "scripted"
    assert re.fullmatch(r"\d+\.\d+\.\d+", known["version"])


@pytest.mark.parametrize("path", ["/healthz", "/v1", "/v1/rubrics/unknown", "/nowhere"])
async def test_a_valid_request_id_is_kept_and_any_other_is_replaced(http: httpx2.AsyncClient, path: str) -> None:
    kept = await http.get(path, headers={"X-Request-Id": "trainer-7.step_3"})
    assert kept.headers["X-Request-Id"] == "trainer-7.step_3"
    for odd in ("", "with space", "x" * 129, "<script>"):
        made = (await http.get(path, headers={"X-Request-Id": odd})).headers["X-Request-Id"]
        assert re.fullmatch(r"req_[0-9a-f]{16}", made)


async def test_an_unknown_path_or_method_is_a_problem(http: httpx2.AsyncClient) -> None:
    missing = await http.get("/v2/rewards")
    assert (missing.status_code, checked_problem(missing)["type"]) == (404, "urn:adjudge:not-found")
    wrong = await http.get("/v1/rewards")
    assert (wrong.status_code, checked_problem(wrong)["type"]) == (405, "urn:adjudge:method-not-allowed")
    assert wrong.headers["Allow"] == "POST"


async def test_an_unexpected_error_is_a_problem_that_reveals_no_details(
    http: httpx2.AsyncClient, store: RubricStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    async def broken(project_id: str, reference: str, **_: float) -> None:
        raise RuntimeError("password=hunter2")

    monkeypatch.setattr(store, "find", broken)
    with caplog.at_level(logging.ERROR):
        answer = await http.get("/v1/rubrics/any", headers={"X-Request-Id": "find-me"})
    assert answer.status_code == 500
    problem = checked_problem(answer)
    assert (problem["type"], problem["request_id"]) == ("urn:adjudge:internal", "find-me")
    assert "hunter2" not in answer.text
    assert "find-me" in caplog.text
    assert "hunter2" in caplog.text


@pytest.mark.parametrize("length", ["many", "-5", "1e3"])
async def test_an_invalid_content_length_causes_no_server_error(http: httpx2.AsyncClient, length: str) -> None:
    answer = await http.get("/healthz", headers={"Content-Length": length})
    assert answer.status_code < 500


async def test_the_openapi_document_is_built_off_the_event_loop(
    store: RubricStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[threading.Thread] = []
    app = create_app(Service(rubrics=store))
    make = app.openapi

    def openapi() -> dict[str, Any]:
        made.append(threading.current_thread())
        return make()

    monkeypatch.setattr(app, "openapi", openapi)
    async with httpx2.AsyncClient(transport=httpx2.ASGITransport(app), base_url="http://adjudge.test") as client:
        one, other = await asyncio.gather(client.get("/openapi.json"), client.get("/openapi.json"))
        wrong = await client.get("/v1/rewards")
    assert one.content == other.content
    assert one.headers["Content-Type"] == "application/json"
    assert wrong.headers["Allow"] == "POST"
    assert len(made) == 2
    assert threading.current_thread() not in made


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/readyz?only=nothing"])
async def test_health_routes_answer_head_like_get(http: httpx2.AsyncClient, path: str) -> None:
    head, get = await http.head(path), await http.get(path)
    assert head.status_code == get.status_code
    assert head.headers["Content-Type"] == get.headers["Content-Type"]


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
