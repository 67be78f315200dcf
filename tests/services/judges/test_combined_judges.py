"""Cascades and panels in a service: settings, answers, the ledger, metrics, readiness."""

import asyncio
import json
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path
from typing import Any

import httpx2
import pytest
from sqlalchemy import create_engine, select

from adjudge_services.settings import Settings
from adjudge_services.store import prepare_store
from adjudge_services.wiring import build_app
from rubric_store.ledger.tables import requests
from tests.services.operations.in_process import INTERVALS
from tests.services.processes import listening
from trainer_client import Client

CRITERIA = [{"id": f"c{n}", "description": f"Part {n} holds."} for n in range(12)]
JUDGES: dict[str, Any] = {
    "small": "scripted://hash",
    "large": "scripted://yes",
    "both": {"cascade": ["small", "large"], "band": [0.3, 0.7]},
    "three": {"panel": ["default", "small", "large"], "weights": [1, 1, 1]},
}
GROUPS = [{"id": "g", "prompt": "p", "responses": [f"response {n}" for n in range(4)]}]

pytestmark = pytest.mark.usefixtures("migrated")

Serving = Callable[..., AbstractAsyncContextManager[httpx2.AsyncClient]]


@asynccontextmanager
async def serving(**settings: Any) -> AsyncIterator[httpx2.AsyncClient]:
    """Run a service with these judges in this process."""
    given = Settings(**{"engine_url": "scripted://no", "engines": JUDGES} | settings)
    await prepare_store(given)
    app = build_app(given, wait_for_judge=True, intervals=INTERVALS)
    transport = httpx2.ASGITransport(app, raise_app_exceptions=False)
    http = httpx2.AsyncClient(transport=transport, base_url="http://localhost")
    async with app.router.lifespan_context(app), http:
        yield http


async def judged(http: httpx2.AsyncClient, judge: str, path: str = "/v1/verdicts", **fields: Any) -> Any:
    """Return the answer to a request for verdicts."""
    body = {"rubric": {"criteria": CRITERIA}, "judge": judge, "groups": GROUPS} | fields
    answer = await http.post(path, json=body)
    assert answer.status_code == 200, answer.text
    return answer.json()


def members_of(answer: Any) -> dict[str, Any]:
    """Return the usage of each member, by name."""
    return {one["judge"]: one["usage"] for one in answer["judge"]["members"]}


def verdicts_of(answer: Any) -> list[Any]:
    """Return all verdicts of an answer."""
    return [v for group in answer["groups"] for response in group["responses"] for v in response["verdicts"]]


async def test_a_cascade_answers_like_any_judge_and_shows_its_members() -> None:
    async with serving() as http:
        small = verdicts_of(await judged(http, "small"))
        answer = await judged(http, "both")
        again = await judged(http, "both")
    said = verdicts_of(answer)
    inside = [0.3 <= one["probability"] <= 0.7 for one in small]
    assert any(inside)
    assert not all(inside)
    for alone, combined, escalated in zip(small, said, inside, strict=True):
        assert combined["score"] == (1.0 if escalated else alone["score"])
        assert [one["judge"] for one in combined["members"]] == (["small", "large"] if escalated else ["small"])
        assert combined["cached"] is not escalated
    usage, members = answer["usage"], members_of(answer)
    assert members["small"]["judge_calls"] == 0  # cached by the earlier request for `small`
    assert members["large"]["verdicts"] == members["large"]["judge_calls"] == sum(inside)
    assert usage["judge_calls"] == usage["compared"] == sum(inside)
    assert usage["disagreed"] == sum(e and one["score"] == 0.0 for one, e in zip(small, inside, strict=True))
    assert answer["judge"]["model"] == "cascade(scripted, scripted)"
    assert [one["judge"] for one in answer["judge"]["members"]] == ["small", "large"]
    assert len({answer["judge"]["fingerprint"], *(one["fingerprint"] for one in answer["judge"]["members"])}) == 3
    assert verdicts_of(again) == [one | {"cached": True} for one in said]
    assert again["usage"]["judge_calls"] == 0


