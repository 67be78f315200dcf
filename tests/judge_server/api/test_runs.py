"""`GET /v1/runs`: training runs, their figures, monitors and audits, compared with the answers."""

import json
from typing import Any
from urllib.parse import quote

import httpx2
import pytest

from judge_server.api.ledger import MAX_READ_VERDICTS, read_judged_run
from judge_server.errors import InvalidRequest
from rubric_store import SQLLedger
from rubric_store.ledger.rows import JudgedRun, RunRange
from tests.judge_server.api.console.pages import links, page
from tests.judge_server.api.problems import checked_problem
from tests.judge_server.api.recording import get, post
from tests.judge_server.evaluation.audit.test_report import GOOD, STEPS, gamed, run_of
from tests.judge_server.support import CRITERIA, request


def passed(verdicts: list[dict[str, Any]]) -> dict[str, Any]:
    """The expected figures of a criterion's verdicts."""
    scores = [verdict["score"] for verdict in verdicts if verdict["status"] == "ok"]
    return {
        "criterion": verdicts[0]["criterion"],
        "verdicts": len(verdicts),
        "failed": len(verdicts) - len(scores),
        "pass_rate": sum(score >= 0.5 for score in scores) / len(scores) if scores else None,
        "mean_score": pytest.approx(sum(scores) / len(scores)) if scores else None,
    }


async def test_the_figures_of_a_run_are_those_of_its_answers(recorded: httpx2.AsyncClient) -> None:
    texts = {1: ["Yes.", "No.", "7 is odd."], 2: ["Yes.", "Perhaps.", "It is not even."]}
    answers = {
        step: (await post(recorded, request(*given, run="r", step=step, on_failure="skip"))).json()
        for step, given in texts.items()
    }
    found = await get(recorded, "/v1/runs/r")
    assert [step["step"] for step in found["steps"]] == [1, 2]
    for step in found["steps"]:
        answer = answers[step["step"]]
        responses = answer["groups"][0]["responses"]
        rewards = [each["reward"] for each in responses if each["reward"] is not None]
        assert step["mean_reward"] == pytest.approx(sum(rewards) / len(rewards))
        for status in ("scored", "partial", "unscored"):
            assert step[status] == [each["status"] for each in responses].count(status)
        told = {each["criterion"]: each for each in step["criteria"]}
        for place, criterion in enumerate(CRITERIA):
            assert told[str(criterion["id"])] == passed([each["verdicts"][place] for each in responses])
        usage = answer["usage"]
        assert (step["judge_calls"], step["failed"]) == (usage["judge_calls"], usage["failed"])
        assert sum(step["failures"].values()) == step["failed"]
    assert found["steps"][1]["cached"] > 0
    assert found["run"]["responses"] == 6
    assert found["run"]["modes"] == ["weighted_mean"]
    assert found["rubrics"] == [{"digest": answers[1]["groups"][0]["rubric"], "name": None, "version": None}]
    assert sum(each["verdicts"] for each in found["criteria"]) == found["run"]["verdicts"] == 42


async def test_the_criteria_of_a_run_can_be_filtered_by_id_and_by_rubric(recorded: httpx2.AsyncClient) -> None:
    await recorded.post("/v1/rubrics/math/primes/versions", json={"criteria": CRITERIA})
    await post(recorded, request("a", run="r", step=1, rubric="math/primes"))
    await post(recorded, request("b", run="r", step=2, rubric={"criteria": CRITERIA[:2]}))
    found = await get(recorded, "/v1/runs/r", rubric="math/primes@1", criterion=["fact", "process"])
    assert [each["criterion"] for each in found["criteria"]] == ["fact", "process"]
    assert [len(step["criteria"]) for step in found["steps"]] == [2, 0]
    assert {rubric["name"] for rubric in found["rubrics"]} == {None, "math/primes"}
    one = await get(recorded, "/v1/runs/r", criteria=1, order="newest", limit=1)
    assert (len(one["criteria"]), one["criteria_count"], one["steps"][0]["step"]) == (1, 7, 2)
    rest = await get(recorded, "/v1/runs/r", criteria=1, order="newest", after=one["next_cursor"])
    assert ([step["step"] for step in rest["steps"]], rest["next_cursor"]) == ([1], None)


@pytest.mark.parametrize("name", ["team/llama/3", "with space & ?#%", "ünï", "a/steps", "two\nlines", "a\n"])
async def test_a_run_may_have_any_name(recorded: httpx2.AsyncClient, name: str) -> None:
    await post(recorded, request(run=name, step=1))
    assert [run["run"] for run in (await get(recorded, "/v1/runs"))["runs"]] == [name]
    assert (await get(recorded, f"/v1/runs/{quote(name)}"))["run"]["run"] == name
    assert (await get(recorded, f"/v1/runs/{quote(name)}/monitors"))["run"] == name


