"""`Idempotency-Key`: the client sends one where a repeated request would create something twice."""

from typing import Any

import pytest

from tests.trainer_client.fake_service import CRITERION, VERDICTS, VERSION, ScriptedReply, problem, rewarded

KEY = "Idempotency-Key"
GROUP = {"id": "q17", "prompt": "x?", "responses": ["42"]}
OPERATION = {
    "id": "op-1",
    "project_id": "default",
    "kind": "score",
    "request": {},
    "state": "queued",
    "revision": 1,
    "progress": {},
    "usage": {},
    "tries": 1,
    "created_at": "2025-01-01T00:00:00Z",
}
MAKING = {
    "publish": (lambda client: client.publish_rubric("math/quadratics", [CRITERION]), VERSION),
    "submit": (
        lambda client: client.submit(
            {"kind": "score", "groups": [GROUP], "rubric": {"criteria": [{"id": "a", "description": "b"}]}}
        ),
        OPERATION,
    ),
    "retry": (lambda client: client.retry_operation("op-1"), OPERATION),
}
JUDGING = {
    "rewards": (lambda client, **given: client.rewards([GROUP], "r", **given), rewarded),
    "verdicts": (lambda client, **given: client.verdicts([GROUP], "r", **given), VERDICTS),
    "stream_rewards": (lambda client, **given: list(client.stream_rewards([GROUP], "r", **given)), rewarded),
}


def keys(service: Any) -> list[str | None]:
    """The received keys, in order."""
    return [{name.lower(): value for name, value in asked.headers.items()}.get(KEY.lower()) for asked in service.asked]


@pytest.mark.parametrize("name", MAKING)
def test_a_creating_call_keeps_its_key_over_retries_and_the_next_call_gets_a_new_one(service, connect, name):
    call, answer = MAKING[name]
    service.script(ScriptedReply(drop=True), problem("in-progress", 409, retryable=True), ScriptedReply(body=answer))
    client = connect(service.url)
    call(client)
    call(client)
    first, again, third, other = keys(service)
    assert first == again == third != other
    assert len(first) == len(other) == 32


@pytest.mark.parametrize("name", JUDGING)
def test_a_judging_call_has_a_key_only_where_the_caller_gives_one(service, connect, name):
    call, answer = JUDGING[name]
    service.script(ScriptedReply(drop=True), ScriptedReply(body=answer))
    call(connect(service.url), idempotency_key="step-120-q17")
    assert keys(service) == ["step-120-q17"] * 2
    call(connect(service.url))
    assert keys(service)[2] is None


def test_reading_and_cancelling_send_no_key(service, connect):
    service.script(ScriptedReply(body=OPERATION))
    client = connect(service.url)
    client.operation("op-1")
    client.cancel_operation("op-1")
    assert keys(service) == [None, None]
