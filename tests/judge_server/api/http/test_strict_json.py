"""A request body is strict JSON in UTF-8; anything looser is refused with a fix."""

import gzip
import json
from collections.abc import Callable
from typing import Any

import httpx2
import pytest
from hypothesis import given
from hypothesis import strategies as st

from judge_server.api.http.bodies import parse_strict_json
from judge_server.errors import InvalidRequest
from tests.judge_server.api.http.test_bad_input import refused
from tests.judge_server.api.problems import checked_problem, fields
from tests.judge_server.api.test_rewards import rewards
from tests.judge_server.support import CRITERIA, request

BODY = json.dumps(request())


def says(problem: dict[str, Any]) -> str:
    """The error message about the body as a whole."""
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
        ("", ""),
        ('{"run": "\\u12"}', "not JSON"),
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
    ids=range(19),
)
async def test_a_body_that_is_not_strict_json_is_refused_with_the_reason(
    http: httpx2.AsyncClient, body: str | bytes, said: str
) -> None:
    assert said in says(await refused(http, body))


@pytest.mark.parametrize("type_", ["text/plain", "application/x-www-form-urlencoded", "application/jsonx", "", None])
async def test_a_body_of_another_content_type_is_refused_so_that_web_forms_cannot_send_one(
    http: httpx2.AsyncClient, type_: str | None
) -> None:
    headers = {} if type_ is None else {"Content-Type": type_}
    answer = await http.post("/v1/rewards", content=BODY, headers=headers)
    assert answer.status_code == 415
    assert "send Content-Type: application/json" in checked_problem(answer)["detail"]


async def test_a_compressed_body_is_refused_as_what_it_is(http: httpx2.AsyncClient) -> None:
    headers = {"Content-Type": "application/json", "Content-Encoding": "gzip"}
    answer = await http.post("/v1/rewards", content=gzip.compress(BODY.encode()), headers=headers)
    assert answer.status_code == 415
    assert "send it without Content-Encoding" in checked_problem(answer)["detail"]


@pytest.mark.parametrize("type_", ["application/json", "application/json; charset=utf-8", "Application/LD+JSON"])
async def test_every_json_content_type_is_accepted(http: httpx2.AsyncClient, type_: str) -> None:
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
def test_nan_is_refused_at_any_depth(depth: int) -> None:
    with pytest.raises(InvalidRequest, match=r"no NaN|nested too deeply"):
        parse_strict_json(b"[" * depth + b"NaN" + b"]" * depth)


async def test_a_number_too_large_for_its_field_is_refused_with_the_name_of_the_field(http: httpx2.AsyncClient) -> None:
    for field, value in (("deadline_s", 10**400), ("step", -(2**70))):
        assert field in fields(await refused(http, json.dumps(request(**{field: value}))))


@pytest.mark.parametrize("number", ["NaN", "-Infinity", "1e999"])
async def test_a_number_that_is_not_finite_is_refused_with_the_path_of_its_field(
    http: httpx2.AsyncClient, number: str
) -> None:
    schema = {"method": "json_schema", "schema": {"enum": [{"a": [1.5, "N"]}]}}
    criterion = {"id": "a", "description": "d", "verification": schema}
    for path, body, field in (
        ("/v1/rubrics/a/versions", {"criteria": [criterion]}, "criteria.0.verification.schema.enum.0.a.1"),
        ("/v1/rubrics/a/versions", {"criteria": CRITERIA, "metadata": {"b": {"c": "N"}}}, "metadata.b.c"),
        ("/v1/rewards", request(deadline_s="N"), "deadline_s"),
        ("/v1/rewards", request(rubric={"criteria": [CRITERIA[0] | {"weight": "N"}]}), "rubric.criteria.0.weight"),
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
async def test_text_and_booleans_are_refused_as_numbers(
    http: httpx2.AsyncClient, field: str, body: Callable[[object], dict[str, Any]], value: object
) -> None:
    assert "expected a valid number" in fields(await refused(http, json.dumps(body(value))))[field]


@pytest.mark.parametrize("value", [1, 0, 1.0, "true", "no", ""])
async def test_text_and_numbers_are_refused_as_booleans(http: httpx2.AsyncClient, value: object) -> None:
    for field, body in (
        ("allow_retired", request(allow_retired=value)),
        ("judging.rationale", request(judging={"rationale": value})),
    ):
        assert "expected true or false" in fields(await refused(http, json.dumps(body)))[field]


async def test_a_lone_surrogate_is_accepted_in_judged_text_and_refused_in_names(http: httpx2.AsyncClient) -> None:
    assert (await rewards(http, request("\ud800"))).groups[0].responses[0].status == "scored"
    for bad in (
        request(run="\ud800"),
        request(rubric={"criteria": [*CRITERIA[:1], {"id": "\ud800", "description": "d"}]}),
    ):
        assert fields(await refused(http, json.dumps(bad)))


@given(st.recursive(st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) |
       st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=10))  # fmt: skip
def test_valid_json_is_parsed_unchanged(value: Any) -> None:
    assert parse_strict_json(json.dumps(value).encode()) == value


@given(st.binary(max_size=40))
def test_any_bytes_are_parsed_as_json_or_refused(body: bytes) -> None:
    try:
        read = parse_strict_json(body)
    except InvalidRequest:
        return
    assert read == json.loads(body)
