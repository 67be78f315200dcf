"""The log output of processes: in the requested format, with ids that pass from one process to the next."""

import json
import os
from contextlib import ExitStack
from typing import Any

import pytest

from tests.fixtures.ports import unused_port
from tests.services.preforked import start
from tests.services.processes import Service, get, listening
from trainer_client import Client
from trainer_client.errors import ServerError

pytestmark = pytest.mark.usefixtures("migrated")

SECRET = "s3cret-that-nobody-logs"
RUBRIC = {"criteria": [{"id": "a", "description": f"{SECRET} criterion"}]}
JSON = {"ADJUDGE_LOG_FORMAT": "json"}
ENGINE = ("--engine", "scripted://hash")


def ask(service: Service, request_id: str, run: str) -> None:
    """Send a request for rewards under this id."""
    with Client(service.url, run=run, headers={"X-Request-Id": request_id}) as client:
        service.wait_until_ready(client)
        group = {"id": "g", "prompt": f"{SECRET} prompt", "responses": [f"{SECRET} response"]}
        client.rewards(groups=[group], rubric=RUBRIC)


def lines_of(service: Service) -> list[dict[str, Any]]:
    """Stop a process; return its output, one JSON object per line."""
    service.stop()
    return [json.loads(line) for line in service.said]


@pytest.mark.processes
def test_every_line_is_json() -> None:
    with listening("serve", "--port", "0", *ENGINE, ADJUDGE_ENGINE_API_KEY=SECRET, **JSON) as service:
        ask(service, "mine", "r-1")
        get(service, "/healthz")
        lines = lines_of(service)
    assert {"adjudge", "adjudge.access", "uvicorn.error"} <= {line["logger"] for line in lines}
    (access,) = [line for line in lines if line["logger"] == "adjudge.access"]
    assert (access["request_id"], access["run"], access["route"], access["status"]) == (
        "mine",
        "r-1",
        "/v1/rewards",
        200,
    )
    assert all({"time", "level", "message"} <= line.keys() for line in lines)
    assert SECRET not in "".join(service.said)


@pytest.mark.processes
def test_text_logs_stay_readable() -> None:
    with listening("serve", "--port", "0", *ENGINE) as service:
        ask(service, "mine", "r-1")
        service.stop()
    access = [line for line in service.said if line.startswith("INFO adjudge.access: POST /v1/rewards: 200 in ")]
    assert len(access) == 1
    assert access[0].endswith(" bytes [request_id=mine project=default run=r-1]\n")
    assert any(line.startswith("INFO uvicorn.error: ") for line in service.said)
    assert SECRET not in "".join(service.said)


@pytest.mark.processes
def test_an_api_and_its_judge_log_a_request_under_one_id() -> None:
    with ExitStack() as stack:
        token = {"ADJUDGE_JUDGE_TOKEN": SECRET}
        judge = stack.enter_context(listening("judge", "--port", "0", *ENGINE, **JSON, **token))
        api = stack.enter_context(listening("api", "--port", "0", "--judge", judge.url, **JSON, **token))
        ask(api, "mine", "r-1")
        asked, judged = lines_of(api), lines_of(judge)
    of = [[line for line in lines if line["logger"] == "adjudge.access"] for lines in (asked, judged)]
    assert [line["route"] for line in of[0]] == ["/v1/rewards"]
    assert {line["route"] for line in of[1]} == {"/internal/v1/outcomes"}
    for line in of[0] + of[1]:
        assert (line["request_id"], line["run"], line["project"]) == ("mine", "r-1", "default")
    assert SECRET not in "".join(api.said + judge.said)


@pytest.mark.processes
@pytest.mark.slow
def test_an_unexpected_error_is_logged_without_its_message() -> None:
    broken = f"def broken(*_, **__): raise RuntimeError({SECRET!r} + ' in a message')"
    first = f"import judge_server.scoring.scorer as s\n{broken}\ns._answer_fields = broken"
    with listening("serve", "--port", "0", *ENGINE, first=first, **JSON) as service:
        with pytest.raises(ServerError, match="the server's log"):
            ask(service, "mine", "r-1")
        lines = lines_of(service)
    errors = [line for line in lines if line["level"] == "error"]
    assert {line["logger"] for line in errors} == {"adjudge", "uvicorn.error"}
    assert all(line["exception"].splitlines()[-1] == "RuntimeError" for line in errors)
    assert SECRET not in "".join(service.said)


@pytest.mark.processes
@pytest.mark.slow
def test_a_worker_without_a_broker_logs_json_without_the_password() -> None:
    broker = {"ADJUDGE_QUEUE_URL": f"redis://:{SECRET}@127.0.0.1:{unused_port()}/0"}
    worker = start(["worker"], os.environ | JSON | broker)
    assert worker.stderr is not None
    said = []
    for line in worker.stderr:
        said.append(json.loads(line))
        if len({one["logger"] for one in said if one["level"] in ("warning", "error")}) == 2:
            break
    worker.kill()
    worker.wait()
    assert {"adjudge", "celery.worker.consumer.consumer"} <= {line["logger"] for line in said}
    assert SECRET not in json.dumps(said)


@pytest.mark.processes
@pytest.mark.slow
def test_a_worker_reports_an_unreachable_database_without_its_password() -> None:
    settings = {
        "ADJUDGE_DATABASE_URL": f"postgresql+psycopg://user:{SECRET}@127.0.0.1:{unused_port()}/db?connect_timeout=2",
        "ADJUDGE_QUEUE_URL": f"redis://:{SECRET}@127.0.0.1:{unused_port()}/0",
    }
    process = start(["worker"], os.environ | settings)
    assert process.stderr is not None
    said = process.stderr.read()
    assert process.wait(60) != 0
    assert said.strip()
    assert SECRET not in said
