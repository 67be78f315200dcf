"""verl's reward function against a real service: NaN stands for a missing reward."""

import asyncio
import inspect
import json
import math
from collections.abc import Iterator

import pytest

from tests.trainer_client.fake_service import REWARDS, ScriptedReply
from tests.trainer_client.verl.recorded import BATCH_KEYWORDS, REWARD_KEYWORDS, REWARD_MODEL_KEYWORDS, fake_module
from tests.trainer_client.verl.services import FORTY_TWO, JUDGED, SHORT, TOO_LONG, running
from trainer_client import AsyncClient, Client, ConnectionFailed, InvalidRequest, JudgingFailed, UnknownRubric
from trainer_client.steps import split_steps
from trainer_client.verl import compute_score, compute_score_batch, reward

ROW = {"prompt": "What is 6 times 7?", "rubric": [FORTY_TWO, SHORT], "num_turns": None, "rollout_reward_scores": {}}
KEYS = {"score", "rubric_reward", "unscored", "status", "failures", "steps", "step_rule", "reasoning"}
STEPS = [
    {"id": "a", "description": "x", "kind": "answer", "verification": {"method": "contains", "all_of": ["42"]}},
    {"id": "s", "description": "y", "kind": "suggest", "verification": {"method": "contains", "all_of": ["six"]}},
    {"id": "p", "description": "z", "kind": "pitfall", "verification": {"method": "contains", "all_of": ["add"]}},
    {"id": "b", "description": "w", "kind": "bonus", "verification": {"method": "contains", "all_of": ["none"]}},
]
IN_STEPS = "### Step 1: six rows\n### Step 2: I add, so \\boxed{42}"


@pytest.fixture(scope="module")
def url(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """A service whose judge says yes unless the prompt is too long."""
    with running("scripted://yes?context=5000", tmp_path_factory.mktemp("data")) as address:
        yield address


def scored(said, truth=None, row=ROW, **keywords):
    """Score one response as verl does: by keywords."""
    given = dict(zip(REWARD_KEYWORDS, ("math", said, truth, row), strict=True))
    return asyncio.run(compute_score(**given, **keywords))


def test_it_accepts_verls_arguments_with_and_without_a_reward_model():
    assert inspect.iscoroutinefunction(compute_score)
    signature = inspect.signature(compute_score)
    signature.bind(**dict.fromkeys((*REWARD_KEYWORDS, *REWARD_MODEL_KEYWORDS)), url="http://judge:8000")
    assert tuple(signature.parameters)[:4] == REWARD_KEYWORDS
    assert tuple(inspect.signature(compute_score_batch).parameters)[:4] == BATCH_KEYWORDS


@pytest.mark.parametrize(("said", "worth"), [("42", 1.0), ("It is 42", 0.5), ("None of it.", 0.0)])
def test_the_score_is_the_services_reward(url, said, worth):
    assert scored(said, url=url) == {
        "score": worth,
        "rubric_reward": worth,
        "unscored": 0.0,
        "status": "scored",
        "failures": "",
        "steps": "[]",
        "step_rule": "headings",
        "reasoning": "strip",
    }


def test_a_failed_judgement_gives_nan_and_the_same_keys(url):
    result = scored(TOO_LONG, row={**ROW, "rubric": [FORTY_TWO, JUDGED]}, url=url)
    assert math.isnan(result.pop("score"))
    assert result == {
        "rubric_reward": None,
        "unscored": 1.0,
        "status": "unscored",
        "failures": "truncated_input",
        "steps": "[]",
        "step_rule": "headings",
        "reasoning": "strip",
    }


def test_components_have_a_key_each_in_every_response(url):
    kinds = {"rubric/point": 0.5} | dict.fromkeys(
        (f"rubric/{kind}" for kind in ("factual", "process", "suggest", "pitfall", "bonus", "answer")), math.nan
    )
    result = scored("It is 42", url=url, components="kind")
    assert {key: result[key] for key in kinds} == pytest.approx(kinds, nan_ok=True)
    assert json.loads(result["component_weights"]) == {"point": 1.0}
    failed = scored(TOO_LONG, row={**ROW, "rubric": [FORTY_TWO, JUDGED]}, url=url, components="kind")
    assert failed.keys() == result.keys() == KEYS | kinds.keys() | {"component_weights"}
    assert math.isnan(failed["rubric/point"])
    named = {"rubric": ROW["rubric"], "row": {"prompt": ROW["prompt"]}}
    ids = [f"rubric/{criterion['id']}" for criterion in ROW["rubric"]]
    by_criterion = scored("It is 42", url=url, components="criterion", **named)
    assert [by_criterion[id_] for id_ in ids] == [1.0, 0.0]
    chosen = scored("It is 42", url=url, components="criterion", component_names=[FORTY_TWO["id"], "other"])
    assert {key for key in chosen if key.startswith("rubric/")} == {f"rubric/{FORTY_TWO['id']}", "rubric/other"}
    assert math.isnan(chosen["rubric/other"])
    away = scored("42", url="http://127.0.0.1:9", retries=0, components="kind")
    assert away.keys() == result.keys()
    assert (away["component_weights"], math.isnan(away["rubric/point"])) == ("{}", True)


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"components": "tag"}, r"name them, for example .*component_names=\[clarity,safety\]"),
        ({"components": "tag", "component_names": "clarity"}, r"give a list, such as component_names=\[clarity\]"),
        ({"components": "kind", "rubric": [JUDGED], "kinds": ["answer"]}, "rubric: no criterion is of kind 'answer'"),
        ({"components": "kind", "mode": "outcome"}, "has no components; leave out"),
    ],
)
def test_components_that_cannot_have_keys_are_refused(url, options, says):
    with pytest.raises(InvalidRequest, match=says):
        scored("42", url=url, **options)


