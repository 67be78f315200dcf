"""Signing in to the console and out, sessions, and forms of other sites."""

from pathlib import Path
from typing import Any

import httpx2
import pytest

from judge_server.api.console.sessions import SESSION_LIFETIME_S, SessionSigner, local_page
from judge_server.auth.keys import CACHE_TTL_S
from rubric_store import RubricStore
from tests.judge_server.api.console.pages import checked, hidden, page, sign_in
from tests.judge_server.auth.keyed import KeyedService
from tests.judge_server.conftest import Serve
from trainer_client.wire.tenants import Limits


async def test_a_user_signs_in_with_a_key_and_out_again(keyed: KeyedService) -> None:
    key = await keyed.key("read")
    async with keyed.client() as http:
        asked = await http.get("/console/responses?run=a%2Fb&first=1")
        assert asked.status_code == 303
        form = await http.get(asked.headers["Location"])
        assert hidden(checked(form), "next") == "/console/responses?run=a%2Fb&first=1"
        done = await sign_in(http, f" {key} ", "/console/responses?run=a%2Fb&first=1")
        assert (done.status_code, done.headers["Location"]) == (303, "/console/responses?run=a%2Fb&first=1")
        (cookie,) = [c for c in done.headers.get_list("set-cookie") if c.startswith("adjudge_session=")]
        attributes = {part.strip().lower() for part in cookie.split(";")[1:]}
        assert {"httponly", "samesite=strict", "path=/console", "max-age=43200"} <= attributes
        assert "secure" not in attributes
        secret = key.rpartition("_")[2]
        assert secret not in cookie
        text = await page(http, "runs")
        assert "default" in text
        token = hidden(text, "token")
        assert (await http.post("/console/sign-out", data={"token": "wrong"})).status_code == 403
        assert (await http.get("/v1/runs")).status_code == 401  # the session is valid for the console only
        out = await http.post("/console/sign-out", data={"token": token})
        assert out.status_code == 303
        assert (await http.get("/console/runs")).status_code == 303


def copied(http: httpx2.AsyncClient) -> dict[str, str]:
    """The header that a copy of this browser's cookies sends."""
    return {"Cookie": "; ".join(f"{name}={value}" for name, value in http.cookies.items())}


async def test_signing_out_ends_the_session_for_every_copy_of_its_cookie(keyed: KeyedService) -> None:
    key = await keyed.key("admin")
    async with keyed.client() as http, keyed.client() as other, keyed.client() as thief:
        await sign_in(http, key)
        await sign_in(other, key)
        token, stolen = hidden(await page(http, "runs"), "token"), copied(http)
        assert (await thief.get("/console/runs", headers=stolen)).status_code == 200
        assert (await http.post("/console/sign-out", data={"token": token})).status_code == 303
        refused = await thief.get("/console/runs", headers=stolen)
        assert refused.headers["Location"].startswith("/console/sign-in")
        form = {"token": token, "scope": "read"}
        assert (await thief.post("/console/keys", data=form, headers=stolen)).status_code == 303
        assert len(await keyed.tenants.keys()) == 1
        assert (await thief.post("/console/sign-in", data=form | {"key": key}, headers=stolen)).status_code == 403
        assert (await thief.post("/console/sign-out", data=form, headers=stolen)).status_code == 403
        await page(other, "runs")


async def test_signing_in_again_ends_the_session_that_the_browser_had(keyed: KeyedService) -> None:
    async with keyed.client() as http, keyed.client() as thief:
        await sign_in(http, await keyed.key("read"))
        stolen = copied(http)
        assert (await sign_in(http, await keyed.key("read"))).status_code == 303
        assert (await thief.get("/console/runs", headers=stolen)).status_code == 303
        await page(http, "runs")


async def test_signing_in_counts_as_a_request(keyed: KeyedService) -> None:
    await keyed.tenants.create_project("small", Limits(requests_per_minute=1))
    key = await keyed.key("read", project_id="small")
    async with keyed.client() as http:
        assert (await sign_in(http, key)).status_code == 303
        http.cookies.clear()
        again = await sign_in(http, key)
        assert again.status_code == 429
        assert "1 requests a minute" in checked(again)


async def test_a_form_of_an_ended_session_is_refused_by_a_service_without_keys(
    tmp_path: Path, store: RubricStore
) -> None:
    service = await KeyedService.start(tmp_path, required=False)
    local = {"Host": "localhost"}
    async with service.client() as http:
        http.headers |= local
        await sign_in(http, await service.key("score", "rubrics:write"))
        text, cookies = await page(http, "labels"), copied(http)
        token = hidden(text, "token")
        form = {"token": token, "yaml": ""}
        assert (await http.post("/console/rubrics/import", data=form, headers=cookies)).status_code == 422
        assert (await http.post("/console/sign-out", data={"token": token})).status_code == 303
        assert "Sign out" not in await page(http, "runs")
        http.cookies.clear()
        assert "Sign out" not in checked(await http.get("/console/runs", headers=cookies))
        assert (await http.post("/console/rubrics/import", data=form, headers=cookies)).status_code == 403
    await service.close()


