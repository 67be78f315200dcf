"""A body is one JSON value in UTF-8, read the way everybody reads it; anything looser is refused with a way out."""

import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from judge_server.bodies import parse_strict_json
from judge_server.errors import InvalidRequest
from tests.judge_server.support import CRITERIA, request
from tests.judge_server.test_http_bad_input import checked_problem, fields, refused
from tests.judge_server.test_http_rewards import rewards

BODY = json.dumps(request())


def says(problem: dict[str, Any]) -> str:
    """What is wrong with the body as a whole."""
    assert problem["type"] == "urn:adjudge:invalid-request"
    assert problem["retryable"] is False
    return fields(problem)[""]


@pytest.mark.parametrize(
    ("body", "said"),
    [
        ('{"run": "a", "run": "b"}', "'run' twice in one object; remove one"),
        ('{"groups": [{"id": "a", "prompt": "", "id": "b"}]}', "'id' twice"),
        ('{"run": "a", "r\\u0075n": "b"}', "'run' twice"),
        (BODY + " {}", "Extra data"),
        (BODY + "\x00", "Extra data"),
        ("'" + BODY + "'", "not JSON"),
        (BODY[:-1] + ",}", "not JSON"),
        ("// a comment\n" + BODY, "not JSON"),
        ('{"step": 1' + "0" * 5000 + "}", "too many digits"),
        ("[" * 100_000 + "]" * 100_000, "nested too deeply"),
        ('{"a":' * 100_000 + "1" + "}" * 100_000, "nested too deeply"),
        ("{" + "".join(f'"{n}":0,' for n in range(100_000)) + '"last":0,"last":0}', "'last' twice"),
        ("NaN", "write a finite number, or null"),
        (BODY.encode("utf-16"), "not UTF-8 at byte 0"),
        (BODY.encode("utf-8-sig"), "byte order mark"),
        (b'{"run": "\xff"}', "not UTF-8 at byte 9"),
        (b'{"run": "\xed\xa0\x80"}', "not UTF-8 at byte 9"),
    ],
    ids=range(17),
)
async def test_what_is_not_strictly_json_is_refused_and_why(
    http: httpx2.AsyncClient, body: str | bytes, said: str
) -> None:
    assert said in says(await refused(http, body))


@pytest.mark.parametrize("type_", ["text/plain", "application/x-www-form-urlencoded", "application/jsonx", "", None])
async def test_a_body_that_is_not_sent_as_json_is_refused_so_that_no_web_page_can_send_one_by_a_form(
    http: httpx2.AsyncClient, type_: str | None
) -> None:
    headers = {} if type_ is None else {"Content-Type": type_}
    answer = await http.post("/v1/rewards", content=BODY, headers=headers)
    assert answer.status_code == 415
    assert "send Content-Type: application/json" in checked_problem(answer)["detail"]


@pytest.mark.parametrize("type_", ["application/json", "application/json; charset=utf-8", "Application/LD+JSON"])
async def test_json_is_taken_by_any_of_its_names(http: httpx2.AsyncClient, type_: str) -> None:
    answer = await http.post("/v1/rewards", content=BODY, headers={"Content-Type": type_})
    assert answer.status_code == 200, answer.text


async def test_every_route_that_takes_a_body_reads_it_strictly(http: httpx2.AsyncClient) -> None:
    document = (await http.get("/openapi.json")).json()
    taking = [
        (method, path)
        for path, methods in document["paths"].items()
        for method, operation in methods.items()
        if "requestBody" in operation
    ]
    assert len(taking) >= 8
    for method, path in taking:
        url = path.format(name="a", alias="b", reference="a@1", id="op-1")
        content = '{"a": 1, "a": 2}'
        answer = await http.request(method, url, content=content, headers={"Content-Type": "application/json"})
        assert "'a' twice" in says(checked_problem(answer)), (method, path, answer.text)


@pytest.mark.parametrize("depth", [100, 700, 950, 5000])
def test_however_deep_a_number_lies_that_is_none_it_is_refused(depth: int) -> None:
    with pytest.raises(InvalidRequest, match=r"no NaN|nested too deeply"):
        parse_strict_json(b"[" * depth + b"NaN" + b"]" * depth)


async def test_a_number_too_large_for_its_field_is_refused_by_the_field(http: httpx2.AsyncClient) -> None:
    for field, value in (("deadline_s", 10**400), ("step", -(2**70))):
        assert field in fields(await refused(http, json.dumps(request(**{field: value}))))


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
async def test_a_number_that_json_does_not_have_is_refused_by_its_field_wherever_it_stands(
    http: httpx2.AsyncClient, number: str
) -> None:
    schema = {"method": "json_schema", "schema": {"enum": [{"a": [1.5, "N"]}]}}
    criterion = {"id": "a", "description": "d", "verification": schema}
    for path, body, field in (
        ("/v1/rubrics/a/versions", {"criteria": [criterion]}, "criteria.0.verification.schema.enum.0.a.1"),
        ("/v1/rubrics/a/versions", {"criteria": CRITERIA, "metadata": {"b": {"c": "N"}}}, "metadata.b.c"),
        ("/v1/rewards", request(deadline_s="N"), "deadline_s"),
    ):
        content = json.dumps(body).replace('"N"', number)
        answer = await http.post(path, content=content, headers={"Content-Type": "application/json"})
        assert answer.status_code == 422
        assert "finite number" in fields(checked_problem(answer))[field]


@pytest.mark.parametrize("value", [True, False, "1", "0.5"])
@pytest.mark.parametrize(
    ("field", "body"),
    [
        ("deadline_s", lambda value: request(deadline_s=value)),
        ("step", lambda value: request(step=value)),
        ("judging.votes", lambda value: request(judging={"votes": value})),
        ("reward.truncation_factor", lambda value: request(reward={"truncation_factor": value})),
        ("rubric.criteria.0.weight", lambda value: request(rubric={"criteria": [{**CRITERIA[0], "weight": value}]})),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_neither_text_nor_true_or_false_is_a_number(
    http: httpx2.AsyncClient, field: str, body: Callable[[object], dict[str, Any]], value: object
) -> None:
    assert "expected a valid number" in fields(await refused(http, json.dumps(body(value))))[field]


@pytest.mark.parametrize("value", [1, 0, 1.0, "true", "no", ""])
async def test_neither_text_nor_a_number_is_true_or_false(http: httpx2.AsyncClient, value: object) -> None:
    for field, body in (
        ("allow_retired", request(allow_retired=value)),
        ("judging.rationale", request(judging={"rationale": value})),
    ):
        assert "expected true or false" in fields(await refused(http, json.dumps(body)))[field]


async def test_half_a_surrogate_pair_is_text_to_judge_and_no_name(http: httpx2.AsyncClient) -> None:
    assert (await rewards(http, request("\ud800"))).groups[0].responses[0].status == "scored"
    for bad in (
        request(run="\ud800"),
        request(rubric={"criteria": [*CRITERIA[:1], {"id": "\ud800", "description": "d"}]}),
    ):
        assert fields(await refused(http, json.dumps(bad)))


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) |
       st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10))  # fmt: skip
def test_what_json_can_say_is_read_as_it_was_written(value: Any) -> None:
    assert parse_strict_json(json.dumps(value).encode()) == value


@given(st.binary(max_size=40))
def test_bytes_are_json_or_refused_and_nothing_else_happens(body: bytes) -> None:
    try:
        read = parse_strict_json(body)
    except InvalidRequest:
        return
    assert read == json.loads(body)