def test_another_failure_policy_is_passed_to_the_service(url):
    row = {**ROW, "rubric": [FORTY_TWO, JUDGED]}
    result = scored(TOO_LONG + "42", row=row, url=url, on_failure="skip")
    assert (result["score"], result["status"], result["failures"]) == (1.0, "partial", "truncated_input")


def test_with_the_policy_error_a_failure_is_raised(url):
    row = {**ROW, "rubric": [JUDGED]}
    with pytest.raises(JudgingFailed):
        scored(TOO_LONG, row=row, url=url, on_failure="error", retries=0)


def test_an_unreachable_service_gives_nan(unserved_url):
    result = scored("42", url=unserved_url, retries=0)
    assert math.isnan(result["score"])
    assert result["failures"] == "unreachable"
    assert result.keys() == KEYS


def test_an_unreachable_service_is_raised_with_the_policy_error(unserved_url):
    with pytest.raises(ConnectionFailed):
        scored("42", url=unserved_url, retries=0, on_failure="error")


@pytest.mark.parametrize(
    ("row", "keywords", "error", "says"),
    [
        ({"rubric": [SHORT]}, {}, InvalidRequest, "'prompt'"),
        (None, {}, InvalidRequest, "'prompt'"),
        ({"prompt": "q"}, {}, InvalidRequest, "rubric"),
        ({"prompt": "q", "rubric": "no/such@1"}, {}, UnknownRubric, "no/such"),
        (ROW, {"step_deltas": "both"}, InvalidRequest, "'fold'"),
        (ROW, {"truncation_factor": 0.5}, InvalidRequest, "stopped"),
        (ROW, {"modus": "points"}, TypeError, "'mode'"),
        (ROW, {"weighting": "contrast"}, InvalidRequest, "scored one at a time; choose another"),
        (ROW, {"url": None}, InvalidRequest, "reward_kwargs.url"),
        (ROW, {"url": "judge:8000"}, InvalidRequest, "http://judge:8000"),
    ],
)
def test_a_user_error_is_raised_with_the_way_to_fix_it(url, row, keywords, error, says):
    with pytest.raises(error, match=says):
        scored("42", row=row, **{"url": url, **keywords})


