"""`POST /v1/verdicts` and `POST /v1/comparisons`."""

import threading
import time
from typing import Any

import httpx2
import pytest

from judge_server.engines.scripted import ScriptedEngine, by_hash
from judge_server.judging.pairs import PairPlanner
from judge_server.ports import Batch, Call, CallFailure, Reply
from judge_server.scheduling.time_sharing import SLICE_S
from tests.judge_server.api.problems import checked_problem
from tests.judge_server.api.test_rewards import rewards
from tests.judge_server.conftest import Serve
from tests.judge_server.support import CRITERIA, STEPPED, advance_time, request
from trainer_client.wire import ComparisonAnswer, VerdictAnswer


async def verdicts(http: httpx2.AsyncClient, body: dict[str, Any]) -> VerdictAnswer:
    """Send a request that should succeed."""
    answer = await http.post("/v1/verdicts", json=body)
    assert answer.status_code == 200, answer.text
    return VerdictAnswer.model_validate_json(answer.content)


@pytest.mark.parametrize("protocol", ["binary", "stepwise", "graded", "checklist", "likert"])
async def test_verdicts_equal_those_behind_a_reward(http: httpx2.AsyncClient, protocol: str) -> None:
    body = request("Yes.", STEPPED, judging={"protocol": protocol})
    answer = await verdicts(http, body)
    mode = {"likert": "likert", "graded": "graded_mean"}.get(protocol, "weighted_mean")
    rewarded = await rewards(http, body | {"reward": {"mode": mode}})
    assert answer.judge == rewarded.judge
    assert answer.rubrics == rewarded.rubrics
    for one, other in zip(answer.groups[0].responses, rewarded.groups[0].responses, strict=True):
        assert one.verdicts == tuple(v.model_copy(update={"cached": False}) for v in other.verdicts)
        assert all(v.cached for v in other.verdicts)


async def test_a_rubric_unsuitable_for_rewards_is_accepted(http: httpx2.AsyncClient) -> None:
    criteria = [c | {"weight": -1} if c["kind"] != "fact" else c for c in CRITERIA[1:]]
    rubric = {"criteria": [*criteria, CRITERIA[0]]}
    assert len((await verdicts(http, request("x", rubric=rubric))).groups[0].responses[0].verdicts) == len(CRITERIA)


async def test_a_verdict_request_refuses_reward_options(http: httpx2.AsyncClient) -> None:
    answer = await http.post("/v1/verdicts", json=request("x", reward={"mode": "points"}))
    (error,) = checked_problem(answer)["errors"]
    assert error["field"] == "reward"
    assert error["message"].startswith("unknown field; check its spelling. Known here: run, step, reverifies, rubric,")


async def compare(http: httpx2.AsyncClient, *pairs: tuple[Any, Any], **fields: Any) -> ComparisonAnswer:
    """Compare pairs of responses."""
    listed = [{"id": f"p{n}", "prompt": "Is 7 prime?", "a": a, "b": b} for n, (a, b) in enumerate(pairs)]
    answer = await http.post("/v1/comparisons", json={"pairs": listed} | fields)
    assert answer.status_code == 200, answer.text
    return ComparisonAnswer.model_validate_json(answer.content)


def prefers(word: str, sure: float = 0.8) -> ScriptedEngine:
    """An engine that prefers the response that contains `word`, in either position, or else the first."""

    def script(batch: Batch, call: Call) -> Reply | CallFailure:
        a, _, b = batch.shared.partition("Response A:")[2].partition("Response B:")
        return Reply((1 - sure, sure)) if word in b and word not in a else Reply((sure, 1 - sure))

    return ScriptedEngine(script)


async def test_both_orders_are_judged_and_the_better_response_wins_in_either_position(serve: Serve) -> None:
    answer = await compare(await serve(prefers("right")), ("right", "wrong"), ("wrong", "right"))
    won, lost = answer.pairs
    assert (won.preferred, won.score, won.consistent) == ("a", 1.0, True)
    assert (lost.preferred, lost.score, lost.consistent) == ("b", 0.0, True)
    assert (won.probability, lost.probability) == (pytest.approx(0.8), pytest.approx(0.2))
    assert [order.first for order in won.orders] == ["a", "b"]
    assert [order.preferred for order in won.orders] == ["a", "a"]
    assert answer.win_rate == 0.5
    assert answer.judge.protocol == "comparison"


