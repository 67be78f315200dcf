"""A failed verdict never becomes a reward: failure policies, lost engines and full queues."""

import asyncio
from typing import Any

import httpx2
import pytest

from judge_server.engines.scripted import ScriptedEngine, always, by_hash
from judge_server.ports import Batch, Call, CallFailure, Reply
from tests.judge_server.api.test_rewards import rewards
from tests.judge_server.conftest import Serve
from tests.judge_server.support import CRITERIA, STEPPED, GatedEngine, request
from trainer_client.rewards import reward
from trainer_client.steps import has_format
from trainer_client.wire import ResponseReward, RewardMode


def failing(*about: str, kind: str = "engine", detail: str = "the script says so") -> ScriptedEngine:
    """An engine that fails every question that contains one of these texts, and says yes to all others."""

    def script(batch: Batch, call: Call) -> Reply | CallFailure:
        fails = any(text in call.question for text in about)
        return CallFailure(kind, detail) if fails else always(True)(batch, call)  # type: ignore[arg-type]

    return ScriptedEngine(script)


def failed(response: ResponseReward) -> dict[str, str]:
    """The failure kind of each failed verdict by criterion; a failed verdict must have no value."""
    kinds = {}
    for verdict in response.verdicts:
        if verdict.status == "failed":
            assert (verdict.score, verdict.probability, verdict.choice_mass, verdict.step) == (None,) * 4
            assert verdict.failure is not None
            assert not verdict.cached
            kinds[verdict.criterion] = verdict.failure.kind
        else:
            assert verdict.score is not None
    return kinds


@pytest.mark.parametrize("mode", ["weighted_mean", "points", "stepwise", "graded_mean"])
@pytest.mark.parametrize("policy", ["null", "zero", "skip"])
async def test_the_failure_policy_alone_decides_what_a_failed_verdict_means(
    serve: Serve, mode: RewardMode, policy: Any
) -> None:
    http = await serve(failing("Gives a reason", "The final answer is yes"))
    answer = await rewards(http, request(STEPPED, reward={"mode": mode}, on_failure=policy))
    response = answer.groups[0].responses[0]
    assert failed(response) == {"process": "engine", "answer": "engine"}
    scores = [verdict.score for verdict in response.verdicts]
    assert response.reward == reward(CRITERIA, scores, mode, policy, format_ok=has_format(STEPPED))
    assert (answer.on_failure, answer.usage.failed) == (policy, 2)
    if policy == "null":
        assert (response.reward, response.status, response.policy_applied) == (None, "unscored", None)
    elif policy == "zero":
        assert (response.reward, response.status, response.policy_applied) == (0.0, "unscored", "zero")
    elif mode == "stepwise":
        assert (response.reward, response.status) == (None, "unscored")
    else:
        assert (response.status, response.policy_applied, response.dropped) == ("partial", "skip", 2)


async def test_under_the_error_policy_failed_verdicts_are_a_problem_with_counts_by_kind(serve: Serve) -> None:
    http = await serve(failing("Gives a reason", "Is polite"))
    answer = await http.post("/v1/rewards", json=request("Yes.", on_failure="error"))
    problem = answer.json()
    assert (answer.status_code, problem["type"]) == (502, "urn:adjudge:judging-failed")
    assert problem["retryable"] is True
    assert "2 of 7 verdicts failed (2 engine)" in problem["detail"]
    assert "the script says so" in problem["detail"]
    assert "groups" not in problem


async def test_the_detail_of_a_failure_is_passed_on_with_lone_surrogates_replaced(serve: Serve) -> None:
    http = await serve(failing("Gives a reason", detail="half \ud83d, whole \ud83d\ude00"))
    answer = await rewards(http, request("Yes."))
    details = [v.failure.detail for v in answer.groups[0].responses[0].verdicts if v.failure]
    assert details == ["half \ufffd, whole 😀"]
    refused = await http.post("/v1/rewards", json=request("Yes.", on_failure="error"))
    assert refused.status_code == 502
    assert "half \ufffd, whole 😀" in refused.json()["detail"]