def test_the_ground_truth_reaches_the_verification_programs(url):
    assert scored("I say \\boxed{1/2}.", "0.5", url=url, mode="outcome")["score"] == 1.0
    assert scored("I say \\boxed{1/2}.", 2, url=url, mode="outcome")["score"] == 0.0


def test_a_rubric_of_the_run_applies_to_rows_without_one(url):
    with Client(url) as client:
        client.publish_rubric("math/short", [SHORT])
    row = {"question": "What is 6 times 7?"}
    assert scored("forty", row=row, url=url, rubric="math/short")["score"] == 1.0
    assert scored("forty", row={**row, "rubric": [FORTY_TWO]}, url=url, rubric="math/short")["score"] == 0.0


def test_a_step_with_a_delta_is_passed_on_with_its_offsets(url):
    result = scored(IN_STEPS, row={**ROW, "rubric": STEPS}, url=url, mode="stepwise")
    assert result["score"] == 1.0
    spans = {step.number: (step.start, step.end) for step in split_steps(IN_STEPS)}
    assert json.loads(result["steps"]) == [[1, *spans[1], 0.8], [2, *spans[2], -1.0]]


def test_folded_deltas_are_part_of_the_score(url):
    result = scored(IN_STEPS, row={**ROW, "rubric": STEPS}, url=url, mode="stepwise", step_deltas="fold")
    assert result["score"] == result["rubric_reward"] == pytest.approx(1.0 + 0.8 - 1.0, abs=1e-12)
    assert result["steps"] == "[]"


def test_responses_without_a_base_reward_carry_no_steps(url):
    rubric = [{"id": "a", "description": "Is right.", "kind": "answer"}, *STEPS[1:]]
    result = scored(IN_STEPS + TOO_LONG, row={**ROW, "rubric": rubric}, url=url, mode="stepwise")
    assert math.isnan(result["score"])
    assert result["steps"] == "[]"


def test_a_batch_is_scored_in_order_and_row_by_row(url):
    said = ["42", TOO_LONG, "It is 42"]
    rows = [ROW, {**ROW, "rubric": [JUDGED]}, ROW]
    given = dict(zip(BATCH_KEYWORDS, (["m"] * 3, said, [None, "x", 7], rows), strict=True))
    results = compute_score_batch(**given, url=url, concurrency=2)
    assert [result["rubric_reward"] for result in results] == [1.0, None, 0.5]
    assert all(result.keys() == KEYS for result in results)


def test_an_error_in_one_row_of_a_batch_is_raised(url):
    with pytest.raises(InvalidRequest, match="'prompt'"):
        compute_score_batch(["m"] * 3, ["42"] * 3, [None] * 3, [ROW, {}, ROW], url=url)


def test_a_batch_with_columns_of_different_length_is_refused(url):
    with pytest.raises(ValueError, match="zip"):
        compute_score_batch(["m"] * 2, ["42"] * 2, [None], [ROW] * 2, url=url)


def answering(*rewards):
    """An answer with these rewards."""
    responses = [{"reward": reward, "status": "scored", "verdicts": []} for reward in rewards]

    def answer(asked):
        return {**REWARDS, "groups": [{"id": asked["groups"][0]["id"], "responses": responses}]}

    return ScriptedReply(body=answer)


def test_the_run_and_the_policy_version_are_sent_with_the_request(service):
    service.script(answering(0.5))
    for version in (7, None, -1, True):
        scored("42", row={**ROW, "max_global_steps": version}, url=service.url, run="verl-1")
    assert [asked.json["run"] for asked in service.asked] == ["verl-1"] * 4
    assert [asked.json.get("step") for asked in service.asked] == [7, None, None, None]


