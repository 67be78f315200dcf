"""`GET /v1/runs/{run}/audit`, and the page of the console that shows it."""

from typing import Any

import httpx2

from tests.judge_server.api.console.test_pages import links, page
from tests.judge_server.api.http.test_bad_input import checked_problem
from tests.judge_server.api.test_ledger import post, recorded
from tests.judge_server.api.test_runs import get
from tests.judge_server.evaluation.audit.test_report import GOOD, STEPS, gamed, run_of

__all__ = ["recorded"]


async def judged(http: httpx2.AsyncClient, run: str, **fields: Any) -> None:
    """Have the responses of a run judged; the judge answers by chance."""
    for body in run_of(gamed, run, **fields):
        await post(http, body)


async def test_a_run_is_audited_against_others(recorded: httpx2.AsyncClient) -> None:
    await judged(recorded, "team/r")
    await judged(recorded, "team/same")
    await judged(recorded, "good", rubric=GOOD)
    found = await get(recorded, "/v1/runs/team/r/audit", against=["team/same", "good"])
    assert (found["run"], found["late"]["last_step"], found["late"]["responses"]) == ("team/r", STEPS - 1, 48)
    assert [(one["run"], one["kind"], one["matched"]) for one in found["references"]] == [
        ("team/same", "judge", 96), ("good", "rubric", 96),
    ]  # fmt: skip
    same = found["references"][0]["comparison"]
    assert (same["own"], same["gap"]["value"]) == (same["other"], 0.0)
    assert (await get(recorded, "/v1/runs/team/r/audit"))["answer"] == "unknown"


async def test_an_audit_of_what_does_not_exist_is_refused(recorded: httpx2.AsyncClient) -> None:
    await judged(recorded, "r", steps=[1])
    for path in ("/v1/runs/missing/audit", "/v1/runs/r/audit?against=missing", "/v1/runs/r/audit?against="):
        assert checked_problem(await recorded.get(path))["status"] == 404
    for query in ("against=r", "&".join(f"against={n}" for n in range(6)), f"against={'x' * 257}"):
        assert checked_problem(await recorded.get(f"/v1/runs/r/audit?{query}"))["status"] == 422


async def test_the_page_of_an_audit_leads_to_verdicts_that_people_reject(recorded: httpx2.AsyncClient) -> None:
    await judged(recorded, "r")
    found = await get(recorded, "/v1/verdicts", run="r", criterion="checked", limit=500)
    labels = [{"verdict": one["id"], "met": False} for one in found["verdicts"]]
    assert (await recorded.put("/v1/labels", json={"run": "r", "labels": labels})).status_code == 200
    text = await page(recorded, "run/audit", run="r")
    assert "people's labels" in text
    hrefs = links(text, "group")
    assert len(hrefs) == 3
    for href in hrefs:
        answer = await recorded.get(href.partition("#")[0])
        assert f'id="{href.partition("#")[2]}"' in answer.text


async def test_the_page_of_an_audit_shows_the_report(recorded: httpx2.AsyncClient) -> None:
    await judged(recorded, "r<1>")
    await judged(recorded, "other & more")
    (href,) = links(await page(recorded, "run", run="r<1>"), "run/audit")
    alone = await recorded.get(href)
    assert "Not known." in alone.text
    assert "nothing to compare with" in alone.text
    both = await page(recorded, "run/audit", run="r<1>", against=["other & more", ""])
    assert "Not known." in both
    assert "so that they agree says nothing" in both
    assert "other &amp; more" in both
    assert both.count("<bdi>checked</bdi>") >= 1
    for query in ({"run": "missing"}, {"run": "r<1>", "against": "missing"}, {"run": "r<1>", "against": "r<1>"}, {}):
        answer = await recorded.get("/console/run/audit", params=query)
        assert answer.status_code in (404, 422)