async def test_a_judge_that_always_prefers_the_first_response_ties_every_pair(serve: Serve) -> None:
    answer = await compare(await serve(prefers("nothing")), ("x", "y"), ("y", "x"))
    for pair in answer.pairs:
        assert (pair.preferred, pair.score, pair.consistent) == ("tie", 0.5, False)
        assert pair.probability == pytest.approx(0.5)
    assert answer.usage.judge_calls == 2
    assert answer.win_rate == 0.5


async def test_a_judge_that_writes_that_both_are_equal_gives_a_tie_in_each_order(serve: Serve) -> None:
    def script(batch: Batch, call: Call) -> Reply:
        return Reply(None, text="Both are right.\nMy final verdict is tie: [[A=B]]")

    (pair,) = (await compare(await serve(ScriptedEngine(script)), ("x", "y"))).pairs
    assert [order.preferred for order in pair.orders] == ["tie", "tie"]
    assert (pair.preferred, pair.score, pair.consistent) == ("tie", 0.5, True)


async def test_the_judge_sees_the_criteria_and_the_question_but_no_thinking(serve: Serve) -> None:
    seen: list[str] = []

    def script(batch: Batch, call: Call) -> Reply | CallFailure:
        seen.append(batch.shared + call.question)
        return by_hash(batch, call)

    http = await serve(ScriptedEngine(script))
    fields = {"question": "Which one is kinder?", "rubric": {"criteria": CRITERIA}}
    await compare(http, ("<think>secret</think>fair", "foul"), **fields)
    for piece in ("Which one is kinder?", "Is polite.", "To avoid: Calls 1 a prime.", "fair", "foul"):
        assert piece in seen[0]
    assert "secret" not in seen[0]
    assert seen[0].index("fair") < seen[0].index("foul")
    assert seen[1].index("foul") < seen[1].index("fair")


async def test_a_pair_with_a_failed_order_has_no_score_and_stays_out_of_the_win_rate(serve: Serve) -> None:
    def script(batch: Batch, call: Call) -> Reply | CallFailure:
        bad = "bad" in batch.shared.partition("Response A:")[2].partition("Response B:")[0]
        return CallFailure("truncated_input", "too long") if bad else Reply((0.9, 0.1))

    answer = await compare(await serve(ScriptedEngine(script)), ("bad", "x"), ("y", "z"))
    failed, judged = answer.pairs
    assert (failed.status, failed.score, failed.preferred, failed.consistent) == ("failed", None, None, None)
    assert [order.status for order in failed.orders] == ["failed", "ok"]
    assert judged.status == "ok"
    assert answer.win_rate == judged.score


async def test_reasons_are_given_for_each_order_and_comparisons_are_cached(http: httpx2.AsyncClient) -> None:
    first = await compare(http, ("x", "y"), judging={"rationale": True})
    again = await compare(http, ("x", "y"), judging={"rationale": True})
    assert all(order.rationale for order in first.pairs[0].orders)
    assert (first.usage.judge_calls, again.usage.judge_calls) == (2, 0)
    assert all(order.cached for order in again.pairs[0].orders)
    swapped = await compare(http, ("y", "x"), judging={"rationale": True})
    assert swapped.usage.judge_calls == 0
    assert swapped.pairs[0].score == pytest.approx(1 - (first.pairs[0].score or 0))


async def test_pairs_are_planned_in_slices_and_large_ones_in_a_thread(
    serve: Serve, monkeypatch: pytest.MonkeyPatch
) -> None:
    plan_pair, planned = PairPlanner.plan, []

    def plan(*given: Any) -> Any:
        planned.append(threading.current_thread() is threading.main_thread())
        time.sleep(SLICE_S)
        if len(planned) == 3:
            advance_time()
        return plan_pair(*given)

    monkeypatch.setattr(PairPlanner, "plan", plan)
    http = await serve()
    pairs = [{"id": str(n), "prompt": "?", "a": "x" * (1 if n else 2**16), "b": "y"} for n in range(20)]
    answer = await http.post("/v1/comparisons", json={"pairs": pairs, "deadline_s": 60})
    assert (answer.status_code, planned) == (503, [False, False, True])
