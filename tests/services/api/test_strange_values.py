"""No value in a request makes the service fail: each text, name, number and time of every example is replaced."""

import json
from collections.abc import AsyncIterator, Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any
from urllib.parse import quote_from_bytes

import httpx2
import pytest

from judge_server.auth.keys import make_key
from rubric_store import TenantStore
from tests.fixtures.migrated import NewSQLite
from tests.services.processes import Service, ready_service

TEXTS = ("a\ud83d", "\ude00", "a\0b", "\uffff", "\U0010ffff", "")
NUMBERS = (10**400, 2**63, -(2**63) - 1, 1e308, -1e308, 5e-324, -1, 0)
TIMES = (
    "9999-12-31T23:59:59.999999-23:59",
    "9999-12-31T23:59:59Z",
    "0001-01-01T00:00:00+23:59",
    "+10000-01-01T00:00:00Z",
    "9e18",
    "2026-06-31T25:61:61Z",
    1e308,
    -1e308,
    2**63,
)
KEY = make_key()
HEADERS = {"Authorization": f"Bearer {KEY.text}", "Content-Type": "application/json"}
SEGMENTS = (b"\xed\xa0\xbd", b"\xff", b"\0", b"%", b"\xef\xbf\xbf", b"a@9" + b"9" * 30, b"@", b"..", b"a" * 3000)
BODIES: dict[tuple[str, str], Any] = {
    ("post", "/v1/rewards/recompute"): {"run": "r", "step": 1, "reward": {"mode": "weighted_mean"}},
    ("get", "/v1/compat/roll/task_result"): {"reward_request_id": "roll-" + "0" * 32},
    ("post", "/v1/projects"): {"id": "team", "name": "t", "limits": {"requests_per_minute": 5}},
    ("put", "/v1/projects/{id}/limits"): {"requests_per_minute": 5, "verdicts_per_day": 7},
    ("post", "/v1/judges/{name}/sleep"): {"owner": "r", "lease_s": 0.001},
    ("post", "/v1/judges/{name}/wake"): {"owner": "r", "lease_s": 0.001},
    ("post", "/v1/keys"): {"scopes": ["read"], "label": "l", "expires_at": "2099-01-01T00:00:00Z"},
}
"""Bodies of routes whose documentation has no example."""


@pytest.fixture(params=["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
async def service(request: pytest.FixtureRequest, tmp_path: Path, new_sqlite: NewSQLite) -> AsyncIterator[Service]:
    """A service on either database, which knows the key."""
    if request.param == "postgresql":
        url = request.getfixturevalue("migrated_postgres_url")
    else:
        url = new_sqlite(tmp_path / "adjudge.db")
    tenants = TenantStore(url)
    await tenants.add_key("default", KEY.id, KEY.digest, scopes=("admin", "projects:write", "judges:write", "metrics"))
    await tenants.close()
    with ready_service("scripted://hash", tmp_path, ADJUDGE_DATABASE_URL=url) as running:
        yield running


def replaced(value: Any) -> Iterator[Any]:
    """The value with one text, name, number or time replaced, for each of them and each replacement."""
    if isinstance(value, dict):
        for name, inner in value.items():
            for other in replaced(inner) if not name.endswith("_at") else TIMES:
                yield value | {name: other}
            for text in TEXTS[:3]:
                yield {(text if key == name else key): one for key, one in value.items()}
    elif isinstance(value, list):
        for place, inner in enumerate(value):
            for other in replaced(inner):
                yield [*value[:place], other, *value[place + 1 :]]
    elif isinstance(value, str):
        yield from TEXTS
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield from NUMBERS


def examples(document: dict[str, Any]) -> Iterator[tuple[str, str, Any]]:
    """Method, path and an example body of each route that takes one."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            for content in operation.get("requestBody", {}).get("content", {}).values():
                given = [one["value"] for one in content.get("examples", {}).values()]
                for body in given or [BODIES[method, path]]:
                    yield method, path, deepcopy(body)


def is_utf8(answer: httpx2.Response) -> bool:
    """Whether an answer is text in UTF-8."""
    try:
        return answer.content.decode() is not None
    except UnicodeDecodeError:
        return False


@pytest.mark.processes
def test_no_value_in_a_body_fails_the_service(service: Service) -> None:
    with httpx2.Client(base_url=service.url, timeout=60) as http:
        asked, failed = 0, []
        for method, path, body in examples(http.get("/openapi.json").json()):
            name = "default" if path.startswith("/v1/judges/") else "team/a"
            url = path.format(name=name, alias="production", reference="team/a@1", id="team")
            for strange in replaced(body):
                sent = json.dumps(strange)
                try:
                    answer = http.request(method, url, content=sent, headers=HEADERS)
                except httpx2.TransportError as error:
                    failed.append((method, path, sent[:500], repr(error)))
                    continue
                asked += 1
                if answer.status_code == 500 or not is_utf8(answer):
                    failed.append((method, path, sent[:500]))
        assert asked > 1000
        assert not failed, "\n".join(map(str, failed))
    assert "Traceback" not in "".join(service.said)


@pytest.mark.processes
def test_no_value_in_an_address_fails_the_service(service: Service) -> None:
    with httpx2.Client(base_url=service.url, timeout=60) as http:
        for path, methods in http.get("/openapi.json").json()["paths"].items():
            names = [one["name"] for one in methods.get("get", {}).get("parameters", []) if one["in"] == "query"]
            for segment in map(quote_from_bytes, SEGMENTS):
                filled = path
                for place in ("name", "alias", "reference", "id", "run"):
                    filled = filled.replace("{" + place + "}", segment)
                for query in ("", *(f"?{name}={segment}" for name in names)):
                    for method in methods:
                        if (filled, query) != (path, "") and (query == "" or method == "get"):
                            answer = http.request(method, filled + query, headers=HEADERS)
                            assert answer.status_code != 500, (method, filled[:200], query[:200], answer.text)
    assert "Traceback" not in "".join(service.said)
