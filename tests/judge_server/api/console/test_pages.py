"""The console over HTTP: every page of a service that has judged, and what it refuses to show or run."""

import asyncio
import csv
import html
import io
import re
from pathlib import Path
from typing import Any

import httpx2
import pytest

from judge_server.api.app import create_app
from judge_server.api.service import Service
from rubric_store import RubricStore
from tests.judge_server.api.console.pages import HOSTILE, checked, judged, links, page, sign_in
from tests.judge_server.api.recording import post
from tests.judge_server.auth.keyed import KeyedService
from tests.judge_server.support import CRITERIA, request
from trainer_client.wire.problems import error_url


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


async def test_a_ranked_group_has_a_row_for_each_opponent(recorded: httpx2.AsyncClient) -> None:
    sent = request("Yes.", "No.", "7 is odd.", run="ranked", reward={"mode": "ranking"})
    answer = (await post(recorded, sent)).json()
    listed = await page(recorded, "responses", run="ranked")
    text = checked(await recorded.get(links(listed, "group")[0].partition("#")[0]))
    rows = text[text.index("<tbody>") : text.index("</tbody>")].split("<tr")[2:]
    assert [re.findall(r"<bdi>(\w+)</bdi>", row) for row in rows] == [["beats_0"], ["beats_1"], ["beats_2"]]
    assert not [one["description"] for one in CRITERIA if one["description"] in "".join(rows)]
    told = [{v["criterion"]: v for v in one["verdicts"]} for one in answer["groups"][0]["responses"]]
    for opponent, row in enumerate(rows):
        cells = row.split("<td>")[1:]
        assert [place for place, cell in enumerate(cells) if cell.startswith("–")] == [opponent]
        for own, cell in zip(told, cells, strict=True):
            verdict = own.get(f"beats_{opponent}")
            assert verdict is None or f"{verdict['probability']:.2f}" in cell


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
