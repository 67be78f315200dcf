"""The console over HTTP: every page of a service that has judged, and what it refuses to show or run."""

import asyncio
import csv
import html
import io
import re
from collections.abc import AsyncIterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import httpx2
import pytest

from judge_server.api import Service, create_app
from judge_server.engines.scripted import ScriptedEngine
from rubric_store import RubricStore
from tests.judge_server.api.test_ledger import post, recorded
from tests.judge_server.auth.keyed import KeyedService
from tests.judge_server.conftest import Serve
from tests.judge_server.ledger.judged import some_fail
from tests.judge_server.support import CRITERIA, request
from trainer_client.documentation import SITE_URL, error_url
from trainer_client.wire.tenants import Limits

__all__ = ["recorded"]

HOSTILE = "<script>alert(1)</script><img src=x onerror=alert(2)></pre>\u202egnorw\u202c مرحبا " + "W" * 2000
POLICY = (
    "default-src 'none'; script-src 'self'; connect-src 'self'; style-src 'self'; img-src 'self'; form-action 'self'; "
    "base-uri 'none'; frame-ancestors 'none'"
)


async def page(http: httpx2.AsyncClient, path: str, **params: Any) -> str:
    """Fetch a page that must exist and be valid."""
    answer = await http.get(f"/console/{path}", params=params)
    assert answer.status_code == 200, answer.text
    return checked(answer)


def checked(answer: httpx2.Response) -> str:
    """The text of a page, after a check of what every page has: a strict policy and nothing inline."""
    assert answer.headers["Content-Type"] == "text/html; charset=utf-8"
    assert answer.headers["Content-Security-Policy"] == POLICY
    assert answer.headers["Cache-Control"] == "no-store"
    assert answer.headers["X-Content-Type-Options"] == "nosniff"
    seen = Tags()
    seen.feed(answer.text)
    assert seen.names.isdisjoint({"style", "iframe", "object", "img"})
    assert seen.names >= {"html", "main", "h1"}
    assert all(re.fullmatch(r'<script src="/console/static/[^"]+" defer>', tag) for tag in seen.scripts)
    assert seen.text_in_scripts == ""
    for name, value in seen.attributes:
        assert name != "style"
        assert not name.startswith("on")
        documented = name == "href" and value.startswith(f"{SITE_URL}/")
        assert name not in ("href", "src", "action") or documented or re.match(r"/[a-z]|#", value)
    return answer.text


