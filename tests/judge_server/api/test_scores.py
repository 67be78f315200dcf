"""`POST /v1/score` and `POST /v1/rerank`: rewards under a published rubric, in the shapes of vLLM and Cohere."""

from typing import Any

import httpx2
import pytest

from judge_server.engines.scripted import ScriptedEngine, by_hash
from judge_server.ports import Batch, Call, CallFailure, Reply
from tests.judge_server.api.problems import checked_problem
from tests.judge_server.api.recording import post, verdicts
from tests.judge_server.conftest import Serve
from tests.judge_server.support import CRITERIA

TEXTS = ["Yes, 7 is prime.", "No.", "7 has two divisors.", ""]
QUESTION = "Is 7 prime?"


async def published(http: httpx2.AsyncClient) -> str:
    """Publish a rubric and return its name."""
    answer = await http.post("/v1/rubrics/math/primes/versions", json={"criteria": CRITERIA[:2]})
    assert answer.status_code == 201, answer.text
    return "math/primes"


async def rewarded(http: httpx2.AsyncClient, *groups: tuple[str, list[str]], **fields: Any) -> list[float]:
    """The rewards of these responses, in order."""
    listed = [{"id": "g", "prompt": prompt, "responses": texts} for prompt, texts in groups]
    answer = await http.post("/v1/rewards", json={"rubric": "math/primes", "groups": listed, **fields})
    assert answer.status_code == 200, answer.text
    return [response["reward"] for group in answer.json()["groups"] for response in group["responses"]]


async def test_a_score_is_the_reward_of_that_response_under_the_rubric(http: httpx2.AsyncClient) -> None:
    model = await published(http)
    answer = await http.post("/v1/score", json={"model": model, "text_1": QUESTION, "text_2": TEXTS})
    assert answer.status_code == 200, answer.text
    said = answer.json()
    assert (said["object"], said["model"]) == ("list", "math/primes@1")
    assert said["id"] == answer.headers["X-Request-Id"]
    assert said["created"] > 1.7e9
    assert [(each["index"], each["object"]) for each in said["data"]] == [(n, "score") for n in range(4)]
    assert [each["score"] for each in said["data"]] == await rewarded(http, (QUESTION, TEXTS))
    usage = said["usage"]
    assert usage["prompt_tokens"] > 0
    assert usage["total_tokens"] == usage["prompt_tokens"] + usage["completion_tokens"]


async def test_texts_are_paired_one_to_many_or_one_to_one(http: httpx2.AsyncClient) -> None:
    model = await published(http)
    questions = [QUESTION, "Is 9 prime?"]

    async def scores(first: Any, second: Any) -> list[float]:
        answer = await http.post("/v1/score", json={"model": model, "text_1": first, "text_2": second})
        return [each["score"] for each in answer.json()["data"]]

    assert await scores(QUESTION, "No.") == await rewarded(http, (QUESTION, ["No."]))
    assert await scores([QUESTION], TEXTS) == await rewarded(http, (QUESTION, TEXTS))
    assert await scores(questions, TEXTS[:2]) == await rewarded(
        http, (questions[0], TEXTS[:1]), (questions[1], ["No."])
    )
    refused = await http.post("/v1/score", json={"model": model, "text_1": questions, "text_2": TEXTS})
    (error,) = checked_problem(refused)["errors"]
    assert "2 and 4" in error["message"]


async def test_documents_are_ranked_best_first_and_ties_keep_their_order(http: httpx2.AsyncClient) -> None:
    model = await published(http)
    body = {"model": model, "query": QUESTION, "documents": TEXTS}
    said = (await http.post("/v1/rerank", json=body)).json()
    rewards = await rewarded(http, (QUESTION, TEXTS))
    assert len(set(rewards)) > 1
    order = sorted(range(4), key=lambda n: -rewards[n])
    assert said["results"] == [
        {"index": n, "document": {"text": TEXTS[n]}, "relevance_score": rewards[n]} for n in order
    ]
    assert said["model"] == "math/primes@1"
    assert said["usage"]["total_tokens"] >= said["usage"]["prompt_tokens"] > 0
    best = (await http.post("/v1/rerank", json=body | {"top_n": 2, "return_documents": False})).json()
    assert best["results"] == [{"index": n, "relevance_score": rewards[n]} for n in order[:2]]