@pytest.mark.parametrize("policy", ["null", "zero", "skip"])
async def test_a_failure_affects_only_its_own_response(serve: Serve, policy: str) -> None:
    def script(batch: Batch, call: Call) -> Reply | CallFailure:
        return CallFailure("truncated_input", "no") if "BAD" in batch.shared else by_hash(batch, call)

    answer = await rewards(await serve(ScriptedEngine(script)), request("good", "BAD", on_failure=policy))
    good, bad = answer.groups[0].responses
    assert good.status == "scored"
    assert bad.status == "unscored"
    assert set(failed(bad).values()) == {"truncated_input"}


async def test_points_out_of_range_are_clipped_and_counted(serve: Serve) -> None:
    text = '{"verdicts": [{"id": 1, "awarded": 9}, {"id": 2, "awarded": -1}, {"id": 3, "awarded": 1}]}'
    http = await serve(ScriptedEngine(lambda batch, call: Reply(text=text)))
    criteria = [{"id": name, "description": f"Says {name}.", "weight": 2} for name in "abc"]
    asked = request("Yes.", rubric={"criteria": criteria}, reward={"mode": "partial_credit"})
    answer = await rewards(http, asked)
    [response] = answer.groups[0].responses
    assert [(v.score, v.grade) for v in response.verdicts] == [(1.0, 9.0), (0.0, -1.0), (0.5, 1.0)]
    assert (response.reward, answer.usage.clipped) == (0.5, 2)


@pytest.mark.parametrize("truncate", [False, True])
async def test_after_the_engine_closes_verdicts_fail_as_engine_and_give_no_reward(serve: Serve, truncate: bool) -> None:
    engine = ScriptedEngine(context_tokens=5000)
    http = await serve(engine, retry_times={"max_hold_s": 0.3})
    await engine.close()
    answer = await rewards(http, request("Yes.", "No. " * 9000, judging={"truncate": truncate}))
    for response in answer.groups[0].responses:
        assert set(failed(response).values()) == {"engine"}
        assert (response.reward, response.status) == (None, "unscored")
    assert (await http.get("/readyz")).status_code == 503
    assert (await http.get("/healthz")).status_code == 200


@pytest.mark.parametrize("accept", ["application/json", "application/x-ndjson"])
async def test_a_full_queue_refuses_the_whole_request_and_says_when_to_retry(serve: Serve, accept: str) -> None:
    engine = GatedEngine(concurrent_batches=1)
    http = await serve(engine, queue_calls=10)
    running = asyncio.create_task(http.post("/v1/rewards", json=request("Yes.")))
    await engine.busy()
    refused = await http.post("/v1/rewards", json=request("No."), headers={"Accept": accept})
    assert (refused.status_code, refused.json()["type"]) == (429, "urn:adjudge:overloaded")
    assert int(refused.headers["Retry-After"]) > 0
    assert refused.json()["retryable"] is True
    engine.release(7)
    assert (await running).status_code == 200


async def test_a_response_over_the_context_fails_unless_it_may_be_truncated(serve: Serve) -> None:
    engine = ScriptedEngine(context_tokens=600)
    http = await serve(engine)
    body = request("short", "long " * 4000)
    short, long = (await rewards(http, body)).groups[0].responses
    assert (short.status, failed(short), short.characters_omitted) == ("scored", {}, 0)
    assert set(failed(long).values()) == {"truncated_input"}
    assert (long.reward, long.characters_omitted) == (None, 0)
    short, long = (await rewards(http, body | {"judging": {"truncate": True}})).groups[0].responses
    assert (long.status, failed(long)) == ("scored", {})
    assert 0 < long.characters_omitted < 20_000
    assert short.characters_omitted == 0


async def test_where_the_prompt_alone_is_over_the_context_truncating_does_not_help(serve: Serve) -> None:
    http: httpx2.AsyncClient = await serve(ScriptedEngine(context_tokens=600))
    group = {"id": "g", "prompt": "p" * 9000, "responses": ["short", "x"]}
    answer = await rewards(http, request(groups=[group], judging={"truncate": True}))
    for response in answer.groups[0].responses:
        assert set(failed(response).values()) == {"truncated_input"}
        assert (response.reward, response.characters_omitted) == (None, 0)
