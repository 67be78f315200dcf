"""Security headers: pages of other origins read nothing, and the service's own pages get what they need."""

import re
from base64 import b64encode
from hashlib import sha256

import httpx2
import pytest

from judge_server.api.service import Service
from judge_server.engines.scripted import ScriptedEngine
from tests.judge_server.api.problems import checked_problem
from tests.judge_server.conftest import Serve
from tests.judge_server.support import request

ORIGIN = {"Origin": "https://elsewhere.example"}


async def answers(http: httpx2.AsyncClient) -> list[httpx2.Response]:
    """Answers of every sort: successes, a stream, and problems of the service and of the framework."""
    return [
        await http.get("/healthz", headers=ORIGIN),
        await http.get("/v1", headers=ORIGIN),
        await http.get("/metrics", headers=ORIGIN),
        await http.post("/v1/rewards", json=request(), headers=ORIGIN),
        await http.post("/v1/rewards", json=request(), headers=ORIGIN | {"Accept": "application/x-ndjson"}),
        await http.post("/v1/rewards", json={}, headers=ORIGIN),
        await http.get("/v1/rubrics/none", headers=ORIGIN),
        await http.get("/nowhere", headers=ORIGIN),
        await http.patch("/v1/rewards", headers=ORIGIN),
        await http.get("/docs", headers=ORIGIN),
        await http.get("/openapi.json", headers=ORIGIN),
    ]


async def test_every_answer_forbids_sniffing_framing_caching_and_other_origins(http: httpx2.AsyncClient) -> None:
    for answer in await answers(http):
        headers = answer.headers
        assert headers["X-Content-Type-Options"] == "nosniff", answer.url
        assert headers["X-Frame-Options"] == "DENY"
        assert headers["Referrer-Policy"] == "no-referrer"
        assert headers["Cache-Control"] == "no-store"
        assert "frame-ancestors 'none'" in headers["Content-Security-Policy"]
        assert "default-src 'none'" in headers["Content-Security-Policy"]
        assert headers["X-Request-Id"]
        assert not [name for name in headers if name.lower().startswith("access-control-")]


async def test_the_answer_to_an_unexpected_error_has_these_headers_too(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    http = await serve(ScriptedEngine())

    def fail(*_: object) -> None:
        raise ZeroDivisionError

    monkeypatch.setattr(Service, "ready_judge", fail)
    answer = await http.post("/v1/rewards", json=request())
    assert answer.status_code == 500
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    assert answer.headers["Cache-Control"] == "no-store"


@pytest.mark.parametrize("path", ["/v1/rewards", "/v1/rubrics/a/versions", "/v1/operations", "/docs"])
async def test_a_cors_preflight_is_refused(http: httpx2.AsyncClient, path: str) -> None:
    asked = ORIGIN | {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "content-type"}
    answer = await http.options(path, headers=asked)
    assert answer.status_code == 405
    assert checked_problem(answer)["type"] == "urn:adjudge:method-not-allowed"
    assert not [name for name in answer.headers if name.lower().startswith("access-control-")]


@pytest.mark.parametrize(
    ("path", "methods"),
    [
        ("/v1/rewards", "POST"),
        ("/v1/verdicts", "GET, POST"),
        ("/v1/operations/op-1", "DELETE, GET"),
        ("/v1/rubrics/team/a/versions", "GET, POST"),
        ("/v1/rubrics/team/a/aliases/b", "DELETE, GET, PUT"),
        ("/v1/rubrics/team/a@1/retirement", "DELETE, PUT"),
        ("/v1/rubrics/team/a", "GET"),
        ("/docs", "GET"),
    ],
)
async def test_an_unsupported_method_is_answered_with_the_allowed_methods(
    http: httpx2.AsyncClient, path: str, methods: str
) -> None:
    answer = await http.patch(path)
    assert answer.status_code == 405
    assert answer.headers["Allow"].removesuffix(", HEAD") == methods


@pytest.mark.parametrize("path", ["/docs", "/redoc"])
async def test_a_page_may_run_its_own_scripts_and_no_others(http: httpx2.AsyncClient, path: str) -> None:
    answer = await http.get(path)
    policy = dict(part.strip().split(" ", 1) for part in answer.headers["Content-Security-Policy"].split(";"))
    assert "unsafe" not in policy["script-src"]
    scripts = re.findall(r"<script([^>]*)>(.*?)</script>", answer.text, re.DOTALL)
    assert scripts
    for attributes, inline in scripts:
        if inline.strip():
            digest = b64encode(sha256(inline.encode()).digest()).decode()
            assert f"'sha256-{digest}'" in policy["script-src"]
        else:
            assert re.search(r'src="/static-offline-docs/', attributes)
    loaded = re.findall(r'(?:src|href)="([^"]+)"', answer.text)
    assert loaded
    for url in loaded:
        assert url.startswith("/"), url
        assert (await http.get(url)).status_code == 200
    assert not re.search(r"<[^>]+\son\w+=", answer.text), "an inline event handler would not run"


async def test_browsers_may_cache_scripts_and_styles_of_the_pages(http: httpx2.AsyncClient) -> None:
    answer = await http.get("/static-offline-docs/swagger-ui.css")
    assert "Cache-Control" not in answer.headers
    assert answer.headers["X-Content-Type-Options"] == "nosniff"


@pytest.mark.parametrize("path", ["/openapi.json", "/static-offline-docs/swagger-ui.css"])
async def test_large_documents_are_compressed_for_callers_who_accept_it(http: httpx2.AsyncClient, path: str) -> None:
    plain = await http.get(path, headers={"Accept-Encoding": "gzip;q=0, identity"})
    compressed = await http.get(path, headers={"Accept-Encoding": "br, gzip;q=0.8"})
    assert "Content-Encoding" not in plain.headers
    assert compressed.headers["Content-Encoding"] == "gzip"
    assert compressed.content == plain.content
    assert int(compressed.headers["Content-Length"]) < len(plain.content) / 3
    unchanged = await http.get(path, headers={"If-None-Match": plain.headers["ETag"]})
    assert (unchanged.status_code, unchanged.content) == (304, b"")
