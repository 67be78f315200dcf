"""One log line per request, and ids on all lines logged while it is served."""

import logging
from typing import Any

import httpx2
import pytest

from judge_server.engines.scripted import ScriptedEngine
from judge_server.observability.logs import log_context
from judge_server.observability.tracing import TracingTransport
from judge_server.ports import Batch, Call, CallFailure
from rubric_store import RubricStore
from tests.judge_server.conftest import Serve
from tests.judge_server.observability.captured import CapturedLogs
from tests.judge_server.support import request

log = logging.getLogger("adjudge")
ACCESS = "adjudge.access"
WRITTEN = "what a user wrote"


async def test_a_request_is_one_line_with_its_route_status_and_owner(
    http: httpx2.AsyncClient, lines: CapturedLogs
) -> None:
    answer = await http.post("/v1/rewards", json=request(run="r-1"), headers={"X-Request-Id": "mine"})
    assert answer.status_code == 200
    (line,) = lines.of(ACCESS)
    assert line.pop("ms") > 0
    assert line.pop("time")
    assert line.pop("message").startswith("POST /v1/rewards: 200 in ")
    assert line == {
        "level": "info",
        "logger": ACCESS,
        "request_id": "mine",
        "project": "default",
        "run": "r-1",
        "method": "POST",
        "route": "/v1/rewards",
        "status": 200,
        "bytes": len(answer.content),
    }
    assert "[request_id=mine project=default run=r-1]" in lines.text


async def test_a_stream_is_logged_with_all_its_bytes_when_it_has_ended(
    http: httpx2.AsyncClient, lines: CapturedLogs
) -> None:
    answer = await http.post("/v1/rewards", json=request(run="r"), headers={"Accept": "application/x-ndjson"})
    (line,) = lines.of(ACCESS)
    assert (line["status"], line["bytes"], line["run"]) == (200, len(answer.content), "r")


@pytest.mark.parametrize("path", ["/v1/rubrics/a-name-of-mine", "/v1/rubrics?search=a-name-of-mine"])
async def test_a_line_names_the_route_and_not_the_callers_path(
    http: httpx2.AsyncClient, lines: CapturedLogs, path: str
) -> None:
    await http.get(path)
    (line,) = lines.of(ACCESS)
    assert line["route"] in ("/v1/rubrics/{reference}", "/v1/rubrics", "/v1/rubrics/{name}")
    assert "a-name-of-mine" not in lines.whole


async def test_a_request_without_a_route_is_logged_without_its_path(
    http: httpx2.AsyncClient, lines: CapturedLogs
) -> None:
    await http.get("/some/where?else=1")
    (line,) = lines.of(ACCESS)
    assert (line["route"], line["status"]) == ("(no route)", 404)
    assert "some" not in lines.whole


async def test_a_route_is_logged_in_full(http: httpx2.AsyncClient, lines: CapturedLogs) -> None:
    await http.get("/v1/rubrics/alpha/aliases/production")
    (line,) = lines.of(ACCESS)
    assert line["route"] == "/v1/rubrics/{name}/aliases/{alias}"


async def test_the_run_in_a_path_is_logged(http: httpx2.AsyncClient, lines: CapturedLogs) -> None:
    await http.get("/v1/runs/r-9")
    assert [line.get("run") for line in lines.of(ACCESS)] == ["r-9"]


async def test_a_request_with_a_refused_body_is_logged(serve: Serve, lines: CapturedLogs) -> None:
    http = await serve(max_body_bytes=2000)
    await http.post("/v1/rewards", content=b" " * 3000)
    (line,) = lines.of(ACCESS)
    assert line["status"] == 413
    assert line["request_id"].startswith("req_")


@pytest.mark.parametrize("path", ["/healthz", "/readyz", "/metrics"])
async def test_probes_and_scrapes_are_not_logged(http: httpx2.AsyncClient, lines: CapturedLogs, path: str) -> None:
    await http.get(path)
    assert lines.of(ACCESS) == []


async def test_an_unexpected_error_is_logged_once_with_its_request_and_without_its_message(
    http: httpx2.AsyncClient, store: RubricStore, monkeypatch: pytest.MonkeyPatch, lines: CapturedLogs
) -> None:
    async def broken(*_: Any, **__: Any) -> None:
        raise RuntimeError(WRITTEN)

    monkeypatch.setattr(store, "find", broken)
    answer = await http.post("/v1/rewards", json=request(run="r-1") | {"rubric": "any"}, headers={"X-Request-Id": "me"})
    assert answer.status_code == 500
    (error,) = [line for line in lines.objects if line["level"] == "error"]
    assert (error["request_id"], error["run"], error["message"]) == ("me", "r-1", "request me failed")
    assert error["exception"].endswith("\nRuntimeError")
    assert [line["status"] for line in lines.of(ACCESS)] == [500]
    assert WRITTEN not in lines.whole


async def test_engine_logs_of_a_request_have_its_ids(serve: Serve, lines: CapturedLogs) -> None:
    def script(batch: Batch, call: Call) -> CallFailure:
        log.debug("at the engine")
        return CallFailure("parse", "no")

    http = await serve(ScriptedEngine(script))
    await http.post("/v1/rewards", json=request(run="r-1"), headers={"X-Request-Id": "me"})
    at_engine = [line for line in lines.objects if line["message"] == "at the engine"]
    assert {(line["request_id"], line["run"], line["project"]) for line in at_engine} == {("me", "r-1", "default")}


async def test_client_and_server_log_the_same_ids_of_a_chunks_requests(serve: Serve, lines: CapturedLogs) -> None:
    inner = (await serve())._transport
    async with httpx2.AsyncClient(transport=TracingTransport(inner), base_url="http://adjudge.test") as asking:
        with log_context(operation_id="op-7", chunk="3", project="p"):
            await asking.post("/v1/rewards", json=request())
            await asking.post("/v1/rewards", json=request())
    asked, served = lines.of("adjudge.client"), lines.of(ACCESS)
    assert [line["request_id"] for line in asked] == [line["request_id"] for line in served]
    assert len({line["request_id"] for line in asked}) == 2
    assert all(line["request_id"].startswith("op-7.3.") for line in asked)
    assert {line["operation_id"] for line in asked + served} == {"op-7"}
    assert [line["chunk"] for line in asked] == ["3", "3"]


async def test_a_malformed_operation_id_is_ignored(http: httpx2.AsyncClient, lines: CapturedLogs) -> None:
    await http.get("/v1/rubrics", headers={"X-Operation-Id": "what ever"})
    (line,) = lines.of(ACCESS)
    assert "operation_id" not in line


async def test_a_request_without_a_response_is_logged_by_the_client(lines: CapturedLogs) -> None:
    def away(_: httpx2.Request) -> httpx2.Response:
        raise httpx2.ConnectError(WRITTEN)

    asking = httpx2.AsyncClient(transport=TracingTransport(httpx2.MockTransport(away)), base_url="http://adjudge.test")
    with log_context(operation_id="op-7", chunk="3"), pytest.raises(httpx2.ConnectError):
        await asking.post("/v1/rewards", json={})
    (line,) = lines.of("adjudge.client")
    assert line["message"].startswith("sent POST /v1/rewards: no response (ConnectError), request id op-7.3.")
    assert WRITTEN not in lines.whole
