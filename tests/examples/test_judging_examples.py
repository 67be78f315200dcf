"""The request bodies in `examples/judging/`: one for every protocol that a mode can use, named accordingly."""

import json
from pathlib import Path
from typing import Any, get_args

import httpx2
import pytest

from judge_server.engines.llamacpp.engine import LlamaCppEngine
from judge_server.engines.scripted import ScriptedEngine, always
from tests.judge_server.conftest import Serve
from tests.judge_server.engines.fixtures import MODEL
from trainer_client.rewards import check_rubric
from trainer_client.wire import (
    PROTOCOLS_FOR,
    ComparisonAnswer,
    ComparisonRequest,
    JudgingProtocol,
    RewardAnswer,
    RewardRequest,
    RubricContent,
    VerdictAnswer,
    VerdictRequest,
)

FOLDER = Path(__file__).parents[2] / "examples/judging"
CELLS = [
    ".".join(filter(None, (mode, protocol)))
    for mode, protocols in PROTOCOLS_FOR.items()
    for protocol in [protocol for protocol in protocols if protocol in get_args(JudgingProtocol)] or ("",)
]
OTHERS = ["comparisons", "verdicts"]


def body(name: str) -> bytes:
    return (FOLDER / f"{name}.json").read_bytes()


async def answer_of(http: httpx2.AsyncClient, path: str, name: str) -> Any:
    answer = await http.post(f"/v1/{path}", content=body(name), headers={"Content-Type": "application/json"})
    assert answer.status_code == 200, answer.text
    return answer.json()


async def rewards_of(http: httpx2.AsyncClient, name: str) -> list[float | None]:
    answer = RewardAnswer.model_validate(await answer_of(http, "rewards", name))
    return [response.reward for response in answer.groups[0].responses]


def test_exactly_the_usable_pairs_of_mode_and_protocol_have_an_example() -> None:
    assert sorted(path.name for path in FOLDER.iterdir()) == sorted(f"{name}.json" for name in [*CELLS, *OTHERS])


@pytest.mark.parametrize("name", CELLS)
def test_an_example_is_named_by_its_mode_and_protocol(name: str) -> None:
    request = RewardRequest.model_validate_json(body(name))
    assert ".".join(filter(None, (request.reward.mode, request.judging.protocol))) == name


@pytest.mark.parametrize("name", CELLS)
def test_an_example_has_a_suitable_rubric_and_a_right_and_a_wrong_response(name: str) -> None:
    request = RewardRequest.model_validate_json(body(name))
    if request.rubric is not None:
        assert isinstance(request.rubric, RubricContent)
        check_rubric(request.rubric.criteria, request.reward.mode)
    (group,) = request.groups
    right, wrong = group.responses
    assert "\\boxed{60 km/h}" in str(right)
    assert "\\boxed{72 km/h}" in str(wrong)


def test_all_examples_use_the_same_responses() -> None:
    requests = [json.loads(body(name)) for name in [*CELLS, "verdicts"]]
    seen = {(group["prompt"], *group["responses"]) for request in requests for group in request["groups"]}
    (pair,) = ComparisonRequest.model_validate_json(body("comparisons")).pairs
    assert seen == {(pair.prompt, pair.a, pair.b)}


@pytest.mark.parametrize("name", CELLS)
async def test_every_response_of_an_example_is_scored(http: httpx2.AsyncClient, name: str) -> None:
    answer = RewardAnswer.model_validate(await answer_of(http, "rewards", name))
    responses = [response for group in answer.groups for response in group.responses]
    assert [response.status for response in responses] == ["scored", "scored"]
    assert all(response.reward is not None for response in responses)
    assert (answer.judge and answer.judge.protocol) == RewardRequest.model_validate_json(body(name)).protocol


async def test_a_program_that_compares_the_final_answer_rewards_only_the_right_response(serve: Serve) -> None:
    for script in (always(True), always(False)):
        http = await serve(ScriptedEngine(script))
        assert await rewards_of(http, "outcome") == [1.0, 0.0]
        assert await rewards_of(http, "stepwise.stepwise") == pytest.approx([1.0, 0.1])


async def test_verdicts_include_reasons_and_no_reward(http: httpx2.AsyncClient) -> None:
    VerdictRequest.model_validate_json(body("verdicts"))
    answer = VerdictAnswer.model_validate(await answer_of(http, "verdicts", "verdicts"))
    verdicts = [verdict for response in answer.groups[0].responses for verdict in response.verdicts]
    assert [verdict.status for verdict in verdicts] == ["ok"] * 6
    assert all(verdict.rationale for verdict in verdicts)


async def test_comparisons_are_asked_in_both_orders(http: httpx2.AsyncClient) -> None:
    answer = ComparisonAnswer.model_validate(await answer_of(http, "comparisons", "comparisons"))
    (pair,) = answer.pairs
    assert (pair.status, [order.first for order in pair.orders]) == ("ok", ["a", "b"])
    assert answer.win_rate == pair.score


@pytest.mark.model
async def test_a_real_judge_scores_them_too(serve: Serve, fetched: None) -> None:
    engine = LlamaCppEngine(MODEL, context_tokens=2048, threads=1)
    http = await serve(engine)
    try:
        for name in ("weighted_mean.binary", "partial_credit.graded", "stepwise.stepwise"):
            answer = RewardAnswer.model_validate(await answer_of(http, "rewards", name))
            assert answer.judge is not None
            assert "qwen2.5-coder-0.5b" in answer.judge.model
            assert [response.status for response in answer.groups[0].responses] == ["scored", "scored"]
    finally:
        await engine.close()