class Tags(HTMLParser):
    """The element names, attributes and scripts of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.names: set[str] = set()
        self.attributes: list[tuple[str, str]] = []
        self.scripts: list[str] = []
        self.text_in_scripts = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.names.add(tag)
        self.attributes += [(name, value or "") for name, value in attrs]
        if tag == "script":
            self.scripts.append(self.get_starttag_text() or "")

    def handle_data(self, data: str) -> None:
        if self.lasttag == "script":
            self.text_in_scripts += data.strip()


def links(text: str, to: str) -> list[str]:
    """The links on a page to pages of one kind."""
    found = re.findall(rf'href="(/console/{to}[?#][^"]*)"', text)
    return [address.replace("&amp;", "&") for address in found]


async def judged(http: httpx2.AsyncClient, run: str = "r", steps: int = 3) -> dict[str, Any]:
    """Judge a group of three per step, and return the last answer."""
    answer = None
    for step in range(steps):
        texts = [f"Yes {step}.", f"No {step}.", f"7 is odd {step}."]
        answer = await post(http, request(*texts, run=run, step=step, on_failure="skip"))
    assert answer is not None
    found: dict[str, Any] = answer.json()
    return found


@pytest.mark.parametrize(
    ("path", "command"),
    [("", "examples/quickstart.py"), ("/labels", "examples/quickstart.py"), ("/rubrics", "adjudge rubrics publish")],
)
async def test_a_page_without_contents_shows_the_next_command(
    recorded: httpx2.AsyncClient, path: str, command: str
) -> None:
    answer = await recorded.get(f"/console{path}", follow_redirects=True)
    assert command in checked(answer)


async def test_a_service_without_a_ledger_says_so_on_the_page(store: RubricStore, tmp_path: Path) -> None:
    transport = httpx2.ASGITransport(create_app(Service(rubrics=store)), raise_app_exceptions=False)
    async with httpx2.AsyncClient(transport=transport, base_url="http://adjudge.test") as http:
        answer = await http.get("/console/runs")
    assert answer.status_code == 503
    assert "has no ledger" in checked(answer)


async def test_links_lead_from_the_list_of_runs_to_the_explanation_of_a_reward(recorded: httpx2.AsyncClient) -> None:
    answered = await judged(recorded)
    runs = await page(recorded, "runs")
    assert "<polyline" in runs
    (run_href,) = links(runs, "run")
    run = checked(await recorded.get(run_href))
    for title in (
        "Reward over steps",
        "Responses by reward",
        "Pass rate by criterion and step",
        "Failed verdicts by kind",
        "Cost in tokens",
    ):
        assert title in run
    listed = checked(await recorded.get(links(run, "responses")[0]))
    group = checked(await recorded.get(links(listed, "group")[0].partition("#")[0]))
    assert "Why this reward" in group
    assert "Is 7 prime?" in group
    fingerprint = answered["judge"]["fingerprint"]
    judge = checked(await recorded.get(links(group, "judge")[0]))
    assert fingerprint in judge
    assert "loaded now" in judge
    rubric = checked(await recorded.get(links(group, "rubric")[0]))
    assert all(criterion["description"] in rubric for criterion in CRITERIA)


async def test_a_group_shows_component_rewards_if_they_were_asked_for(recorded: httpx2.AsyncClient) -> None:
    seen = set()
    for run, by in (("with", "kind"), ("without", None)):
        rubric = {"criteria": [CRITERIA[0], {"id": "b", "kind": "factual", "description": "Names <it>."}]}
        options = {"mode": "points", "components": by}
        answer = (await post(recorded, request("7", "No.", "7 is.", run=run, rubric=rubric, reward=options))).json()
        listed = await page(recorded, "responses", run=run)
        group = checked(await recorded.get(links(listed, "group")[0].partition("#")[0]))
        assert group.count("Components:") == (3 if by else 0)
        for response in answer["groups"][0]["responses"]:
            for name, value in response.get("components", {}).items():
                assert f"<bdi>{name}</bdi> {'–' if value is None else f'{value:.2f}'}" in group
                seen.add(value is None)
    assert seen == {True, False}


async def test_a_group_shows_verdicts_and_rewards_as_they_were_answered(recorded: httpx2.AsyncClient) -> None:
    answer = await judged(recorded, steps=2)
    listed = await page(recorded, "responses", run="r")
    text = checked(await recorded.get(links(listed, "group")[-1].partition("#")[0]))
    responses = answer["groups"][0]["responses"]
    matrix = text[text.index("<tbody>") : text.index("</tbody>")]
    failed = sum(verdict["status"] == "failed" for each in responses for verdict in each["verdicts"])
    assert failed
    assert matrix.count('class="mark failed"') == failed + sum(each["reward"] is None for each in responses)
    assert matrix.count('class="mark yes') == sum((v["score"] or 0) >= 0.5 for r in responses for v in r["verdicts"])
    close = [0.4 <= (v["probability"] or 0) <= 0.6 for r in responses for v in r["verdicts"] if v["score"] is not None]
    assert matrix.count(" close") == 3 * sum(close) > 0  # the class, the title and the hidden text
    for each in responses:
        if each["reward"] is not None:
            assert f"{each['reward']:.3f}" in matrix
    assert "with default options" not in text
    (csv_href,) = links(text, r"group\.csv")
    rows = list(csv.DictReader(io.StringIO((await recorded.get(csv_href)).text)))
    assert [row["status"] for row in rows] == [v["status"] for r in responses for v in r["verdicts"]]
    assert [row["score"] for row in rows] == [
        "" if v["score"] is None else str(v["score"]) for r in responses for v in r["verdicts"]
    ]


async def test_a_group_quotes_the_passages_that_a_verdict_was_asked_on(recorded: httpx2.AsyncClient) -> None:
    told = "Nothing happened that day. " * 40 + "Herons <nest> in alders. " + "Nothing happened that day. " * 40
    rubric = {
        "criteria": [{"id": "a", "description": "It says where herons nest."}, {"id": "b", "description": "Quux."}]
    }
    await post(recorded, request(told, rubric=rubric, run="r", judging={"passages": 500}))
    listed = await page(recorded, "responses", run="r")
    text = checked(await recorded.get(links(listed, "group")[-1].partition("#")[0]))
    (quoted,) = [one for one in re.findall("<mark>(.*?)</mark>", text) if "Herons" in one]
    assert quoted == "Herons &lt;nest&gt; in alders."
    assert "No passage of the long text shares a word" in text


async def test_charts_show_the_numbers_of_the_run_report(recorded: httpx2.AsyncClient) -> None:
    await judged(recorded)
    report = (await recorded.get("/v1/runs/r")).json()

    async def table(chart: str) -> list[dict[str, str]]:
        answer = await recorded.get(f"/console/run/{chart}.csv", params={"run": "r"})
        assert answer.headers["Content-Type"] == "text/csv; charset=utf-8"
        assert "attachment" in answer.headers["Content-Disposition"]
        return list(csv.DictReader(io.StringIO(answer.text)))

    steps = report["steps"]
    assert [float(row["mean reward"]) for row in await table("reward")] == [
        pytest.approx(s["mean_reward"]) for s in steps
    ]
    assert [int(row["prompt tokens computed"]) for row in await table("cost")] == [
        s["prompt_tokens_computed"] for s in steps
    ]
    assert [int(row["failed"]) for row in await table("failures")] == [s["failed"] for s in steps]
    kinds = {kind for s in steps for kind in s["failures"]}
    shown = await page(recorded, "run", run="r")
    assert kinds
    assert all(f'href="{error_url(kind)}"' in shown for kind in kinds)
    assert (
        sum(int(row["responses"]) for row in await table("histogram"))
        == report["run"]["responses"] - report["run"]["unscored"]
    )
    rates = {(row["criterion"], row["steps"]): row["pass rate"] for row in await table("criteria")}
    for step in steps:
        for one in step["criteria"]:
            told = rates[one["criterion"], str(step["step"])]
            assert (float(told) if told else None) == pytest.approx(one["pass_rate"])
    assert (await recorded.get("/console/run/nothing.csv", params={"run": "r"})).status_code == 404


async def test_the_field_for_a_second_run_suggests_the_other_runs(recorded: httpx2.AsyncClient) -> None:
    for run in ("math/a", "code/b", "math/c"):
        await judged(recorded, run=run, steps=1)
    text = await page(recorded, "run", run="math/a")
    (suggested,) = re.findall(r'hx-get="([^"]*run/others[^"]*)"', text)
    shown = (await recorded.get(html.unescape(suggested))).text
    assert re.findall(r'<option value="([^"]*)"', shown) == ["math/c", "code/b"]


async def test_responses_can_be_filtered_by_the_verdict_on_a_criterion(recorded: httpx2.AsyncClient) -> None:
    await judged(recorded)
    verdicts = (await recorded.get("/v1/verdicts", params={"run": "r", "criterion": "fact"})).json()["verdicts"]
    for outcome, score in (("passed", 1.0), ("not passed", 0.0), ("failed", None)):
        text = await page(recorded, "responses", run="r", criterion="fact", outcome=outcome)
        assert len(links(text, "group")) == sum(each["verdict"]["score"] == score for each in verdicts)
    some = await page(recorded, "responses", run="r", first=1, last=1, low="0", high="1", includes_high="1")
    assert len(links(some, "group")) == sum(each["step"] == 1 and each["reward"] is not None for each in verdicts)


async def test_runs_and_responses_are_listed_in_pages(recorded: httpx2.AsyncClient) -> None:
    for number in range(27):
        await recorded.post("/v1/rewards", json=request(run=f"team/{number}"))
    await post(recorded, request(*[f"Answer {n}." for n in range(30)], run="long"))
    first = await page(recorded, "runs", q="team/")
    (next_href,) = [href for href in links(first, "runs") if "after=" in href]
    rest = checked(await recorded.get(next_href))
    assert len(set(links(first, "run") + links(rest, "run"))) == 27
    first = await page(recorded, "responses", run="long")
    (next_href,) = [href for href in links(first, "responses") if "after=" in href]
    rest = checked(await recorded.get(next_href))
    assert len(set(links(first, "group") + links(rest, "group"))) == 30
    assert "No run of this project" in await page(recorded, "runs", q="<nothing>")


async def test_hostile_text_is_shown_as_text(recorded: httpx2.AsyncClient) -> None:
    body = request(HOSTILE, run=HOSTILE[:200], step=0, rubric={"criteria": [{"id": "a", "description": HOSTILE}]})
    body["groups"][0] |= {"id": HOSTILE[:90], "prompt": HOSTILE, "grounding": HOSTILE}
    await post(recorded, body)
    runs = await page(recorded, "runs")
    run = checked(await recorded.get(links(runs, "run")[0]))
    listed = checked(await recorded.get(links(run, "responses")[0]))
    group = checked(await recorded.get(links(listed, "group")[0].partition("#")[0]))
    rubric = checked(await recorded.get(links(group, "rubric")[0]))
    for text in (runs, run, listed, group, rubric):
        assert "&lt;script&gt;alert(1)&lt;/script&gt;" in text
    assert group.count("W" * 2000) >= 3
    answer = await recorded.get("/console/run", params={"run": HOSTILE[:200] + "?"})
    assert answer.status_code == 404
    assert "&lt;script&gt;" in checked(answer)


async def test_a_run_without_steps_and_without_a_name_has_a_page(recorded: httpx2.AsyncClient) -> None:
    await post(recorded, request())
    text = await page(recorded, "run", run="")
    assert "name no step" in text
    assert len(links(await page(recorded, "responses", run=""), "group")) == 1


@pytest.mark.parametrize(
    ("path", "status"),
    [
        ("nothing", 404),
        ("run?run=nobody", 404),
        ("run", 422),
        ("run?run=r&first=5&last=1", 422),
        ("run?run=r&first=x", 422),
        ("responses?run=nobody", 404),
        ("responses?run=r&low=nan", 422),
        ("responses?run=r&status=best", 422),
        ("responses?run=r&after=zz", 422),
        ("group?run=r&request=zz&group=g", 404),
        ("group?run=r&request=" + "00" * 16 + "&group=g", 404),
        ("rubric?digest=sha256:" + "0" * 64, 404),
        ("rubric?digest=nonsense", 404),
        ("runs?after=nonsense", 422),
        ("static/app.py", 404),
        ("sign-out", 405),
    ],
)
async def test_errors_are_shown_as_pages(recorded: httpx2.AsyncClient, path: str, status: int) -> None:
    answer = await recorded.get(f"/console/{path}")
    assert answer.status_code == status
    checked(answer)


async def test_the_console_is_not_in_the_api_document_and_its_files_are_served(recorded: httpx2.AsyncClient) -> None:
    document = (await recorded.get("/openapi.json")).json()
    assert not any("console" in path for path in document["paths"])
    text = await page(recorded, "runs")
    loaded = re.findall(r'(?:<link rel="\w+" href|<script src)="([^"]+)"', text)
    assert len(loaded) == 3
    for address in loaded:
        answer = await recorded.get(html.unescape(address))
        assert answer.status_code == 200
        assert "immutable" in answer.headers["Cache-Control"]
    older = await recorded.get("/console/static/console.css?v=older")
    assert "immutable" not in older.headers["Cache-Control"]
    assert "prefers-color-scheme: dark" in (await recorded.get("/console/static/console.css")).text


# -- signing in


@pytest.fixture
async def keyed(tmp_path: Path, store: RubricStore) -> AsyncIterator[KeyedService]:
    """A service that requires keys, over the same new database as `store`."""
    service = await KeyedService.start(tmp_path, ScriptedEngine(some_fail))
    yield service
    await service.close()


def hidden(text: str, name: str) -> str:
    """The value of a hidden field of a page."""
    found = re.search(rf'name="{name}" value="([^"]*)"', text)
    assert found is not None
    return html.unescape(found[1])


async def sign_in(http: httpx2.AsyncClient, key: str, next_page: str = "", **headers: str) -> httpx2.Response:
    """Fill in the sign-in form and send it."""
    form = checked(await http.get("/console/sign-in", params={"next": next_page}))
    fields = {"key": key, "token": hidden(form, "token"), "next": hidden(form, "next")}
    return await http.post("/console/sign-in", data=fields, headers=headers)


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


async def test_a_revoked_key_ends_its_sessions(keyed: KeyedService, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("judge_server.auth.keys.CACHE_TTL_S", 0.0)
    key = await keyed.key("read")
    async with keyed.client() as http:
        await sign_in(http, key)
        await page(http, "runs")
        await keyed.tenants.revoke_key(key.split("_")[1])
        assert (await http.get("/console/runs")).headers["Location"].startswith("/console/sign-in")


async def test_a_key_of_one_project_cannot_see_another_project(keyed: KeyedService) -> None:
    await keyed.tenants.create_project("other")
    mine, other = await keyed.key("score"), await keyed.key("score", project_id="other")
    async with keyed.client(other) as http:
        answer = await http.post("/v1/rewards", json=request("Secret answer.", run="secret-run", step=1))
        assert answer.status_code == 200
    await keyed.recorded()
    rubric = answer.json()["groups"][0]["rubric"]
    async with keyed.client(other) as http:  # a header signs in as well
        listed = await page(http, "responses", run="secret-run")
        (group,) = [href.partition("#")[0] for href in links(listed, "group")]
        assert "Secret answer." in checked(await http.get(group))
    async with keyed.client() as http:
        await sign_in(http, mine)
        assert "secret-run" not in await page(http, "runs")
        for path in (
            "/console/run?run=secret-run",
            "/console/run/reward.csv?run=secret-run",
            "/console/run/export.jsonl?run=secret-run&as=sft",
            "/console/responses?run=secret-run",
            group,
            group.replace("/group?", "/group.csv?"),
            f"/console/rubric?digest={rubric}",
        ):
            answer = await http.get(path)
            assert answer.status_code == 404
            assert "Secret answer." not in checked(answer)
    async with keyed.client(mine) as http:
        assert (await http.get("/v1/runs/secret-run/export?as=sft")).status_code == 404


async def test_a_service_without_keys_serves_only_a_loopback_host(tmp_path: Path, store: RubricStore) -> None:
    service = await KeyedService.start(tmp_path, required=False)
    async with service.client() as http:
        refused = await http.get("/console/runs", headers={"Host": "evil.test"})
        assert refused.status_code == 403
        checked(refused)
        assert (await http.get("/console/runs", headers={"Host": "127.0.0.1:8000"})).status_code == 200
    await service.close()


async def test_an_unreachable_store_is_shown_as_an_error_page(
    recorded: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: Any, **__: Any) -> None:
        raise ConnectionError("the database is away")

    monkeypatch.setattr("rubric_store.SQLLedger.runs", away)
    answer = await recorded.get("/console/runs")
    assert answer.status_code == 503
    assert "away" not in checked(answer)
    monkeypatch.setattr("rubric_store.SQLLedger.runs", lambda *_, **__: asyncio.sleep(0, result=None))
    answer = await recorded.get("/console/runs")
    assert answer.status_code == 500
    checked(answer)


async def test_the_page_of_an_empty_response_that_was_judged_by_its_turns_is_shown(
    recorded: httpx2.AsyncClient,
) -> None:
    criteria = [
        {"id": "a", "kind": "answer", "description": "Says yes."},
        {"id": "s", "kind": "suggest", "description": "x"},
    ]
    rules = {"reward": {"mode": "stepwise"}, "judging": {"steps": "turns"}, "rubric": {"criteria": criteria}}
    await post(recorded, request("", run="r", **rules))
    (to_group,) = set(links(await page(recorded, "responses", run="r"), "group"))
    assert "The reward is" in checked(await recorded.get(to_group.partition("#")[0]))