async def test_runs_are_listed_in_pages_including_the_unnamed_one(recorded: httpx2.AsyncClient) -> None:
    for name in ("a", None, "b"):
        await post(recorded, request(run=name) if name else request())
    first = await get(recorded, "/v1/runs", limit=2)
    rest = await get(recorded, "/v1/runs", after=first["next_cursor"])
    assert [run["run"] for run in first["runs"] + rest["runs"]] == ["b", None, "a"]
    assert rest["next_cursor"] is None
    assert (await get(recorded, "/v1/runs/"))["run"]["run"] is None


async def test_an_unknown_run_is_not_found(recorded: httpx2.AsyncClient) -> None:
    assert (await get(recorded, "/v1/runs")) == {"runs": [], "next_cursor": None}
    answer = await recorded.get("/v1/runs/nobody")
    assert answer.status_code == 404
    assert "nobody" in checked_problem(answer)["detail"]


@pytest.mark.parametrize(
    ("path", "params"),
    [
        ("/v1/runs", {"after": "nonsense"}),
        ("/v1/runs", {"limit": 501}),
        ("/v1/runs/r", {"after": "nonsense"}),
        ("/v1/runs/r", {"limit": 0}),
        ("/v1/runs/r", {"criteria": 201}),
        ("/v1/runs/r", {"order": "best"}),
        ("/v1/runs/r", {"rubric": "No Reference"}),
        ("/v1/runs/r", {"first_step": 2, "last_step": 1}),
        ("/v1/runs/" + "r" * 257, {}),
    ],
    ids=str,
)
async def test_an_invalid_query_is_refused(recorded: httpx2.AsyncClient, path: str, params: dict[str, Any]) -> None:
    await post(recorded, request(run="r"))
    answer = await recorded.get(path, params=params)
    assert answer.status_code == 422
    assert checked_problem(answer)["errors"]


async def test_metrics_report_the_state_of_the_ledger(recorded: httpx2.AsyncClient) -> None:
    await post(recorded, request("Yes.", "No.", run="r"))
    page = (await recorded.get("/metrics")).text
    assert 'adjudge_ledger_verdicts_total{outcome="recorded"} 14.0' in page
    assert 'adjudge_ledger_verdicts_total{outcome="written"} 14.0' in page
    assert 'adjudge_ledger_verdicts_total{outcome="lost"} 0.0' in page
    for gauge in ("waiting", "spool_bytes", "lag_seconds"):
        assert f"adjudge_ledger_{gauge} 0.0" in page
    assert "adjudge_ledger_writable 1.0" in page


async def test_a_service_without_a_ledger_has_no_ledger_metrics(http: httpx2.AsyncClient) -> None:
    assert "adjudge_ledger" not in (await http.get("/metrics")).text