async def test_judging_and_reward_options_work_as_in_a_rewards_request(http: httpx2.AsyncClient) -> None:
    model = await published(http)
    ways: dict[str, Any] = {"reward": {"mode": "graded_mean"}, "judging": {"rationale": True}}
    answer = await http.post("/v1/score", json={"model": model, "text_1": QUESTION, "text_2": TEXTS, **ways})
    rewards = await rewarded(http, (QUESTION, TEXTS), **ways)
    assert [each["score"] for each in answer.json()["data"]] == rewards


def fails_on(word: str) -> ScriptedEngine:
    """An engine that fails on texts that contain `word`."""

    def script(batch: Batch, call: Call) -> Reply | CallFailure:
        return CallFailure("engine", "it broke") if word in batch.shared else by_hash(batch, call)

    return ScriptedEngine(script)


@pytest.mark.parametrize("path", ["score", "rerank"])
async def test_a_failed_judgement_is_an_error_and_never_a_score(serve: Serve, path: str) -> None:
    http = await serve(fails_on("divisors"))
    model = await published(http)
    texts = {"text_1": QUESTION, "text_2": TEXTS} if path == "score" else {"query": QUESTION, "documents": TEXTS}
    answer = await http.post(f"/v1/{path}", json={"model": model, **texts})
    assert checked_problem(answer)["type"] == "urn:adjudge:judging-failed"
    assert answer.status_code == 502
    assert "POST /v1/rewards" in answer.json()["detail"]
    assert "data" not in answer.json()
    assert "results" not in answer.json()


@pytest.mark.parametrize(
    ("given", "field", "says"),
    [
        ({"model": "no/such"}, None, "no/such"),
        ({"model": None}, "model", ""),
        ({"model": "Not A Name"}, "model", "rubric reference"),
        ({"reward": {"mode": "stepwise"}}, "model", "answer"),
        ({"documents": []}, "documents", ""),
        ({"documents": [{"text": "Yes."}]}, "documents.0", ""),
        ({"max_tokens_per_doc": 100}, "max_tokens_per_doc", "unknown field"),
        ({"reward": {"mode": "outcome"}}, "", "POST /v1/rewards"),
        ({"reward": {"length_penalty": {}}}, "", "POST /v1/rewards"),
        ({"reward": {"mode": "points"}, "judging": {"protocol": "likert"}}, "", "does not support"),
    ],
    ids=str,
)
async def test_a_request_that_cannot_be_scored_is_refused_with_a_fix(
    http: httpx2.AsyncClient, given: dict[str, Any], field: str | None, says: str
) -> None:
    body = {"model": await published(http), "query": QUESTION, "documents": TEXTS}
    answer = await http.post("/v1/rerank", json=body | given)
    if field is None:
        assert answer.status_code == 404
        assert says in checked_problem(answer)["detail"]
        return
    (error,) = checked_problem(answer)["errors"]
    assert error["field"] == field
    assert says in error["message"]


async def test_scores_are_recorded_in_the_ledger_under_their_run(recorded: httpx2.AsyncClient) -> None:
    model = await published(recorded)
    body = {"model": model, "query": QUESTION, "documents": ["Sure.", "It is."], "run": "reranked"}
    answer = (await post(recorded, body, "/v1/rerank")).json()
    found = await verdicts(recorded, run="reranked")
    assert len(found) == 4
    assert {each["request_id"] for each in found} == {answer["id"]}
    assert {(each["response"], each["reward"]) for each in found} == {
        (each["index"], each["relevance_score"]) for each in answer["results"]
    }
