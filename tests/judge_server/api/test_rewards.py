"""`POST /v1/rewards`: every mode and protocol, with rewards that follow from the verdicts in the answer."""

import json
from typing import Any, get_args

import httpx2
import pytest

from judge_server.engines.scripted import ScriptedEngine, always
from tests.judge_server.conftest import Serve
from tests.judge_server.support import CRITERIA, STEPPED, RecordingScript, request
from trainer_client.rewards import reward
from trainer_client.steps import has_format, split_steps, step_deltas
from trainer_client.wire import PROTOCOLS_FOR, RewardAnswer, RewardMode

TEXTS = ["Yes, it is.", STEPPED, "", "7 = 7 * 1\n#### yes", "### Step 3: only\nyes"]
PER_CRITERION = [mode for mode in get_args(RewardMode) if mode not in ("likert", "outcome", "ranking")]
STEPWISE = [mode for mode in get_args(RewardMode) if "stepwise" in PROTOCOLS_FOR[mode]]
PAIRS = [(mode, protocol) for mode in PER_CRITERION for protocol in PROTOCOLS_FOR[mode]]


def criteria_for(mode: str) -> list[dict[str, Any]]:
    """Criteria of every kind that suits a mode."""
    if mode == "gate":
        return [c for c in CRITERIA if c["kind"] != "pitfall"]
    return [c | {"weight": -2} if "points" in mode and c["kind"] == "pitfall" else c for c in CRITERIA]


async def rewards(http: httpx2.AsyncClient, body: dict[str, Any]) -> RewardAnswer:
    """Send a request that should succeed."""
    text = json.dumps(body)  # unlike httpx2's own encoder, this can send lone surrogates
    answer = await http.post("/v1/rewards", content=text, headers={"Content-Type": "application/json"})
    assert answer.status_code == 200, answer.text
    return RewardAnswer.model_validate_json(answer.content)


@pytest.mark.parametrize(("mode", "protocol"), PAIRS)
@pytest.mark.parametrize("engine", ["hash", "yes", "no"])
async def test_the_reward_is_the_formula_applied_to_the_verdicts_of_the_answer(
    serve: Serve, mode: RewardMode, protocol: str, engine: str
) -> None:
    scripted = ScriptedEngine() if engine == "hash" else ScriptedEngine(always(engine == "yes"))
    criteria = criteria_for(mode)
    reward_options = {"mode": mode, "format_weight": 0.25}
    body = request(*TEXTS, rubric={"criteria": criteria}, reward=reward_options, judging={"protocol": protocol})
    answer = await rewards(await serve(scripted), body)
    assert answer.judge is not None
    assert (answer.mode, answer.judge.protocol) == (mode, protocol)
    for text, response in zip(TEXTS, answer.groups[0].responses, strict=True):
        scores = [verdict.score for verdict in response.verdicts]
        assert None not in scores
        expected = reward(criteria, scores, mode, format_ok=has_format(text), format_weight=0.25)
        assert response.reward == pytest.approx(expected, abs=1e-12)
        assert (response.status, response.policy_applied, response.dropped) == ("scored", None, 0)
        assert [verdict.criterion for verdict in response.verdicts] == [c["id"] for c in criteria]
        methods = {verdict.method for verdict in response.verdicts}
        assert methods == {"judge"} if text else "no_content" in methods


@pytest.mark.parametrize("mode", STEPWISE)
async def test_steps_are_those_of_the_response_with_the_deltas_of_its_verdicts(
    http: httpx2.AsyncClient, mode: str
) -> None:
    criteria = criteria_for(mode)
    body = request(*TEXTS, rubric={"criteria": criteria}, reward={"mode": mode}, judging={"protocol": "stepwise"})
    answer = await rewards(http, body)
    for text, response in zip(TEXTS, answer.groups[0].responses, strict=True):
        steps = split_steps(text)
        assert [(s.number, s.start, s.end) for s in response.steps] == [(0, 0, len(text)), *steps]
        numbers = [v.step for v in response.verdicts]
        assert set(numbers) <= {-1, 0, *(s.number for s in steps)}
        highest = max((s.number for s in steps), default=0)
        deltas = step_deltas(criteria, [v.score for v in response.verdicts], numbers, highest)
        assert {s.number: s.delta for s in response.steps if s.delta is not None} == pytest.approx(deltas)