async def test_rewards_steps_streams_comparisons_and_questions_accept_a_cascade_or_a_panel() -> None:
    stepped = "### Step 1: a\n7 is odd.\n### Step 2: b\nSo \\boxed{yes}"
    group = [{"id": "g", "prompt": "p", "responses": [stepped, "no"], "ground_truth": "yes"}]
    rubric = {"criteria": [*CRITERIA, {"id": "answer", "kind": "answer", "description": "Is yes."}]}
    async with serving() as http:
        for judge in ("both", "three"):
            body = {"rubric": rubric, "groups": group, "reward": {"mode": "stepwise"}}
            rewarded = await judged(http, judge, "/v1/rewards", **body)
            responses = rewarded["groups"][0]["responses"]
            assert all(one["status"] == "scored" for one in responses)
            assert [one["verdicts"][-1]["method"] for one in responses] == ["math", "math"]
            assert [one["verdicts"][-1]["score"] for one in responses] == [1.0, 0.0]
            assert all(v["step"] is not None for one in responses for v in one["verdicts"])
            assert responses[0]["steps"]
            asked = body | {"judge": judge}
            streamed = await http.post("/v1/rewards", json=asked, headers={"Accept": "application/x-ndjson"})
            lines = [json.loads(line) for line in streamed.text.splitlines()]
            assert [one["reward"] for one in lines[0]["group"]["responses"]] == [one["reward"] for one in responses]
            assert members_of(lines[-1]["summary"]).keys() == members_of(rewarded).keys()
            pairs = {"pairs": [{"id": "p", "prompt": "?", "a": "one", "b": "two"}], "judge": judge}
            compared = (await http.post("/v1/comparisons", json=pairs)).json()
            assert compared["pairs"][0]["status"] == "ok"
            questions = {"q": {"type": "noul", "instructions": "Is it brief?", "criteria": {"true": "It is brief."}}}
            typed = {"model": judge, "state": "a state", "questions": questions}
            decided = await http.post("/v1/systemone", json=typed)
            assert 0 <= decided.json()["answers"]["q"]["noul"] <= 1, decided.text


async def test_an_unsupported_combination_is_refused_with_advice() -> None:
    async with serving() as http:
        body = {"rubric": {"criteria": CRITERIA}, "judge": "both", "groups": GROUPS, "judging": {"protocol": "graded"}}
        refused = await http.post("/v1/verdicts", json=body)
    assert refused.status_code == 422
    assert refused.json()["errors"][0]["field"] == "judging.protocol"
    assert "or name one of its judges: small, large" in refused.json()["detail"]


async def test_readiness_capabilities_and_metrics_include_cascades_and_panels() -> None:
    async with serving() as http:
        ready = (await http.get("/readyz")).json()["checks"]
        assert set(ready) >= {"judge", "judge small", "judge both", "judge three"}
        listed = {one["name"]: one for one in (await http.get("/v1")).json()["judges"]}
        assert listed["both"]["kind"] == "cascade"
        assert listed["three"]["members"] == ["default", "small", "large"]
        answer = await judged(http, "both")
        page = (await http.get("/metrics")).text
    small, large = members_of(answer).values()
    assert f'adjudge_member_verdicts_total{{judge="both",member="large",outcome="ok"}} {large["verdicts"]}.0' in page
    assert f'adjudge_member_calls_total{{judge="both",member="small"}} {small["judge_calls"]}.0' in page
    assert f'adjudge_members_disagreed_total{{judge="both"}} {answer["usage"]["disagreed"]}.0' in page
    assert 'adjudge_judge_calls_total{judge="both"} 0.0' in page  # counted for its members


