"""The cost of a body is bounded in advance: how many errors and values it makes, and where it is read."""

import json
import threading
from contextlib import nullcontext
from typing import Any, get_args

import httpx2
import pytest
from fastapi import Request
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from judge_server.api.http import bodies
from judge_server.api.http import requests as request_reading
from judge_server.api.http.bodies import MessageType, assemble, parse_strict_json, read_in_worker, validated
from judge_server.errors import Overloaded, TooLarge
from tests.hypothesis_examples import examples
from tests.judge_server.api.http.test_bad_input import refused
from tests.judge_server.api.problems import fields
from tests.judge_server.api.test_rewards import rewards
from tests.judge_server.support import http_scope, request
from trainer_client.wire.base import MAX_ERRORS, NotStrictJsonError, strict_json
from trainer_client.wire.ledger import RecomputeRequest
from trainer_client.wire.operations import OperationRequest
from trainer_client.wire.rewards import RewardRequest

GROUP = {"id": "g", "prompt": "p", "responses": ["r"]}
WRONG_GROUPS = [GROUP | {"responses": [7] * 4096} for _ in range(50)]


@pytest.mark.parametrize(
    ("model", "body"),
    [
        (RewardRequest, request(groups=WRONG_GROUPS)),
        (RewardRequest, request(groups=[7] * 4000)),
        (RewardRequest, request(rubric={"criteria": [{"id": "a b", "required_elements": [1] * 64}] * 500})),
        (RewardRequest, request(groups=[GROUP | {"prompt": [7] * 10_000}])),
        (RewardRequest, request(groups=[{f"unknown{n}": n for n in range(9000)}])),
        (RewardRequest, request(**{f"unknown{n}": n for n in range(9000)})),
        (OperationRequest, {"kind": "score"} | request(groups=WRONG_GROUPS)),
        (OperationRequest, {"kind": "validate_rubrics", "references": [7] * 100_000}),
        (
            OperationRequest,
            {"kind": "evaluate_judge", "groups": [GROUP | {"labels": [{str(n): 7 for n in range(9000)}]}]},
        ),
        (RecomputeRequest, {"run": "r", "weights": {f"c{n}": "x" for n in range(9000)}}),
    ],
    ids=range(10),
)
def test_a_body_with_many_mistakes_yields_few_errors(model: Any, body: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as refusal:
        TypeAdapter(model).validate_python(body)
    assert refusal.value.error_count() <= 2 * MAX_ERRORS


async def test_the_first_of_many_errors_are_reported_with_their_fields(http: httpx2.AsyncClient) -> None:
    wrong = [GROUP | {"responses": ["r", 7, "r", 8]}, GROUP, GROUP | {"responses": [9] * 40}]
    problem = await refused(http, json.dumps(request(groups=wrong)))
    told = [error["field"] for error in problem["errors"]]
    assert told[:3] == ["groups.0.responses.1", "groups.0.responses.3", "groups.2.responses.0"]
    assert len(told) == MAX_ERRORS


async def test_a_body_above_32_kib_is_read_in_a_thread(
    http: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    threads = []

    def noted(body: bytes) -> Any:
        threads.append(threading.current_thread())
        return parse_strict_json(body)

    monkeypatch.setattr(request_reading, "parse_strict_json", noted)
    large = request("r" * (request_reading.INLINE_PARSE_MAX_BYTES + 1))
    assert len((await rewards(http, large)).groups) == 1
    (thread,) = threads
    assert thread is not threading.current_thread()


async def test_a_body_above_256_kib_is_read_in_another_process(
    http: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("parse_strict_json", "validated"):  # this process does neither
        monkeypatch.setattr(request_reading, name, None)
    large = request("é" * request_reading.WORKER_PARSE_MIN_BYTES, {"text": "r", "tokens": 7})
    answer = await rewards(http, large)
    assert [response.status for response in answer.groups[0].responses] == ["scored", "scored"]
    wrong = large | {"groups": [*large["groups"], {"id": "h", "prompt": "p", "responses": [7]}]}
    assert fields(await refused(http, json.dumps(wrong))) == {
        "groups.1.responses.0": "expected text, a list of messages, or an object with its text"
    }
    assert "not JSON" in (await refused(http, json.dumps(large)[:-1]))["detail"]


async def test_a_body_that_is_deeply_nested_is_refused_whatever_its_size(http: httpx2.AsyncClient) -> None:
    for depth in (2_000, request_reading.WORKER_PARSE_MIN_BYTES):
        assert "nested too deeply" in (await refused(http, '{"metadata":' * depth))["detail"]


async def test_large_bodies_beyond_the_limit_are_refused_until_others_are_done() -> None:
    reader = request_reading.BodyReader(3 * SIZE)
    first = [await reader.receive(sending(SIZE), "a") for _ in range(2)]
    with pytest.raises(Overloaded, match="large request bodies"):
        await reader.receive(sending(2 * SIZE), "a")
    fair = await reader.receive(sending(SIZE + 1), "b")  # less than an equal share
    small = await reader.receive(sending(10), "a")
    for received in (*first, fair, small):
        received.release()
    await reader.receive(sending(3 * SIZE), "a")


SIZE = 300_000


def sending(size: int) -> Request:
    """A request whose body arrives in two parts."""
    messages = [
        {"type": "http.request", "body": b"x" * (size // 2), "more_body": True},
        {"type": "http.request", "body": b"x" * (size - size // 2)},
    ]

    async def receive() -> Any:
        return messages.pop(0)

    return Request({"type": "http"}, receive)


@given(
    st.lists(
        st.builds(
            dict,
            id=st.just("g"),
            prompt=st.text(max_size=5) | st.just([{"role": "user", "content": "é"}]),
            responses=st.lists(st.text(max_size=5) | st.just({"text": "r", "tokens": 3}), min_size=1, max_size=3),
        ),
        max_size=4,
    )
)
@settings(max_examples=examples(100))
def test_a_message_read_in_a_worker_equals_the_one_sent(groups: list[dict[str, Any]]) -> None:
    body = json.dumps({"kind": "score"} | request(groups=groups)).encode()
    kind = MessageType(*get_args(OperationRequest)[:1], "kind")
    read = read_in_worker(body, kind)
    if read.refusal is not None:
        error, _, errors = read.refusal
        with pytest.raises(error) as refusal:
            validated(parse_strict_json(body), kind)
        assert refusal.value.errors == errors  # type: ignore[attr-defined]
        return
    message, expected = assemble(read.pieces), TypeAdapter(OperationRequest).validate_json(body)
    assert message == expected
    assert message.model_dump_json() == expected.model_dump_json()
    assert message.model_fields_set == expected.model_fields_set


async def test_a_body_with_too_many_values_is_refused_before_they_are_made(
    http: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    body = b'{"groups": [' + b"1.5," * (bodies.MAX_VALUES + 1) + b"1.5]}"
    problem = await refused(http, body, 413)
    assert problem["type"] == "urn:adjudge:too-large"
    assert "more than 1,000,000 values" in problem["detail"]
    monkeypatch.setattr(bodies, "strict_json", None)
    reader = request_reading.BodyReader(2**26, worker_min_bytes=2**30)  # in this process, which parses nothing
    with pytest.raises(TooLarge, match="more than 1,000,000 values"):
        await reader.read(body, MessageType(RewardRequest), "p")


async def test_commas_within_texts_do_not_count_as_values(http: httpx2.AsyncClient) -> None:
    commas = '\\\\", "' + "," * bodies.MAX_VALUES
    assert len((await rewards(http, request(commas, commas))).groups) == 1


@given(st.lists(st.sampled_from("abcdef"), max_size=12))
def test_a_duplicate_name_is_refused(names: list[str]) -> None:
    written = "{" + ", ".join(f'"{name}": {n}' for n, name in enumerate(names)) + "}"
    with pytest.raises(NotStrictJsonError) if len(set(names)) < len(names) else nullcontext():
        assert len(strict_json(written)) == len(names)


@pytest.mark.parametrize(
    ("path", "content_type"),
    [
        ("/v1/rewards", "application/json"),
        ("/v1/rewards", "text/plain"),
        ("/console/sign-in", "application/x-www-form-urlencoded"),
        ("/console/playground", "application/x-www-form-urlencoded"),
    ],
)
async def test_a_client_that_disconnects_before_its_body_is_complete_causes_no_error(
    http: httpx2.AsyncClient, caplog: pytest.LogCaptureFixture, path: str, content_type: str
) -> None:
    transport = http._transport
    assert isinstance(transport, httpx2.ASGITransport)
    messages = [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]
    sent: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0) if len(messages) > 1 else messages[0]

    async def send(message: Any) -> None:
        sent.append(message)

    scope = http_scope(path, content_type=content_type, cookie="adjudge_form=a")
    await transport.app(scope, receive, send)
    assert [message["status"] for message in sent if "status" in message] == [499]
    assert "failed" not in caplog.text
