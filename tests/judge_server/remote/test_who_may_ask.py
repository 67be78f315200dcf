"""A judge without a token, which listens on loopback, answers only requests for a local host name."""

import json
from typing import Any

import httpx2
import pytest
from pydantic import TypeAdapter

from judge_server.api.judge_process import JudgeProcess, create_judge_app
from judge_server.judging.questions import ask_alone
from judge_server.remote.executor import ROOT, identity_digest
from judge_server.remote.messages import QuestionMessage
from tests.judge_server import support
from tests.judge_server.remote.judges import TOKEN, ListeningJudge


@pytest.mark.parametrize(
    ("token", "shown", "host", "status"),
    [
        (None, None, "127.0.0.1:8001", 200),
        (None, None, "localhost", 200),
        (None, None, "evil.example:8001", 403),
        (None, "made up", "evil.example:8001", 403),
        (TOKEN, TOKEN, "judge.internal", 200),
        (TOKEN, "made up", "127.0.0.1", 401),
        (TOKEN, None, "localhost", 401),
    ],
)
async def test_a_judge_requires_its_token_or_without_one_a_local_host_name(
    token: str | None, shown: str | None, host: str, status: int
) -> None:
    judge = await support.judge()
    headers = {"Host": host} | ({} if shown is None else {"Authorization": f"Bearer {shown}"})
    transport = httpx2.ASGITransport(create_judge_app(ListeningJudge(judge, token).process))
    async with httpx2.AsyncClient(base_url="http://judge", transport=transport, headers=headers) as http:
        assert (await http.get(f"{ROOT}/judge")).status_code == status
        assert (await http.get("/metrics")).status_code == status
        refused = await http.post(f"{ROOT}/outcomes", json={})
        assert refused.status_code == (422 if status == 200 else status)
    await judge.close()


async def test_metrics_of_a_judge_with_a_token_may_be_open() -> None:
    process = JudgeProcess(TOKEN, open_metrics=True)
    transport = httpx2.ASGITransport(create_judge_app(process))
    async with httpx2.AsyncClient(base_url="http://judge", transport=transport) as http:
        assert (await http.get("/metrics")).status_code == 200
        assert (await http.get(f"{ROOT}/judge")).status_code == 401


BATCH: dict[str, Any] = {"system": "s", "shared": "t", "calls": []}
ASKING: dict[str, Any] = {
    "identity": "i",
    "caller": ["", "online", 1.0],
    "deadline_s": 5.0,
    "questions": [],
    "plans": [],
}
PLAN: dict[str, Any] = {"system": "s", "system_alone": "", "shared": "t", "calls": []}


@pytest.mark.parametrize("path", ["tokens", "outcomes"])
@pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded", None])
async def test_content_types_that_any_web_page_can_send_are_refused(path: str, content_type: str | None) -> None:
    judge = await support.judge()
    transport = httpx2.ASGITransport(create_judge_app(ListeningJudge(judge, None).process))
    async with httpx2.AsyncClient(base_url="http://localhost", transport=transport) as http:
        headers = {} if content_type is None else {"Content-Type": content_type}
        answer = await http.post(f"{ROOT}/{path}", content=json.dumps(BATCH), headers=headers)
    assert answer.status_code == 415
    assert "application/json" in answer.json()["title"]
    await judge.close()


@pytest.mark.parametrize(
    ("path", "body"),
    [
        ("tokens", BATCH),
        ("outcomes", {"plans": [PLAN]}),
        ("outcomes", {"plans": [PLAN | {"calls": [[0, []]]}]}),
        ("outcomes", {"plans": [PLAN | {"calls": [[0, ["00", "01"]]]}]}),
        ("outcomes", {"plans": [PLAN | {"calls": [[0, ["no hex"]]]}]}),
        ("outcomes", {"plans": [PLAN | {"calls": [[7, ["00"]]]}]}),
        ("outcomes", {"deadline_s": 1e308}),
        ("outcomes", {"deadline_s": -1}),
        ("outcomes", {"questions": [{"reading": "rating"}]}),
        ("outcomes", {"questions": [{"verdicts": 0}]}),
    ],
)
async def test_malformed_calls_are_refused(path: str, body: dict[str, Any]) -> None:
    judge = await support.judge()
    transport = httpx2.ASGITransport(create_judge_app(ListeningJudge(judge, None).process), raise_app_exceptions=False)
    (question,) = TypeAdapter(tuple[QuestionMessage, ...]).dump_python(
        (QuestionMessage.of(ask_alone(support.prepared(), support.criteria("Is it?")[0], (), None)),), mode="json"
    )
    if path == "outcomes":
        body = ASKING | {"identity": identity_digest(judge.identity)} | body
        body["questions"] = [question | changed for changed in body["questions"] or [{}]]
    async with httpx2.AsyncClient(base_url="http://localhost", transport=transport) as http:
        answer = await http.post(f"{ROOT}/{path}", json=body)
    assert answer.status_code == 422, answer.text
    await judge.close()