@pytest.mark.parametrize("database", ["sqlite", pytest.param("postgresql", marks=pytest.mark.postgres)])
async def test_the_ledger_stores_the_verdict_and_cost_of_each_member(
    database: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    own = {}
    if database == "postgresql":
        own = {"database_url": request.getfixturevalue("migrated_postgres_url")}
    settings = Settings(**own)  # type: ignore[arg-type]
    async with serving(**own) as http:
        answer = await judged(http, "both", run="r", step=1)
        for _ in range(2000):
            if not (await http.get("/v1/ledger")).json()["waiting"]:
                break
            await asyncio.sleep(0.01)
        page = (await http.get("/v1/verdicts", params={"run": "r", "limit": 100})).json()["verdicts"]
    kept = {(one["response"], one["verdict"]["criterion"]): one for one in page}
    for place, response in enumerate(answer["groups"][0]["responses"]):
        for verdict in response["verdicts"]:
            one = kept[place, verdict["criterion"]]
            assert one["verdict"]["members"] == verdict["members"]
            assert one["verdict"]["score"] == verdict["score"]
            assert one["fingerprint"] == answer["judge"]["fingerprint"]
    engine = create_engine(settings.store_url.replace("+aiosqlite", ""))
    with engine.connect() as connection:
        (row,) = connection.execute(select(requests.c.members, requests.c.judge_calls))
    engine.dispose()
    assert json.loads(row.members) == members_of(answer)
    assert row.judge_calls == sum(one["judge_calls"] for one in members_of(answer).values())


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"both": {"cascade": ["small"], "band": [0, 1]}}, "cascade"),
        ({"both": {"cascade": ["default", "small"]}}, 'a cascade needs "band"'),
        ({"both": {"cascade": ["default", "small"], "band": [0.7, 0.3]}}, "must rise"),
        ({"both": {"panel": ["default", "small"], "weights": [1]}}, "give 2 weights"),
        ({"both": {"panel": ["default", "default"]}}, "name each judge once"),
        ({"both": {"judges": ["default", "small"]}}, "judges"),
    ],
)
def test_invalid_settings_say_what_to_write(given: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Settings(engines={"small": "scripted://hash"} | given)


@pytest.mark.parametrize(
    ("members", "why"), [(["default", "tiny"], "'tiny', which does not exist"), (["default", "both"], "is a cascade")]
)
async def test_a_member_must_be_a_judge_with_an_engine(members: list[str], why: str) -> None:
    given = JUDGES | {"odd": {"cascade": members, "band": [0, 1]}}
    with pytest.raises(ValueError, match=why):
        async with serving(engines=given):
            pass


@pytest.mark.faults
def test_an_api_runs_cascades_of_judge_processes_and_survives_the_loss_of_the_large_judge(tmp_path: Path) -> None:
    def process(name: str, *arguments: str, **settings: str) -> Any:
        return listening(*arguments, "--port", "0", ADJUDGE_DATA_DIR=str(tmp_path / name), **settings)

    with (
        process("small", "judge", "--engine", "scripted://hash") as small,
        process("large", "judge", "--engine", "scripted://yes") as large,
    ):
        judges = {
            "default": {"cascade": ["small", "large"], "band": [0.3, 0.7]},
            "small": small.url,
            "large": large.url,
        }
        with (
            process("api", "api", ADJUDGE_JUDGES=json.dumps(judges)) as api,
            Client(api.url) as client,
        ):
            api.wait_until_ready(client)
            before = client.verdicts(groups=GROUPS, rubric={"criteria": CRITERIA})
            assert before.judge is not None
            assert before.judge.members[1].usage.verdicts > 0
            assert before.usage.failed == 0
            large.process.kill()
            large.process.wait()
            other = [{"id": "g", "prompt": "p", "responses": ["another response"]}]
            after = client.verdicts(groups=other, rubric={"criteria": CRITERIA}, deadline_s=60)
            said = after.groups[0].responses[0].verdicts
            decided = [one for one in said if one.status == "ok"]
            failed = [one for one in said if one.failure is not None]
            assert decided
            assert failed
            assert {len(one.members) for one in decided} == {1}
            assert {one.failure.kind for one in failed if one.failure is not None} == {"engine"}