async def test_a_program_with_a_step_reports_that_step_whether_satisfied_or_not(
    http: httpx2.AsyncClient,
) -> None:
    def criterion(id_: str, kind: str, **verification: Any) -> dict[str, Any]:
        return {
            "id": id_,
            "kind": kind,
            "description": id_,
            "weight": int(kind != "pitfall"),
            "verification": verification,
        }

    criteria = [
        criterion("product", "suggest", method="regex", pattern=r"3\*4\s*=\s*12", step=1),
        criterion("sum", "suggest", method="contains", all_of=["12+1=13"], step=2),
        criterion("adds", "pitfall", method="contains", all_of=["3*4=7"]),
        criterion("answer", "answer", method="exact", expected="13"),
    ]
    right = "### Step 1: 3*4 = 12\n### Step 2: 12+1=13\n\\boxed{13}"
    wrong = "### Step 1: so\n### Step 2: 3*4=7\n\\boxed{13}"
    short = "### Step 2: 12+1=13"
    body = request(right, wrong, short, rubric={"criteria": criteria}, reward={"mode": "stepwise"})
    responses = (await rewards(http, body)).groups[0].responses
    assert [[(v.score, v.step) for v in response.verdicts] for response in responses] == [
        [(1.0, 1), (1.0, 2), (0.0, -1), (1.0, 0)],
        [(0.0, 1), (0.0, 2), (1.0, 2), (1.0, 0)],
        [(0.0, -1), (1.0, 2), (0.0, -1), (0.0, 0)],
    ]
    assert [[(s.number, s.delta) for s in response.steps] for response in responses] == [
        [(0, None), (1, 0.4), (2, 0.4)],
        [(0, None), (1, 0.0), (2, -1.0)],
        [(0, None), (2, 0.4)],
    ]
    answer = await rewards(http, body | {"reward": {"mode": "weighted_mean"}})
    assert [response.reward for response in answer.groups[0].responses] == pytest.approx([1, 1 / 3, 1 / 3])
    assert {v.step for response in answer.groups[0].responses for v in response.verdicts} == {None}


async def test_a_verdict_carries_the_probability_and_mass_it_came_from(http: httpx2.AsyncClient) -> None:
    for verdict in (await rewards(http, request(*TEXTS))).groups[0].responses[0].verdicts:
        assert verdict.probability is not None
        assert verdict.choice_mass == pytest.approx(0.9)
        assert verdict.score == float(verdict.probability >= 0.5)
        assert (verdict.status, verdict.failure) == ("ok", None)


async def test_groups_and_responses_are_returned_in_order_even_if_a_group_is_sent_in_parts(
    http: httpx2.AsyncClient,
) -> None:
    groups = [
        {"id": name, "prompt": "Is 7 prime?", "responses": texts}
        for name, texts in (("a", "xy"), ("b", "z"), ("a", "w"))
    ]
    together = await rewards(http, request(groups=[g | {"responses": list(g["responses"])} for g in groups]))
    assert [(g.id, len(g.responses)) for g in together.groups] == [("a", 2), ("b", 1), ("a", 1)]
    alone = await rewards(http, request("w"))
    assert alone.groups[0].responses[0].reward == together.groups[2].responses[0].reward


async def test_the_same_request_twice_gives_the_same_rewards_from_cached_verdicts(serve: Serve) -> None:
    script = RecordingScript()
    http = await serve(ScriptedEngine(script))
    first, second = [await rewards(http, request(*TEXTS, judging={"defences": []})) for _ in range(2)]
    calls = len(TEXTS) * len(CRITERIA)
    assert (first.usage.judge_calls, first.usage.cached) == (calls, 0)
    assert (second.usage.judge_calls, second.usage.cached) == (0, calls)
    assert script.asked.total() == calls
    for a, b in zip(first.groups[0].responses, second.groups[0].responses, strict=True):
        assert a.reward == b.reward
        assert all(not v.cached for v in a.verdicts)
        assert [v.model_copy(update={"cached": False}) for v in b.verdicts] == list(a.verdicts)
        assert all(v.cached for v in b.verdicts)


async def test_the_answer_names_its_run_request_and_judge(http: httpx2.AsyncClient) -> None:
    body = request("Yes.", run="run-1", step=3)
    answer = await http.post("/v1/rewards", json=body, headers={"X-Request-Id": "mine"})
    read = RewardAnswer.model_validate_json(answer.content)
    assert (read.run, read.step, read.request_id, read.on_failure) == ("run-1", 3, "mine", "null")
    assert read.judge is not None
    assert read.judge.model == "scripted"
    stepwise = await rewards(http, body | {"judging": {"protocol": "stepwise"}})
    assert stepwise.judge is not None
    assert stepwise.judge.fingerprint != read.judge.fingerprint
    assert read.usage.seconds_judging >= 0


async def test_a_group_may_have_its_own_rubric_by_reference_or_inline(http: httpx2.AsyncClient) -> None:
    inline = {"criteria": CRITERIA[:2]}
    published = (await http.post("/v1/rubrics/math/primes/versions", json={"criteria": CRITERIA[2:4]})).json()
    group = {"id": "a", "prompt": "p", "responses": ["r"]}
    references = ["math/primes", "math/primes@1", published["digest"]]
    groups = [group, group | {"rubric": inline}, *(group | {"rubric": reference} for reference in references)]
    answer = await rewards(http, request(groups=groups))
    judged = [tuple(v.criterion for v in g.responses[0].verdicts) for g in answer.groups]
    assert judged == [tuple(c["id"] for c in CRITERIA), ("fact", "process"), *[("suggest", "pitfall")] * 3]
    assert {g.rubric for g in answer.groups[2:]} == {published["digest"]}
    pinned = [(r.name, r.version) for r in answer.rubrics]
    assert pinned == [(None, None), (None, None), ("math/primes", 1)]
