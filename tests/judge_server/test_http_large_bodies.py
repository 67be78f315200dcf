"""What a body costs is bounded before it is paid: how many errors are made, how many values read, and where."""

import json
import threading
from typing import Any

import httpx2
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from pydantic import TypeAdapter, ValidationError

from judge_server.api import requests as reading
from tests.hypothesis_examples import examples
from tests.judge_server.support import request
from tests.judge_server.test_http_bad_input import fields, refused
from tests.judge_server.test_http_rewards import rewards
from trainer_client.wire import strict_json
from trainer_client.wire.base import MAX_ERRORS
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
def test_however_much_is_wrong_few_errors_are_made(model: Any, body: dict[str, Any]) -> None:
    with pytest.raises(ValidationError) as refusal:
        TypeAdapter(model).validate_python(body)
    assert refusal.value.error_count() <= 2 * MAX_ERRORS


async def test_the_first_errors_of_many_are_told_each_with_its_place(http: httpx2.AsyncClient) -> None:
    wrong = [GROUP | {"responses": ["r", 7, "r", 8]}, GROUP, GROUP | {"responses": [9] * 40}]
    problem = await refused(http, json.dumps(request(groups=wrong)))
    told = [error["field"] for error in problem["errors"]]
    assert told[:3] == ["groups.0.responses.1", "groups.0.responses.3", "groups.2.responses.0"]
    assert len(told) == MAX_ERRORS


async def test_a_large_body_is_read_and_validated_off_the_event_loop(
    http: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    read, validated = [], []
    read_strictly, validate = reading.parse_strict_json, reading._parse_and_validate

    def reads(body: bytes) -> Any:
        read.append(threading.current_thread())
        return read_strictly(body)

    def validates(*given: Any) -> Any:
        validated.append(threading.current_thread())
        return validate(*given)

    monkeypatch.setattr(reading, "parse_strict_json", reads)
    monkeypatch.setattr(reading, "_parse_and_validate", validates)
    large = request("r" * (reading.INLINE_PARSE_MAX_BYTES + 1))
    assert len((await rewards(http, large)).groups) == 1
    assert read == validated
    assert read[0] is not threading.current_thread()
    large["groups"][0]["responses"] = [7] * 100_000
    assert fields(await refused(http, json.dumps(large)))


async def test_a_body_of_too_many_values_is_refused_before_they_are_made(
    http: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "strict_json", None)
    body = b'{"groups": [' + b"1.5," * (reading.MAX_VALUES + 1) + b"1.5]}"
    problem = await refused(http, body, 413)
    assert problem["type"] == "urn:adjudge:too-large"
    assert "more than 1,000,000 values" in problem["detail"]


async def test_commas_within_texts_are_no_values(http: httpx2.AsyncClient) -> None:
    commas = '\\\\", "' + "," * reading.MAX_VALUES
    assert len((await rewards(http, request(commas, commas))).groups) == 1


texts = st.text(alphabet=st.sampled_from(["a", '"', "\\", "\n", "\U0001f600", "é", "0", "f", "u", " ", ",", "\x01"]))


@given(
    st.recursive(texts | st.integers() | st.booleans(), lambda inner: st.lists(inner) | st.dictionaries(texts, inner))
)
@settings(max_examples=examples(200))
def test_what_is_read_in_pieces_is_what_is_read_at_once(value: Any) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trainer_client.wire.strict_json._CHUNK_CHARACTERS", 5)
        patch.setattr("trainer_client.wire.strict_json._PAIRS", 2)
        for written in (json.dumps(value), json.dumps(value, ensure_ascii=False)):
            assert strict_json.strict_json(written, incremental=True) == value
            assert said_of(written[:-1], incremental=True) == said_of(written[:-1], incremental=False)


def said_of(written: str, *, incremental: bool) -> str:
    """Why a text is not JSON; empty where it is."""
    try:
        strict_json.strict_json(written, incremental=incremental)
    except strict_json.NotStrictJsonError as error:
        return str(error)
    return ""


@given(st.lists(st.sampled_from("abcdef"), max_size=12))
def test_a_name_that_comes_twice_is_found_wherever_it_stands(names: list[str]) -> None:
    written = "{" + ", ".join(f'"{name}": {n}' for n, name in enumerate(names)) + "}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("trainer_client.wire.strict_json._PAIRS", 2)
        assert said_of(written, incremental=True) == said_of(written, incremental=False)
    assert bool(said_of(written, incremental=True)) == (len(set(names)) < len(names))


@pytest.mark.parametrize("content_type", ["application/json", "text/plain"])
async def test_a_caller_who_leaves_before_the_body_is_whole_is_no_error(
    http: httpx2.AsyncClient, caplog: pytest.LogCaptureFixture, content_type: str
) -> None:
    transport = http._transport
    assert isinstance(transport, httpx2.ASGITransport)
    messages = [{"type": "http.request", "body": b"{", "more_body": True}, {"type": "http.disconnect"}]
    sent: list[Any] = []

    async def receive() -> Any:
        return messages.pop(0) if len(messages) > 1 else messages[0]

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {
        "type": "http",
        "method": "POST",
        "path": "/v1/rewards",
        "raw_path": b"/v1/rewards",
        "query_string": b"",
        "root_path": "",
        "scheme": "http",
        "http_version": "1.1",
        "headers": [(b"host", b"localhost"), (b"content-type", content_type.encode())],
        "client": ("127.0.0.1", 1),
        "server": ("127.0.0.1", 80),
    }
    await transport.app(scope, receive, send)
    assert [message["status"] for message in sent if "status" in message] == [499]
    assert "failed" not in caplog.text
