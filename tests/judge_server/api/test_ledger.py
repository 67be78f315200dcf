"""`GET /v1/verdicts`, `GET /v1/ledger` and `POST /v1/rewards/recompute` over HTTP."""

import asyncio
import json
from typing import Any

import httpx2
import pytest

from rubric_store import SQLLedger
from tests.judge_server.api.problems import checked_problem
from tests.judge_server.api.recording import post, verdicts
from tests.judge_server.ledger.test_spool import no_space
from tests.judge_server.support import CRITERIA, STEPPED, request


async def lines(http: httpx2.AsyncClient, **body: Any) -> list[dict[str, Any]]:
    """The lines of a recomputation."""
    answer = await http.post("/v1/rewards/recompute", json=body)
    assert answer.status_code == 200, answer.text
    assert answer.headers["Content-Type"] == "application/x-ndjson"
    return [json.loads(line) for line in answer.text.splitlines()]


def kept(verdict: dict[str, Any]) -> Any:
    """An answered verdict as the ledger stores it: databases cannot store a NUL."""
    return json.loads(json.dumps({k: v for k, v in verdict.items() if k != "cached"}).replace("\\u0000", "\\ufffd"))


async def test_verdicts_are_read_as_they_were_answered(recorded: httpx2.AsyncClient) -> None:
    judging = {"votes": 3, "rationale": True}
    body = request(STEPPED, "No.", run="r", step=4, judging=judging)
    answer = (await post(recorded, body)).json()
    found = await verdicts(recorded, run="r")
    answered = [verdict for response in answer["groups"][0]["responses"] for verdict in response["verdicts"]]
    assert [kept(each["verdict"]) for each in found] == [kept(each) for each in answered]
    assert {each["status"] for each in answered} == {"ok", "failed"}
    first = found[0]
    assert (first["run"], first["step"], first["group"], first["response"]) == ("r", 4, "g", 0)
    assert (first["request_id"], first["rubric"]) == (answer["request_id"], answer["groups"][0]["rubric"])
    assert (first["judge"], first["fingerprint"]) == ("scripted", answer["judge"]["fingerprint"])
    assert first["text"] is None


async def test_a_recorded_verdict_describes_its_criterion_and_response(recorded: httpx2.AsyncClient) -> None:
    body = request("Yes.", "No.", run="r", step=4)
    answer = (await post(recorded, body)).json()["groups"][0]
    found = await verdicts(recorded, run="r")
    rewards = [each["reward"] for each in answer["responses"]]
    assert [each["reward"] for each in found] == [rewards[each["response"]] for each in found]
    said = {each["verdict"]["criterion"]: (each["kind"], each["weight"]) for each in found}
    assert said == {each["id"]: (each.get("kind", "point"), each.get("weight", 1.0)) for each in CRITERIA}
    assert len({each["prompt_digest"] for each in found}) == 1
    await post(recorded, {**request("Yes.", run="bare"), "rubric": None, "reward": {"mode": "likert"}})
    (bare,) = await verdicts(recorded, run="bare")
    assert (bare["kind"], bare["weight"]) == (None, None)


@pytest.mark.parametrize("how", ["streamed", "verdicts"])
async def test_streamed_rewards_and_plain_verdicts_are_recorded_too(recorded: httpx2.AsyncClient, how: str) -> None:
    body = request("Yes.", "No.", run="r")
    if how == "streamed":
        await post(recorded, body, headers={"Accept": "application/x-ndjson"})
    else:
        await post(recorded, body, "/v1/verdicts")
    assert len(await verdicts(recorded, run="r")) == 14


async def test_what_trainers_sent_one_after_the_other_is_read_in_this_order(recorded: httpx2.AsyncClient) -> None:
    label = json.dumps({"rubric": [{"id": "seven", "description": "Names the 7."}]})
    for text in "abcdefg":
        body = {"prompt": "Is 7 prime?", "response": text, "label": label}
        await post(recorded, body, "/v1/compat/slime?run=r&on_failure=zero")
    assert [each["text"] for each in await verdicts(recorded, run="r", texts=True)] == [*"abcdefg"]


async def test_verdicts_can_be_filtered(recorded: httpx2.AsyncClient) -> None:
    published = await recorded.post("/v1/rubrics/math/primes/versions", json={"criteria": CRITERIA})
    body = request(*"abcdef", run="r", step=1, rubric="math/primes")
    await post(recorded, body)
    await post(recorded, request("a", run="r", step=2, rubric={"criteria": CRITERIA[:1]}))
    assert len(await verdicts(recorded, run="r", rubric="math/primes@1")) == 42
    assert len(await verdicts(recorded, run="r", rubric=published.json()["digest"])) == 42
    assert len(await verdicts(recorded, run="r", step=2)) == 1
    assert {v["verdict"]["criterion"] for v in await verdicts(recorded, run="r", criterion="fact")} == {"fact"}
    failed = await verdicts(recorded, run="r", status="failed")
    assert {v["verdict"]["failure"]["kind"] for v in failed} == {"truncated_input"}
    assert len(failed) + len(await verdicts(recorded, run="r", status="ok")) == 43
    assert await verdicts(recorded, run="other") == []