def test_responses_to_the_same_row_share_a_group_id_and_others_do_not(service):
    service.script(answering(0.5))
    for row in (ROW, {**ROW, "num_turns": 3}, {**ROW, "prompt": "And 6 times 8?"}, {**ROW, "grounding": "A table."}):
        scored("42", row=row, url=service.url)
    ids = [asked.json["groups"][0]["id"] for asked in service.asked]
    assert ids[0] == ids[1]
    assert len(set(ids)) == 3


@pytest.mark.parametrize(
    ("reply", "kind"),
    [
        (answering(), "mismatched"),
        (answering(0.5, 0.5), "mismatched"),
        (ScriptedReply(body=REWARDS), "mismatched"),
        (ScriptedReply(body="<html>"), "server"),
    ],
)
def test_an_invalid_answer_gives_nan(service, reply, kind):
    service.script(reply)
    result = scored("42", url=service.url, retries=0)
    assert math.isnan(result["score"])
    assert result["failures"] == kind


def test_requests_of_one_event_loop_share_a_connection(service):
    service.script(answering(0.5))

    async def in_turn():
        for _ in range(3):
            await compute_score("m", "42", None, ROW, url=service.url)

    asyncio.run(in_turn())
    assert (len(service.asked), service.connections) == (3, 1)


def test_a_batch_leaves_no_connection_open(url, monkeypatch):
    closed = []
    close = AsyncClient.aclose

    async def aclose(client):
        closed.append(client.base_url)
        await close(client)

    monkeypatch.setattr(AsyncClient, "aclose", aclose)
    compute_score_batch(["m"], ["42"], [None], [ROW], url=url)
    assert url in closed


def test_a_batch_respects_the_concurrency_limit(monkeypatch):
    at_work, most = 0, 0

    async def counted(*_, **keywords):
        nonlocal at_work, most
        at_work, most = at_work + 1, max(most, at_work + 1)
        await asyncio.sleep(0)
        at_work -= 1
        return keywords

    monkeypatch.setattr(reward, "compute_score", counted)
    results = compute_score_batch(["m"] * 9, ["42"] * 9, [None] * 9, [ROW] * 9, concurrency=4, mode="points")
    assert most == 4
    assert results == [{"mode": "points"}] * 9


class RateLimitedRewardManager:
    """A minimal version of verl's manager: it limits the time for a score and turns every error into 0."""

    _class_initialized = True

    def __init__(self, timeout=60.0):
        self.timeout = timeout

    async def run_single(self, said, **keywords):
        given = dict(zip(REWARD_KEYWORDS, ("math", said, None, ROW), strict=True))
        try:
            return (await asyncio.wait_for(compute_score(**given, **keywords), self.timeout))["score"]
        except Exception:  # noqa: BLE001 - as verl has it
            return 0.0


@pytest.fixture
def rate_limited(monkeypatch):
    """A process that uses verl's reward manager `rate_limited`."""
    name = "verl.experimental.reward_loop.reward_manager.limited"
    fake_module(monkeypatch, name, RateLimitedRewardManager=RateLimitedRewardManager)
    return RateLimitedRewardManager


@pytest.mark.parametrize(
    "keywords",
    [{"on_failure": "error"}, {"url": None}, {"mode": "no such mode"}, {"step_deltas": "both"}, {"colour": "red"}],
    ids=str,
)
def test_no_error_becomes_0_under_a_manager_that_scores_errors_as_0(rate_limited, unserved_url, keywords):
    given = {"url": unserved_url, "retries": 0} | keywords
    assert math.isnan(asyncio.run(rate_limited().run_single("42", **given)))


def test_a_slow_score_does_not_become_0_under_that_manager(rate_limited, monkeypatch):
    async def never(*_, **__):
        await asyncio.Event().wait()

    monkeypatch.setattr(AsyncClient, "rewards", never)
    assert math.isnan(asyncio.run(rate_limited(timeout=0.01).run_single("42", url="http://judge.test")))


def test_that_manager_gets_ordinary_rewards(rate_limited, url):
    assert asyncio.run(rate_limited().run_single("42", url=url)) == 1.0