async def exported(http: httpx2.AsyncClient, run: str, **params: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The rows of an export and its summary."""
    answer = await http.get(f"/v1/runs/{run}/export", params=params)
    assert answer.status_code == 200, answer.text
    assert answer.headers["Content-Type"] == "application/x-ndjson"
    *lines, last = [json.loads(line) for line in answer.text.splitlines()]
    return [line["row"] for line in lines], last["summary"]


async def test_a_run_is_exported_line_by_line_with_its_filters(recorded: httpx2.AsyncClient) -> None:
    texts = ["Yes.", "No.", "7 is “odd” 🙂.", "Perhaps."]
    answers = [(await post(recorded, request(*texts, run="a/b", step=step))).json() for step in (1, 2)]
    rewards = {
        (step, text): response["reward"]
        for step, answer in enumerate(answers, 1)
        for text, response in zip(texts, answer["groups"][0]["responses"], strict=True)
        if response["reward"] is not None
    }
    made, summary = await exported(recorded, "a%2Fb", **{"as": "sft", "first_step": 2})
    assert {(row["step"], row["completion"]): row["reward"] for row in made} == {
        key: reward for key, reward in rewards.items() if key[0] == 2
    }
    assert summary["run"] == "a/b"
    assert summary["unrewarded"] == 4 - len(made)
    rubric = answers[0]["groups"][0]["rubric"]
    about = {"as": "verdicts", "criterion": "fact", "rubric": rubric}
    verdicts, _ = await exported(recorded, "a/b", **about)
    assert {row["criterion"] for row in verdicts} == {"fact"}
    every, _ = await exported(recorded, "a/b", **{"all_pairs": "true", "min_margin": 0.01, "conversational": True})
    assert all(row["margin"] >= 0.01 for row in every)
    assert all(row["prompt"] == [{"role": "user", "content": "Is 7 prime?"}] for row in every)


@pytest.mark.parametrize(
    ("path", "params", "status"),
    [
        ("/v1/runs/nobody/export", {}, 404),
        ("/v1/runs/r/export", {"as": "everything"}, 422),
        ("/v1/runs/r/export", {"as": "sft", "min_margin": 0.1}, 422),
        ("/v1/runs/r/export", {"min_margin": "nan"}, 422),
        ("/v1/runs/r/export", {"rubric": "No Reference"}, 422),
        ("/v1/runs/r/export", {"rubric": "sha256:" + "0" * 64}, 404),
        ("/v1/runs/r/export", {"first_step": 2, "last_step": 1}, 422),
    ],
    ids=str,
)
async def test_an_export_of_nothing_is_refused_before_it_begins(
    recorded: httpx2.AsyncClient, path: str, params: dict[str, Any], status: int
) -> None:
    await post(recorded, request("Yes.", "No.", run="r", step=1))
    answer = await recorded.get(path, params=params)
    assert answer.status_code == status
    checked_problem(answer)


async def test_the_page_of_a_run_offers_it_as_training_data(recorded: httpx2.AsyncClient) -> None:
    await post(recorded, request("Yes.", "No.", "7 is odd.", run="r", step=1, on_failure="skip"))
    page = (await recorded.get("/console/run", params={"run": "r"})).text
    for kind in ("pairs", "sft", "best", "verdicts"):
        href = f"/console/run/export.jsonl?run=r&amp;as={kind}"
        assert href in page
        answer = await recorded.get(href.replace("&amp;", "&"))
        assert answer.headers["Content-Disposition"] == f'attachment; filename="{kind}.jsonl"'
        assert [json.loads(line) for line in answer.text.splitlines()] == (
            await exported(recorded, "r", **{"as": kind})
        )[0]
    await post(recorded, request("Yes.", run="alone"))
    refused = await recorded.get("/console/run/export.jsonl?run=alone")
    assert refused.status_code == 422
    assert "fewer than two different responses" in refused.text


async def test_a_run_of_too_many_verdicts_is_not_read_for_one_request() -> None:
    class LongRun(SQLLedger):
        """A ledger whose run has more verdicts than one request reads."""

        def __init__(self) -> None:
            pass

        async def judged_run(self, part: RunRange) -> JudgedRun:  # type: ignore[override]
            return JudgedRun(1, MAX_READ_VERDICTS + 1, (), {})

    with pytest.raises(InvalidRequest, match=r"500,001 verdicts.*select fewer steps, or use `adjudge export`"):
        await read_judged_run(LongRun(), RunRange("default", "r"), "adjudge export")


async def test_the_monitors_of_a_run_are_returned(recorded: httpx2.AsyncClient) -> None:
    for step in range(3):
        await post(recorded, request("Yes.", "No.", run="team/r", step=step, on_failure="skip"))
    found = await get(recorded, "/v1/runs/team/r/monitors")
    assert (found["run"], found["first_step"], found["last_step"], found["findings"]) == ("team/r", 0, 2, [])
    assert {"unscored", "length_bias", "saturated_criterion"} <= set(found["monitors"])
    assert (await get(recorded, "/v1/runs/team/r/monitors", until_step=1))["last_step"] == 1
    assert (await get(recorded, "/v1/runs/team/r"))["run"]["requests"] == 3


async def test_a_run_whose_name_ends_like_the_route_is_read_with_its_slash_escaped(
    recorded: httpx2.AsyncClient,
) -> None:
    await post(recorded, request("Yes.", run="team/monitors", step=4, on_failure="skip"))
    await post(recorded, request("Yes.", run="team", step=7, on_failure="skip"))
    assert (await get(recorded, "/v1/runs/team%2Fmonitors"))["run"]["run"] == "team/monitors"
    assert (await get(recorded, "/v1/runs/team/monitors/monitors"))["last_step"] == 4
    assert (await get(recorded, "/v1/runs/team%2Fmonitors/monitors"))["last_step"] == 4
    assert (await get(recorded, "/v1/runs/team/monitors"))["last_step"] == 7


async def test_a_run_without_steps_has_no_monitors(recorded: httpx2.AsyncClient) -> None:
    await post(recorded, request("Yes.", run="r"))
    for run in ("r", "missing"):
        assert checked_problem(await recorded.get(f"/v1/runs/{run}/monitors"))["status"] == 404


async def test_a_control_set_is_judged_afresh_and_has_one_fingerprint(recorded: httpx2.AsyncClient) -> None:
    await post(recorded, request("Yes.", run="r", step=1, on_failure="skip"))
    asked: dict[str, Any] = request("Yes.", run="r/control", step=1, fresh=True)
    answers = [(await post(recorded, asked | {"step": step}, "/v1/verdicts")).json() for step in (1, 2)]
    assert [one["usage"]["cached"] for one in answers] == [0, 0]
    assert answers[0]["groups"] == answers[1]["groups"]
    found = await get(recorded, "/v1/runs/r/monitors")
    assert {"control_changed", "control_fingerprint"} <= set(found["monitors"])
    assert found["findings"] == []


async def test_a_gold_judge_that_does_not_exist_is_refused(recorded: httpx2.AsyncClient) -> None:
    answer = await recorded.post("/v1/rewards", json=request("Yes.", run="r", gold={"judge": "nobody"}))
    problem = checked_problem(answer)
    assert (problem["status"], problem["errors"][0]["field"]) == (422, "gold.judge")


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