async def test_a_session_that_cannot_be_checked_or_ended_now_goes_on_afterwards(
    keyed: KeyedService, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with keyed.client() as http:
        await sign_in(http, await keyed.key("read"))
        token = hidden(await page(http, "runs"), "token")
        with monkeypatch.context() as patched:
            patched.setattr(keyed.tenants, "end_session", unreachable)
            failed = await http.post("/console/sign-out", data={"token": token})
            assert failed.status_code == 503
            assert "away" not in checked(failed)
            patched.setattr(keyed.tenants, "has_ended", unreachable)
            unchecked = await http.get("/console/runs")
            assert unchecked.status_code == 503
            assert unchecked.headers["Retry-After"] == "2"
            assert "Sessions cannot be checked now" in checked(unchecked)
        await page(http, "runs")
        assert (await http.post("/console/sign-out", data={"token": token})).status_code == 303
        assert (await http.get("/console/runs")).status_code == 303


async def unreachable(*_: Any) -> None:
    """A store that cannot be reached."""
    raise ConnectionError("the database is away")


async def test_over_https_cookies_are_secure(keyed: KeyedService) -> None:
    key = await keyed.key("read")
    async with keyed.client() as http:
        done = await sign_in(http, key, **{"X-Forwarded-Proto": "https"})
        assert all(
            "; secure" in cookie.lower() for cookie in done.headers.get_list("set-cookie") if "session=" in cookie
        )
    https = httpx2.AsyncClient(transport=keyed.transport, base_url="https://adjudge.test")
    async with https as http:
        form = await http.get("/console/sign-in")
        assert "; secure" in form.headers["set-cookie"].lower()


@pytest.mark.parametrize("case", ["no token", "another's token", "no cookie"])
async def test_a_form_of_another_site_is_refused(keyed: KeyedService, case: str) -> None:
    key = await keyed.key("read")
    async with keyed.client() as other:
        foreign = hidden(checked(await other.get("/console/sign-in")), "token")
    async with keyed.client() as http:
        token = hidden(checked(await http.get("/console/sign-in")), "token")
        if case == "no cookie":
            http.cookies.clear()
        fields = {"key": key} | ({} if case == "no token" else {"token": foreign if "another" in case else token})
        answer = await http.post("/console/sign-in", data=fields)
        assert answer.status_code == 403
        assert "adjudge_session" not in http.cookies
        checked(answer)


@pytest.mark.parametrize("page", ["sign-in", "sign-out", "labels", "rubrics/import"])
@pytest.mark.parametrize("sent", [{}, {"Sec-Fetch-Site": "cross-site"}, {"X-Form-Token": "0" * 64}], ids=str)
async def test_a_form_of_another_site_is_refused_before_it_is_read(
    serve: Serve, page: str, sent: dict[str, str]
) -> None:
    http = await serve()
    if sent:
        checked(await http.get("/console/sign-in"))  # sets the cookie
    too_large = await http.post(f"/console/{page}", data={"token": "x" * 5_000_000}, headers=sent)
    assert too_large.status_code == 403  # reading it would end with 413


async def test_bad_keys_are_refused_on_the_form(keyed: KeyedService) -> None:
    metrics = await keyed.key("metrics")
    good = await keyed.key("read")
    for key, status, told in (
        ("nonsense", 401, "begins with adj_"),
        (good[:-1] + ("A" if good[-1] != "A" else "B"), 401, "unknown"),
        (metrics, 403, "does not have the scope"),
        ("adjwork_x", 401, "begins with adj_"),
        ("x" * 20_000, 413, "larger"),
    ):
        async with keyed.client() as http:
            answer = await sign_in(http, key)
            assert answer.status_code == status
            assert told in checked(answer)
            assert key not in answer.text
            assert "adjudge_session" not in http.cookies


async def test_a_revoked_key_ends_its_sessions(keyed: KeyedService) -> None:
    key = await keyed.key("read")
    async with keyed.client() as http:
        await sign_in(http, key)
        await page(http, "runs")
        await keyed.tenants.revoke_key(key.split("_")[1])
        keyed.clock.ahead_s = CACHE_TTL_S
        assert (await http.get("/console/runs")).headers["Location"].startswith("/console/sign-in")


async def test_a_service_without_keys_serves_only_a_loopback_host(tmp_path: Path, store: RubricStore) -> None:
    service = await KeyedService.start(tmp_path, required=False)
    async with service.client() as http:
        refused = await http.get("/console/runs", headers={"Host": "evil.test"})
        assert refused.status_code == 403
        checked(refused)
        assert (await http.get("/console/runs", headers={"Host": "127.0.0.1:8000"})).status_code == 200
    await service.close()


def test_a_session_expires_and_cannot_be_altered() -> None:
    now = [1_000_000.0]
    signer = SessionSigner(b"secret", lambda: now[0])
    cookie = signer.begin("abcdefgh")
    key, id_, end, mac = cookie.split(".")
    assert signer.read(cookie) == ("abcdefgh", id_, 1_000_000 + SESSION_LIFETIME_S)
    for changed in (
        f"other.{id_}.{end}.{mac}",
        f"{key}.{'0' * 32}.{end}.{mac}",
        f"{key}.{id_}.{int(end) + 1}.{mac}",
        f"{key}.{end}.{mac}",
        f"{key}.{id_}.{end}.{mac[:-1]}0x",
        "",
        "...",
        cookie[:-1],
    ):
        assert signer.read(changed) is None
    assert SessionSigner(b"other").read(cookie) is None
    assert signer.read(signer.form_token(cookie)) is None
    now[0] += SESSION_LIFETIME_S
    assert signer.read(cookie) is None


def test_sessions_that_begin_at_once_are_different_ones() -> None:
    signer = SessionSigner(b"secret", lambda: 1_000_000.0)
    assert signer.begin("abcdefgh") != signer.begin("abcdefgh")


@pytest.mark.parametrize(
    "path",
    [
        "https://evil.test/console/runs",
        "//evil.test",
        "/console",
        "/\\evil.test",
        "/v1/runs",
        "/console/sign-in?next=x",
        "/console/\n",
    ],
)
def test_signing_in_never_redirects_outside_the_console(path: str) -> None:
    assert local_page(path) == "/console/runs"


def test_signing_in_redirects_to_the_requested_page() -> None:
    assert local_page("/console/run?run=a%2Fb") == "/console/run?run=a%2Fb"