async def test_texts_are_returned_on_request(recorded: httpx2.AsyncClient) -> None:
    messages = [{"role": "assistant", "content": "Yes."}]
    group = {"id": "g", "prompt": "?", "grounding": "G", "responses": ["Yes.", messages]}
    await post(recorded, request(groups=[group], run="r"))
    found = await verdicts(recorded, run="r", texts=True, criterion="fact")
    first, second = found
    assert (first["prompt"], first["text"], first["grounding"]) == ("?", "Yes.", "G")
    assert second["text"][0]["content"] == "Yes."


async def test_the_texts_of_a_page_take_few_reads(
    recorded: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads: list[str] = []

    def counted(name: str) -> Any:
        read = getattr(SQLLedger, name)

        async def reading(*given: Any) -> Any:
            reads.append(name)
            return await read(*given)

        return reading

    texts = [f"Answer {n}." for n in range(100)]
    await post(recorded, request(*texts, "long" * 20_000, run="r"))
    for name in ("texts", "short_texts"):
        monkeypatch.setattr(SQLLedger, name, counted(name))
    query = {"run": "r", "criterion": "fact", "texts": True, "limit": 101}
    page = (await recorded.get("/v1/verdicts", params=query)).json()["verdicts"]
    assert [one["text"] for one in page] == [*texts, "long" * 20_000]
    assert sorted(reads) == ["short_texts"] * 4 + ["texts"] * 2, "the rubric, and the long text"


async def test_a_page_ends_before_its_texts_are_large(recorded: httpx2.AsyncClient) -> None:
    by_program = {"description": "Says a.", "verification": {"method": "contains", "all_of": ["a"]}}
    rubric = {"criteria": [{"id": f"c{n}", **by_program} for n in range(5)]}
    group = {"id": "g", "prompt": "?" * 1_500_000, "responses": ["a"]}
    await post(recorded, {"run": "r", "rubric": rubric, "groups": [group]}, "/v1/verdicts")
    assert len((await recorded.get("/v1/verdicts", params={"run": "r"})).json()["verdicts"]) == 5
    found: list[list[str]] = []
    after: str | None = ""
    while after is not None:
        wanted: dict[str, Any] = {"run": "r", "texts": True}
        if after:
            wanted["after"] = after
        page = (await recorded.get("/v1/verdicts", params=wanted)).json()
        assert {one["prompt"] for one in page["verdicts"]} == {group["prompt"]}
        found.append([one["verdict"]["criterion"] for one in page["verdicts"]])
        after = page["next_cursor"]
    assert found == [["c0", "c1"], ["c2", "c3"], ["c4"]]


async def test_a_run_without_a_name_is_read_by_an_empty_name(recorded: httpx2.AsyncClient) -> None:
    await post(recorded, request())
    assert [v["run"] for v in await verdicts(recorded, run="")] == [None] * 7
    assert (await lines(recorded, on_failure="skip"))[-1]["summary"]["responses"] == 1


async def test_groups_of_one_id_are_recomputed_as_they_were_sent(recorded: httpx2.AsyncClient) -> None:
    ones = [{"id": "same", "prompt": text, "responses": [text, "No."]} for text in ("Yes.", "Maybe.")]
    ones[1]["rubric"] = {"criteria": CRITERIA[:2]}
    answer = (await post(recorded, request(groups=ones, run="r", reward={"components": "criterion"}))).json()
    _, *groups, _ = await lines(recorded, run="r")
    fields = "id", "rubric", "component_weights"
    assert [[one["group"][name] for name in fields] for one in groups] == [
        [one[name] for name in fields] for one in answer["groups"]
    ]


async def test_recomputing_repeats_the_rewards_and_changes_them_under_other_rules(recorded: httpx2.AsyncClient) -> None:
    answer = (await post(recorded, request(STEPPED, "No.", run="r", on_failure="skip"))).json()
    start, group, summary = await lines(recorded, run="r", on_failure="skip")
    assert start == {"start": {"run": "r", "requests": 1, "verdicts": 14}}
    rewards = [response["reward"] for response in answer["groups"][0]["responses"]]
    assert [response["reward"] for response in group["group"]["responses"]] == rewards
    assert summary["summary"]["mean_reward"] == pytest.approx(sum(rewards) / 2)
    before = (await recorded.get("/v1/ledger")).json()["recorded"]
    only = {criterion["id"]: float(criterion["id"] == "answer") for criterion in CRITERIA}
    other = await lines(recorded, run="r", on_failure="zero", reward={"mode": "points"}, weights=only)
    assert {response["reward"] for response in other[1]["group"]["responses"]} <= {0.0, 1.0}
    assert not {0.0, 1.0}.issuperset(rewards)
    assert (await recorded.get("/v1/ledger")).json()["recorded"] == before


async def test_an_error_in_a_recomputation_is_its_last_line(recorded: httpx2.AsyncClient) -> None:
    await post(recorded, request(*"abcdefgh", run="r"))
    *_, last = await lines(recorded, run="r", on_failure="error")
    assert last["problem"]["type"] == "urn:adjudge:judging-failed"


@pytest.mark.parametrize(("error", "kind"), [(ConnectionError("away"), "not-ready"), (KeyError("secret"), "internal")])
async def test_a_stream_whose_database_fails_midway_ends_with_a_problem(
    recorded: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch, error: Exception, kind: str
) -> None:
    async def fails(*_: Any) -> None:
        raise error

    await post(recorded, request(run="r"))
    monkeypatch.setattr(SQLLedger, "judged_responses", fails)
    start, last = await lines(recorded, run="r", on_failure="skip")
    assert start["start"]["requests"] == 1
    assert (last["problem"]["type"], "secret" in str(last)) == (f"urn:adjudge:{kind}", False)


@pytest.mark.parametrize(
    ("body", "status", "field"),
    [
        ({"run": "nobody"}, 404, None),
        ({"run": "r", "reward": {"mode": "likert"}}, 422, "reward.mode"),
        ({"run": "r", "weights": {"typo": 1}}, 422, "weights"),
        ({"run": "r", "weights": {"fact": -1}}, 422, None),
        ({"run": "r", "first_step": 2, "last_step": 1}, 422, ""),
        ({"run": "r", "modus": "gate"}, 422, "modus"),
    ],
)
async def test_an_invalid_recomputation_is_refused_at_once(
    recorded: httpx2.AsyncClient, body: dict[str, Any], status: int, field: str | None
) -> None:
    await post(recorded, request(run="r"))
    answer = await recorded.post("/v1/rewards/recompute", json=body)
    assert answer.status_code == status
    errors = checked_problem(answer)["errors"]
    assert [error["field"] for error in errors] == ([] if field is None else [field])


@pytest.mark.parametrize(
    "params",
    [
        {},
        {"run": "r", "after": "nonsense"},
        {"run": "r", "after": "____________________________AAAAAAAA"},
        {"run": "r", "rubric": "No Reference"},
        {"run": "r", "status": "perhaps"},
        {"run": "r", "limit": 501},
        {"run": "r", "step": 2**63},
    ],
    ids=str,
)
async def test_an_invalid_query_is_refused(recorded: httpx2.AsyncClient, params: dict[str, Any]) -> None:
    answer = await recorded.get("/v1/verdicts", params=params)
    assert answer.status_code == 422
    checked_problem(answer)


async def test_an_unreachable_database_is_a_retryable_error(
    recorded: httpx2.AsyncClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    async def away(*_: object, **__: object) -> None:
        raise ConnectionError("nobody there")

    for method in ("uses", "judged_run", "runs", "run"):
        monkeypatch.setattr(SQLLedger, method, away)
    for answer in (
        await recorded.get("/v1/verdicts", params={"run": "r"}),
        await recorded.post("/v1/rewards/recompute", json={"run": "r"}),
        await recorded.get("/v1/runs"),
        await recorded.get("/v1/runs/r"),
    ):
        problem = checked_problem(answer)
        assert (answer.status_code, problem["retryable"]) == (503, True)
        assert "nobody there" in problem["detail"]


async def test_a_service_without_a_ledger_says_so(http: httpx2.AsyncClient) -> None:
    assert (await http.get("/v1/ledger")).json()["keeps"] == "nothing"
    assert (await http.get("/v1/verdicts", params={"run": "r"})).status_code == 503


async def test_verdicts_that_dropout_left_out_count_as_recorded_and_as_written(recorded: httpx2.AsyncClient) -> None:
    criteria = [{"id": f"c{n}", "description": f"Is right {n}."} for n in range(4)]
    await post(recorded, request("Yes.", "No.", rubric={"criteria": criteria}, dropout={"keep": 0.5}))
    state = (await recorded.get("/v1/ledger")).json()
    assert (state["recorded"], state["waiting"], state["written"]) == (8, 0, 8)


async def test_readiness_and_metrics_report_a_spool_that_cannot_be_written(recorded: httpx2.AsyncClient) -> None:
    assert (await recorded.get("/readyz")).json()["checks"]["ledger"] is True
    with no_space():
        await post(recorded, request("Yes."))
        for _ in range(2000):
            if (answer := await recorded.get("/readyz?only=ledger")).status_code == 503:
                break
            await asyncio.sleep(0.01)
        detail = checked_problem(answer)["detail"]
        assert detail.startswith("not ready: ledger (ledger: its spool cannot be written: OSError: No space left")
        state = (await recorded.get("/v1/ledger")).json()
        assert (state["waiting"], state["lost"], state["written"]) == (0, 0, 7)
        assert "No space left" in state["spool_problem"]
        assert "adjudge_ledger_spool_writable 0.0" in (await recorded.get("/metrics")).text
        assert (await recorded.get("/readyz?only=replica")).status_code == 200
